/* Memory as a map: address by time. Each tensor is a rectangle, as high as its bytes and as wide as its
   life; what lies to the right of it at the same height uses the same bytes again. */

report.view({
  id: "memory",
  title: "Memory",
  order: 20,
  needs: (data) => Boolean(data.memory && data.regimes && data.regimes.length),

  render(root, data, state) {
    const { el } = report;
    const bars = el("div", { class: "scroll" });
    const legend = el("ul", { class: "legend" }, report.families.map(([name], i) => el(
      "li", {}, el("span", { class: `swatch c${i}`, "aria-hidden": "true" }), name,
    )));
    const maps = el("div", { class: "maps" });
    root.append(
      el("h2", { text: "Buffers" }), bars,
      el("h2", { text: "Compute memory over a run" }),
      el("p", {
        class: "soft",
        text: "Steps of the run from left to right, addresses upwards. Arrow keys go from tensor to "
          + "tensor, + and - zoom, Enter selects.",
      }),
      legend, maps,
    );
    let drawn = [];
    const draw = () => {
      bars.replaceChildren(report.memoryBars(state.get("layout").rows, data));
      const layout = report.layout(state);
      const zoom = drawn.length ? drawn[0].zoom : null;
      drawn.forEach((map) => map.close());
      drawn = layout.arenas
        .map((arena, a) => (arena.bytes && layout.exact ? report.memoryMap(layout, a, data, state) : null))
        .filter((map) => map !== null);
      maps.replaceChildren(...drawn.map((map) => map.root));
      if (!drawn.length && !layout.exact) {
        maps.append(el("p", { class: "soft", text: "No map: weft did not plan these sizes together." }));
      }
      drawn.forEach((map) => map.open(zoom && zoom.times === layout.times ? zoom : null));
    };
    draw();
    state.on(["layout", "regime"], draw);
    state.on("tensor", () => drawn.forEach((map) => map.paint()));
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => drawn.forEach((map) => map.paint()));
  },
});

/** A row with a bar for every buffer. */
report.memoryBars = (rows, data) => {
  const { el, count, size } = report;
  // what texts leave behind is a limit, not memory that the plan takes: it has no bar
  const most = Math.max(...rows.filter((row) => row.buffer !== "prefixes").map((row) => row.bytes));
  const bar = (row) => (row.buffer === "prefixes" ? null : el("div", {
    class: `share share-${row.buffer.replace(/ /g, "-")}`,
    style: { width: `${Math.max((100 * row.bytes) / most, 0.3)}%` },
  }));
  const line = (row) => el(
    "tr", {},
    el("th", { scope: "row", text: row.buffer }), el("td", { class: "soft", text: row.memory }),
    el("td", { class: "share-cell", "aria-hidden": "true" }, bar(row)),
    el("td", { class: "number", text: size(row.bytes) }),
    el("td", { class: "number soft wide", text: count(row.bytes) }),
    el("td", { class: "soft about", text: report.aboutRow(row) }),
  );
  const head = el("thead", {}, el("tr", {},
    ["buffer", "memory"].map((text) => el("th", { scope: "col", text })),
    el("th", { scope: "col", class: "share-cell" }, el("span", { class: "hidden", text: "share" })),
    el("th", { scope: "col", class: "number", text: "size" }),
    el("th", { scope: "col", class: "number wide", text: "bytes" }), el("th", { scope: "col", class: "about", text: "about" })));
  const beside = (data.beside || []).flatMap((other) => [
    el("tr", {}, el("th", { scope: "rowgroup", colspan: 6, text: `of what drafts, ${other.file}, at the plan's own sizes` })),
    ...other.memory.map(line),
  ]);
  return el("table", { class: "buffers" }, head, el("tbody", {}, rows.map(line), beside));
};

