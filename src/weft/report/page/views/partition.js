/* What a partitioner gave to weft: which nodes, in which parts, and why not the others. */

report.view({
  id: "partition",
  title: "Partition",
  order: 10,
  needs: (data) => data.kind === "partition",

  render(root, data) {
    const { el } = report;
    const left = data.nodes.filter((node) => node.part === null);
    root.append(el("p", { text: data.text[0] }), report.partitionStrip(data.nodes));
    if (left.length) root.append(report.leftOut(left));
    root.append(report.partitionTable(data.nodes));
  },
});

/** The class of the colour of a part; nodes outside have none. */
report.partColor = (part) => (part === null ? "outside" : `c${part % 7}`);

report.partName = (part) => (part === null ? "outside" : `part ${part}`);

/** The nodes in order as a strip: a piece for each run of nodes in the same place. */
report.partitionStrip = (nodes) => {
  const { el, plural } = report;
  const runs = [];
  for (const { part, node } of nodes) {
    const last = runs[runs.length - 1];
    if (last && last.part === part) last.nodes.push(node);
    else runs.push({ part, nodes: [node] });
  }
  const about = ({ part, nodes: inside }) => `${report.partName(part)}: ${plural(inside.length, "node")}, ${inside[0]}`
    + (inside.length > 1 ? ` to ${inside[inside.length - 1]}` : "");
  const places = [...new Map(nodes.map(({ part }) => [part, 0])).keys()];
  const count = (part) => nodes.filter((node) => node.part === part).length;
  return el("figure", { class: "partition" },
    el("div", { class: "strip", role: "img", "aria-label": runs.map(about).join("; ") },
      runs.map((run) => el("span", { class: report.partColor(run.part), title: about(run), style: { flexGrow: run.nodes.length } }))),
    el("figcaption", {}, el("ul", { class: "legend" }, places.map((part) => el("li", {},
      el("span", { class: `swatch ${report.partColor(part)}` }), `${report.partName(part)}: ${plural(count(part), "node")}`)))));
};

/** All nodes in the order of the program. */
report.partitionTable = (nodes) => {
  const { el } = report;
  return el("section", {}, el("h2", { text: "Nodes in order" }), el("div", { class: "scroll" }, el("table", {},
    el("thead", {}, el("tr", {}, ["", "node", "op", "result"].map((name) => el("th", { scope: "col", text: name })))),
    el("tbody", {}, nodes.map((row) => el("tr", {},
      el("td", { class: "where" }, el("span", { class: `swatch ${report.partColor(row.part)}` }), report.partName(row.part)),
      ["node", "op", "result"].map((name) => el("td", { class: "mono", text: row[name] }))))))));
};
