/* The drawing of the timeline: a canvas that zooms and moves by mouse, touch and keyboard. */

/** Makes the drawing; returns `node`, `zoom(factor)` and `fit()`. */
report.timelinePlot = (profile, local, data, state) => {
  const { el } = report;
  const canvas = el("canvas", {
    class: "timeline", tabindex: 0, role: "application",
    "aria-label": "Timeline. Arrow keys left and right move, plus and minus zoom, 0 shows all, " +
      "up and down choose a row, comma and period choose a slice.",
  });
  const tip = el("div", { class: "slice-tip", hidden: true });
  const about = el("div", { class: "slice-about", "aria-live": "polite" });
  const node = el("div", { class: "timeline-box" }, canvas, tip);
  const test = () => profile.tests[local.get("test")];
  const limits = () => [test().begin, Math.max(test().end, test().begin + 1)];

  const show = (from, to) => {
    const [first, last] = limits();
    const length = Math.max(200, Math.min(to - from, last - first));
    const start = Math.max(first, Math.min(from, last - length));
    local.set({ from: start, to: start + length });
  };
  const zoom = (factor, at = 0.5) => {
    const [from, to] = [local.get("from"), local.get("to")];
    const point = from + (to - from) * at;
    show(point - (point - from) * factor, point + (to - point) * factor);
  };
  const move = (by) => {
    const length = local.get("to") - local.get("from");
    show(local.get("from") + length * by, local.get("to") + length * by);
  };
  const fit = () => show(...limits());
  const plot = { canvas, profile, local, data, hits: [] };
  let waiting = false;
  const draw = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      report.drawTimeline(plot);
    });
  };
  const tell = () => {
    const { row, slice } = { row: local.get("row"), slice: local.get("slice") };
    const parts = row < 0 ? [] : report.sliceAbout(profile, local, row, slice, data, state);
    about.replaceChildren(...parts);
  };
  report.timelinePointer(canvas, plot, { show, zoom, move, tip });
  canvas.addEventListener("keydown", (event) => {
    const keys = {
      ArrowLeft: () => move(-0.2), ArrowRight: () => move(0.2), a: () => move(-0.2), d: () => move(0.2),
      "+": () => zoom(1 / 1.5), "=": () => zoom(1 / 1.5), w: () => zoom(1 / 1.5), "-": () => zoom(1.5),
      s: () => zoom(1.5), 0: fit, Home: fit,
      ArrowUp: () => report.chooseRow(plot, -1), ArrowDown: () => report.chooseRow(plot, 1),
      ",": () => report.chooseSlice(plot, -1, show), ".": () => report.chooseSlice(plot, 1, show),
      Escape: () => local.set({ row: -1, slice: -1 }),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in keys)) return;
    event.preventDefault();
    keys[event.key]();
  });
  local.on(["from", "to", "test", "color", "row", "slice"], draw);
  local.on(["row", "slice", "test"], tell);
  report.onResize(node, draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  canvas.addEventListener("focus", draw);
  canvas.addEventListener("blur", draw);
  const hint = el("p", { class: "soft hint", text: "Drag to move; Ctrl and the wheel, or the wheel once the " +
    "timeline has been clicked, zooms; click a slice to keep what it says." });
  const legend = el("ul", { class: "legend", "aria-label": "Colours" });
  report.timelineLegend(legend, local.get("color"));
  local.on("color", () => report.timelineLegend(legend, local.get("color")));
  return { node: el("div", {}, node, legend, hint, about), zoom, fit };
};