/** What a row of memory is about, with its lower bound. */
report.aboutRow = (row) => {
  if (!row.lower_bound) return row.about;
  const over = (bytes, of) => `${bytes < of ? "−" : "+"}${(Math.abs(bytes / of - 1) * 100).toFixed(1)}%`;
  const reached = row.bytes === row.lower_bound ? "reached" : over(row.bytes, row.lower_bound);
  const reference = row.ggml ? `; ggml's allocator takes ${report.count(row.ggml)} B (${over(row.ggml, row.bytes)})` : "";
  return `lower bound ${report.count(row.lower_bound)} B (${reached})${reference}`;
};

/** The map of one arena: `root`, `open`, `paint` and `close`. */
report.memoryMap = (layout, number, data, state) => {
  const { el, count, size } = report;
  const arena = layout.arenas[number];
  const { byName } = report.regime(data, state);
  const starts = arena.chunks.map((_, c) => arena.chunks.slice(0, c).reduce((a, b) => a + b, 0));
  const boxes = layout.tensors.filter((t) => t.arena === number && t.bytes > 0)
    .sort((a, b) => a.start - b.start || a.offset - b.offset);
  const use = report.inUse(boxes, layout.times);
  const layers = report.layerStarts(report.regime(data, state));
  const AXIS = 18; // pixels below the map
  const zoom = { from: -1, to: layout.times, times: layout.times };
  const canvas = el("canvas", {
    tabindex: 0, role: "application", class: "map",
    "aria-label": `Map of ${arena.memory} memory: ${report.plural(boxes.length, "tensor")} in ${size(arena.bytes)}. `
      + "Arrow keys go from tensor to tensor, Enter selects.",
  });
  const tip = el("div", { class: "map-tip", role: "status" });
  let focus = null; // the box under the pointer or the keyboard
  let width = 0;
  let height = 0;

  const left = (t) => ((t - zoom.from) / (zoom.to - zoom.from + 1)) * width;
  const top = (address) => height - AXIS - (address / arena.bytes) * (height - AXIS - 8);
  const place = (t) => {
    const x = left(Math.max(t.start, -1));
    const low = starts[t.chunk] + t.offset;
    const y = top(low + t.bytes);
    return [x, y, Math.max(left(Math.min(t.end, layout.times) + 1) - x, 1), Math.max(top(low) - y, 1)];
  };

  const paint = () => {
    if (!width) return;
    const scale = devicePixelRatio || 1;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const pen = canvas.getContext("2d");
    pen.scale(scale, scale);
    const style = getComputedStyle(canvas);
    const colour = (name) => style.getPropertyValue(name).trim();
    const colours = report.families.map((_, i) => colour(`--c${i}`));
    pen.fillStyle = colour("--faint");
    pen.fillRect(0, 0, width, height);
    area(pen, colour("--line"), use);
    axis(pen, colour("--soft"), colour("--line"));
    const selected = state.get("tensor");
    for (const t of boxes) {
      if (t.end < zoom.from || t.start > zoom.to) continue;
      const [x, y, w, h] = place(t);
      const known = byName.get(t.name);
      pen.fillStyle = colours[report.family(known ? known.op : "")];
      pen.fillRect(x, y, w > 3 ? w - 1 : w, h > 3 ? h - 1 : h);
      if (w > 60 && h > 13) {
        pen.fillStyle = colour("--on-map");
        pen.font = "11px system-ui, sans-serif";
        pen.save();
        pen.beginPath();
        pen.rect(x, y, w - 3, h);
        pen.clip();
        pen.fillText(t.name, x + 4, Math.min(y + 12, y + h - 3));
        pen.restore();
      }
    }
    pen.setLineDash([6, 4]);
    pen.strokeStyle = colour("--mark");
    pen.lineWidth = 1.5;
    const bound = Math.round(top(arena.lower_bound)) + 0.5;
    pen.beginPath();
    pen.moveTo(0, bound);
    pen.lineTo(width, bound);
    pen.stroke();
    pen.setLineDash([]);
    for (const t of boxes) {
      if (t !== focus && t.name !== selected) continue;
      const [x, y, w, h] = place(t);
      pen.strokeStyle = colour("--page");
      pen.lineWidth = 4;
      pen.strokeRect(x + 1, y + 1, Math.max(w - 2, 1), Math.max(h - 2, 1));
      pen.strokeStyle = t.name === selected ? colour("--mark") : colour("--ink");
      pen.lineWidth = 2;
      pen.strokeRect(x + 1, y + 1, Math.max(w - 2, 1), Math.max(h - 2, 1));
    }
  };

  /** The bytes in use, behind the tensors: where no tensor covers it, memory is free in pieces. */
  const area = (pen, fill, bytes) => {
    pen.fillStyle = fill;
    pen.beginPath();
    pen.moveTo(left(zoom.from), top(0));
    for (let t = Math.floor(zoom.from); t <= Math.min(zoom.to, layout.times); t += 1) {
      const y = top(bytes[t + 1]);
      pen.lineTo(left(t), y);
      pen.lineTo(left(t + 1), y);
    }
    pen.lineTo(width, top(0));
    pen.fill();
  };

  /** The layers of the model, below the map. */
  const axis = (pen, ink, rule) => {
    pen.font = "11px system-ui, sans-serif";
    let next = 0; // where there is room for a label
    layers.forEach(([start, text]) => {
      const x = left(start);
      if (x < -40 || x > width) return;
      pen.fillStyle = rule;
      pen.fillRect(Math.round(x), 0, 1, height);
      if (x < next || !text) return;
      pen.fillStyle = ink;
      pen.fillText(text, x + 4, height - 4);
      next = x + pen.measureText(text).width + 12;
    });
  };

  const say = () => {
    if (focus === null) {
      tip.textContent = "";
      return;
    }
    const known = byName.get(focus.name);
    const { before } = report.reuse(layout, focus);
    const parts = [
      `${focus.name}: ${known ? `${known.op}, ` : ""}${size(focus.bytes)} at ${count(focus.offset)}`,
      `in use ${report.spanText(focus, layout.times)}`,
    ];
    if (before.length) {
      const names = before.slice(0, 3).map((t) => t.name).join(", ");
      parts.push(`in bytes that ${names}${before.length > 3 ? " and others" : ""} had before`);
    }
    if (known && known.why) parts.push(`on ${known.label} because ${known.why}`);
    tip.textContent = parts.join("; ");
  };

  const at = (event) => {
    const { left: x0, top: y0 } = canvas.getBoundingClientRect();
    const [px, py] = [event.clientX - x0, event.clientY - y0];
    return boxes.find((t) => {
      const [x, y, w, h] = place(t);
      return px >= x && px <= x + w && py >= y && py <= y + h;
    }) || null;
  };

  const look = (t) => {
    if (t === focus) return;
    focus = t;
    say();
    paint();
  };

  const zoomBy = (factor, around = (zoom.from + zoom.to) / 2) => {
    const span = Math.min(Math.max((zoom.to - zoom.from) * factor, 8), layout.times + 1);
    const share = (around - zoom.from) / (zoom.to - zoom.from);
    zoom.from = Math.max(-1, Math.min(around - share * span, layout.times - span));
    zoom.to = zoom.from + span;
    paint();
  };

  const panBy = (steps) => {
    const span = zoom.to - zoom.from;
    zoom.from = Math.max(-1, Math.min(zoom.from + steps, layout.times - span));
    zoom.to = zoom.from + span;
    paint();
  };

  const show = (t) => {
    if (t.start < zoom.from) panBy(t.start - zoom.from - 2);
    else if (t.start > zoom.to) panBy(t.start - zoom.to + 2);
  };

  const step = (key) => {
    const here = focus || boxes.find((t) => t.name === state.get("tensor")) || null;
    if (here === null) return boxes[0];
    if (key === "ArrowRight" || key === "ArrowLeft") {
      const i = boxes.indexOf(here) + (key === "ArrowRight" ? 1 : -1);
      return boxes[Math.max(0, Math.min(i, boxes.length - 1))];
    }
    const address = (t) => starts[t.chunk] + t.offset;
    const both = boxes.filter((t) => t !== here && t.start <= here.end && t.end >= here.start);
    const up = key === "ArrowUp";
    const beyond = both.filter((t) => (up ? address(t) > address(here) : address(t) < address(here)));
    return beyond.sort((a, b) => (up ? address(a) - address(b) : address(b) - address(a)))[0] || here;
  };

  canvas.addEventListener("pointermove", (event) => {
    if (event.buttons === 1 && event.pointerType === "mouse" && Math.abs(event.movementX) > 0) {
      panBy((-event.movementX / width) * (zoom.to - zoom.from));
      moved += Math.abs(event.movementX);
    } else look(at(event));
  });
  let moved = 0;
  canvas.addEventListener("pointerdown", () => (moved = 0));
  canvas.addEventListener("pointerleave", () => look(null));
  canvas.addEventListener("click", (event) => {
    const t = at(event);
    if (t !== null && moved < 4) state.set({ tensor: t.name });
  });
  canvas.addEventListener("wheel", (event) => {
    if (!event.ctrlKey && !event.metaKey) return;
    event.preventDefault();
    const x = event.clientX - canvas.getBoundingClientRect().left;
    zoomBy(event.deltaY > 0 ? 1.25 : 0.8, zoom.from + (x / width) * (zoom.to - zoom.from));
  }, { passive: false });
  canvas.addEventListener("keydown", (event) => {
    if (event.key.startsWith("Arrow")) {
      const t = step(event.key);
      show(t);
      look(t);
    } else if (event.key === "Enter" && focus) state.set({ tensor: focus.name });
    else if (event.key === "+" || event.key === "=") zoomBy(0.5, focus ? focus.start : undefined);
    else if (event.key === "-") zoomBy(2, focus ? focus.start : undefined);
    else if (event.key === "0") zoomBy(1e9);
    else return;
    event.preventDefault();
  });
  canvas.addEventListener("blur", () => look(null));

  const button = (text, label, act) => el("button", { type: "button", class: "button", text, "aria-label": label, onclick: act });
  const over = arena.bytes / arena.lower_bound - 1;
  const root = el(
    "figure", { class: "memory-map" },
    el("figcaption", {},
      el("strong", { text: arena.memory }),
      ` ${size(arena.bytes)} (${count(arena.bytes)} B), ${over ? `${(over * 100).toFixed(2)}% above the lower bound` : "the lower bound"}`
        + `${arena.chunks.length > 1 ? `, in ${arena.chunks.length} blocks` : ""}; `,
      el("span", { class: "swatch in-use" }), "bytes in use, ", el("span", { class: "key bound" }), "lower bound",
      el("span", { class: "zooms" },
        button("+", "Zoom in", () => zoomBy(0.5)), button("−", "Zoom out", () => zoomBy(2)), button("All", "Whole run", () => zoomBy(1e9)))),
    canvas, tip,
  );
  const resized = new ResizeObserver(([entry]) => {
    width = entry.contentRect.width;
    height = entry.contentRect.height;
    paint();
  });
  return {
    root,
    zoom,
    paint,
    open: (before) => {
      if (before) Object.assign(zoom, before);
      resized.observe(canvas);
    },
    close: () => resized.disconnect(),
  };
};

/** The first step of each layer and of what stands between layers, in order: [step, name]. */
report.layerStarts = ({ layers, tensors }) => layers.blocks
  .map(([start, , name]) => [tensors[start].time, name])
  .filter(([time]) => time >= 0);

/** Bytes in use at each time, the first at time -1. */
report.inUse = (boxes, times) => {
  const changes = new Float64Array(times + 3);
  for (const t of boxes) {
    changes[Math.max(t.start, -1) + 1] += t.bytes;
    changes[Math.min(t.end, times) + 2] -= t.bytes;
  }
  let now = 0;
  return changes.map((change) => (now += change));
};
