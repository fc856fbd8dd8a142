// Puts the page together.
import { announce } from "./announce.js";
import { key, models as askModels, onKeyNeeded, request } from "./api.js";
import * as chat from "./chat.js";
import { focusInput, makeComposer, setStatus, showBusy } from "./composer.js";
import { ask, byId, h, iconButton, toast } from "./dom.js";
import { drawPanel, isPanelOpen, makePanel, showPanel } from "./panel.js";
import { isSingleKeyOn, listShortcuts, onShortcut } from "./shortcuts.js";
import { drawList, makeSidebar, showSidebar } from "./sidebar.js";
import { load, openStore, save } from "./store.js";
import { changed as redraw, drawThread, follow, lastView, toEnd, viewOf, watchScroll } from "./thread.js";
import { addNode, holder, newConversation, removeNode, shownPath, step } from "./tree.js";

let talk = null;
let known = []; // models of the server
const saving = new Map();

const DEFAULTS = "weft-settings";
function defaults() {
  try {
    return JSON.parse(localStorage.getItem(DEFAULTS)) ?? {};
  } catch {
    return {};
  }
}

const modelFor = (settings) => known.find((one) => one.id === settings?.model) ?? known[0] ?? null;
const modelOf = (side) => modelFor(talk.settings[side]);
const usual = (settings) => modelFor(settings)?.sampling ?? {};
const sides = () => (talk.compare ? ["A", "B"] : ["A"]);

/** Keeps a conversation soon; while an answer grows, every three seconds. */
function keep(one, now = false) {
  if (one.gone || (!Object.keys(one.nodes).length && !one.kept)) return;
  const run = async () => {
    saving.delete(one.id);
    const isNew = !one.kept;
    one.kept = true;
    await save(one);
    if (isNew || !chat.runningIn(one).length) await drawList(); // else nothing in it has changed
  };
  if (now) {
    clearTimeout(saving.get(one.id));
    run();
  } else if (!saving.has(one.id)) saving.set(one.id, setTimeout(run, chat.runningIn(one).length ? 3000 : 800));
}

function draw() {
  drawThread(talk, act, emptyView);
  byId("title").textContent = talk.title || "New conversation";
  document.title = talk.title ? `${talk.title} · weft` : "weft";
  byId("compare").setAttribute("aria-pressed", String(talk.compare));
  document.documentElement.classList.toggle("comparing", talk.compare || shownPath(talk).some((node) => node.pair));
  showState();
  drawPanel();
  try {
    sessionStorage.setItem("weft-open", talk.id);
  } catch {
    // the next visit then starts anew
  }
}

function emptyView() {
  const model = modelOf("A");
  const facts = model ? [model.n_ctx ? `context of ${model.n_ctx.toLocaleString("en")} tokens` : null, model.sees ? "sees images" : null, model.hears ? "hears sounds" : null].filter(Boolean) : [];
  if (model && !model.chats) {
    return h("div", { class: "welcome" }, h("h2", {}, model.id),
      h("p", { class: "faint" }, "This model gives embeddings or ranks documents; it writes no answers. Programs ask /v1/embeddings or /v1/rerank."));
  }
  return h("div", { class: "welcome" }, h("h2", {}, model?.id ?? "weft"), h("p", { class: "faint" }, facts.join(" · ")),
    h("p", { class: "faint" }, "Conversations stay in this browser; messages go to this server alone."));
}

function showState() {
  showBusy(chat.runningIn(talk).length > 0);
  const last = shownPath(talk).filter((node) => node.stats?.context).at(-1);
  const size = modelOf(last?.side ?? "A")?.n_ctx ?? null;
  const parts = [];
  const speed = chat.runningIn(talk).map((run) => run.node.stats.speed).filter(Boolean);
  if (speed.length) parts.push(`${speed.map((one) => one.toFixed(one < 100 ? 1 : 0)).join(" and ")} tokens/s`);
  if (last) parts.push(`${last.stats.context.toLocaleString("en")}${size ? ` of ${size.toLocaleString("en")}` : ""} tokens of context`);
  setStatus(parts, last && size ? last.stats.context / size : null);
}

function respond(parent, which = sides()) {
  const { done } = chat.answer(talk, parent, which);
  draw();
  follow();
  keep(talk, true);
  return done;
}

