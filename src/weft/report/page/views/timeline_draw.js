/* What the timeline draws, and what it says of a slice. */

report.OPS = [
  ["products", /MUL_MAT|OUT_PROD|CONV|IM2COL/, "--c0"], ["attention", /ATTN|SOFT_?MAX|ROPE/, "--c1"],
  ["norms", /NORM/, "--c2"], ["rows and copies", /ROWS|CPY|CONT|DUP|CONCAT|copy|COPY/, "--c3"],
  ["activations", /GLU|SILU|GELU|UNARY|MAP/, "--c4"], ["quantizing", /QUANT/, "--c6"],
  ["other ops", /./, "--c5"],
];

/** What the colours mean, for the legend. */
report.timelineLegend = (root, color) => {
  const { el } = report;
  const entries = color === "op" ? report.OPS.map(([name, , variable]) => [name, `var(${variable})`])
    : [0, 0.25, 0.5, 0.75].map((share) => [`${share * 100}%${share === 0.75 ? " and more" : ""}`, report.roofColor(share)])
      .concat([["not known", "var(--c7)"]]);
  root.replaceChildren(...entries.map(([name, background]) => el("li", {},
    el("span", { class: "swatch", style: { background } }), el("span", { text: name }))));
};

/** Draws all rows of a plot between `from` and `to`. */
report.drawTimeline = (plot) => {
  const { canvas, profile, local } = plot;
  const width = canvas.parentElement.clientWidth;
  if (!width) return;
  const narrow = width < 560;
  plot.left = narrow ? 0 : 132;
  const label = narrow ? 15 : 0;
  const top = 24;
  plot.tracks = profile.rows.map((_, i) => ({ y: top + i * (24 + label) + label, height: 21 }));
  const height = top + profile.rows.length * (24 + label) + 6;
  const scale = devicePixelRatio || 1;
  canvas.width = Math.round(width * scale);
  canvas.height = Math.round(height * scale);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  const ink = canvas.getContext("2d");
  ink.scale(scale, scale);
  const style = getComputedStyle(canvas);
  const color = (name) => style.getPropertyValue(name).trim();
  ink.font = `12px ${style.fontFamily}`;
  ink.textBaseline = "middle";
  const [from, to] = [local.get("from"), local.get("to")];
  const x = (time) => plot.left + ((time - from) / (to - from)) * (width - plot.left);
  report.drawScale(ink, plot, { from, to, x, width, height, color });
  profile.rows.forEach((row, number) => {
    const { y, height: tall } = plot.tracks[number];
    ink.fillStyle = color("--soft");
    ink.fillText(report.shortened(row.name, 20), narrow ? 2 : 0, narrow ? y - 8 : y + tall / 2);
    ink.save();
    ink.beginPath();
    ink.rect(plot.left, y - 1, width - plot.left, tall + 2);
    ink.clip();
    ink.fillStyle = color("--faint");
    ink.fillRect(plot.left, y, width - plot.left, tall);
    report.drawRow(ink, plot, row, number, { from, to, x, y, tall, color });
    ink.restore();
  });
};

/** Times above the rows, and lines at them. */
report.drawScale = (ink, plot, { from, to, x, width, height, color }) => {
  const most = Math.max(2, Math.floor((width - plot.left) / 110));
  const rough = (to - from) / most;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((n) => n * power).find((n) => n >= rough);
  const origin = plot.profile.tests[plot.local.get("test")].begin;
  for (let n = Math.ceil((from - origin) / step); origin + n * step <= to; n += 1) {
    const at = Math.round(x(origin + n * step)) + 0.5;
    ink.fillStyle = color("--line");
    ink.fillRect(at, 16, 1, height - 16);
    ink.fillStyle = color("--soft");
    const text = report.duration(n * step);
    if (at + ink.measureText(text).width < width) ink.fillText(text, at + 4, 9);
  }
};

report.drawRow = (ink, plot, row, number, { from, to, x, y, tall, color }) => {
  const { profile, local } = plot;
  let edge = -1;
  for (let i = report.firstAfter(row, from); i < row.start.length && row.start[i] <= to; i += 1) {
    const [left, right] = [x(row.start[i]), x(row.end[i])];
    if (right < edge + 0.5) continue; // nothing to see beside what was drawn
    const wide = Math.max(right - left, 0.8);
    const kind = profile.names[row.kind[i]];
    const fill = report.sliceColor(profile, local, row, i, plot.data);
    ink.globalAlpha = kind === "barrier" ? 0.35 : 1;
    ink.fillStyle = fill.startsWith("--") ? color(fill) : fill;
    ink.fillRect(left, y, wide > 3 ? wide - 0.6 : wide, tall);
    ink.globalAlpha = 1;
    edge = left + wide;
    const start = Math.max(left, plot.left);
    const room = Math.min(right, plot.left + ink.canvas.clientWidth) - start - 8;
    if (room > 26 && kind !== "barrier") {
      const title = report.shortened(report.sliceTitle(profile, row, i), Math.floor(room / 7.6));
      ink.fillStyle = kind === "run" ? color("--page") : "#fff";
      ink.fillText(title, start + 4, y + tall / 2 + 0.5);
    }
    if (number === local.get("row") && i === local.get("slice")) {
      ink.strokeStyle = color("--ink");
      ink.lineWidth = 2;
      ink.strokeRect(left + 1, y + 1, Math.max(wide - 2, 2), tall - 2);
    }
  }
};

