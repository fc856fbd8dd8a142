/* Two plans side by side. */

report.view({
  id: "compare",
  title: "Differences",
  order: 5,
  needs: (data) => data.kind === "diff",

  render(root, data) {
    const { el } = report;
    const local = report.store({ pair: 0, color: "device" });
    const pair = el("div", {});
    const totals = el("div", {});
    const draw = () => {
      totals.replaceChildren(report.compareTotals(data, local));
      pair.replaceChildren(...report.comparePair(data, local));
    };
    root.append(el("p", { text: report.compareSentence(data) }), el("div", { class: "beside" }, report.compareHead(data), totals));
    if (data.pairs.length > 1) {
      root.append(el("p", {}, el("label", {}, "plans for ", el("select", {
        onchange: (event) => local.set({ pair: Number(event.target.value) }),
      }, data.pairs.map((one, i) => el("option", { value: i, text: one.label }))))));
    }
    root.append(pair);
    if (data.leaves.length) root.append(el("h2", { text: "Weights and caches that moved" }), report.changeTable(data, data.leaves));
    root.append(report.compareText(data));
    draw();
    report.drawMaps(pair, data, local);
    local.on(["pair", "color"], () => {
      draw();
      report.drawMaps(pair, data, local);
    });
  },
});

/** Names, models and options that differ. */
report.compareHead = (data) => {
  const { el } = report;
  const rows = [...data.facts.filter((row) => row[1] || row[2]), ...data.options];
  return report.sideTable(data, "", rows.map((row) => [...row, row[1] === row[2] ? "" : "≠"]));
};

/** What differs, in a sentence. */
report.compareSentence = (data) => {
  const { plural } = report;
  if (!data.text.length) return "The two plans are alike.";
  const sum = (groups, what) => groups.filter((group) => group.what === what).reduce((n, group) => n + group.n, 0);
  const { groups } = data.pairs[0];
  const parts = [
    [sum(groups, "moved"), "node is on another device", "nodes are on another device"],
    [sum(groups, "new") + sum(groups, "gone"), "node is in one plan only", "nodes are in one plan only"],
    [sum(groups, "why"), "node stayed for another reason", "nodes stayed for another reason"],
    [sum(data.leaves, "moved"), "weight or cache moved", "weights and caches moved"],
  ].filter(([n]) => n > 0).map(([n, one, many]) => plural(n, one, many));
  const bytes = data.memory.reduce((total, row) => total + row[3] - row[2], 0);
  if (bytes) parts.push(`${bytes > 0 ? "+" : "−"}${report.size(Math.abs(bytes))} of memory in all`);
  return parts.length ? `${parts.join("; ")}.` : "Every node, weight and cache is where it was.";
};

/** A table with a column for each plan. */
report.sideTable = (data, caption, rows, number = false) => {
  const { el } = report;
  const side = number ? "number" : "";
  return el("div", { class: "scroll", tabindex: 0, role: "group", "aria-label": caption || "Both plans" }, el("table", {},
    caption ? el("caption", { text: caption }) : null,
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }), data.names.map((name) => el("th", { scope: "col", class: side, text: name })),
      el("th", { scope: "col", class: side, text: number ? "change" : "" }))),
    el("tbody", {}, rows.map(([name, a, b, change]) => el("tr", { class: change ? "differs" : "" },
      el("th", { scope: "row", text: name }), el("td", { class: side, text: a }), el("td", { class: side, text: b }),
      el("td", { class: `${side} soft`, text: change }))))));
};

/** A number with its sign. */
report.signed = (n) => (n === 0 ? "" : `${n > 0 ? "+" : "−"}${report.count(Math.abs(n))}`);

/** The totals of the plans for a size of batches. */
report.compareTotals = (data, local) => {
  const rows = data.pairs[local.get("pair")].totals;
  const shown = rows.map(([what, a, b]) => {
    const text = /bytes/.test(what) ? report.size : report.count;
    return [what, text(a), text(b), b === a ? "" : `${b > a ? "+" : "−"}${text(Math.abs(b - a))}`];
  });
  return report.sideTable(data, "", shown, true);
};

/** What differs between the plans of a size of batches: maps, nodes. */
report.comparePair = (data, local) => {
  const { el, plural } = report;
  const pair = data.pairs[local.get("pair")];
  const of = (what) => pair.groups.filter((group) => group.what === what);
  const sum = (groups) => groups.reduce((n, group) => n + group.n, 0);
  const choices = { device: "device", moved: "what moved" };
  const radios = Object.entries(choices).map(([value, text]) => el("label", {}, el("input", {
    type: "radio", name: "compare-color", value, checked: value === local.get("color"),
    onchange: () => local.set({ color: value }),
  }), ` ${text}`));
  const parts = [el("h2", { text: "Devices and splits in the order of the run" }),
    el("div", { class: "tools" }, el("fieldset", { class: "choice" }, el("legend", { text: "colour by" }), radios)),
    ...data.names.flatMap((name, i) => [el("h3", { text: name }), el("div", { class: "graph-map", "data-side": i })]),
    el("ul", { class: "legend" }, report.compareLegend(data, local.get("color")).map(([text, background]) => el("li", {},
      el("span", { class: "swatch", style: { background } }), el("span", { text })))),
    report.compareMemory(data)];
  const headings = { moved: ["Nodes that moved", "moved"], new: [`Nodes of ${data.names[1]} only`, "new"],
    gone: [`Nodes of ${data.names[0]} only`, "gone"], why: ["Nodes that stayed, for another reason", "changed"] };
  for (const [what, [heading]] of Object.entries(headings)) {
    const groups = of(what);
    if (groups.length) parts.push(el("h2", { text: `${heading}: ${plural(sum(groups), "node")}` }), report.changeTable(data, groups));
  }
  if (pair.copies.length) parts.push(el("h2", { text: `Copies that differ: ${sum(pair.copies)}` }), report.changeTable(data, pair.copies));
  if (!pair.groups.length) parts.push(el("p", { text: "Every node is where it was, for the same reason." }));
  return parts;
};

