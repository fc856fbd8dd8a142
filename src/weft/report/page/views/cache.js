/* The updates of a watched cache: a row for each, with the cells by sequence after it, what it cost
   and what it saved. */

report.view({
  id: "cache",
  title: "Cache",
  order: 17,
  needs: (data) => Boolean(data.cache),

  render(root, data) {
    const { el } = report;
    const { events } = data.cache;
    const local = report.store({ table: "cells", kind: "", fold: true, page: -1 });
    const picture = el("div", {});
    const fill = () => picture.replaceChildren(...report.cacheRows(events, local));
    root.append(
      ...report.cacheFacts(data.cache).map((text) => el("p", { class: "fact", text })),
      report.cacheTools(events, local), picture);
    local.on(["table", "kind", "fold", "page"], fill);
    fill();
  },
});

/** Number of rows that are drawn at a time. */
report.cacheRowsAtOnce = 200;

/** What happened, in a few sentences. */
report.cacheFacts = (cache) => {
  const { count, plural } = report;
  const sum = (kind, key) => cache.events
    .filter((event) => kind.includes(event.kind) && event.table === "cells")
    .reduce((total, event) => total + event[key], 0);
  const saved = cache.events.reduce((total, event) => total + event.n_saved, 0);
  const { graphs_built: built, reserves, reallocs, graphs_reused: reused } = cache.counters;
  const gone = cache.n - cache.events.length;
  return [
    `${plural(cache.n, "update")} of a cache of ${plural(cache.size, "cell")} for `
      + `${plural(cache.n_seq_max, "sequence")}${gone ? `; the first ${count(gone)} are no longer kept` : ""}.`,
    `${plural(sum(["taken"], "n_cells"), "token")} took cells, and ${plural(saved, "token")} `
      + "need not be computed, because their cells were shared, gone on from or brought back.",
    `${plural(sum(["moved", "compacted"], "n_cells"), "cell")} moved, and keys of `
      + `${plural(sum(["shifted"], "n_cells"), "cell")} were rotated.`,
    `Since the context was made: ${plural(built, "graph")} built and ${count(reused)} runs of them, memory `
      + `reserved ${plural(reserves, "time")} and grown ${plural(reallocs, "time")}.`,
  ];
};

/** The choice of the table of cells, of kinds of updates, and of folded steps. */
report.cacheTools = (events, local) => {
  const { el } = report;
  const kinds = new Map();
  for (const { kind } of events) kinds.set(kind, (kinds.get(kind) || 0) + 1);
  const choice = (key, options) => el("select", {
    onchange: (event) => local.set({ [key]: event.target.value, page: -1 }),
  }, options.map(([value, text]) => el("option", { value, text })));
  const tools = el("div", { class: "tools cache-pages" });
  tools.append(el("label", {}, "updates ", choice("kind", [
    ["", `all (${events.length})`], ...[...kinds].map(([kind, n]) => [kind, `${kind} (${n})`]),
  ])));
  if (events.some((event) => event.table === "window")) {
    tools.append(el("label", {}, "of ", choice("table", [
      ["cells", "the cells of the context"], ["window", "the cells of sliding windows"],
    ])));
  }
  tools.append(el("label", {}, el("input", {
    type: "checkbox", checked: true, onchange: (event) => local.set({ fold: event.target.checked, page: -1 }),
  }), " one row for steps that follow each other"));
  return tools;
};

/** Steps of a token for each of the same sequences as one row, which ends as the last step did. */
report.foldSteps = (events) => {
  const rows = [];
  for (const event of events) {
    const last = rows.at(-1);
    const step = event.kind === "taken" && event.n_cells === event.seqs.length;
    if (step && last && last.step && String(last.seqs) === String(event.seqs)) {
      const n = last.n_steps + 1;
      const cells = report.joinRanges(last.cells, event.cells);
      Object.assign(last, event, {
        step, cells, first: last.first, n_steps: n, nbytes: last.nbytes + event.nbytes,
        microseconds: last.microseconds + event.microseconds,
        text: `${report.seqText(event.seqs)}: ${n} steps, a token each, now up to cell ${event.cells.at(-1)[1]}`,
      });
    } else {
      rows.push({ ...event, step, first: event.number, n_steps: 1 });
    }
  }
  return rows;
};

report.seqText = (seqs) => (seqs.length === 1 ? `seq ${seqs[0]}` : `seqs ${seqs.join(", ")}`);

/** Ranges of cells and later ones; one that follows another directly makes it longer. */
report.joinRanges = (ranges, more) => {
  const joined = ranges.map((range) => [...range]);
  for (const [first, last] of more) {
    const before = joined.find((range) => range[1] + 1 === first);
    if (before) before[1] = last;
    else joined.push([first, last]);
  }
  return joined;
};

