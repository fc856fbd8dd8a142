/* The choice of `weft quantize --fit`: the curve of divergence by size, what was tried, and the
   type of each tensor. */

report.view({
  id: "fit",
  title: "Types by size",
  order: 5,
  needs: (data) => data.kind === "fit",

  render(root, data) {
    const { el } = report;
    const local = report.store({ by: "bytes" });
    const plot = el("div", { class: "fit-plot" });
    const draw = () => plot.replaceChildren(report.fitPlot(data, local.get("by"), plot.clientWidth || 900));
    const choices = { bytes: "memory of a context", file: "bytes in the file" };
    const radios = Object.entries(choices).map(([value, text]) => el("label", {}, el("input", {
      type: "radio", name: "fit-by", value, checked: value === local.get("by"),
      onchange: () => local.set({ by: value }),
    }), ` ${text}`));
    root.append(el("p", { text: report.fitSentence(data) }), el("h2", { text: "KL divergence by size" }),
      el("div", { class: "tools" }, el("fieldset", { class: "choice" }, el("legend", { text: "size is" }), radios)),
      plot, report.fitLegend(data), el("h2", { text: "What was measured as a whole" }), report.fitTried(data));
    if (data.caches.length > 1) root.append(el("h2", { text: "Types of the cache" }), report.fitCaches(data));
    root.append(el("h2", { text: "What the types of each tensor cost" }),
      el("p", { class: "soft", text: "KL divergence, in nats, of the model with this tensor alone in a type; the type that was chosen has a frame." }),
      report.fitHeat(data));
    draw();
    local.on("by", draw);
    addEventListener("resize", draw);
  },
});

report.view({
  id: "fit-tensors",
  title: "Tensors",
  order: 10,
  needs: (data) => data.kind === "fit",

  render(root, data) {
    const { el, size } = report;
    const columns = ["tensor", "before", "type", "bytes", "KL alone", "why"];
    root.append(el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "The type of each tensor" }, el("table", {},
      el("caption", { class: "hidden", text: "The type of each tensor" }),
      el("thead", {}, el("tr", {}, columns.map((name) => el("th", { scope: "col", text: name })))),
      el("tbody", {}, data.tensors.map((t) => el("tr", {},
        el("th", { scope: "row", class: "mono", text: t.name }), el("td", { text: t.before }),
        el("td", { class: "fit-type", text: t.type === t.before ? `${t.type} (kept)` : t.type }), el("td", { class: "number", text: size(t.bytes) }),
        el("td", { class: "number", text: report.nats(t.kl) }), el("td", { class: "fit-why", text: t.why })))))));
  },
});

/** A divergence as text. */
report.nats = (kl) => (kl === null || kl === undefined ? "" : kl === 0 ? "0" : kl >= 0.01 ? kl.toFixed(4) : kl.toExponential(1));

/** What was chosen, in a sentence. */
report.fitSentence = (data) => {
  const { size } = report;
  const { chosen } = data;
  const counts = new Map();
  for (const t of data.tensors) counts.set(t.type, (counts.get(t.type) || 0) + 1);
  const types = [...counts].sort((a, b) => b[1] - a[1]).map(([type, n]) => `${type} for ${n}`).join(", ");
  const speed = chosen.tokens_per_second ? `, ${chosen.tokens_per_second.toFixed(1)} tokens/s predicted` : "";
  const who = chosen.name === "fit" ? "The solver's choice" : `The mix ${chosen.name}`;
  return `${who}: ${chosen.bits.toFixed(2)} bits per weight, a file of ${size(chosen.file)}, ${size(chosen.bytes)} of memory with ${report.count(data.n_ctx)} `
    + `tokens of context and a cache of ${data.type_k} and ${data.type_v}${speed}; KL ${chosen.kl.toFixed(5)} ± ${chosen.kl_error.toFixed(5)} nats `
    + `on ${report.count(data.text.tokens)} tokens. Types: ${types}.`;
};

/** Values for the marks of an axis of logarithms. */
report.decades = (low, high) => {
  const marks = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power += 1) {
    const value = 10 ** power;
    if (value >= low * 0.999 && value <= high * 1.001) marks.push(value);
  }
  return marks;
};

