/* The list of the graph: frames of splits, layers that fold, and rows of nodes with rails that show
   which node reads which. */

/** Fills `root`; returns `all(open)`, `goToSplit(number)` and `show(tensor)`. */
report.graphList = (root, regime, data, state, palette) => {
  const groups = report.graphGroups(regime);
  const drawn = groups.map((group) => report.graphGroup(group, regime, data, state, palette));
  root.replaceChildren(...drawn.map((group) => group.node));
  root.onkeydown = (event) => report.graphKeys(event, root);
  let marked = [];
  const reveal = (row) => {
    const group = drawn.find((one) => one.holds(row));
    return group ? group.reveal(row) : null;
  };
  const mark = (name) => {
    for (const node of marked) node.removeAttribute("aria-current");
    marked = [...root.querySelectorAll(".node-row")].filter((node) => node.dataset.name === name);
    for (const node of marked) node.setAttribute("aria-current", "true");
  };
  mark(state.get("tensor"));
  return {
    all(open) {
      for (const group of drawn) group.open(open);
      mark(state.get("tensor"));
    },
    goToSplit(number) {
      const first = regime.tensors.find((t) => t.split === number && report.isDrawn(t));
      const node = first && reveal(first.row);
      const at = node && (node.closest("li").querySelector(`[data-split="${number}"]`) || node);
      if (at) at.scrollIntoView({ block: "center" });
      if (node) node.focus({ preventScroll: true });
    },
    /** Unfolds what holds a tensor that was selected, and moves it into sight. */
    show(tensor) {
      const node = tensor && report.isDrawn(tensor) ? reveal(tensor.row) : null;
      if (node) node.scrollIntoView({ block: "nearest" });
      mark(tensor ? tensor.name : null);
    },
  };
};

/** Blocks and folds in order: {blocks, period, times, rows}. */
report.graphGroups = (regime) => {
  const { blocks, folds } = regime.layers;
  const rowsOf = ([start, end]) => regime.tensors.slice(start, end).filter(report.isDrawn);
  const groups = [];
  const foldAt = new Map(folds.map(([first, period, times]) => [first, { period, times }]));
  for (let i = 0; i < blocks.length;) {
    const { period, times } = foldAt.get(i) || { period: 1, times: 1 };
    const own = blocks.slice(i, i + period * times).map((block) => ({ name: block[2], rows: rowsOf(block) }));
    const filled = own.filter((block) => block.rows.length);
    if (filled.length) groups.push({ blocks: filled, period, times, rows: filled.flatMap((b) => b.rows) });
    i += period * times;
  }
  return groups;
};

/** The name of a group: `layer 3`, `layers 3 to 30`, or what it reads and computes. */
report.groupName = (blocks, isFirst, isLast) => {
  const names = blocks.map((block) => block.name).filter(Boolean);
  if (!names.length) return isFirst ? "input" : isLast ? "output" : "between layers";
  if (names.length === 1) return names[0];
  return `layers ${names[0].replace("layer ", "")} to ${names[names.length - 1].replace("layer ", "")}`;
};

/** A group of the list: a heading that unfolds to nodes, or to layers where several are folded. */
report.graphGroup = (group, regime, data, state, palette) => {
  const { el, plural, size } = report;
  const first = group.rows[0].row;
  const drawn = regime.tensors.filter(report.isDrawn);
  const name = report.groupName(group.blocks, drawn[0].row === first,
    group.rows[group.rows.length - 1].row === drawn[drawn.length - 1].row);
  const node = el("div", { class: "group" });
  const body = el("ol", { class: "rows", hidden: true });
  const times = group.times > 1 ? `×${group.times}` : "";
  const copies = group.rows.filter((tensor) => tensor.kind === "copy");
  const bytes = copies.reduce((sum, tensor) => sum + tensor.bytes, 0);
  const refusals = group.rows.filter((tensor) => tensor.refused).length;
  const each = group.times > 1 && group.period > 1 ? `, ${group.period} layers alternate` : "";
  const facts = [plural(group.rows.filter(report.isOp).length, "op")];
  if (copies.length) facts.push(`${plural(copies.length, "copy", "copies")}, ${size(bytes)}`);
  if (refusals) facts.push(`${plural(refusals, "op")} refused somewhere`);
  const button = el("button", {
    type: "button", class: "group-head", "aria-expanded": "false", onclick: () => open(body.hidden),
  },
  el("span", { class: "twist", "aria-hidden": "true" }),
  el("span", { class: "group-name", text: name }),
  times && el("span", { class: "times", text: times, "aria-label": `${group.times} times` }),
  report.barcode(group.rows.slice(0, group.rows.length / group.times), palette),
  el("span", { class: "soft facts", text: facts.join("; ") + each }));
  const begins = report.splitHead(group.rows[0], regime, data);
  if (begins) node.append(begins);
  node.append(button, body);
  node.style.setProperty("--frame", report.frameColor(group.rows, data));
  let inner = null;
  const fill = () => {
    if (inner) return;
    if (group.blocks.length === 1) {
      inner = [];
      body.append(...report.nodeRows(group.rows, regime, data, state, palette));
      return;
    }
    inner = group.blocks.map((block) => report.graphGroup(
      { blocks: [block], period: 1, times: 1, rows: block.rows }, regime, data, state, palette));
    body.append(...inner.map((one) => el("li", {}, one.node)));
  };
  const open = (on) => {
    if (on) fill();
    body.hidden = !on;
    button.setAttribute("aria-expanded", String(on));
  };
  if (report.opensAtOnce(group, drawn.length)) open(true);
  return {
    node,
    open,
    holds: (row) => group.rows.some((tensor) => tensor.row === row),
    reveal(row) {
      open(true);
      const within = inner.find((one) => one.holds(row));
      return within ? within.reveal(row) : body.querySelector(`[data-row="${row}"]`);
    },
  };
};