report.compareLegend = (data, color) => (color === "device"
  ? data.devices.map((device, i) => [device.name, `var(--c${i % 8})`])
  : [["moved to another device", "var(--mark)"], ["in one plan only", "var(--c1)"], ["where it was", "var(--c7)"]]);

/** Draws the maps of both plans, once they are in the page. */
report.drawMaps = (root, data, local) => {
  const pair = data.pairs[local.get("pair")];
  const byMove = local.get("color") === "moved";
  pair.sides.forEach((side, i) => {
    const box = root.querySelector(`[data-side="${i}"]`);
    const regime = report.sideGraph(side, data);
    const palette = {
      of: (tensor) => (byMove ? ["var(--c7)", "var(--mark)", "var(--c1)"][tensor.moved] : `var(--c${Math.max(tensor.device, 0) % 8})`),
    };
    report.splitMap(box, regime, data, palette, () => {});
  });
};

/** A side as a graph that `splitMap` draws; its copies are nodes of their own. */
report.sideGraph = (side, data) => {
  const names = data.devices.map((device) => device.name);
  const tensors = [];
  const holders = new Map(names.map((name, i) => [name, tensors.push({
    kind: "leaf", split: -1, device: i, label: name, src: [], readers: [], view: -1, bytes: 0,
  }) - 1]));
  const { op, device, split, moved } = side.nodes;
  let at = 0;
  side.splits.forEach((one, number) => {
    const label = one.device;
    for (const input of one.inputs) {
      if (!holders.has(input.from)) continue;
      tensors.push({ kind: "copy", op: "copy", split: number, device: names.indexOf(label), label, view: -1,
        src: [holders.get(input.from)], bytes: input.bytes, moved: 0 });
    }
    for (; at < op.length && split[at] === number; at += 1) {
      tensors.push({ kind: "node", op: op[at], split: number, device: device[at],
        label: device[at] < 0 ? "" : names[device[at]], view: -1, src: [], bytes: 0, moved: moved[at] });
    }
  });
  return { splits: side.splits, tensors };
};

/** Groups of changes; a group unfolds to its names. */
report.changeTable = (data, groups) => {
  const { el, count } = report;
  const move = (group) => [group.from, group.to].filter(Boolean).join(" → ") || "";
  return el("ol", { class: "changes" }, groups.map((group) => {
    const names = el("p", { class: "mono soft", hidden: true });
    const head = el("button", {
      type: "button", class: "change", "aria-expanded": "false",
      onclick: () => {
        names.hidden = !names.hidden;
        head.setAttribute("aria-expanded", String(!names.hidden));
        const more = group.n - group.names.length;
        names.textContent = group.names.join(", ") + (more ? ` and ${count(more)} more` : "");
      },
    }, el("span", { class: "twist", "aria-hidden": "true" }), el("span", { class: "times", text: `×${count(group.n)}` }),
    el("span", { class: "op", text: group.kind }), el("span", { class: "mono", text: group.name }),
    el("span", { class: "move", text: group.from === group.to ? group.to : move(group) }));
    const why = [];
    const same = group.why_before === group.why_after;
    if (same && group.why_after) why.push(el("div", {}, el("span", { class: "soft", text: "in both: " }), group.why_after));
    if (group.why_before && !same) why.push(el("div", {}, el("span", { class: "soft", text: `${data.names[0]}: ` }), group.why_before));
    if (group.why_after && !same) why.push(el("div", {}, el("span", { class: "soft", text: `${data.names[1]}: ` }), group.why_after));
    if (group.refused) why.push(el("div", { class: "refused-line" }, group.refused));
    return el("li", {}, head, el("div", { class: "why" }, why), names);
  }));
};

/** Bytes of each buffer in both plans, as bars. */
report.compareMemory = (data) => {
  const { el, size, count } = report;
  const most = Math.max(1, ...data.memory.flatMap((row) => [row[2], row[3]]));
  const bar = (bytes, side) => el("div", { class: `side-bar side-${side}` },
    el("span", { class: "side-fill", style: { width: `${(bytes / most) * 100}%` }, "aria-hidden": "true" }),
    el("span", { text: `${data.names[side]}: ${data.rounded ? mib(bytes) : `${size(bytes)} (${count(bytes)} B)`}` }));
  const mib = (bytes) => `${(bytes / 1048576).toFixed(2)} MiB`; // a log has no more
  const change = (bytes) => (data.rounded ? `${bytes < 0 ? "−" : "+"}${mib(Math.abs(bytes))}` : `${report.signed(bytes)} B`);
  return el("section", {}, el("h2", { text: "Bytes of each buffer" }), data.memory.map(([buffer, memory, a, b]) => el(
    "div", { class: "bars" },
    el("div", { class: "bars-name" }, `${buffer} in ${memory}`, el("span", { class: "soft", text: a === b ? " (the same)" : ` ${change(b - a)}` })),
    bar(a, 0), bar(b, 1),
    buffer === "compute" && data.reference[memory]
      ? el("div", { class: "soft", text: `For the plan's graph, ggml's allocator takes ${size(data.reference[memory])}.` }) : null)));
};

/** The lines of `weft diff`, to copy. */
report.compareText = (data) => {
  const { el } = report;
  const text = data.text.join("\n");
  return el("details", {}, el("summary", { text: `As text: ${report.plural(data.text.length, "line")} of weft diff` }),
    el("pre", { tabindex: 0, "aria-label": "Differences as text", text }));
};
