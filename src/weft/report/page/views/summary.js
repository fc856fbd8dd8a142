/* The plan in a few lines, to read and to copy. */

report.view({
  id: "summary",
  title: "Summary",
  order: 10,
  needs: (data) => data.kind === "plan",

  render(root, data, state) {
    const { el } = report;
    const opening = el("section", { class: "opening", "aria-label": "In short" });
    const open = () => opening.replaceChildren(...report.opening(data, state));
    open();
    const text = report.summaryText(data, state);
    const pre = el("pre", { tabindex: 0, "aria-label": "Summary as text", text });
    const said = el("span", { role: "status", class: "soft" });
    const copy = el("button", {
      type: "button", class: "button", text: "Copy as text",
      onclick: async () => {
        said.textContent = (await report.copy(pre)) ? "copied" : "selected: press Ctrl+C to copy";
      },
    });
    root.append(opening, el("p", {}, copy, " ", said), pre);
    state.on("layout", () => {
      open();
      pre.textContent = report.summaryText(data, state);
    });
  },
});

/** What the model is, whether it fits, where it runs and how fast it will be; and a bar for each
    memory. */
report.opening = (data, state) => {
  const { el } = report;
  const { planned, position, rows } = state.get("layout");
  const about = data.overview;
  if (!about) return [];
  const rooms = report.roomsAt(about, rows).filter((room) => room.bytes);
  const ctx = planned || !position ? about.n_ctx : position.ctx;
  const [what, , where, speed] = about.words;
  const said = [what, report.needs(about, rooms, ctx), where, ...(planned ? [speed] : [])];
  return [
    ...said.map((text, i) => el("p", { class: i ? null : "opening-what" }, text.split("`").map(
      (part, odd) => (odd % 2 ? el("code", { text: part }) : part),
    ))),
    ...rooms.map((room) => report.roomBar(room)),
  ];
};

/** The memories of a plan with the bytes of their parts, from rows of memory. */
report.roomsAt = (about, rows) => about.rooms.map((room) => {
  const parts = new Map(["weights", "experts", "cache", "compute", "drafts"].map((name) => [name, 0]));
  parts.set("drafts", room.parts.drafts ?? 0);
  let scratch = 0;
  for (const { buffer, memory, bytes } of rows) {
    if (buffer === "prefixes" || !room.holds.includes(memory)) continue;
    const part = buffer === "tower weights" ? "weights" : parts.has(buffer) ? buffer : "compute";
    parts.set(part, parts.get(part) + bytes);
    if (memory === "threads") scratch += bytes;
  }
  const bytes = [...parts.values()].reduce((a, b) => a + b, 0);
  const counted = bytes - room.mapped - scratch;
  return { ...room, parts, bytes, counted, over: room.limit !== null && counted > room.limit };
});

/** The sentence about memory, as `weft explain` has it. */
report.needs = (about, rooms, ctx) => {
  const { size, count } = report;
  const listed = (parts) => (parts.length < 2 ? parts.join("") : `${parts.slice(0, -1).join(", ")} and ${parts.at(-1)}`);
  const of = (room) => (room.limit === null ? ""
    : !room.over && room.bytes > room.limit ? ` (${size(room.counted)} of ${size(room.limit)} must stay in memory)`
      : ` of ${size(room.limit)}`);
  const each = rooms.map((room) => size(room.bytes) + of(room) + (rooms.length > 1 ? ` in ${room.memory}` : ""));
  const need = `eeds ${listed(each)} with a context of ${count(ctx)} tokens`;
  const full = rooms.filter((room) => room.over).map((room) => `${size(room.counted)} must fit into `
    + `${room.memory}, which has room for ${size(room.limit)}`);
  if (full.length) return `Does not fit: n${need}; ${listed(full)}.`;
  const unknown = rooms.filter((room) => room.limit === null).map((room) => room.memory);
  if (unknown.length) return `N${need}; it is not known how much ${listed(unknown)} memory there is.`;
  const beside = about.beside ? ` Prefixes of texts may take ${size(about.beside)} more, where there is room.` : "";
  return `Fits: n${need}.${beside}`;
};