/** Short groups between layers are shown open; so is a graph without layers. */
report.opensAtOnce = (group, nodes) =>
  group.times === 1 && !group.blocks[0].name && (group.rows.length <= 12 || group.rows.length === nodes) &&
  group.rows.length <= 400;

/** The color of a group's frame: the device's, or none where several devices share it. */
report.frameColor = (rows, data) => {
  const devices = new Set(rows.map((tensor) => tensor.device));
  const [device] = devices;
  return devices.size === 1 && device >= 0 && data.devices.length > 1 ? `var(--c${device % 8})` : "var(--line)";
};

/** Nodes in their colours, as a narrow bar. */
report.barcode = (rows, palette) => {
  const { svg } = report;
  const bar = svg("svg", {
    class: "barcode", viewBox: `0 0 ${Math.max(rows.length, 1)} 1`, preserveAspectRatio: "none",
    "aria-hidden": "true",
  });
  let start = 0;
  rows.forEach((tensor, i) => {
    const next = rows[i + 1];
    if (next && palette.of(next) === palette.of(tensor)) return;
    bar.append(svg("rect", { x: start, y: 0, width: i + 1 - start, height: 1, style: { fill: palette.of(tensor) } }));
    start = i + 1;
  });
  return bar;
};

/** The heading of a split before its first node; null for other nodes. */
report.splitHead = (tensor, regime, data) => {
  const { el, plural, size } = report;
  const before = regime.tensors.slice(0, tensor.row).filter(report.isDrawn).pop();
  if (tensor.split < 0 || (before && before.split === tensor.split)) return null;
  const split = regime.splits[tensor.split];
  if (!split || regime.splits.length === 1) return null;
  const device = data.devices.findIndex((one) => one.name === split.device);
  const bytes = split.inputs.reduce((sum, input) => sum + input.bytes, 0);
  const copied = split.inputs.length
    ? `${plural(split.inputs.length, "copy", "copies")} to it, ${size(bytes)}` : "nothing copied to it";
  return el("div", { class: "split-head", "data-split": tensor.split },
    el("span", { class: "swatch", style: { background: `var(--c${Math.max(device, 0) % 8})` } }),
    el("span", { text: `split ${tensor.split}: ${split.device}` }),
    el("span", { class: "soft", text: copied }));
};

/** Keys of the list: up and down move, right and left unfold and fold. */
report.graphKeys = (event, root) => {
  const stops = [...root.querySelectorAll(".group-head, .node-row")].filter((node) => node.offsetParent);
  const here = stops.indexOf(document.activeElement);
  if (here < 0) return;
  const node = stops[here];
  const go = (to) => {
    event.preventDefault();
    const next = stops[Math.max(0, Math.min(stops.length - 1, to))];
    next.focus();
  };
  const opened = node.getAttribute("aria-expanded");
  if (event.key === "ArrowDown") go(here + 1);
  else if (event.key === "ArrowUp") go(here - 1);
  else if (event.key === "Home") go(0);
  else if (event.key === "End") go(stops.length - 1);
  else if (event.key === "ArrowRight" && opened === "false") event.preventDefault(), node.click();
  else if (event.key === "ArrowLeft" && opened === "true") event.preventDefault(), node.click();
  else if (event.key === "ArrowLeft") {
    const head = node.closest(".group").querySelector(".group-head");
    if (head && head !== node) event.preventDefault(), head.focus();
  }
};
