/* What is known of the selected tensor. */

report.details = (data, state) => {
  const { el } = report;
  const panel = el("aside", { class: "details", "aria-label": "Selected tensor", hidden: true });
  const draw = () => {
    const tensor = data.regimes ? report.selected(data, state) : null;
    panel.hidden = tensor === null;
    document.getElementById("report").classList.toggle("with-details", tensor !== null);
    if (tensor !== null) panel.replaceChildren(...report.about(data, state, tensor));
  };
  state.on(["tensor", "regime", "layout"], draw);
  addEventListener("keydown", (event) => {
    if (event.key === "Escape") state.set({ tensor: null });
  });
  return panel;
};

/** The elements that describe a tensor. */
report.about = (data, state, tensor) => {
  const { el, count, size } = report;
  const { tensors } = report.regime(data, state);
  const layout = state.get("layout") && report.layout(state);
  const at = layout && layout.byName.get(tensor.name);
  const link = (row) => el("button", {
    type: "button", class: "link mono", text: tensors[row].name,
    onclick: () => state.set({ tensor: tensors[row].name }),
  });
  const list = (rows) => rows.flatMap((row, i) => (i ? [", ", link(row)] : [link(row)]));
  const facts = [];
  const fact = (name, ...value) => facts.push(el("dt", { text: name }), el("dd", {}, value));
  const bytes = report.bytesAt(data, state, tensor);
  fact("op", tensor.kind === "node" ? tensor.op : `${tensor.op === "NONE" ? "" : `${tensor.op}, `}${report.kindText[tensor.kind] || tensor.kind}`);
  fact("type", `${report.typeAt(data, state, tensor)} ${tensor.shape}`);
  if (bytes !== null) fact("bytes", `${count(bytes)} (${size(bytes)})`);
  const formula = at && at.formula !== undefined ? at.formula : tensor.formula;
  if (typeof formula === "string" && !/^\d+$/.test(formula)) fact("as formula", el("span", { class: "mono", text: formula }));
  if (tensor.label) fact("device", tensor.label);
  if (tensor.why) fact("because", `${tensor.why}${tensor.cause ? ` (${tensor.cause})` : ""}`);
  for (const [device, why] of Object.entries(tensor.refused || {})) fact(`${device} refused`, why);
  for (const device of tensor.kind === "node" && tensor.view < 0 ? data.devices : []) {
    if (device.name !== tensor.label && !(device.name in (tensor.refused || {}))) {
      fact(device.name, "could run it; what is said above decided");
    }
  }
  if (tensor.memory) fact("memory", tensor.memory);
  if (at) {
    fact("address", `${count(at.offset)} to ${count(at.offset + at.bytes)}${at.chunk ? ` of block ${at.chunk}` : ""}`);
    fact("in use", report.spanText(at, layout.times));
    const { before, after } = report.reuse(layout, at);
    if (before.length) fact("takes bytes of", report.names(before, data, state));
    if (after.length) fact("gives bytes to", report.names(after, data, state));
  }
  if (tensor.view >= 0) fact("view of", link(tensor.view));
  if (tensor.src.length) fact("reads", list(tensor.src));
  if (tensor.readers.length) fact("read by", list(tensor.readers.slice(0, 12)), tensor.readers.length > 12 ? ` and ${tensor.readers.length - 12} more` : "");
  return [
    el("div", { class: "details-head" },
      el("h2", { class: "mono", text: tensor.name }),
      el("button", { type: "button", class: "button", text: "Close", onclick: () => state.set({ tensor: null }) })),
    el("dl", {}, facts),
  ];
};

report.kindText = {
  weights: "a weight", cache: "of the cache", input: "an input", leaf: "a constant",
  copy: "a copy for a split", dep: "kept until it is copied", keep: "kept for a device",
};

report.spanText = (at, times) => {
  const from = at.start < 0 ? "the start" : `step ${at.start}`;
  return `from ${from} to ${at.end >= times ? "the end" : `step ${at.end}`} of ${times}`;
};

/** Names of tensors, as links where the plan's own graph has them; at most six. */
report.names = (list, data, state) => {
  const { el } = report;
  const { byName } = report.regime(data, state);
  const parts = list.slice(0, 6).flatMap((t, i) => {
    const name = byName.has(t.name)
      ? el("button", { type: "button", class: "link mono", text: t.name, onclick: () => state.set({ tensor: t.name }) })
      : el("span", { class: "mono", text: t.name });
    return i ? [", ", name] : [name];
  });
  return list.length > 6 ? [...parts, ` and ${list.length - 6} more`] : parts;
};

/** The tensors whose bytes a tensor takes over, and those that take over its own: the last before it
    and the first after it at each address. */
report.reuse = (layout, at) => {
  const shares = layout.tensors.filter((t) => t !== at && t.arena === at.arena && t.chunk === at.chunk
    && t.offset < at.offset + at.bytes && at.offset < t.offset + t.bytes);
  return {
    before: nearest(shares.filter((t) => t.end < at.start).sort((a, b) => b.end - a.end)),
    after: nearest(shares.filter((t) => t.start > at.end).sort((a, b) => a.start - b.start)),
  };

  function nearest(sorted) {
    let open = [[at.offset, at.offset + at.bytes]]; // addresses whose neighbour is not known yet
    const found = [];
    for (const t of sorted) {
      const low = t.offset;
      const high = t.offset + t.bytes;
      if (!open.some(([a, b]) => low < b && a < high)) continue;
      found.push(t);
      open = open.flatMap(([a, b]) => [[a, Math.min(b, low)], [Math.max(a, high), b]]).filter(([a, b]) => a < b);
      if (!open.length) break;
    }
    return found;
  }
};