/** Legend, buttons and table of the rows that are chosen. */
report.cacheRows = (events, local) => {
  const { el, count } = report;
  const kind = local.get("kind");
  const own = events.filter((event) => event.kind === "built"
    || event.table === local.get("table")).filter((event) => !kind || event.kind === kind);
  const rows = local.get("fold") ? report.foldSteps(own) : own.map((event) => ({ ...event, first: event.number }));
  const size = report.cacheRowsAtOnce;
  const pages = Math.max(1, Math.ceil(rows.length / size));
  const page = local.get("page") < 0 ? pages - 1 : local.get("page");
  const shown = rows.slice(page * size, (page + 1) * size);
  const scale = Math.max(1, ...shown.map((row) => row.map.length * row.map_unit));
  const button = (text, to) => el("button", {
    type: "button", class: "button", text, disabled: to < 0 || to >= pages,
    onclick: () => local.set({ page: to }),
  });
  const place = `rows ${count(page * size + 1)} to ${count(page * size + shown.length)} of ${count(rows.length)}`;
  const moves = pages > 1 ? [el("div", { class: "cache-pages" }, button("Earlier", page - 1),
    button("Later", page + 1), el("span", { class: "soft", role: "status", text: place }))] : [];
  const heads = [["number", "cache-number", "update"], ["", "cache-text", "what it did"],
    ["", "cache-cells", `cells 0 to ${count(scale - 1)} afterwards`], ["number", "cache-took", "took"],
    ["number", "cache-bytes", "bytes"], ["number", "cache-saved", "tokens saved"]];
  const table = el("table", { class: "cache-table" },
    el("caption", { text: "Updates of the cache, the latest last" }),
    el("thead", {}, el("tr", {}, heads.map(([side, name, text]) => el("th", { scope: "col", class: `${side} ${name}`, text })))),
    el("tbody", {}, shown.map((row) => report.cacheRow(row, scale))));
  return [report.cacheLegend(shown), ...moves, table];
};

/** A row of the table. */
report.cacheRow = (row, scale) => {
  const { el } = report;
  const number = row.first === row.number ? String(row.number) : `${row.first}–${row.number}`;
  const cell = (name, text, title) => el("td", { class: name, text, title });
  const strip = row.kind === "built" ? [] : [report.cacheStrip(row, scale)];
  return el("tr", { class: row.kind === "built" ? "cache-built" : "" },
    cell("number cache-number", number, `${row.seconds.toFixed(3)} s`),
    cell("cache-text", row.text, row.cost),
    el("td", { class: "cache-cells" }, strip),
    cell("number cache-took", row.microseconds ? report.duration(row.microseconds * 1e3) : ""),
    cell("number cache-bytes", row.nbytes ? report.size(row.nbytes) : ""),
    cell("number cache-saved", row.n_saved ? report.count(row.n_saved) : ""));
};

/** Runs of a map: what is in the cells (a sequence, + or .), the first cell, and the one behind. */
report.cacheRuns = (row) => {
  const runs = [];
  [...row.map].forEach((what, i) => {
    const last = runs.at(-1);
    if (last && last.what === what) last.end = (i + 1) * row.map_unit;
    else runs.push({ what, start: i * row.map_unit, end: (i + 1) * row.map_unit });
  });
  return runs;
};

/** The cells as a strip, with a line below those that have changed; and the same as text. */
report.cacheStrip = (row, scale) => {
  const { el } = report;
  const share = (n) => `${(n / scale) * 100}%`;
  const runs = report.cacheRuns(row).filter((run) => run.what !== ".");
  const strip = el("div", { class: "cache-strip", "aria-hidden": "true" });
  for (const { what, start, end } of runs) {
    strip.append(el("span", {
      class: `cache-run ${report.cacheClass(what)}`, text: (end - start) / scale > 0.02 ? what : "",
      style: { left: share(start), width: share(end - start) },
    }));
  }
  for (const [first, last] of row.cells) {
    strip.append(el("span", { class: "cache-change", style: { left: share(first), width: share(last + 1 - first) } }));
  }
  const said = runs.slice(0, 8).map(({ what, start, end }) =>
    `cells ${start} to ${Math.min(end, row.size) - 1}: ${report.cacheName(what)}`);
  if (runs.length > 8) said.push(`and ${runs.length - 8} more pieces`);
  const used = `${report.count(row.n_used)} of ${report.count(row.size)} cells used`;
  return el("div", { title: [used, ...said].join("; ") }, strip,
    el("span", { class: "hidden", text: [used, ...said].join("; ") }));
};

/** The number of a sequence, of its character in a map; -1: no sequence. */
report.cacheSequence = (what) =>
  "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ".indexOf(what);

report.cacheClass = (what) => {
  const seq = report.cacheSequence(what);
  return seq < 0 ? "cache-shared" : `c${seq % 8}`;
};

report.cacheName = (what) => {
  const seq = report.cacheSequence(what);
  if (what === "+") return "several sequences";
  return seq < 0 ? "a sequence above 61" : `sequence ${seq}`;
};

/** What colours and lines stand for. */
report.cacheLegend = (rows) => {
  const { el } = report;
  const found = [...new Set(rows.flatMap((row) => [...row.map]))].filter((what) => what !== ".").sort();
  const entry = (name, text) => el("li", {}, el("span", { class: `swatch ${name}` }), text);
  const shown = found.filter((what) => what !== "+").slice(0, 16);
  return el("ul", { class: "legend" },
    shown.map((what) => entry(report.cacheClass(what), report.cacheName(what))),
    found.includes("+") ? entry("cache-shared", "several sequences, shared or side by side") : null,
    entry("cache-free", "free"), entry("cache-mark", "changed by this update"));
};
