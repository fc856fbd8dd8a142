/* All tensors, to sort and to filter. Only the rows in sight are in the document. */

report.view({
  id: "table",
  title: "Table",
  order: 60,
  needs: (data) => Boolean(data.regimes && data.regimes.length),

  render(root, data, state) {
    const { el, count } = report;
    const HEIGHT = 26;
    const columns = [
      { key: "time", title: "step", number: true, text: (t) => (t.time < 0 ? "" : String(t.time)) },
      { key: "name", title: "name", mono: true },
      { key: "op", title: "op", text: (t) => (t.op === "NONE" ? t.kind : t.op) },
      { key: "type", title: "type", text: (t) => report.typeAt(data, state, t) },
      { key: "shape", title: "shape", mono: true },
      { key: "bytes", title: "bytes", number: true, text: (t) => (bytesOf(t) === null ? "" : count(bytesOf(t))) },
      { key: "label", title: "device" },
      { key: "memory", title: "memory" },
      { key: "cause", title: "cause", title2: (t) => t.why },
      { key: "why", title: "why" },
    ];
    let sort = { key: "time", down: false };
    let shown = [];

    const bytesOf = (t) => report.bytesAt(data, state, t);
    const value = (t, key) => (key === "bytes" ? bytesOf(t) : key === "op" && t.op === "NONE" ? t.kind : t[key]);

    const find = el("input", {
      type: "search", id: "table-find", placeholder: "name, op, type, device, reason", oninput: () => filter(),
    });
    const kind = el("select", { id: "table-kind", onchange: () => filter() });
    const found = el("span", { class: "soft", role: "status" });
    const head = el("div", { role: "row", class: "grid-row grid-head" });
    const body = el("div", { class: "grid-body", role: "rowgroup" });
    const box = el(
      "div", { class: "grid", role: "grid", "aria-label": "Tensors", tabindex: 0 },
      el("div", { role: "rowgroup", class: "grid-top" }, head), body,
    );

    for (const column of columns) {
      head.append(el(
        "div", { role: "columnheader", class: `cell col-${column.key}${column.number ? " number" : ""}`, "data-key": column.key },
        el("button", {
          type: "button", class: "sort", text: column.title,
          onclick: () => {
            sort = { key: column.key, down: sort.key === column.key ? !sort.down : column.key === "bytes" };
            filter();
          },
        }),
      ));
    }

    const filter = () => {
      const words = find.value.toLowerCase().split(/\s+/).filter(Boolean);
      const all = report.regime(data, state).tensors;
      shown = all.filter((t) => {
        if (kind.value && t.kind !== kind.value) return false;
        const text = `${t.name} ${t.op} ${t.type} ${t.label} ${t.memory} ${t.cause} ${t.why}`.toLowerCase();
        return words.every((word) => text.includes(word));
      });
      const sign = sort.down ? -1 : 1;
      shown.sort((a, b) => {
        const [x, y] = [value(a, sort.key), value(b, sort.key)];
        const order = typeof x === "number" ? x - y : String(x).localeCompare(String(y), "en", { numeric: true });
        // weights and inputs have no step: they come last
        const after = sort.key === "time" ? (a.time < 0) - (b.time < 0) : 0;
        return after || sign * order || a.row - b.row;
      });
      found.textContent = `${report.plural(shown.length, "tensor")} of ${count(all.length)}, `
        + `${report.size(shown.filter((t) => t.view < 0).reduce((sum, t) => sum + bytesOf(t), 0))} if none shared memory`;
      for (const cell of head.children) {
        const own = cell.dataset.key === sort.key;
        if (own) cell.setAttribute("aria-sort", sort.down ? "descending" : "ascending");
        else cell.removeAttribute("aria-sort");
      }
      box.setAttribute("aria-rowcount", shown.length + 1);
      body.style.height = `${shown.length * HEIGHT}px`;
      draw();
    };

    const draw = () => {
      const first = Math.max(0, Math.floor((box.scrollTop - 40) / HEIGHT) - 8);
      const last = Math.min(shown.length, first + Math.ceil(box.clientHeight / HEIGHT) + 20);
      const rows = [];
      for (let i = first; i < last; i += 1) rows.push(row(shown[i], i));
      body.replaceChildren(...rows);
    };

    const row = (t, i) => el(
      "div", {
        role: "row", class: "grid-row", "aria-rowindex": i + 2, "aria-selected": String(t.name === state.get("tensor")),
        style: { top: `${i * HEIGHT}px` }, onclick: () => state.set({ tensor: t.name }),
      },
      columns.map((column) => el("div", {
        role: "gridcell", class: `cell col-${column.key}${column.number ? " number" : ""}${column.mono ? " mono" : ""}`,
        text: column.text ? column.text(t) : t[column.key], title: column.key === "why" || column.key === "name" ? String(t[column.key]) : null,
      })),
    );

    const reveal = (i) => {
      if (i < 0) return;
      const y = i * HEIGHT;
      if (y < box.scrollTop) box.scrollTop = y;
      else if (y + 2 * HEIGHT + 40 > box.scrollTop + box.clientHeight) box.scrollTop = y + 2 * HEIGHT + 40 - box.clientHeight;
    };

    box.addEventListener("scroll", draw);
    box.addEventListener("keydown", (event) => {
      const moves = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -1e9, End: 1e9 };
      if (!(event.key in moves) || !shown.length || event.target !== box) return;
      event.preventDefault();
      const here = shown.findIndex((t) => t.name === state.get("tensor"));
      const i = Math.max(0, Math.min((here < 0 ? -1 : here) + moves[event.key], shown.length - 1));
      state.set({ tensor: shown[i].name });
    });

    const fill = () => {
      const before = kind.value;
      const kinds = [...new Set(report.regime(data, state).tensors.map((t) => t.kind))];
      kind.replaceChildren(el("option", { value: "", text: "all" }), ...kinds.map((name) => el("option", { value: name, text: name })));
      kind.value = kinds.includes(before) ? before : "";
    };

    root.append(
      el("div", { class: "filters" },
        el("label", { for: "table-find", text: "Find" }), find,
        el("label", { for: "table-kind", text: "Kind" }), kind, found),
      box,
    );
    fill();
    filter();
    reveal(shown.findIndex((t) => t.name === state.get("tensor")));
    new ResizeObserver(draw).observe(box);
    state.on("regime", () => {
      fill();
      filter();
    });
    state.on("layout", filter);
    state.on("tensor", () => {
      reveal(shown.findIndex((t) => t.name === state.get("tensor")));
      draw();
    });
  },
});
