/* Placement step by step: the devices of all tensors after each sweep of the passes, the changes of
   the sweep, and the story of a tensor: what each device was asked, and what it answered. */

report.view({
  id: "passes",
  title: "Placement",
  order: 35,
  needs: (data) => Boolean(data.regimes && data.regimes.some((regime) => regime.passes)),

  render(root, data, state) {
    const { el } = report;
    const local = report.store({ step: 0, tensor: null, playing: false, fold: true });
    const board = el("div", {
      class: "pass-board", tabindex: 0, role: "group", "aria-label": "Devices of the nodes; left and right change the step",
    });
    const about = el("div", { class: "pass-about" });
    const record = () => report.regime(data, state).passes;
    if (record().why) {
      root.append(el("p", { text: `The steps cannot be shown: ${record().why}.` }));
      return;
    }
    for (const regime of data.regimes) report.passNames(regime.passes);
    const tools = report.passTools(record, local);
    root.append(tools.node, board, about);
    let cells = null;
    const draw = () => {
      cells = report.passCells(board, record(), local);
      tools.fill();
      move();
    };
    const move = () => {
      const step = local.get("step");
      cells.show(step, local.get("tensor"));
      tools.show(step);
      const [title, sentence, ...tables] = report.passStep(record(), step, local);
      about.replaceChildren(title, sentence, ...report.passStory(record(), local.get("tensor"), local), ...tables);
      report.passAddress(local);
    };
    report.passFromAddress(record(), local);
    draw();
    state.on("regime", () => {
      local.set({ step: 0, tensor: null, playing: false });
      draw();
    });
    local.on(["step", "tensor"], move);
    local.on("fold", draw);
    addEventListener("hashchange", () => report.passFromAddress(record(), local));
    root.addEventListener("keydown", (event) => report.passKeys(event, record(), local));
    state.on("view", () => (state.get("view") === "passes" ? report.passAddress(local) : local.set({ playing: false })));
  },
});

/** Gives tensors that share a name a number behind it, so that each can be asked for. */
report.passNames = ({ tensors = [] }) => {
  const seen = new Map();
  for (const tensor of tensors) {
    const n = (seen.get(tensor.name) || 0) + 1;
    seen.set(tensor.name, n);
    if (n > 1) tensor.name += ` (${n})`;
  }
};

/** `#passes/3/NAME` is the third step with the story of a tensor. */
report.passFromAddress = (record, local) => {
  const [view, step, ...name] = location.hash.slice(1).split("/");
  if (view !== "passes" || step === undefined) return;
  const number = Math.min(Math.max(1, Math.trunc(Number(step)) || 1), record.steps.length);
  const asked = name.length ? report.decoded(name.join("/")) : null;
  const tensor = record.tensors.find((one) => one.name === asked);
  local.set({ step: number - 1, tensor: tensor ? tensor.id : null });
};

/** A part of an address as text; as it stands where its escapes are broken. */
report.decoded = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};

report.passAddress = (local) => {
  if (location.protocol === "about:") return; // a frame of a notebook has no address
  const tensor = local.get("tensor");
  const name = tensor === null ? "" : `/${encodeURIComponent(report.regime(report.data, report.state).passes.tensors[tensor].name)}`;
  history.replaceState(null, "", `#passes/${local.get("step") + 1}${name}`);
};

/** Left and right step, Home and End go to the first and last step, space plays. */
report.passKeys = (event, record, local) => {
  if (/^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName) || event.target.getAttribute("role") === "tab") return;
  const here = local.get("step");
  const last = record.steps.length - 1;
  const to = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: last }[event.key];
  if (event.key === "Escape") local.set({ tensor: null });
  if (event.key === " " && event.target.tagName !== "BUTTON") local.set({ playing: !local.get("playing") });
  else if (to === undefined) return;
  event.preventDefault();
  if (to !== undefined) local.set({ step: Math.min(Math.max(0, to), last) });
};

/** The buttons, the slider and the list of steps. */
report.passTools = (record, local) => {
  const { el } = report;
  const go = (to) => local.set({ step: Math.min(Math.max(0, to), record().steps.length - 1) });
  const button = (text, label, onclick) => el("button", {
    type: "button", class: "button", text, "aria-label": label, title: label, onclick,
  });
  const play = button("Play", "Play the steps", () => local.set({ playing: !local.get("playing") }));
  const range = el("input", {
    type: "range", min: 0, step: 1, "aria-label": "Step", oninput: (event) => go(Number(event.target.value)),
  });
  const pick = el("select", { "aria-label": "Go to a step", onchange: (event) => go(Number(event.target.value)) });
  let timer = null;
  local.on("playing", () => {
    const on = local.get("playing");
    play.textContent = on ? "Pause" : "Play";
    clearInterval(timer);
    if (!on) return;
    if (local.get("step") === record().steps.length - 1) go(0);
    timer = setInterval(() => {
      if (local.get("step") === record().steps.length - 1) local.set({ playing: false });
      else go(local.get("step") + 1);
    }, 1500);
  });
  return {
    node: el("div", { class: "tools" },
      el("span", { class: "together" }, button("◀", "Step before", () => go(local.get("step") - 1)),
        play, button("▶", "Next step", () => go(local.get("step") + 1))),
      range, pick, el("label", {}, el("input", {
        type: "checkbox", checked: true, onchange: (event) => local.set({ fold: event.target.checked }),
      }), " fold equal layers")),
    fill() {
      const { steps } = record();
      range.max = steps.length - 1;
      pick.replaceChildren(...steps.map((step, i) => el("option", { value: i, text: `${i + 1}. ${report.passName(step)}` })));
    },
    show(step) {
      range.value = step;
      pick.value = step;
    },
  };
};

