// The field for messages with its files.
import { byId, h, iconButton, toast } from "./dom.js";
import { readFile } from "./files.js";
import { fileView } from "./message.js";

const MOST_FILES = 16;
let files = [];
let parts = null;
let app = null;

/** Makes the field. `its` has model(), send(text, files), stop() and isBusy(). */
export function makeComposer(its) {
  app = its;
  const input = h("textarea", { id: "input", rows: "1", "aria-label": "Message", placeholder: "Write a message", "aria-describedby": "hint",
    oninput: fit, onkeydown: onKey, onpaste: onPaste });
  const chooser = h("input", { type: "file", multiple: true, class: "unseen", tabindex: "-1", "aria-hidden": "true",
    onchange: () => { add([...chooser.files]); chooser.value = ""; } });
  const clip = iconButton("clip", "Add files", () => chooser.click(), { id: "clip" });
  const button = iconButton("send", "Send", () => (app.isBusy() ? app.stop() : send()), { id: "send" });
  const shelf = h("div", { class: "shelf", hidden: true, role: "group", "aria-label": "Files of the message" });
  const status = h("div", { id: "status" });
  byId("composer").append(h("div", { class: "composer-box" }, shelf, h("div", { class: "composer-row" }, clip, chooser, input, button)),
    h("div", { class: "under" }, h("span", { id: "hint", class: "faint" }, h("kbd", {}, "Enter"), " sends, ", h("kbd", {}, "Shift"), " + ", h("kbd", {}, "Enter"), " starts a line, ", h("kbd", {}, "?"), " has more"), status));
  parts = { input, button, shelf, status };
  try {
    input.value = sessionStorage.getItem(DRAFT) ?? "";
  } catch {
    // forbidden
  }
  fit();
  dropInto(document.body);
}

/** Shows Send, or Stop while an answer is written. */
export function showBusy(busy) {
  const made = iconButton(busy ? "stop" : "send", busy ? "Stop" : "Send", () => {});
  parts.button.replaceChildren(...made.children);
  parts.button.setAttribute("aria-label", busy ? "Stop" : "Send");
  parts.button.title = busy ? "Stop (Esc)" : "Send (Enter)";
  parts.button.classList.toggle("busy", busy);
}

export function setStatus(text, share) {
  parts.status.replaceChildren(...text.map((one) => h("span", {}, one)));
  if (share !== null) {
    const bar = h("span", { class: ["meter", share > 0.9 && "full"], role: "meter", "aria-label": "Context in use", "aria-valuemin": "0", "aria-valuemax": "100", "aria-valuenow": String(Math.round(share * 100)) }, h("span", {}));
    bar.firstChild.style.width = `${Math.min(100, share * 100)}%`;
    parts.status.append(bar);
  }
}

export const focusInput = () => parts.input.focus();

const DRAFT = "weft-draft";

function fit() {
  const { input } = parts;
  try {
    sessionStorage.setItem(DRAFT, input.value); // a reload loses nothing
  } catch {
    // forbidden, or too much
  }
  input.style.height = "auto";
  input.style.height = `${Math.min(input.scrollHeight, innerHeight * 0.4)}px`;
}

function onKey(event) {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  if (!app.isBusy()) send();
}

function onPaste(event) {
  const pasted = [...(event.clipboardData?.files ?? [])];
  if (!pasted.length) return;
  event.preventDefault();
  add(pasted);
}

async function send() {
  const text = parts.input.value;
  if (!text.trim() && !files.length) return;
  const kept = files;
  if (!(await app.send(text, kept))) return; // what was typed stays
  parts.input.value = "";
  files = [];
  fit();
  drawShelf();
}

/** Adds files to the message; says what cannot be used. */
export async function add(chosen) {
  for (const file of chosen) {
    if (files.length >= MOST_FILES) {
      toast(`A message may have ${MOST_FILES} files.`);
      break;
    }
    try {
      files.push(await readFile(file, app.model()));
    } catch (error) {
      toast(`${file.name || "The file"} cannot be used: ${error.message}.`, null, 9);
    }
  }
  drawShelf();
  focusInput();
}

function drawShelf() {
  parts.shelf.hidden = !files.length;
  parts.shelf.replaceChildren(...files.map((file, i) =>
    h("div", { class: "chip" }, fileView(file), iconButton("close", `Remove ${file.name}`, () => { files.splice(i, 1); drawShelf(); focusInput(); }))));
}

function dropInto(place) {
  let depth = 0;
  const hasFiles = (event) => [...(event.dataTransfer?.types ?? [])].includes("Files");
  const mark = (on) => document.documentElement.classList.toggle("dropping", on);
  place.addEventListener("dragenter", (event) => { if (hasFiles(event)) { depth++; mark(true); } });
  place.addEventListener("dragleave", (event) => { if (hasFiles(event) && --depth <= 0) { depth = 0; mark(false); } });
  place.addEventListener("dragover", (event) => { if (hasFiles(event)) event.preventDefault(); });
  place.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    depth = 0;
    mark(false);
    add([...event.dataTransfer.files]);
  });
}
