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
report.summaryText = (data) => {
  const lines = [`${data.title}: ${data.model.architecture}, ${data.model.layers} layers`, ""];
  lines.push(...data.text, "", ...report.memoryText(data.memory));
  return lines.join("\n");
};

/** Rows of memory as an aligned table of text. */
report.memoryText = (rows) => {
  const cells = [["buffer", "memory", "bytes", "size", "about"]];
  for (const row of rows) {
    const about = row.lower_bound
      ? `lower bound ${report.count(row.lower_bound)} B` + (row.bytes === row.lower_bound
        ? " (reached)" : ` (+${((row.bytes / row.lower_bound - 1) * 100).toFixed(1)}%)`)
      : row.about;
    cells.push([row.buffer, row.memory, report.count(row.bytes), report.size(row.bytes), about]);
  }
  const widths = cells[0].map((_, i) => Math.max(...cells.map((row) => row[i].length)));
  return cells.map((row) => row
    .map((cell, i) => (i === 2 || i === 3 ? cell.padStart(widths[i]) : cell.padEnd(widths[i])))
    .join("  ").trimEnd());
};