report.passName = (step) => `pass ${step.pass}${step.sweep ? `, ${step.sweep}` : ""}`;

/** The devices of all tensors after each step: a list of arrays, -1 where there is no device. */
report.passStates = (record) => {
  const at = new Map(record.devices.map((name, i) => [name, i]));
  let now = record.tensors.map(() => -1);
  return record.steps.map((step) => {
    now = [...now];
    for (const change of step.changes) now[change.tensor] = at.get(change.now) ?? -1;
    return now;
  });
};

/** The board: a cell for each node in the order of the run, a row for each layer or for layers that
    are alike in all steps, and a row of weights and inputs. `show(step, tensor)` colours it. */
report.passCells = (board, record, local) => {
  const { el } = report;
  const states = report.passStates(record);
  const { letters } = record;
  const cells = [];
  const begins = new Set(record.splits.map((split) => split.nodes[0]));
  const row = (name, tensors) => el("div", { class: "pass-row" }, el("span", { class: "soft pass-row-name", text: name }),
    el("span", { class: "pass-cells" }, tensors.map((tensor) => {
      const cell = el("span", { class: `pass-cell${tensor.view ? " is-view" : ""}`, "data-tensor": tensor.id });
      cells.push([tensor, cell]);
      return cell;
    })));
  const rows = report.passRows(record.tensors.filter((tensor) => !tensor.leaf));
  const key = ([, tensors]) => states.map((state) => tensors.map((tensor) => `${tensor.op}${state[tensor.id]}${begins.has(tensor.id)}`)).join();
  const shown = local.get("fold") ? report.passFold(rows, key) : rows;
  const leaves = record.tensors.filter((tensor) => tensor.leaf);
  board.replaceChildren(
    el("ul", { class: "legend" }, record.devices.map((name, i) => el("li", {},
      el("span", { class: `swatch c${i % 8}` }), `${letters[i]} ${name}`)),
    el("li", {}, el("span", { class: "swatch pass-none" }), "? no device yet"),
    el("li", { text: "outlined: this step changes it" }), el("li", { text: "round: a view" }),
    el("li", { text: "bar: a split begins" })),
    ...shown.map(([name, tensors]) => row(name, tensors)), row("weights, inputs", leaves));
  board.onclick = (event) => {
    const cell = event.target.closest("[data-tensor]");
    if (cell) local.set({ tensor: Number(cell.dataset.tensor) });
  };
  return {
    show(step, selected) {
      const cut = Number(record.steps[step].pass) >= 5;
      const changed = new Set(record.steps[step].changes.map((change) => change.tensor));
      for (const [tensor, cell] of cells) {
        const device = states[step][tensor.id];
        cell.textContent = device < 0 ? "?" : letters[device];
        cell.className = `pass-cell ${device < 0 ? "pass-none" : `c${device % 8}`}${tensor.view ? " is-view" : ""}`
          + `${cut && begins.has(tensor.id) ? " is-cut" : ""}${changed.has(tensor.id) ? " is-changed" : ""}${tensor.id === selected ? " is-selected" : ""}`;
        cell.title = `${tensor.name}: ${tensor.op}, ${device < 0 ? "no device yet" : record.devices[device]}`;
      }
    },
  };
};

/** Nodes in rows: one row for each layer, by the number at the end of names. */
report.passRows = (nodes) => {
  const rows = [];
  let layer = null;
  for (const tensor of nodes) {
    const own = /-(\d+)(?: \(.*\))?$/.exec(tensor.name);
    const now = own ? `layer ${own[1]}` : /^result_/.test(tensor.name) ? "output" : layer;
    if (!rows.length || now !== layer) rows.push([now || "input", []]);
    layer = now;
    rows[rows.length - 1][1].push(tensor);
  }
  if (rows.length === 1) rows[0][0] = "nodes";
  return rows;
};

/** Consecutive rows with the same key as one row, which has the tensors of the first. */
report.passFold = (rows, key) => {
  const folded = [];
  let before = null;
  for (const one of rows) {
    const now = key(one);
    if (now === before) folded[folded.length - 1].last = one[0];
    else folded.push({ one });
    before = now;
  }
  return folded.map(({ one: [name, tensors], last }) => [
    last ? `${name.replace("layer", "layers")} to ${last.replace("layer ", "")}` : name, tensors,
  ]);
};