async function send(text, files) {
  if (chat.runningIn(talk).length) return false;
  const parent = shownPath(talk).at(-1)?.id ?? null;
  const node = addNode(talk, parent, { role: "user", content: text, ...(files.length ? { files } : {}) });
  if (!talk.title) talk.title = (text.trim() || files[0].name).split("\n")[0].slice(0, 80);
  talk.updated = Date.now();
  respond(node.id);
  return true;
}

/** What the user does with a message. */
function act(name, node, value) {
  const busy = chat.runningIn(talk).length > 0;
  if (name === "edit") return viewOf(node.id).edit();
  if (name === "version") step(talk, node, value);
  else if (name === "pick") holder(talk, node.parent).chosen = node.id;
  else if (busy) return toast("An answer is being written; stop it first.");
  else if (name === "again") return void respond(node.parent, node.pair && talk.compare ? ["A", "B"] : [node.side ?? "A"]);
  else if (name === "edited") {
    const made = addNode(talk, node.parent, { role: node.role, content: value, ...(node.files ? { files: node.files } : {}), ...(node.role === "assistant" ? { side: node.side, reasoning: node.reasoning } : {}) });
    if (node.role === "user") return void respond(made.id);
  } else if (name === "results") {
    let parent = node.id;
    node.calls.forEach((call, i) => { parent = addNode(talk, parent, { role: "tool", call: call.id, name: call.name, content: value[i] }).id; });
    return void respond(parent, [node.side ?? "A"]);
  } else if (name === "delete") {
    const before = structuredClone(talk);
    removeNode(talk, node.id);
    toast("Deleted.", { label: "Undo", run: () => { if (talk.id === before.id) { talk = before; draw(); } keep(before, true); } }, 10);
  }
  talk.updated = Date.now();
  draw();
  keep(talk, true);
}

function fresh() {
  if (talk && !talk.compare && !Object.keys(talk.nodes).length) {
    closeList();
    return focusInput();
  }
  talk = newConversation({ A: defaults(), B: defaults() });
  opened();
}

async function open(id) {
  if (id !== talk.id) {
    const running = chat.runningById(id);
    talk = running ?? (await load(id)) ?? talk;
    talk.kept = true;
  }
  opened();
  toEnd();
}

function opened() {
  draw();
  drawList();
  closeList();
  focusInput();
}

function closeList() {
  if (document.documentElement.classList.contains("list-over")) showSidebar(false);
}

function compare() {
  talk.compare = !talk.compare;
  if (talk.compare && !Object.keys(talk.settings.B ?? {}).length) talk.settings.B = { ...talk.settings.A };
  draw();
  keep(talk, true);
  if (talk.compare && !isPanelOpen() && matchMedia("(min-width: 75rem)").matches) showPanel(true);
}

async function plan() {
  const which = known.length > 1 ? `&model=${encodeURIComponent(modelOf("A").id)}` : "";
  if (!key()) return void window.open(`plan?${which.slice(1)}`, "_blank", "noopener");
  const tab = window.open("", "_blank"); // now, while the browser knows that the user asked for it
  try {
    const { ticket } = await (await request(`plan/ticket?${which.slice(1)}`, { method: "POST" })).json();
    tab.opener = null;
    tab.location = new URL(`plan?ticket=${encodeURIComponent(ticket)}${which}`, location.href);
  } catch (error) {
    tab?.close();
    toast(`The plan cannot be shown: ${error.message}`);
  }
}

function theme() {
  const order = ["auto", "light", "dark"];
  const next = order[(order.indexOf(window.weftTheme.get()) + 1) % 3];
  window.weftTheme.set(next);
  toast({ auto: "Colours follow the system.", light: "Light colours.", dark: "Dark colours." }[next], null, 2);
}

async function askKey(wrong) {
  const field = h("input", { type: "password", "aria-label": "API key", autocomplete: "off", spellcheck: "false" });
  setTimeout(() => field.focus());
  const body = h("div", {}, h("p", {}, wrong ? "The server does not know this key. Try another one." : "This server answers to those who have a key. It is kept until this tab is closed."), field);
  const said = await ask("API key", body, [{ text: "Cancel", value: "" }, { text: "Use this key", value: "yes", main: true }]);
  return said === "yes" && field.value ? field.value.trim() : null;
}

