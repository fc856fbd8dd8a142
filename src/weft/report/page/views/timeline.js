/* The timeline of a run that was profiled: rows of slices, the share of the roof of each step, the
   tables of the profile, and the way to Perfetto. */

report.view({
  id: "timeline",
  title: "Timeline",
  order: 15,
  needs: (data) => Boolean(data.profile),

  render(root, data, state) {
    const { el } = report;
    const profile = report.unpackProfile(data.profile);
    const local = report.store({ test: 0, color: "op", from: 0, to: 1, row: -1, slice: -1 });
    const heading = el("div", {});
    const tables = el("div", {});
    const fill = () => {
      const test = profile.tests[local.get("test")];
      heading.replaceChildren(...test.heading.map((text) => el("p", { class: "fact", text })));
      tables.replaceChildren(...report.profileTables(test));
    };
    const plot = profile.rows.length ? report.timelinePlot(profile, local, data, state) : null;
    const tools = report.timelineTools(profile, local, plot);
    root.append(tools, heading);
    if (plot) root.append(plot.node, report.perfettoTools(profile, data));
    root.append(tables);
    fill();
    local.on("test", fill);
    if (plot) report.goToRun(profile, local, 0);
  },
});

/** The data with absolute times: each row gets `start` and `end`, in nanoseconds. */
report.unpackProfile = (packed) => {
  const rows = packed.rows.map((row) => {
    const start = new Float64Array(row.begin.length);
    const end = new Float64Array(row.begin.length);
    let at = 0;
    row.begin.forEach((distance, i) => {
      at += distance;
      start[i] = at;
      end[i] = at + row.length[i];
    });
    return { name: row.name, title: row.title, kind: row.kind, about: row.about, start, end };
  });
  const runs = rows.find((row) => row.name === "runs");
  const tests = packed.tests.map((test) => ({
    ...test,
    runTimes: runs ? [...runs.start].map((start, i) => [start, runs.end[i]])
      .filter(([start, end]) => start >= test.begin && end <= test.end) : [],
  }));
  return { ...packed, rows, tests };
};

/** Shows one run of the test, with a little room on both sides. */
report.goToRun = (profile, local, number) => {
  const test = profile.tests[local.get("test")];
  const run = test.runTimes[number] || [test.begin, test.end];
  const room = (run[1] - run[0]) * 0.02;
  local.set({ from: Math.max(test.begin, run[0] - room), to: Math.min(test.end, run[1] + room) });
};

/** The run in the middle of what is shown; -1 where runs were not recorded. */
report.shownRun = (test, local) => {
  const middle = (local.get("from") + local.get("to")) / 2;
  const after = test.runTimes.findIndex(([, end]) => end >= middle);
  return after < 0 ? test.runTimes.length - 1 : after;
};

/** The choice of the test and of colours, and buttons to move and zoom. */
report.timelineTools = (profile, local, plot) => {
  const { el } = report;
  const tools = el("div", { class: "tools" });
  if (profile.tests.length > 1) {
    tools.append(el("label", {}, "test ", el("select", {
      onchange: (event) => {
        local.set({ test: Number(event.target.value), row: -1, slice: -1 });
        if (plot) report.goToRun(profile, local, 0);
      },
    }, profile.tests.map((test, i) => el("option", { value: i, text: test.name })))));
  }
  if (!plot) return tools;
  const run = el("span", { class: "soft run-of", role: "status" });
  const step = (by) => {
    const test = profile.tests[local.get("test")];
    const to = report.shownRun(test, local) + by;
    if (to >= 0 && to < test.runTimes.length) report.goToRun(profile, local, to);
  };
  const button = (text, label, onclick) => el("button", {
    type: "button", class: "button", text, "aria-label": label, title: label, onclick,
  });
  const name = () => {
    const test = profile.tests[local.get("test")];
    const left = test.shown < test.runs ? ` (of ${report.count(test.runs)} that ran)` : "";
    run.textContent = `run ${report.shownRun(test, local) + 1} of ${test.runTimes.length}${left}`;
  };
  local.on(["from", "to", "test"], name);
  const colors = { op: "op", roof: "share of roof" };
  const radios = Object.entries(colors).map(([value, text]) => el("label", {}, el("input", {
    type: "radio", name: "timeline-color", value, checked: value === local.get("color"),
    onchange: () => local.set({ color: value }),
  }), ` ${text}`));
  tools.append(
    el("span", { class: "together" }, button("◀", "Run before", () => step(-1)), run, button("▶", "Next run", () => step(1))),
    el("span", { class: "together" }, button("−", "Zoom out", () => plot.zoom(1.6)),
      button("+", "Zoom in", () => plot.zoom(1 / 1.6)), button("All", "Show the whole test", () => plot.fit())),
    el("fieldset", { class: "choice" }, el("legend", { text: "colour by" }), radios));
  return tools;
};

/** The tables of a profile: ops, and tensors with layers added up. */
report.profileTables = (test) => {
  const { el } = report;
  const table = (rows, caption) => {
    const words = new Set(["op", "type", "device", "tensor", "bound by", "waited for"]);
    const [names, ...lines] = rows;
    const side = names.map((name) => (words.has(name) ? "" : "number"));
    return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, el("table", {},
      el("caption", { text: caption }),
      el("thead", {}, el("tr", {}, names.map((name, i) => el("th", { scope: "col", class: side[i], text: name })))),
      el("tbody", {}, lines.map((line) => el("tr", {}, line.map((cell, i) => el("td", {
        class: side[i] + (i === 0 ? " mono" : ""),
      }, names[i] === "of roof" && cell ? report.meter(parseFloat(cell) / 100, cell) : cell)))))));
  };
  const waits = test.waits.length > 1 ? [table(test.waits, "What devices waited for")] : [];
  return [table(test.ops, "Time by op"), ...waits, table(test.tensors, "The slowest, layers added up")];
};

/** A share as a small bar and its text. */
report.meter = (share, text) => {
  const { el } = report;
  const width = `${Math.max(2, Math.min(100, share * 100))}%`;
  return el("span", { class: "meter" },
    el("span", { class: "meter-bar", "aria-hidden": "true" }, el("span", { style: { width, background: report.roofColor(share) } })),
    el("span", { text }));
};

/** The colour of a share of the roof: red at nothing, green from three quarters on. */
report.roofColor = (share) => `hsl(${Math.round(Math.max(0, Math.min(1, share / 0.75)) * 130)} 55% 46%)`;

/** Nanoseconds as text. */
report.duration = (ns) => {
  const units = [["s", 1e9], ["ms", 1e6], ["µs", 1e3]];
  for (const [unit, scale] of units) {
    if (Math.abs(ns) >= scale) return `${(ns / scale).toPrecision(3)} ${unit}`;
  }
  return `${Math.round(ns)} ns`;
};
