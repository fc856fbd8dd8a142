// The list of conversations.
import { ask, byId, download, h, icon, iconButton, toast } from "./dom.js";
import { checkedSides } from "./fields.js";
import { exported, imported, list, load, remove, save } from "./store.js";

let app = null;

/** Makes the list. `its` has current(), open(id), fresh(), gone(id), renamed(id, title), help(), theme(). */
export function makeSidebar(its) {
  app = its;
  const chooser = h("input", { type: "file", accept: ".json,application/json", class: "unseen", tabindex: "-1", "aria-hidden": "true",
    onchange: () => { takeFile(chooser.files[0]); chooser.value = ""; } });
  byId("sidebar").append(
    h("div", { class: "sidebar-head" }, h("h1", { class: "brand" }, "weft"), iconButton("close", "Close the list", () => showSidebar(false), { class: "icon-button narrow-only" })),
    h("button", { type: "button", class: "new", id: "new", onclick: () => app.fresh() }, icon("plus"), "New conversation"),
    h("div", { id: "talks", class: "talks" }),
    h("div", { class: "sidebar-foot" }, chooser,
      h("button", { type: "button", class: "link", id: "import", onclick: () => chooser.click() }, icon("in"), "Import"),
      h("button", { type: "button", class: "link", id: "export-all", onclick: exportAll }, icon("out"), "Export"),
      iconButton("theme", "Light, dark, or as the system", () => app.theme(), { id: "theme" }),
      iconButton("help", "Shortcuts", () => app.help(), { id: "help" })));
  byId("shade").addEventListener("click", () => showSidebar(false));
}

const isNarrow = () => matchMedia("(max-width: 52rem)").matches;

/** Shows or hides the list; it covers the page where that is narrow. */
export function showSidebar(wanted = null) {
  const root = document.documentElement;
  const is = isNarrow() ? root.classList.contains("list-over") : !root.classList.contains("list-away");
  const on = wanted ?? !is;
  root.classList.toggle("list-over", isNarrow() && on);
  root.classList.toggle("list-away", !isNarrow() && !on);
  byId("shade").hidden = !(isNarrow() && on);
  byId("menu").setAttribute("aria-expanded", String(on));
  if (isNarrow()) (on ? byId("new") : byId("menu")).focus();
}

const DAY = 86_400_000;
function age(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  return time >= midnight ? "Today" : time >= midnight - DAY ? "Yesterday" : time >= midnight - 7 * DAY ? "This week" : "Earlier";
}

export async function drawList() {
  const heads = await list();
  const groups = new Map();
  for (const head of heads) groups.set(age(head.updated), [...(groups.get(age(head.updated)) ?? []), head]);
  byId("talks").replaceChildren(...[...groups].flatMap(([name, rows]) => [h("h2", { class: "age" }, name), h("ul", {}, rows.map(row))]));
}

const named = (head) => head.title || "New conversation";

function row(head) {
  const current = head.id === app.current();
  return h("li", { class: ["talk", current && "current"], dataset: { id: head.id } },
    h("button", { type: "button", class: "talk-name", "aria-current": current ? "true" : null, title: named(head), onclick: () => app.open(head.id) }, named(head)),
    h("span", { class: "talk-tools" },
      iconButton("edit", `Rename ${named(head)}`, () => rename(head)),
      iconButton("out", `Export ${named(head)}`, () => exportOne(head)),
      iconButton("bin", `Delete ${named(head)}`, () => drop(head))));
}

async function rename(head) {
  const field = h("input", { type: "text", "aria-label": "Name", value: named(head), maxlength: "200" });
  setTimeout(() => field.select());
  const done = await ask("Rename the conversation", field, [{ text: "Cancel", value: "" }, { text: "Rename", value: "yes", main: true }]);
  const title = field.value.trim();
  if (done !== "yes" || !title) return;
  await app.renamed(head.id, title);
  await drawList();
}

async function drop(head) {
  const talk = await load(head.id);
  await remove(head.id);
  await app.gone(head.id);
  await drawList();
  toast(`Deleted ${named(head)}.`, { label: "Undo", run: async () => { await save(talk); await drawList(); } }, 10);
}

const fileName = (title) => `${(title || "conversation").replace(/[^\p{L}\p{N}]+/gu, "-").slice(0, 60).replace(/^-|-$/g, "") || "conversation"}.json`;

async function exportOne(head) {
  download(fileName(head.title), exported([await load(head.id)]));
}

async function exportAll() {
  const talks = await Promise.all((await list()).map((head) => load(head.id)));
  if (talks.length) download("weft-conversations.json", exported(talks));
  else toast("There are no conversations to export.");
}

async function takeFile(file) {
  if (!file) return;
  try {
    if (file.size > 400_000_000) throw new Error("it is larger than 400 MB");
    const talks = imported(await file.text(), checkedSides);
    for (const talk of talks) await save(talk);
    await drawList();
    await app.open(talks[0].id);
    toast(talks.length === 1 ? "Imported one conversation." : `Imported ${talks.length} conversations.`);
  } catch (error) {
    toast(`${file.name} cannot be imported: ${error.message}.`, null, 12);
  }
}