const COMMANDS = {
  "?": ["Show this list", () => listShortcuts(COMMANDS)],
  n: ["New conversation", fresh],
  "/": ["Go to the message field", focusInput],
  l: ["Show or hide the list", () => showSidebar()],
  s: ["Show or hide the settings", () => showPanel()],
  c: ["Compare two settings", compare],
  p: ["The model's plan", plan],
  r: ["Answer again", () => { const view = lastView("assistant"); if (view) act("again", view.node); }],
  e: ["Edit your last message", () => lastView("user")?.edit()],
  "[": ["Version before of the last answer", () => { const view = lastView("assistant"); if (view) act("version", view.node, -1); }],
  "]": ["Next version of the last answer", () => { const view = lastView("assistant"); if (view) act("version", view.node, 1); }],
  t: ["Light, dark, or as the system", theme],
};

function escape() {
  if (chat.runningIn(talk).length) return chat.stop(talk);
  if (document.documentElement.classList.contains("list-over")) return showSidebar(false);
  if (isPanelOpen()) showPanel(false);
}

function makeTop() {
  byId("top").append(
    iconButton("menu", "List of conversations", () => showSidebar(), { id: "menu", "aria-expanded": String(!matchMedia("(max-width: 52rem)").matches), "aria-controls": "sidebar" }),
    h("h2", { id: "title" }, ""),
    h("span", { id: "model" }),
    iconButton("columns", "Compare two settings", compare, { id: "compare", "aria-pressed": "false" }),
    iconButton("plan", "The model's plan", plan, { id: "plan" }),
    iconButton("sliders", "Settings", () => showPanel(), { id: "sliders", "aria-expanded": "false", "aria-controls": "settings" }));
}

function drawModel() {
  if (known.length < 2) return byId("model").replaceChildren(known[0]?.id ?? "");
  const select = h("select", { "aria-label": "Model", onchange: () => { talk.settings.A.model = select.value; drawPanel(); showState(); keep(talk, true); } }, known.map((one) => h("option", { value: one.id }, one.id)));
  select.value = modelOf("A").id;
  byId("model").replaceChildren(select);
}

function progress(one, node, done) {
  if (one !== talk) return void (done && keep(one, true));
  if (done) {
    redraw(node, true); // this alone: another message may be open for editing
    showState();
    if (modelOf(node.side)?.n_ctx === null) refreshModels(); // it was loaded for this answer
  } else redraw(node, false, showState);
  announce(node, done);
  keep(one, done);
}

async function refreshModels() {
  try {
    known = await askModels();
  } catch (error) {
    toast(error.message, null, 12);
  }
  drawModel();
  showState();
}

async function start() {
  onKeyNeeded(askKey);
  makeTop();
  makeSidebar({ current: () => talk.id, open, fresh, help: () => listShortcuts(COMMANDS), theme,
    renamed: async (id, title) => {
      const one = id === talk.id ? talk : await load(id);
      one.title = title;
      await save(one);
      draw();
    },
    gone: (id) => {
      const run = chat.runningById(id);
      if (run) {
        run.gone = true; // what still comes is not kept
        chat.stop(run);
      }
      clearTimeout(saving.get(id));
      if (id === talk.id) { talk = newConversation({ A: defaults(), B: defaults() }); opened(); }
    } });
  makePanel({ talk: () => talk, models: () => known, usual, changed: () => { keep(talk); showState(); drawModel(); }, keepAsDefault: (settings) => localStorage.setItem(DEFAULTS, JSON.stringify(settings)) });
  makeComposer({ model: () => modelOf("A"), send, stop: () => chat.stop(talk), isBusy: () => chat.runningIn(talk).length > 0 });
  chat.onProgress(progress, usual);
  onShortcut(COMMANDS, escape, isSingleKeyOn);
  watchScroll();
  talk = newConversation({ A: defaults(), B: defaults() });
  await openStore(drawList);
  let last = null;
  try {
    last = sessionStorage.getItem("weft-open");
  } catch {
    // forbidden storage: a new conversation
  }
  const found = last && (await load(last));
  if (found) talk = Object.assign(found, { kept: true });
  draw();
  await drawList();
  focusInput();
  addEventListener("pagehide", () => [...saving.keys()].includes(talk.id) && save(talk));
  await refreshModels();
  draw();
  document.documentElement.dataset.ready = "yes";
}

start();
