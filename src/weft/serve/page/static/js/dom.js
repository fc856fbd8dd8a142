// Makes elements. Text is always text: nothing here reads HTML.

const ICONS = {
  menu: "M4 6h16M4 12h16M4 18h16",
  plus: "M12 5v14M5 12h14",
  send: "M12 19V5M6 11l6-6 6 6",
  stop: "M7 7h10v10H7z",
  clip: "M20 11.5l-8.2 8.2a5 5 0 0 1-7.1-7.1l8.5-8.5a3.3 3.3 0 0 1 4.7 4.7l-8.4 8.4a1.7 1.7 0 0 1-2.4-2.4l7.6-7.6",
  copy: "M9 9h11v11H9zM5 15H4V4h11v1",
  done: "M5 12.5l4.5 4.5L19 7.5",
  edit: "M4 20h4L19 9l-4-4L4 16zM13 7l4 4",
  again: "M20 11a8 8 0 1 0-2.3 5.7M20 4v7h-7",
  bin: "M4 7h16M9 7V4h6v3M6.5 7l1 13h9l1-13M10 11v5M14 11v5",
  left: "M14.5 6l-6 6 6 6",
  right: "M9.5 6l6 6-6 6",
  sliders: "M4 7h9M17 7h3M4 17h3M11 17h9M15 5v4M9 15v4",
  columns: "M4 5h7v14H4zM13 5h7v14h-7z",
  plan: "M4 4h7v9H4zM13 4h7v5h-7zM13 11h7v9h-7zM4 15h7v5H4z",
  close: "M6 6l12 12M18 6L6 18",
  theme: "M12 3a9 9 0 1 0 0 18zM12 3a9 9 0 0 1 0 18",
  help: "M9.2 9a3 3 0 1 1 4.2 2.8c-.9.5-1.4 1-1.4 2.2M12 17.5v.5",
  out: "M12 4v11M7 10l5 5 5-5M5 20h14",
  in: "M12 15V4M7 9l5-5 5 5M5 20h14",
  chart: "M5 20v-6M12 20V5M19 20v-9",
  tool: "M14.5 6.5a4 4 0 0 1 5-3.9l-2.4 2.5 1.8 1.8 2.5-2.4a4 4 0 0 1-5.2 4.9L8 17.6a2 2 0 1 1-2.8-2.8l8.2-8.1",
};

/** An element. `props` are attributes; functions are listeners (onclick), `class` may be a list,
 * false and null are left out. Children are nodes, texts, or lists of them. */
export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props ?? {})) {
    if (value === false || value === null || value === undefined) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (name === "class") element.className = [value].flat().filter(Boolean).join(" ");
    else if (name === "value") element.value = value;
    else if (name === "dataset") Object.assign(element.dataset, value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat(3).filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** A picture of a line or two, which screen readers leave out. */
export function icon(name) {
  const space = "http://www.w3.org/2000/svg";
  const svg = document.createElementNS(space, "svg");
  const path = document.createElementNS(space, "path");
  for (const [key, value] of Object.entries({ viewBox: "0 0 24 24", class: "icon", "aria-hidden": "true" }))
    svg.setAttribute(key, value);
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

/** A button with a picture; `label` is its name and its tooltip. */
export function iconButton(name, label, onclick, props = {}) {
  return h("button", { type: "button", class: "icon-button", "aria-label": label, title: label, onclick, ...props }, icon(name));
}

export const byId = (id) => document.getElementById(id);

/** A name that no other has. */
export function newId() {
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Puts text on the clipboard, also where the page came over plain HTTP. */
export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = h("textarea", { class: "unseen", "aria-hidden": "true", value: text });
    document.body.append(field);
    field.select();
    const worked = document.execCommand("copy");
    field.remove();
    return worked;
  }
}

/** Shows a note for a while, with an action if there is one to take. */
export function toast(text, action = null, seconds = 6) {
  const note = h("div", { class: "toast" }, h("span", {}, text));
  const close = () => note.remove();
  if (action)
    note.append(h("button", { type: "button", class: "link", onclick: () => { close(); action.run(); } }, action.label));
  note.append(iconButton("close", "Close this note", close));
  document.getElementById("toasts").append(note);
  setTimeout(close, seconds * 1000);
}

/** Gives a file to the user. */
export function download(name, text, type = "application/json") {
  const url = URL.createObjectURL(new Blob([text], { type }));
  const link = h("a", { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}

/** A dialog over the page. Resolves with the value of the button that closed it ("" for Esc). */
export function ask(title, body, buttons, { label = null } = {}) {
  return new Promise((resolve) => {
    const heading = h("h2", { id: newId() }, title);
    const form = h("form", { onsubmit: (event) => { event.preventDefault(); close(buttons.at(-1).value); } }, heading, body,
      h("div", { class: "buttons" }, buttons.map(({ text, value, main }, i) =>
        h("button", { type: i === buttons.length - 1 ? "submit" : "button", class: main ? "main" : "plain",
          onclick: i === buttons.length - 1 ? null : () => close(value) }, text))));
    const dialog = h("dialog", { "aria-labelledby": heading.id, "aria-label": label }, form);
    let given = "";
    const close = (value) => { given = value; dialog.close(); };
    dialog.addEventListener("close", () => { dialog.remove(); resolve(given); });
    document.body.append(dialog);
    dialog.showModal();
    (dialog.querySelector("input:not([type=checkbox])") ?? dialog.querySelector("button.main"))?.focus();
  });
}
