/* The sliders: context, ubatch, sequences and cache types. A change shows the memory of these sizes. */

/** Sets the first layout; called before anything is drawn. */
report.prepare = (data, state) => {
  if (data.memory && data.regimes) state.set({ layout: report.plannedLayout(data) });
};

/** The bar of sliders, or a sentence why there are none. */
report.sliders = (data, state) => {
  const { el, count } = report;
  const { sliders } = data;
  if (!sliders) return null;
  if (sliders.why) {
    return el("p", { class: "soft sizes-why", text: `No sliders for sizes: ${sliders.why}.` });
  }
  let position = { ...sliders.base };
  const said = el("span", { role: "status", class: "soft" });
  const inputs = [];

  const go = (changes) => {
    const next = { ...position, ...changes };
    if (report.variant(sliders, next) === null) {
      said.textContent = "No plan was made for these sizes together.";
    } else {
      position = next;
      const own = Object.keys(position).every((key) => position[key] === sliders.base[key]);
      state.set({ layout: own ? report.plannedLayout(data) : report.layoutAt(data, position) });
      if (own) said.textContent = "";
      else if (state.get("layout").exact) said.textContent = "Exact: weft planned these sizes.";
      else said.textContent = "By formulas: weft did not plan these sizes together, so compute memory is a lower bound.";
    }
    refresh();
  };

  const slider = (key, label, values) => {
    if (values.length < 2) return null;
    const out = el("output", { class: "value" });
    const input = el("input", {
      type: "range", min: 0, max: values.length - 1, step: 1, id: `size-${key}`,
      oninput: (event) => go({ [key]: values[Number(event.target.value)] }),
    });
    inputs.push(() => {
      input.value = values.indexOf(position[key]);
      out.textContent = count(position[key]);
      input.setAttribute("aria-valuetext", count(position[key]));
    });
    return el("div", { class: "size" }, el("label", { for: `size-${key}`, text: label }), input, out);
  };

  const choice = (key, label) => {
    const names = [...new Set(Object.keys(sliders.at).map((at) => at.split(",")[key === "k" ? 2 : 3]))];
    if (names.length < 2) return null;
    const select = el(
      "select", { id: `size-${key}`, onchange: (event) => go({ [key]: event.target.value }) },
      names.map((name) => el("option", { value: name, text: name })),
    );
    inputs.push(() => {
      for (const option of select.options) {
        option.disabled = report.variant(sliders, { ...position, [key]: option.value }) === null;
      }
      select.value = position[key];
    });
    return el("div", { class: "size" }, el("label", { for: `size-${key}`, text: label }), select);
  };

  const both = () => {
    const names = [...new Set(Object.keys(sliders.at).map((at) => at.split(",").slice(2, 4).join(",")))];
    const equal = names.filter((pair) => pair.split(",")[0] === pair.split(",")[1]);
    const crossed = names.some((pair) => !equal.includes(pair) && pair !== `${sliders.base.k},${sliders.base.v}`);
    if (crossed) return [choice("k", "keys"), choice("v", "values")];
    const select = el(
      "select", {
        id: "size-kv",
        onchange: (event) => {
          const [k, v] = event.target.value.split(",");
          go({ k, v });
        },
      },
      names.map((pair) => {
        const [k, v] = pair.split(",");
        return el("option", { value: pair, text: k === v ? k : `${k}, ${v}` });
      }),
    );
    inputs.push(() => (select.value = `${position.k},${position.v}`));
    return [el("div", { class: "size" }, el("label", { for: "size-kv", text: "cache type" }), select)];
  };

  const total = el("output", { class: "total" });
  const reset = el("button", {
    type: "button", class: "button", text: "Reset", onclick: () => go({ ...sliders.base }),
  });
  const refresh = () => {
    inputs.forEach((update) => update());
    reset.disabled = state.get("layout").planned;
    const { exact, rows } = state.get("layout");
    const sum = rows.filter((row) => row.buffer !== "prefixes").reduce((a, row) => a + row.bytes, 0);
    total.textContent = `${exact ? "" : "at least "}${report.size(sum)} in all${report.draftsText(data)}`;
  };
  const bar = el(
    "section", { class: "sizes", "aria-label": "Sizes" },
    slider("ctx", "context", sliders.ctx), slider("ub", "ubatch", sliders.ub),
    slider("seqs", "sequences", sliders.seqs), both(),
    el("div", { class: "size" }, total, reset), said,
  );
  report.move = go; // for whoever sets a position by program
  refresh();
  return bar;
};
