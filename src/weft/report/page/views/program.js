/* The summary of a program that is no language model: of `weft.compile`, `from_torch` or a .pte file. */

report.view({
  id: "summary",
  title: "Summary",
  order: 10,
  needs: (data) => data.kind === "program",

  render(root, data) {
    const { el } = report;
    const text = [data.title, "", ...data.text, "", ...report.memoryText(data.memory)].join("\n");
    const pre = el("pre", { tabindex: 0, "aria-label": "Summary as text", text });
    const said = el("span", { role: "status", class: "soft" });
    const copy = el("button", {
      type: "button", class: "button", text: "Copy as text",
      onclick: async () => {
        said.textContent = (await report.copy(pre)) ? "copied" : "selected: press Ctrl+C to copy";
      },
    });
    root.append(el("p", {}, copy, " ", said), pre);
    if (data.left_out && data.left_out.length) root.append(report.leftOut(data.left_out));
  },
});

/** Nodes that an exporter left to others, with the sentence that says why. */
report.leftOut = (rows) => {
  const { el } = report;
  return el("section", {}, el("h2", { text: `Left out by weft: ${report.plural(rows.length, "node")}` }),
    el("div", { class: "scroll" }, el("table", {},
      el("thead", {}, el("tr", {}, ["node", "op", "why"].map((name) => el("th", { scope: "col", text: name })))),
      el("tbody", {}, rows.map((row) => el("tr", {}, el("td", { class: "mono", text: row.node }),
        el("td", { class: "mono", text: row.op }), el("td", { text: row.reason })))))));
};
