/* The plan in a few lines, to read and to copy. */

report.view({
  id: "summary",
  title: "Summary",
  order: 10,
  needs: (data) => data.kind === "plan",

  render(root, data, state) {
    const { el } = report;
    const text = report.summaryText(data, state);
    const pre = el("pre", { tabindex: 0, "aria-label": "Summary as text", text });
    const said = el("span", { role: "status", class: "soft" });
    const copy = el("button", {
      type: "button", class: "button", text: "Copy as text",
      onclick: async () => {
        said.textContent = (await report.copy(pre)) ? "copied" : "selected: press Ctrl+C to copy";
      },
    });
    root.append(el("p", {}, copy, " ", said), pre);
    state.on("layout", () => (pre.textContent = report.summaryText(data, state)));
  },
});

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
    report.needsText(rows),
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
