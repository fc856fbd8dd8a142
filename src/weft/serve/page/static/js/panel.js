// The panel with the settings of a conversation; with two sides where two answers are compared.
import { byId, h, iconButton, newId, toast } from "./dom.js";
import { GROUPS, problem, TOOL_EXAMPLE } from "./fields.js";

let app = null;
let side = "A";

/** Makes the panel. `its` has talk(), models(), usual(), changed() and keepAsDefault(). */
export function makePanel(its) {
  app = its;
}

export const isPanelOpen = () => !byId("settings").hidden;

export function showPanel(on = byId("settings").hidden) {
  byId("settings").hidden = !on;
  document.documentElement.classList.toggle("panel-open", on);
  byId("sliders").setAttribute("aria-expanded", String(on));
  if (on) {
    drawPanel();
    byId("settings").querySelector("button, select, textarea").focus();
  } else byId("sliders").focus();
}

/** Draws the panel for the conversation that is shown. */
export function drawPanel() {
  const panel = byId("settings");
  if (panel.hidden) return;
  const talk = app.talk();
  if (!talk.compare) side = "A";
  const settings = talk.settings[side];
  const openNow = new Set([...panel.querySelectorAll("details[open]")].map((one) => one.dataset.name));
  const first = !panel.children.length;
  panel.replaceChildren(...[
    h("div", { class: "panel-head" }, h("h2", {}, "Settings"), iconButton("close", "Close the settings", () => showPanel(false))),
    talk.compare ? tabs() : null,
    h("div", { class: "panel-body", id: "panel-body", role: talk.compare ? "tabpanel" : null, "aria-label": talk.compare ? `Settings ${side}` : null },
      app.models().length > 1 ? modelField(settings) : null,
      fieldRow({ key: "system", label: "System prompt", help: "Stands before the conversation.", type: "code" }, settings),
      GROUPS.map((group) => h("details", { class: "group", open: first ? group.open : openNow.has(group.name), dataset: { name: group.name } },
        h("summary", {}, group.name, changedIn(group, settings)),
        h("div", { class: "fields" }, group.fields.map((field) => fieldRow(field, settings)))))),
    h("div", { class: "panel-foot" },
      h("button", { type: "button", class: "plain", onclick: () => { app.keepAsDefault(settings); toast("New conversations start with these settings."); } }, "Use for new ones"),
      talk.compare ? h("button", { type: "button", class: "plain", onclick: copyOver }, `Copy ${side} to ${side === "A" ? "B" : "A"}`) : null,
      h("button", { type: "button", class: "plain", onclick: reset }, "Reset")),
  ].filter(Boolean));
}

function changedIn(group, settings) {
  const n = group.fields.filter((field) => settings[field.key]).length;
  return n ? h("span", { class: "badge", "aria-label": `${n} set` }, String(n)) : null;
}

function tabs() {
  const tab = (name) => h("button", { type: "button", role: "tab", id: `tab-${name}`, "aria-selected": String(side === name), "aria-controls": "panel-body", tabindex: side === name ? "0" : "-1",
    onclick: () => choose(name),
    onkeydown: (event) => { if (["ArrowLeft", "ArrowRight"].includes(event.key)) choose(name === "A" ? "B" : "A"); } }, `Settings ${name}`);
  return h("div", { class: "tabs", role: "tablist", "aria-label": "Sides" }, tab("A"), tab("B"));
}

function choose(name) {
  side = name;
  drawPanel();
  byId(`tab-${name}`).focus();
}

function copyOver() {
  const { settings } = app.talk();
  settings[side === "A" ? "B" : "A"] = { ...settings[side] };
  app.changed();
  toast(side === "A" ? "B is now as A." : "A is now as B.");
}

function reset() {
  app.talk().settings[side] = {};
  app.changed();
  drawPanel();
}

function modelField(settings) {
  const id = newId();
  const select = h("select", { id, onchange: () => put(settings, "model", select.value) },
    h("option", { value: "" }, "The first"), app.models().map((model) => h("option", { value: model.id }, model.id)));
  select.value = settings.model ?? "";
  return h("div", { class: "field wide" }, h("label", { for: id }, "Model"), select);
}

function put(settings, key, value) {
  if (value === "" || value === false) delete settings[key];
  else settings[key] = value;
  app.changed();
}

function fieldRow(field, settings) {
  const id = newId();
  const wrong = h("p", { class: "wrong", id: `${id}-wrong`, hidden: true });
  const common = { id, "aria-describedby": `${id}-help ${id}-wrong`, dataset: { key: field.key } };
  const value = settings[field.key] ?? "";
  const check = (text) => {
    const what = problem(field, text);
    wrong.hidden = !what;
    wrong.textContent = what ? `${field.label} ${what}`.replace(" : ", ": ") : "";
    if (what) input.setAttribute("aria-invalid", "true");
    else input.removeAttribute("aria-invalid");
  };
  const onText = () => { check(input.value); put(settings, field.key, input.value.trim() === "" ? "" : input.value); };
  let input;
  if (field.type === "switch") {
    input = h("input", { ...common, type: "checkbox", onchange: () => put(settings, field.key, input.checked) });
    input.checked = settings[field.key] === true;
  } else if (field.type === "choice") {
    input = h("select", { ...common, onchange: () => put(settings, field.key, input.value) }, field.choices.map(([v, text]) => h("option", { value: v }, text)));
    input.value = value;
  } else if (["code", "json", "lines"].includes(field.type)) {
    input = h("textarea", { ...common, class: field.key === "system" ? "" : "mono", rows: field.type === "lines" ? "2" : "4", spellcheck: field.key === "system" ? null : "false", value, oninput: onText });
  } else {
    const isNumber = field.type === "number";
    input = h("input", { ...common, type: "text", inputmode: isNumber ? "decimal" : null, autocomplete: "off", placeholder: isNumber ? String(app.usual(settings)[field.key] ?? "server's") : "", value, oninput: onText });
  }
  if (value !== "" && field.type !== "switch") check(value);
  const example = field.example ? h("button", { type: "button", class: "link", onclick: () => { input.value = TOOL_EXAMPLE; onText(); } }, "Insert an example") : null;
  const wide = field.type !== "number";
  return h("div", { class: ["field", wide && "wide", field.type === "switch" && "switch"] },
    h("label", { for: id }, field.label), input, example, h("p", { class: "help", id: `${id}-help` }, field.help ?? ""), wrong);
}
