/* The map of the graph: a lane for each device, a box for each split in the order of the run, and
   the copies between them. */

report.splitMap = (root, regime, data, palette, go) => {
  const { svg, plural } = report;
  const splits = report.splitBoxes(regime);
  const lanes = data.devices.map((device) => device.name);
  const draw = () => {
    const width = Math.max(280, root.clientWidth || 800);
    const labels = width < 520 ? 52 : 96;
    const laneHeight = 46;
    const height = lanes.length * laneHeight + 8;
    const total = splits.reduce((sum, split) => sum + split.rows.length, 0) || 1;
    const gap = splits.length > 60 ? 1 : 3;
    const room = width - labels - 4 - gap * splits.length;
    const least = Math.min(5, room / Math.max(splits.length, 1));
    const extra = Math.max(0, room - least * splits.length);
    let x = labels;
    for (const split of splits) {
      split.x = x;
      split.width = least + (extra * split.rows.length) / total;
      split.y = lanes.indexOf(split.device) * laneHeight + 8;
      x += split.width + gap;
    }
    const drawing = svg("svg", {
      viewBox: `0 0 ${width} ${height}`, width, height, role: "group",
      "aria-label": `${plural(splits.length, "split")} on ${plural(lanes.length, "device")}`,
    });
    lanes.forEach((name, i) => drawing.append(
      svg("line", { x1: labels - 6, x2: width, y1: i * laneHeight + 23, y2: i * laneHeight + 23, class: "lane" }),
      svg("text", { x: 0, y: i * laneHeight + 27, class: "lane-name", text: report.shortened(name, width < 520 ? 7 : 13) }),
    ));
    const few = splits.length <= 40;
    const taken = [];
    for (const split of splits) drawing.append(...report.copyCurves(split, splits, few ? taken : null, width));
    for (const split of splits) drawing.append(report.splitBox(split, palette, few, go));
    root.replaceChildren(drawing);
  };
  draw();
  report.onResize(root, draw);
};

/** Calls `draw` when the width of an element changes; once for each element. */
report.onResize = (root, draw) => {
  root.redraw = draw;
  if (root.observed) return;
  root.observed = true;
  let width = root.clientWidth;
  new ResizeObserver(() => {
    if (root.clientWidth === width || !root.clientWidth) return;
    width = root.clientWidth;
    root.redraw();
  }).observe(root);
};

/** A text cut to so many letters. */
report.shortened = (text, most) => (text.length <= most ? text : `${text.slice(0, most - 1)}…`);

/** The splits with their rows, and where each of their copies comes from. */
report.splitBoxes = (regime) => {
  const boxes = regime.splits.map((split, number) => ({
    number, device: split.device, inputs: split.inputs, rows: [], bytes: 0, from: new Map(),
  }));
  for (const tensor of regime.tensors) {
    if (tensor.split >= 0 && report.isDrawn(tensor)) boxes[tensor.split].rows.push(tensor);
  }
  for (const box of boxes) {
    for (const copy of box.rows.filter((tensor) => tensor.kind === "copy")) {
      const source = regime.tensors[copy.src[0] ?? -1];
      const split = source && source.split >= 0 ? source.split : -1;
      const key = split >= 0 ? split : `on ${source ? source.label : ""}`;
      const seen = box.from.get(key) || { split, device: source ? source.label : "", bytes: 0, n: 0 };
      seen.bytes += copy.bytes;
      seen.n += 1;
      box.bytes += copy.bytes;
      box.from.set(key, seen);
    }
  }
  return boxes;
};

/** The box of a split: its nodes as a bar code, in their colours. */
report.splitBox = (split, palette, few, go) => {
  const { svg, plural, size } = report;
  const { x, y, width } = split;
  const copies = split.bytes ? `, ${size(split.bytes)} copied to it` : "";
  const label = `split ${split.number}: ${split.device}, ${plural(split.rows.length, "node")}${copies}`;
  const act = () => go(split.number);
  const group = svg("g", {
    class: "split-box", role: "button", tabindex: few ? 0 : null, "aria-label": label, onclick: act,
    onkeydown: (event) => (event.key === "Enter" || event.key === " ") && (event.preventDefault(), act()),
  }, svg("title", { text: label }));
  if (width > 8) group.append(svg("rect", { x, y, width, height: 30, class: "frame" }));
  const each = width / Math.max(split.rows.length, 1);
  let start = 0;
  split.rows.forEach((tensor, i) => {
    const next = split.rows[i + 1];
    if (next && palette.of(next) === palette.of(tensor)) return;
    group.append(svg("rect", {
      x: x + start * each, y: y + 6, width: Math.max(0.6, (i + 1 - start) * each), height: 18,
      style: { fill: palette.of(tensor) },
    }));
    start = i + 1;
  });
  if (width > 64) group.append(svg("text", { x: x + 6, y: y + 19, class: "on-color", text: `split ${split.number}` }));
  return group;
};

/** Curves from where the copies of a split come from, with their bytes where there is room: `taken` has
    the places of texts, null: no texts. */
report.copyCurves = (split, splits, taken, width) => [...split.from.values()].flatMap((from) => {
  const { svg, size } = report;
  const other = from.split >= 0 ? splits[from.split] : null;
  const end = [split.x + Math.min(6, split.width / 2), split.y + 15];
  const lane = splits.find((one) => one.device === from.device);
  const start = other ? [other.x + other.width - Math.min(4, other.width / 2), other.y + 15]
    : [split.x - 10, lane ? lane.y + 15 : split.y + 15];
  const bend = (start[1] + end[1]) / 2;
  const path = svg("path", {
    d: `M${start[0]} ${start[1]} C${start[0]} ${bend} ${end[0]} ${bend} ${end[0]} ${end[1]}`,
    class: "copy-curve",
  }, svg("title", { text: `${size(from.bytes)} to split ${split.number}` }));
  if (!taken || start[1] === end[1]) return [path];
  const middle = (start[0] + end[0]) / 2;
  const place = middle > width - 80 ? { x: middle - 7, "text-anchor": "end" } : { x: middle + 7 };
  const left = place["text-anchor"] ? place.x - 62 : place.x;
  if (taken.some(([y, x]) => y === bend && Math.abs(x - left) < 64)) return [path];
  taken.push([bend, left]);
  return [path, svg("text", { ...place, y: bend + 4, class: "copy-bytes", text: size(from.bytes) })];
});