/** A memory as a bar of its parts, to scale; one that is nearly free has a gap in what is free. */
report.roomBar = (room) => {
  const { el, size } = report;
  const free = room.limit === null ? 0 : Math.max(room.limit - room.counted, 0);
  const cut = room.bytes < (room.bytes + free) / 4;
  const parts = [...room.parts].filter(([, bytes]) => bytes);
  const bar = parts.map(([name, bytes]) => el("span", {
    class: `share-${name}`, title: `${name} ${size(bytes)}`, style: { flexGrow: bytes / room.bytes },
  }));
  if (free) bar.push(el("span", { class: cut ? "free cut" : "free", style: { flexGrow: cut ? 1 / 3 : free / room.bytes } }));
  const legend = parts.map(([name, bytes]) => el("li", {},
    el("span", { class: `swatch share-${name}`, "aria-hidden": "true" }), `${name} ${size(bytes)}`));
  if (free) legend.push(el("li", {}, el("span", { class: "swatch free", "aria-hidden": "true" }), `free ${size(free)}`));
  const devices = room.devices.join(", ");
  const of = room.limit === null || (!room.over && room.bytes > room.limit) ? "" : ` of ${size(room.limit)}`;
  return el("figure", { class: `room${room.over ? " over" : ""}` },
    el("figcaption", {}, el("b", { text: room.memory }), el("span", { class: "soft", text: `memory of ${devices}` }),
      el("span", { text: `${size(room.bytes)}${of}${room.over ? ": too little" : ""}` })),
    el("div", { class: "room-bar", "aria-hidden": "true" }, bar),
    el("ul", { class: "legend" }, legend));
};

/** Copies the text of an element; where the browser forbids it, selects the text. */
report.copy = async (node) => {
  try {
    await navigator.clipboard.writeText(node.textContent);
    return true;
  } catch {
    const range = document.createRange();
    range.selectNodeContents(node);
    getSelection().removeAllRanges();
    getSelection().addRange(range);
    return false;
  }
};

/** The summary as text. */
report.summaryText = (data, state) => {
  const { position, planned, rows } = state.get("layout");
  const { n_ctx: ctx, n_ubatch: ub, n_seq_max: seqs, type_k: k, type_v: v } = data.options;
  const at = planned || !position ? { ctx, ub, seqs, k, v } : position;
  const lines = [
    `${data.title}: ${data.model.architecture}, ${data.model.layers} layers (weft ${data.weft})`,
    `context ${report.count(at.ctx)}, ubatch ${report.count(Math.min(at.ub, at.ctx))}, `
      + `${report.plural(at.seqs, "sequence")}, cache types ${at.k} and ${at.v}`,
    report.needsText(rows) + report.draftsText(data),
    "",
  ];
  // at other sizes the placement is the same, but not the bytes of copies that the lines have
  if (planned) lines.push(...data.text, "");
  lines.push(...report.memoryText(rows));
  for (const other of planned ? data.beside : []) {
    lines.push("", `memory of what drafts, of ${other.file}`, ...report.memoryText(other.memory));
  }
  return lines.join("\n");
};

/** A sentence about the memory that is needed; kept prefixes give way to other needs. */
report.needsText = (rows) => {
  const needed = rows.filter((row) => row.buffer !== "prefixes");
  const bytes = needed.reduce((sum, row) => sum + row.bytes, 0);
  const rest = needed.length < rows.length ? ", and more for prefixes of texts, if there is room" : "";
  return `needs ${report.size(bytes)} of memory${rest}`;
};

/** How much memory models that draft take beside; empty where there are none. */
report.draftsText = (data) => {
  const rooms = data.overview?.rooms ?? [];
  const bytes = rooms.reduce((sum, room) => sum + (room.parts.drafts ?? 0), 0);
  return bytes ? `; drafts take ${report.size(bytes)} more` : "";
};

/** Rows of memory as an aligned table of text. */
report.memoryText = (rows) => {
  const cells = [["buffer", "memory", "bytes", "size", "about"]];
  for (const row of rows) {
    const { buffer, memory, bytes } = row;
    cells.push([buffer, memory, report.count(bytes), report.size(bytes), report.aboutRow(row)]);
  }
  const widths = cells[0].map((_, i) => Math.max(...cells.map((row) => row[i].length)));
  return cells.map((row) => row
    .map((cell, i) => (i === 2 || i === 3 ? cell.padStart(widths[i]) : cell.padEnd(widths[i])))
    .join("  ").trimEnd());
};