/** Mouse and touch: drag moves, wheel and two fingers zoom, hover says what, a click selects. */
report.timelinePointer = (canvas, plot, { show, zoom, move, tip }) => {
  const { local } = plot;
  const pointers = new Map();
  let moved = 0;
  const part = (event) => {
    const box = canvas.getBoundingClientRect();
    return Math.max(0, Math.min(1, (event.clientX - box.left - plot.left) / (box.width - plot.left)));
  };
  canvas.addEventListener("wheel", (event) => {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY);
    if (!event.ctrlKey && !event.metaKey && !sideways && document.activeElement !== canvas) return;
    event.preventDefault();
    if (sideways) move(event.deltaX / 600);
    else zoom(Math.exp(Math.max(-60, Math.min(60, event.deltaY)) / 180), part(event));
  }, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    pointers.set(event.pointerId, event);
    moved = 0;
    tip.hidden = true;
  });
  canvas.addEventListener("pointermove", (event) => {
    const before = pointers.get(event.pointerId);
    if (!before) return report.showTip(plot, event, tip);
    const width = canvas.clientWidth - plot.left;
    const length = local.get("to") - local.get("from");
    if (pointers.size === 1) {
      const by = event.clientX - before.clientX;
      moved += Math.abs(by);
      if (moved > 3) show(local.get("from") - (by / width) * length, local.get("to") - (by / width) * length);
    } else {
      const other = [...pointers.values()].find((one) => one.pointerId !== event.pointerId);
      const apart = (one) => Math.max(8, Math.abs(one.clientX - other.clientX));
      zoom(apart(before) / apart(event), part(other));
      moved += 10;
    }
    pointers.set(event.pointerId, event);
    return undefined;
  });
  const up = (event) => {
    pointers.delete(event.pointerId);
    if (event.type !== "pointerup" || moved > 3) return;
    const hit = report.sliceAt(plot, event);
    local.set(hit ? { row: hit.row, slice: hit.slice } : { row: -1, slice: -1 });
  };
  canvas.addEventListener("pointerup", up);
  canvas.addEventListener("pointercancel", up);
  canvas.addEventListener("pointerleave", () => (tip.hidden = true));
};

/** The first slice of a row that ends after a time. */
report.firstAfter = (row, time) => {
  let [low, high] = [0, row.start.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (row.end[middle] < time) low = middle + 1;
    else high = middle;
  }
  return low;
};

/** The slice under the pointer, or null. */
report.sliceAt = (plot, event) => {
  const { profile, local, canvas } = plot;
  const box = canvas.getBoundingClientRect();
  const y = event.clientY - box.top;
  const x = event.clientX - box.left - plot.left;
  const number = plot.tracks.findIndex((track) => y >= track.y && y < track.y + track.height);
  if (number < 0 || x < 0) return null;
  const [from, to] = [local.get("from"), local.get("to")];
  const each = (to - from) / (box.width - plot.left);
  const time = from + x * each;
  const row = profile.rows[number];
  let slice = report.firstAfter(row, time - 2 * each);
  while (slice < row.start.length && row.end[slice] < time && row.start[slice + 1] <= time) slice += 1;
  return slice < row.start.length && row.start[slice] <= time + 2 * each ? { row: number, slice } : null;
};

report.showTip = (plot, event, tip) => {
  const hit = report.sliceAt(plot, event);
  tip.hidden = !hit;
  if (!hit) return;
  tip.replaceChildren(...report.sliceLines(plot.profile, plot.local, hit.row, hit.slice).map((text, i) => (
    report.el("div", { class: i ? "" : "tip-title", text }))));
  const box = plot.canvas.getBoundingClientRect();
  const x = event.clientX - box.left;
  tip.style.left = `${Math.max(0, Math.min(x + 14, box.width - tip.offsetWidth - 4))}px`;
  tip.style.top = `${event.clientY - box.top + 18}px`;
};

/** Goes up or down a row, to the slice nearest to the one that was selected. */
report.chooseRow = ({ profile, local }, by) => {
  const row = Math.max(0, Math.min(profile.rows.length - 1, local.get("row") + by));
  const old = profile.rows[local.get("row")];
  const time = old ? old.start[local.get("slice")] : local.get("from");
  local.set({ row, slice: Math.min(report.firstAfter(profile.rows[row], time + 1), profile.rows[row].start.length - 1) });
};

/** Goes to the next slice of the row, or the one before, and moves it into sight. */
report.chooseSlice = ({ profile, local }, by, show) => {
  const number = Math.max(0, local.get("row"));
  const row = profile.rows[number];
  const now = local.get("row") < 0 ? report.firstAfter(row, local.get("from")) - by : local.get("slice");
  const slice = Math.max(0, Math.min(row.start.length - 1, now + by));
  local.set({ row: number, slice });
  const [from, to] = [local.get("from"), local.get("to")];
  if (row.start[slice] < from || row.end[slice] > to) {
    const middle = (row.start[slice] + row.end[slice]) / 2;
    show(middle - (to - from) / 2, middle + (to - from) / 2);
  }
};
