/* The frame of the page: heading, tabs by keyboard, the view that is open. */

report.start = () => {
  report.load().then(report.show, (error) => report.fail(error)).catch((error) => report.fail(error));
};

/** Says that something went wrong; the error goes to the console, too. */
report.fail = (error) => {
  const root = document.getElementById("report");
  root.removeAttribute("aria-busy");
  root.append(report.el("p", { role: "alert", text: `This report cannot be shown: ${error.message}` }));
  throw error;
};

/** Draws the page of some data. */
report.show = (packed) => {
  const { el } = report;
  const data = report.unpack(packed);
  const state = report.store({ regime: 0, tensor: null, layout: null, view: null });
  report.data = data;
  report.state = state;
  report.prepare(data, state);
  const root = document.getElementById("report");
  const shown = report.views
    .filter((view) => view.needs(data))
    .sort((a, b) => (a.order ?? 99) - (b.order ?? 99));
  if (!shown.length) {
    root.append(report.heading(data, state), el("p", { text: "This report has nothing to show." }));
    return report.ready(root);
  }
  const tabs = el("div", { role: "tablist", "aria-label": "Views", class: "tabs" });
  const panels = el("main", { class: "panels" });
  const parts = shown.map((view) => report.tab(view, data, state, shown));
  for (const part of parts) {
    tabs.append(part.tab);
    panels.append(part.panel);
  }
  const bar = report.sliders(data, state);
  const body = el("div", { class: "body" }, panels, report.details(data, state));
  root.append(report.heading(data, state), ...(bar ? [bar] : []), tabs, body);
  state.on("view", () => parts.forEach((part) => part.show(state.get("view") === part.id)));
  const asked = () => location.hash.slice(1).split("/")[0]; // a view's own address may follow
  state.set({ view: (shown.find((view) => view.id === asked()) || shown[0]).id });
  addEventListener("hashchange", () => {
    const id = asked();
    if (shown.some((view) => view.id === id)) state.set({ view: id });
  });
  return report.ready(root);
};

report.ready = (root) => {
  root.removeAttribute("aria-busy");
  root.dataset.ready = "true";
};

/** A tab and its panel, whose view is drawn when it is first shown. */
report.tab = (view, data, state, shown) => {
  const { el } = report;
  let drawn = false;
  const panel = el("section", {
    role: "tabpanel", id: `panel-${view.id}`, "aria-labelledby": `tab-${view.id}`, hidden: true,
  });
  const go = (to) => {
    state.set({ view: to.id });
    document.getElementById(`tab-${to.id}`).focus();
  };
  const tab = el("button", {
    type: "button", role: "tab", id: `tab-${view.id}`, "aria-controls": `panel-${view.id}`,
    text: view.title,
    onclick: () => state.set({ view: view.id }),
    onkeydown: (event) => {
      const here = shown.indexOf(view);
      const moves = { ArrowRight: here + 1, ArrowLeft: here - 1, Home: 0, End: shown.length - 1 };
      if (!(event.key in moves)) return;
      event.preventDefault();
      go(shown[(moves[event.key] + shown.length) % shown.length]);
    },
  });
  const show = (on) => {
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
    panel.hidden = !on;
    if (!on) return;
    const framed = location.protocol === "about:"; // a frame of a notebook has no address
    if (!framed && location.hash.slice(1).split("/")[0] !== view.id) history.replaceState(null, "", `#${view.id}`);
    if (!drawn) {
      drawn = true;
      view.render(panel, data, state);
    }
  };
  return { id: view.id, tab, panel, show };
};

/** The heading: title, and the choice of the graph where there are several. */
report.heading = (data, state) => {
  const { el } = report;
  const heading = el("header", { class: "top" }, el("h1", { text: data.title || "weft" }));
  if (data.kind === "plan") {
    const { model, devices, regimes } = data;
    heading.append(el("span", {
      class: "soft",
      text: `${model.architecture}, ${model.layers} layers, on ${devices.map((d) => d.name).join(", ")}`,
    }));
    if (regimes.length > 1) {
      const select = el("select", { onchange: (event) => state.set({ regime: Number(event.target.value) }) });
      const fill = () => {
        const labels = state.get("layout").regimes.map((regime) => regime.label);
        select.replaceChildren(...labels.map((text, i) => el("option", { value: i, text })));
        select.value = Math.min(state.get("regime"), labels.length - 1);
      };
      fill();
      state.on(["regime", "layout"], fill);
      heading.append(el("label", { class: "pick" }, "plan for ", select));
    }
  }
  return heading;
};