/** The curve as a drawing `width` pixels wide: divergence (logarithms) by size. */
report.fitPlot = (data, by, width) => {
  const { svg, size } = report;
  const at = { left: 64, right: 18, top: 14, bottom: 40 };
  const height = Math.max(280, Math.min(520, width * 0.42));
  const points = data.curve.filter((p) => p.kl_sum > 0);
  const measured = new Set(data.tried.map((t) => t.name));
  const mixes = data.mixes.filter((m) => m.kl_sum > 0 && !measured.has(m.name));
  const tried = data.tried.filter((t) => t.kl > 0);
  const sizes = [...points, ...tried].map((p) => p[by]);
  const values = [...points.map((p) => p.kl_sum), ...tried.map((t) => t.kl)];
  if (!sizes.length) return report.el("p", { text: "No smaller type was possible, so there is no curve." });
  const limit = by === "bytes" ? data.budget.memory : data.budget.file;
  const [least, most] = [Math.min(...sizes), Math.max(...sizes)];
  const pad = (most - least) * 0.03 || most * 0.01 || 1;
  const high = Math.max(...values) * 1.6;
  const low = Math.max(Math.min(...values) / 1.6, high * 1e-5); // less is at the lower edge: nobody sees a difference there
  const x = (v) => at.left + ((v - least + pad) / (most - least + 2 * pad)) * (width - at.left - at.right);
  const y = (v) => at.top + (1 - Math.log(Math.max(v, low) / low) / Math.log(high / low)) * (height - at.top - at.bottom);
  const inside = (m) => m[by] >= least - pad && m[by] <= most + pad && m.kl_sum >= low && m.kl_sum <= high;
  const drawing = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img", "aria-label": report.fitSentence(data) });
  for (const mark of report.decades(low, high)) {
    drawing.append(svg("line", { x1: at.left, x2: width - at.right, y1: y(mark), y2: y(mark), class: "fit-grid" }),
      svg("text", { x: at.left - 8, y: y(mark) + 4, class: "fit-mark end", text: mark >= 0.001 ? String(Number(mark.toPrecision(1))) : mark.toExponential(0) }));
  }
  const steps = width < 560 ? 3 : 6;
  for (let i = 0; i <= steps; i += 1) {
    const value = least + ((most - least) * i) / steps;
    drawing.append(svg("line", { x1: x(value), x2: x(value), y1: height - at.bottom, y2: height - at.bottom + 5, class: "fit-axis" }),
      svg("text", { x: x(value), y: height - at.bottom + 19, class: "fit-mark middle", text: size(Math.round(value)) }));
  }
  drawing.append(svg("line", { x1: at.left, x2: width - at.right, y1: height - at.bottom, y2: height - at.bottom, class: "fit-axis" }),
    svg("text", { x: at.left, y: height - 4, class: "fit-mark", text: `KL divergence (nats, upwards) by ${by === "bytes" ? "memory" : "file size"}` }));
  if (limit && limit >= least - pad && limit <= most + pad) {
    drawing.append(svg("line", { x1: x(limit), x2: x(limit), y1: at.top, y2: height - at.bottom, class: "fit-limit" }),
      svg("text", { x: x(limit) - 5, y: at.top + 10, class: "fit-mark end", text: `budget ${size(limit)}` }));
  }
  drawing.append(svg("polyline", { class: "fit-curve", points: points.map((p) => `${x(p[by]).toFixed(1)},${y(p.kl_sum).toFixed(1)}`).join(" ") }));
  for (const p of points) drawing.append(report.fitDot(svg, x(p[by]), y(p.kl_sum), "fit-point", 2.5, `${size(p[by])}: ${report.nats(p.kl_sum)} nats predicted`));
  const taken = [...mixes.filter(inside).map((m) => [x(m[by]), y(m.kl_sum)]), ...tried.map((t) => [x(t[by]), y(t.kl)])].map(([a, b]) => [a - 4, b - 4, 8, 8]);
  for (const m of mixes.filter(inside)) {
    drawing.append(report.fitDot(svg, x(m[by]), y(m.kl_sum), "fit-mix", 4, `${m.name}: ${size(m[by])}, ${report.nats(m.kl_sum)} nats predicted`));
  }
  for (const t of tried) {
    const kind = t.name === "fit" ? "fit-chosen" : "fit-tried";
    drawing.append(report.fitDot(svg, x(t[by]), y(t.kl), kind, 5, `${t.name}: ${size(t[by])}, ${report.nats(t.kl)} nats measured`));
  }
  const named = [...tried.map((t) => [t.name, x(t[by]), y(t.kl)]), ...mixes.filter(inside).map((m) => [m.name, x(m[by]), y(m.kl_sum)])];
  for (const [name, left, top] of named) {
    const right = left + name.length * 7.2 + 12 > width - at.right;
    const box = [right ? left - name.length * 7.2 - 9 : left + 8, top - 8, name.length * 7.2, 15];
    const covered = taken.some(([a, b, w, h]) => box[0] < a + w && a < box[0] + box[2] && box[1] < b + h && b < box[1] + box[3]);
    if (covered) continue; // its dot has the name, too
    taken.push(box);
    drawing.append(svg("text", { x: right ? left - 8 : left + 8, y: top + 4, class: `fit-name ${right ? "end" : ""}`, text: name }));
  }
  return drawing;
};

