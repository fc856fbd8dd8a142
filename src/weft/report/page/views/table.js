/* All tensors, to sort and to filter. */

report.view({
  id: "table",
  title: "Table",
  order: 60,
  needs: (data) => Boolean(data.regimes && data.regimes.length),

  render(root, data, state) {
    const { el } = report;
    const body = el("tbody");
    const draw = () => {
      body.replaceChildren(...report.regime(data, state).tensors.slice(0, 200).map((t) => el(
        "tr", { onclick: () => state.set({ tensor: t.name }) },
        el("td", { class: "mono", text: t.name }), el("td", { text: t.op }),
        el("td", { class: "number", text: report.count(t.bytes) }), el("td", { text: t.why }),
      )));
    };
    root.append(el("div", { class: "scroll" }, el("table", {}, body)));
    draw();
    state.on("regime", draw);
  },
});
