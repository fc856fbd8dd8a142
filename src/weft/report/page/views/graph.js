/* The graph: a map of devices and splits, and below it every node in the order in which it runs,
   folded by layer. */

report.view({
  id: "graph",
  title: "Graph",
  order: 30,
  needs: (data) => Boolean(data.regimes && data.regimes.some((regime) => regime.layers)),

  render(root, data, state) {
    const { el } = report;
    const local = report.store({ color: "device" });
    const map = el("div", { class: "graph-map" });
    const list = el("div", { class: "graph-list" });
    const legend = el("ul", { class: "legend", "aria-label": "Colours" });
    const about = el("p", { class: "soft" });
    let shown = null;
    const draw = () => {
      const regime = report.regime(data, state);
      const palette = report.palette(regime, data, local.get("color"));
      legend.replaceChildren(...palette.entries.map(({ color, name, n }) => el(
        "li", {}, el("span", { class: "swatch", style: { background: color } }),
        el("span", { text: name }), el("span", { class: "soft", text: ` ${report.count(n)}` }),
      )));
      about.textContent = report.graphText(regime);
      shown = report.graphList(list, regime, data, state, palette);
      report.splitMap(map, regime, data, palette, (split) => shown.goToSplit(split));
    };
    root.append(report.graphTools(local, () => shown), about, map, legend, list);
    draw();
    state.on("regime", draw);
    local.on("color", draw);
    state.on(["tensor", "view"], () => {
      if (state.get("view") === "graph") shown.show(report.selected(data, state));
    });
    shown.show(report.selected(data, state));
  },
});

/** The choice of colours, and buttons that unfold or fold everything. */
report.graphTools = (local, list) => {
  const { el } = report;
  const choices = { device: "device", cause: "cause", op: "op" };
  const radios = Object.entries(choices).map(([value, text]) => el("label", {},
    el("input", {
      type: "radio", name: "graph-color", value, checked: local.get("color") === value,
      onchange: () => local.set({ color: value }),
    }), ` ${text}`));
  return el("div", { class: "tools" },
    el("fieldset", { class: "choice" }, el("legend", { text: "colour by" }), radios),
    el("button", { type: "button", class: "button", text: "Unfold layers", onclick: () => list().all(true) }),
    el("button", { type: "button", class: "button", text: "Fold layers", onclick: () => list().all(false) }));
};

/** Whether a row of the table is drawn: what computes or copies. */
report.isDrawn = (tensor) => tensor.kind === "node" || tensor.kind === "copy";

/** Whether a row is an op that runs, and not a view or a copy. */
report.isOp = (tensor) => tensor.kind === "node" && !/^(NONE|VIEW|RESHAPE|PERMUTE|TRANSPOSE)$/.test(tensor.op);

/** Colours of nodes by device, cause or op: `of(tensor)`, and `entries` for the legend. */
report.palette = (regime, data, by) => {
  const key = {
    device: (t) => t.label || "no device",
    cause: (t) => (t.kind === "copy" ? "a copy for a split" : (regime.causes || {})[t.cause]?.split(":")[0] || "no cause is known"),
    op: (t) => report.opKind(t),
  }[by];
  const counts = new Map();
  if (by === "device") for (const device of data.devices) counts.set(device.name, 0);
  for (const tensor of regime.tensors) {
    if (by === "device" ? report.isOp(tensor) : report.isDrawn(tensor)) counts.set(key(tensor), (counts.get(key(tensor)) || 0) + 1);
  }
  const names = [...counts.keys()];
  if (by !== "device") names.sort((a, b) => counts.get(b) - counts.get(a));
  const color = new Map(names.map((name, i) => [name, `var(--c${i % 8})`]));
  return {
    of: (tensor) => color.get(key(tensor)),
    entries: names.map((name) => ({ name, color: color.get(name), n: counts.get(name) })),
  };
};

/** What an op does, in a word. */
report.opKind = (tensor) => {
  if (tensor.kind === "copy") return "copies between devices";
  const op = tensor.op;
  if (tensor.view >= 0 && !/SET|CPY/.test(op)) return "views (cost nothing)";
  if (/MUL_MAT|OUT_PROD|CONV|IM2COL/.test(op)) return "products";
  if (/ATTN|SOFT_?MAX|ROPE/.test(op)) return "attention";
  if (/NORM/.test(op)) return "norms";
  if (/ROWS|CPY|CONT|DUP|CONCAT|REPEAT|PAD|VIEW|RESHAPE/.test(op)) return "moving rows";
  return "elementwise and others";
};

/** A graph in a sentence. */
report.graphText = (regime) => {
  const { count, plural, size } = report;
  const { splits, nodes, views, ops, copies, copied_bytes: bytes } = regime.totals;
  const layers = regime.layers.blocks.filter((block) => block[2]).length;
  const joined = nodes - views - ops;
  const others = [views ? plural(views, "view") : "", joined > 0 ? `${count(joined)} joined with these` : ""];
  const rest = nodes > ops ? ` (of ${plural(nodes, "node")}: ${others.filter(Boolean).join(", ")})` : "";
  const parts = [plural(ops, "op") + rest, plural(layers, "layer"), plural(splits, "split")];
  const moved = copies ? `; ${plural(copies, "copy", "copies")} between devices, ` +
    `${size(bytes)} (${count(bytes)} B) in each run` : "; nothing is copied between devices";
  return parts.join(", ") + moved;
};
