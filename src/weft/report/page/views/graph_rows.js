/* Rows of nodes in the graph's list, with rails: a line from each node down to the nodes that read
   it, as far as they are in the same layer. */

report.RAIL = 11;
report.ROW = 27;

/** The row after which nothing of the block reads a node (by row of the table), and lanes to take. */
report.rails = (rows, regime) => {
  const position = new Map(rows.map((tensor, i) => [tensor.row, i]));
  const last = new Map();
  const after = rows.length;
  for (const tensor of rows) {
    for (const reader of tensor.readers.filter((row) => report.isDrawn(regime.tensors[row]))) {
      const at = position.has(reader) ? position.get(reader) : reader > tensor.row ? after : -1;
      last.set(tensor.row, Math.max(last.get(tensor.row) ?? -1, at));
    }
    for (const source of tensor.src) {
      if (!position.has(source)) last.set(source, Math.max(last.get(source) ?? -1, position.get(tensor.row)));
    }
  }
  const lanes = [];
  const take = (row) => {
    const free = lanes.indexOf(null);
    if (free < 0) return lanes.push(row) - 1;
    lanes[free] = row;
    return free;
  };
  return { position, last, lanes, take };
};

/** The rows of a block as list items. */
report.nodeRows = (rows, regime, data, state, palette) => {
  const { el } = report;
  const { position, last, lanes, take } = report.rails(rows, regime);
  const outside = new Set(rows.flatMap((tensor) => tensor.src).filter((row) => {
    const source = regime.tensors[row];
    return !position.has(row) && source.time >= 0 && report.isDrawn(source);
  }));
  for (const row of outside) take(row);
  const drawn = rows.map((tensor, i) => {
    const before = [...lanes];
    const sources = tensor.src.map((row) => lanes.indexOf(row)).filter((lane) => lane >= 0);
    lanes.forEach((row, lane) => {
      if (row !== null && (last.get(row) ?? -1) <= i) lanes[lane] = null;
    });
    const own = take(tensor.row);
    const ends = (last.get(tensor.row) ?? -1) <= i;
    const passing = lanes.map((row, lane) => lane !== own && row !== null && before[lane] === row);
    if (ends) lanes[own] = null;
    return { tensor, own, sources: [...new Set(sources)], passing, goesOn: !ends };
  });
  const width = Math.max(...drawn.map((row) => Math.max(row.own, row.passing.length - 1, ...row.sources))) + 1;
  const items = [];
  drawn.forEach((row, i) => {
    const head = i > 0 ? report.splitHead(row.tensor, regime, data) : null;
    if (head) {
      const before = drawn[i - 1];
      const passing = before.passing.map((on, lane) => on || (lane === before.own && before.goesOn));
      if (before.goesOn) passing[before.own] = true;
      const rail = report.railOf({ own: -1, sources: [], passing, goesOn: false }, width);
      items.push(el("li", { class: "inner-split" }, rail, head));
    }
    items.push(report.nodeRow(row, width, regime, data, state, palette));
  });
  return items;
};

/** The rails of one row as a drawing; without a node where `own` is -1. */
report.railOf = ({ own, sources, passing, goesOn }, width, color) => {
  const { svg, RAIL, ROW } = report;
  const x = (lane) => lane * RAIL + RAIL / 2 + 1;
  const half = ROW / 2;
  const lines = passing.flatMap((on, lane) => (on ? [`M${x(lane)} 0V${ROW}`] : []));
  for (const lane of sources) {
    lines.push(lane === own ? `M${x(lane)} 0V${half}`
      : `M${x(lane)} 0C${x(lane)} ${half} ${x(own)} 2 ${x(own)} ${half}`);
  }
  if (goesOn) lines.push(`M${x(own)} ${half}V${ROW}`);
  return svg("svg", { class: "rail", width: width * RAIL + 2, height: ROW, "aria-hidden": "true" },
    svg("path", { d: lines.join("") }),
    own >= 0 ? svg("circle", { cx: x(own), cy: half, r: 4.2, style: { fill: color } }) : null);
};

/** A node: a button that selects it; what is known of it stands in the details. */
report.nodeRow = (row, width, regime, data, state, palette) => {
  const { el, size } = report;
  const { tensor } = row;
  const original = (source) => (source.kind === "copy" && source.src.length ? regime.tensors[source.src[0]] : source);
  const weight = tensor.src.map((source) => original(regime.tensors[source]))
    .find((source) => source.kind === "weights" || source.kind === "cache");
  const refused = Object.keys(tensor.refused || {});
  return el("li", {}, el("button", {
    type: "button", class: `node-row ${tensor.kind}${weight ? " reads-weight" : ""}`, "data-row": tensor.row,
    "data-name": tensor.name, onclick: () => state.set({ tensor: tensor.name }),
  },
  report.railOf(row, width, palette.of(tensor)),
  el("span", { class: "op", text: tensor.kind === "copy" ? "copy" : tensor.op }),
  el("span", { class: "name", text: tensor.name }),
  el("span", { class: "soft reads", text: weight ? weight.name : "" }),
  el("span", { class: "soft shape", text: `${tensor.type} ${tensor.shape}` }),
  el("span", { class: "soft bytes", text: tensor.view >= 0 ? "view" : size(tensor.bytes) }),
  refused.length ? el("span", { class: "refused", text: `not on ${refused.join(", ")}` }) : el("span")));
};