/** The step in words: its title, its changes as a table; in pass 5 the splits. */
report.passStep = (record, number, local) => {
  const { el, plural } = report;
  const step = record.steps[number];
  const parts = [
    el("h2", { role: "status", text: `Step ${number + 1} of ${record.steps.length}: ${report.passName(step)}` }),
    el("p", { text: step.title }),
  ];
  if (!step.changes.length) parts.push(el("p", { class: "soft", text: "No tensor gets another device or cause." }));
  else {
    parts.push(report.passTable(`${plural(step.changes.length, "change")}`, ["tensor", "op", "from", "to", "because", "instead of"],
      step.changes.map((change) => [
        report.passLink(record, change.tensor, local), record.tensors[change.tensor].op, change.was || "–", change.now || "–",
        `${change.meaning} (${change.cause})`, change.over || "",
      ])));
  }
  if (step.pass === "cost") parts.push(report.passCandidates(record));
  if (step.pass === "5") parts.push(...report.passSplits(record));
  return parts;
};

report.passSplits = (record) => {
  const name = (id) => record.tensors[id]?.name ?? id;
  const rows = record.splits.map((split, i) => [
    String(i), split.device, `${split.start} to ${split.end - 1}`, split.inputs.map(name).join(", ") || "none", split.why,
  ]);
  const reads = record.rewired.map(({ node, source, copy }) => [
    name(node), `source ${source}, ${name(record.copies[copy].of)}`, record.copies[copy].name, report.size(record.copies[copy].bytes),
  ]);
  const tables = [report.passTable(report.plural(rows.length, "split"),
    ["split", "device", "nodes", "copied before it", "it begins here because"], rows)];
  if (reads.length) {
    tables.push(report.passTable(`${report.plural(reads.length, "source")} rewired to copies`, ["node", "reads", "now the copy", "size"], reads));
  }
  return tables;
};

/** The placements that the search considered, with their predicted times. */
report.passCandidates = (record) => report.passTable(report.plural(record.candidates.length, "candidate"),
  ["placement", "predicted time", "nodes on each device", "result"], record.candidates.map((one) => [
    one.how, report.duration(one.seconds * 1e9),
    Object.entries(one.nodes).map(([device, n]) => `${device} ${n}`).join(", "),
    one.taken ? `taken${one.exact ? ": no placement is faster" : ""}` : "",
  ]));

report.passTable = (caption, names, rows) => {
  const { el } = report;
  return el("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption }, el("table", {},
    el("caption", { text: caption }),
    el("thead", {}, el("tr", {}, names.map((name) => el("th", { scope: "col", text: name })))),
    el("tbody", {}, rows.slice(0, report.passMost).map((row) => el("tr", {}, row.map((cell) => el("td", {}, cell)))))),
  rows.length > report.passMost
    ? el("p", { class: "soft", text: `The first ${report.passMost} rows; choose a tensor above to read its story.` }) : null);
};

/** The maximum number of rows of a table. */
report.passMost = 100;

report.passLink = (record, id, local) => report.el("button", {
  type: "button", class: "link mono", text: record.tensors[id].name, onclick: () => local.set({ tensor: id }),
});

/** The story of a tensor: for each step its changes, the questions and the answers. */
report.passStory = (record, id, local) => {
  const { el } = report;
  if (id === null) return [];
  const tensor = record.tensors[id];
  const lines = [];
  record.steps.forEach((step, number) => {
    const asked = step.questions.filter((question) => question.tensor === id);
    const changes = step.changes.filter((change) => change.tensor === id);
    if (!asked.length && !changes.length) return;
    const to = el("button", {
      type: "button", class: "link", text: `step ${number + 1}, ${report.passName(step)}`, onclick: () => local.set({ step: number }),
    });
    const said = [
      ...asked.map((one) => el("li", {
        text: `${one.device} ${one.question}${one.about === null ? "" : `, where ${record.tensors[one.about].name} is`}: `
          + `${one.answer ? "yes" : "no"}${one.reason ? `, ${one.reason}` : ""}`,
      })),
      ...changes.map((one) => el("li", {}, el("strong", { text: `${one.was || "no device"} → ${one.now || "no device"}` }),
        ` because ${one.meaning} (${one.cause})${one.over ? `, instead of ${one.over}` : ""}`)),
    ];
    lines.push(el("li", {}, to, el("ul", {}, said)));
  });
  const reads = tensor.sources.filter((source) => source !== null)
    .flatMap((source, i) => [i ? ", " : "", report.passLink(record, source, local)]);
  return [
    el("h2", { class: "mono", text: tensor.name }),
    el("p", { class: "soft" }, `${tensor.op}, ${tensor.type} ${tensor.shape}`,
      tensor.memory ? `, in ${tensor.memory} memory` : "", reads.length ? ", reads " : "", reads),
    lines.length ? el("ol", { class: "pass-story" }, lines) : el("p", { text: "No pass asks about this tensor." }),
  ];
};