report.fitDot = (svg, cx, cy, kind, r, title) => svg("circle", { cx, cy, r, class: kind }, svg("title", { text: title }));

report.fitLegend = () => {
  const { el } = report;
  const rows = [["fit-key-curve", "the solver's choices, predicted: the sum of what tensors cause alone"], ["fit-key-chosen", "the solver's choice for the budget, measured"],
    ["fit-key-tried", "a named mix, measured"], ["fit-key-mix", "a named mix, predicted"]];
  return el("ul", { class: "legend" }, rows.map(([kind, text]) => el("li", {}, el("span", { class: `fit-key ${kind}` }), text)));
};

/** What was measured as a whole, the best first. */
report.fitTried = (data) => {
  const { el, size } = report;
  const columns = ["types", "file", "bits per weight", "memory", "KL", "±", "99%", "same top token", "sum of parts"];
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "What was measured as a whole" }, el("table", {},
    el("caption", { class: "hidden", text: "What was measured as a whole" }),
    el("thead", {}, el("tr", {}, columns.map((name, i) => el("th", { scope: "col", class: i ? "number" : "", text: name })))),
    el("tbody", {}, data.tried.map((t) => el("tr", {}, el("th", { scope: "row", text: t.name }),
      [size(t.file), t.bits.toFixed(2), size(t.bytes), t.kl.toFixed(5), t.kl_error.toFixed(5), t.kl_99.toFixed(4),
        `${(100 * t.same_top).toFixed(2)} %`, report.nats(t.kl_sum)].map((text) => el("td", { class: "number", text })))))));
};

/** The divergence of each pair of cache types. */
report.fitCaches = (data) => {
  const { el, size } = report;
  const base = data.caches[0].bytes;
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": "Types of the cache" }, el("table", {},
    el("caption", { class: "hidden", text: "Types of the cache" }),
    el("thead", {}, el("tr", {}, ["keys", "values", "memory saved", "KL"].map((name, i) => el("th", { scope: "col", class: i > 1 ? "number" : "", text: name })))),
    el("tbody", {}, data.caches.map((c) => el("tr", { class: c.type_k === data.type_k && c.type_v === data.type_v ? "differs" : "" },
      el("th", { scope: "row", text: c.type_k }), el("td", { text: c.type_v }), el("td", { class: "number", text: size(base - c.bytes) }),
      el("td", { class: "number", text: report.nats(c.kl) }))))));
};

/** A table of groups by types, coloured by divergence. */
report.fitHeat = (data) => {
  const { el } = report;
  const groups = new Map(data.tensors.map((t) => [t.group, t]));
  const types = [...new Set(data.tensors.flatMap((t) => Object.keys(t.kl_of)))];
  const known = [...groups.values()].flatMap((t) => Object.values(t.kl_of)).filter((kl) => kl > 0);
  const [low, high] = [Math.min(...known), Math.max(...known)];
  const share = (kl) => (kl > 0 ? Math.log(kl / low) / Math.log(high / low || 2) : 0);
  return el("div", { class: "scroll fit-heat", tabindex: 0, role: "region", "aria-label": "Divergence by tensor and type" }, el("table", {},
    el("caption", { class: "hidden", text: "Divergence by tensor and type" }),
    el("thead", {}, el("tr", {}, el("th", { scope: "col", text: "tensor" }), types.map((type) => el("th", { scope: "col", class: "number", text: type })))),
    el("tbody", {}, [...groups].map(([name, t]) => el("tr", {}, el("th", { scope: "row", class: "mono", text: name }), types.map((type) => {
      const kl = t.kl_of[type];
      if (kl === undefined) return el("td", {});
      const background = `color-mix(in srgb, var(--mark) ${Math.round(4 + 46 * share(kl))}%, transparent)`;
      return el("td", { class: `number${type === t.type ? " fit-picked" : ""}`, style: { background: kl > 0 ? background : "none" }, text: report.nats(kl) });
    }))))));
};
