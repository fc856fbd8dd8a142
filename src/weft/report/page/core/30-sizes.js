/* Formulas of sizes: parsed once, bounded at the position of the sliders.

   A formula is a sum of products, `512*n_tokens+4*n_tokens*n_kv-8`; a factor may be div(a,b) (rounded
   down), mod(a,b), min(a,b) or max(a,b). The upper bound is taken term by term, as weft does. */

report.formula = (() => {
  const known = new Map();

  /** The parsed form: a list of [coefficient, factors]. */
  function parse(text) {
    let form = known.get(text);
    if (!form) {
      const reader = { text, at: 0 };
      form = sum(reader);
      if (reader.at !== text.length) throw new Error(`not a formula: ${text}`);
      known.set(text, form);
    }
    return form;
  }

  function sum(reader) {
    const terms = [];
    do {
      let sign = 1;
      if (reader.text[reader.at] === "-") sign = -1;
      if ("+-".includes(reader.text[reader.at])) reader.at += 1;
      terms.push(product(reader, sign));
    } while (reader.at < reader.text.length && "+-".includes(reader.text[reader.at]));
    return terms;
  }

  function product(reader, sign) {
    const term = [sign, []];
    for (;;) {
      const word = /[A-Za-z_]\w*|\d+/y;
      word.lastIndex = reader.at;
      const found = word.exec(reader.text);
      if (!found) throw new Error(`not a formula: ${reader.text}`);
      reader.at = word.lastIndex;
      if (/\d/.test(found[0][0])) term[0] *= Number(found[0]);
      else if (reader.text[reader.at] === "(") term[1].push(compound(reader, found[0]));
      else term[1].push(found[0]);
      if (reader.text[reader.at] !== "*") return term;
      reader.at += 1;
    }
  }

  function compound(reader, kind) {
    reader.at += 1;
    const left = sum(reader);
    reader.at += 1; // the comma
    const right = sum(reader);
    reader.at += 1; // the closing bracket
    return { kind, left, right };
  }

  /** The least and the largest value of a parsed formula; `ranges` has those of the symbols. */
  function bounds(form, ranges) {
    let low = 0;
    let high = 0;
    for (const [coefficient, factors] of form) {
      let [a, b] = [coefficient, coefficient];
      for (const factor of factors) {
        const [c, d] = typeof factor === "string" ? ranges[factor] : compoundBounds(factor, ranges);
        const corners = [a * c, a * d, b * c, b * d];
        [a, b] = [Math.min(...corners), Math.max(...corners)];
      }
      low += a;
      high += b;
    }
    return [low, high];
  }

  function compoundBounds({ kind, left, right }, ranges) {
    const [a, b] = bounds(left, ranges);
    let [c, d] = bounds(right, ranges);
    if (kind === "min") return [Math.min(a, c), Math.min(b, d)];
    if (kind === "max") return [Math.max(a, c), Math.max(b, d)];
    c = Math.max(c, 1);
    if (kind === "mod") return [0, a >= 0 ? Math.min(d - 1, b) : d - 1];
    const corners = [a / c, a / d, b / c, b / d].map(Math.floor);
    return [Math.min(...corners), Math.max(...corners)];
  }

  return {
    parse,
    /** The upper bound of a formula's text. */
    upper: (text, ranges) => bounds(parse(text), ranges)[1],
  };
})();