/** A title without what its row says. */
report.sliceTitle = (profile, row, i) => profile.names[row.title[i]];

/** The colour of a slice: a variable of the style, or a colour. */
report.sliceColor = (profile, local, row, i, data) => {
  const kind = profile.names[row.kind[i]];
  if (kind === "run") return "--soft";
  if (kind === "barrier" || kind === "wait") return "--c7";
  if (kind === "copy") return "--c3";
  if (kind === "enqueue") return "--c6";
  const devices = data.devices || [];
  if (kind === "split") {
    const device = devices.findIndex((one) => row.name === `${one.name} splits`);
    return `--c${Math.max(device, 0) % 8}`;
  }
  if (local.get("color") === "roof") {
    const share = report.sliceShare(profile, local, row, i);
    return share < 0 ? "--c7" : report.roofColor(share);
  }
  const title = profile.names[row.title[i]];
  return report.OPS.find(([, pattern]) => pattern.test(title) || pattern.source === ".")[2];
};

/** The share of the roof of a slice's steps, weighted by their times; -1: not known. */
report.sliceShare = (profile, local, row, i) => {
  const about = profile.abouts[row.about[i]];
  const { roof, ns } = profile.tests[local.get("test")].steps;
  const steps = (about.steps || []).filter((step) => roof[step] >= 0);
  if (!steps.length) return -1;
  const least = steps.reduce((sum, step) => sum + roof[step] * ns[step], 0);
  if (profile.names[row.kind[i]] === "stage") return least / Math.max(row.end[i] - row.start[i], 1);
  return least / Math.max(steps.reduce((sum, step) => sum + ns[step], 0), 1);
};

/** What is known of a slice, in lines of text. */
report.sliceLines = (profile, local, number, i) => {
  const row = profile.rows[number];
  const test = profile.tests[local.get("test")];
  const about = profile.abouts[row.about[i]];
  const lines = [profile.names[row.title[i]]];
  lines.push(`${row.name}: ${report.duration(row.end[i] - row.start[i])}, from ${report.duration(row.start[i] - test.begin)} on`);
  const facts = [];
  if (about.split !== undefined) facts.push(`split ${about.split}`);
  if (about.stage !== undefined) facts.push(`stage ${about.stage}`);
  if (about.count !== undefined) facts.push(report.plural(about.count, "step"));
  if (about.kernels !== undefined) facts.push(report.plural(about.kernels, "kernel"));
  if (about.kernel) facts.push(`kernel ${about.kernel}`);
  if (about.bytes) facts.push(`${report.count(about.bytes)} B`);
  if (facts.length) lines.push(facts.join(", "));
  if (profile.names[row.kind[i]] === "barrier") lines.push("the thread waits for others to end the stage");
  const share = report.sliceShare(profile, local, row, i);
  if (profile.names[row.kind[i]] === "stage" && share >= 0) lines.push(`${Math.round(share * 100)}% of the roof in this stage`);
  const steps = about.steps || [];
  lines.push(...steps.slice(0, 6).map((step) => report.stepText(profile, test, step)));
  if (steps.length > 6) lines.push(`and ${report.plural(steps.length - 6, "more step")}`);
  return lines;
};

/** A step with its figures, the means of its calls in the test. */
report.stepText = (profile, test, step) => {
  const { calls, ns, bytes, flops, roof, bound } = test.steps;
  const name = profile.steps[step];
  if (!calls[step] || !ns[step]) return name;
  const parts = [`${report.duration(ns[step])} a call`, `${(bytes[step] / ns[step]).toFixed(1)} GB/s`];
  if (flops[step]) parts.push(`${(flops[step] / ns[step]).toFixed(1)} GOP/s`);
  if (roof[step] >= 0) parts.push(`${Math.round(roof[step] * 100)}% of the roof (${roof[step] > 1 ? "caches" : bound[step]})`);
  return `${name}: ${parts.join(", ")}`;
};

/** The same for the selected slice, with ways to the tensors of its steps. */
report.sliceAbout = (profile, local, number, i, data, state) => {
  const { el } = report;
  const row = profile.rows[number];
  const [title, ...lines] = report.sliceLines(profile, local, number, i);
  const steps = (profile.abouts[row.about[i]].steps || []).map((step) => report.tensorOfStep(profile.steps[step], data, state));
  const links = [...new Set(steps.filter(Boolean))].slice(0, 12).map((tensor) => el("button", {
    type: "button", class: "link mono", text: tensor.name, onclick: () => state.set({ tensor: tensor.name }),
  }));
  return [
    el("h3", { text: title }),
    ...lines.map((text) => el("div", { text })),
    links.length ? el("p", {}, "computes ", links.flatMap((link, k) => (k ? [", ", link] : [link]))) : "",
  ];
};

/** The node that a step computes: of the graph that is shown, by the weight that it reads or by name. */
report.tensorOfStep = (label, data, state) => {
  if (!data.regimes || !data.regimes.length) return null;
  const regime = report.regime(data, state);
  const words = label.split(" ");
  const found = regime.byName.get(words[words.length - 1]);
  if (!found) return null;
  if (found.kind === "node") return found;
  const readers = found.readers.map((row) => regime.tensors[row]);
  return readers.find((tensor) => tensor.op === words[0]) || readers[0] || null;
};
