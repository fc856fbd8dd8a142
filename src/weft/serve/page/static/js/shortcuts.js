// Single keys, outside of fields. They can be turned off (WCAG 2.1.4); Enter and Esc stay.
import { ask, h } from "./dom.js";

const OFF = "weft-keys-off";

export function isSingleKeyOn() {
  try {
    return localStorage.getItem(OFF) === null;
  } catch {
    return true;
  }
}

const isField = (element) => element?.closest?.("input, textarea, select, [contenteditable]");

export function onShortcut(commands, escape, isOn) {
  document.addEventListener("keydown", (event) => {
    if (document.querySelector("dialog[open]") || event.isComposing) return;
    if (event.key === "Escape") return escape();
    if (event.ctrlKey || event.metaKey || event.altKey || isField(event.target) || !isOn()) return;
    const command = commands[event.key];
    if (!command) return;
    event.preventDefault();
    command[1]();
  });
}

/** Shows what the keys do. */
export function listShortcuts(commands) {
  const rows = [["Enter", "Send the message"], ["Shift + Enter", "Start a line"], ["Esc", "Stop the answer; close a panel"],
    ...Object.entries(commands).map(([key, [what]]) => [key, what])];
  const toggle = h("input", { type: "checkbox", id: "single-keys", onchange: () => {
    if (toggle.checked) localStorage.removeItem(OFF);
    else localStorage.setItem(OFF, "1");
  } });
  toggle.checked = isSingleKeyOn();
  const list = h("dl", { class: "shortcuts" }, rows.map(([key, what]) => h("div", {}, h("dt", {}, h("kbd", {}, key)), h("dd", {}, what))));
  return ask("Shortcuts", h("div", {}, list, h("p", { class: "switch-line" }, toggle, h("label", { for: "single-keys" }, "Single keys work outside of fields"))), [{ text: "Close", value: "", main: true }]);
}
