// One message: what it shows and what can be done with it.
import { copyText, h, icon, iconButton, newId } from "./dom.js";
import { isRunning } from "./chat.js";
import { Growing } from "./markdown.js";
import { tokenView } from "./probabilities.js";
import { place } from "./tree.js";

const seconds = (ms) => (ms < 9950 ? `${(ms / 1000).toFixed(ms < 995 ? 2 : 1)} s` : `${Math.round(ms / 1000)} s`);
const count = (n) => n.toLocaleString("en");

/** What is known of an answer's tokens and times, as a line. */
export function statsLine(node) {
  const { n, speed, first, cached } = node.stats ?? {};
  const parts = [];
  if (n) parts.push(`${count(n)} token${n === 1 ? "" : "s"}`);
  if (speed) parts.push(`${speed < 100 ? speed.toFixed(1) : count(Math.round(speed))} tokens/s`);
  if (first !== null && first !== undefined) parts.push(`first after ${seconds(first)}`);
  if (cached) parts.push(`${count(cached)} from the cache`);
  return parts.join(" · ");
}

const ENDS = { stopped: "Stopped.", length: "Cut off at the limit of tokens.", content_filter: "Ended by a filter." };

/** The view of a message. `update` draws what has changed since. */
export class MessageView {
  /** `act(name, node, value)` does what the user asks for. */
  constructor(talk, node, act) {
    this.talk = talk;
    this.node = node;
    this.act = act;
    this.tokensShown = false;
    this.callCount = -1;
    const who = { user: "You", assistant: "Answer", tool: "Tool result" }[node.role];
    this.element = h("article", { class: ["message", node.role], "aria-label": who, dataset: { id: node.id } });
    if (node.side && node.pair) this.element.append(h("div", { class: "side-name" }, `Settings ${node.side}`, this.pickButton()));
    if (node.role === "user") this.drawUser();
    else if (node.role === "tool") this.drawTool();
    else this.drawAnswer();
    this.foot = h("div", { class: "foot" });
    this.element.append(this.foot);
    this.update();
  }

  pickButton() {
    const over = this.node.parent === null ? this.talk : this.talk.nodes[this.node.parent];
    const chosen = over.chosen === this.node.id;
    return h("button", { type: "button", class: "pick", "aria-pressed": String(chosen), onclick: () => this.act("pick", this.node) },
      chosen ? [icon("done"), "Continues here"] : "Continue with this");
  }

  drawUser() {
    const files = (this.node.files ?? []).map(fileView);
    this.body = h("div", { class: "bubble" }, files.length ? h("div", { class: "files" }, files) : null);
    if (this.node.content) this.body.append(h("div", { class: "plain-text" }, this.node.content));
    this.element.append(this.body);
  }

  drawTool() {
    this.element.append(h("details", { class: "fold", open: true },
      h("summary", {}, icon("tool"), `Result of ${this.node.name || "the call"}`),
      h("pre", { class: "plain-text", tabindex: "0" }, this.node.content)));
  }

  drawAnswer() {
    this.thought = h("details", { class: "fold thought", hidden: true }, (this.thoughtName = h("summary", {})), (this.thoughtText = h("div", { class: "plain-text" })));
    this.body = h("div", { class: "markdown" });
    this.growing = new Growing(this.body);
    this.calls = h("div", { class: "calls" });
    this.problem = h("div", { class: "problem", role: "alert", hidden: true });
    this.ending = h("p", { class: "ending", hidden: true });
    this.element.append(this.thought, this.body, this.calls, this.problem, this.ending);
  }

  update() {
    const writing = isRunning(this.node.id);
    if (this.node.role === "assistant") this.updateAnswer(writing);
    if (writing !== this.wasWriting) this.updateFoot(writing);
    this.wasWriting = writing;
    if (this.stats) this.stats.textContent = statsLine(this.node);
  }

  updateAnswer(writing) {
    const { node } = this;
    this.element.classList.toggle("writing", writing);
    this.element.setAttribute("aria-busy", String(writing));
    if (node.reasoning) {
      this.thought.hidden = false;
      const thinks = writing && !node.content && !node.calls?.length;
      const time = node.stats?.thought ? ` for ${seconds(node.stats.thought)}` : "";
      this.thoughtName.textContent = `${thinks ? "Thinking" : "Thought"}${time}`;
      this.thought.classList.toggle("busy", thinks);
      if (this.thought.open || !writing) this.thoughtText.textContent = node.reasoning;
      this.thought.ontoggle = () => { this.thoughtText.textContent = node.reasoning; };
    }
    if (this.tokensShown && !node.tokens?.length) this.tokensShown = false;
    if (!this.tokensShown && this.drawn !== node.content) {
      this.growing.set(node.content);
      this.drawn = node.content;
    }
    this.body.classList.toggle("waiting", writing && !node.content && !node.reasoning && !node.calls?.length);
    if ((node.calls?.length ?? 0) !== this.callCount || !writing) this.drawCalls(writing);
    const said = writing ? null : node.error;
    this.problem.hidden = !said;
    if (said) this.problem.replaceChildren(h("strong", {}, "No answer. "), said);
    const end = writing ? null : [ENDS[node.finish], node.note].filter(Boolean).join(" ");
    this.ending.hidden = !end;
    this.ending.textContent = end ?? "";
  }

  drawCalls(writing) {
    const { node, talk } = this;
    const calls = (node.calls ?? []).filter(Boolean);
    this.callCount = calls.length;
    const answered = node.children.some((id) => talk.nodes[id].role === "tool");
    const fields = [];
    const cards = calls.map((call, i) => {
      const field = h("textarea", { rows: "2", id: newId(), "aria-label": `Result of ${call.name}`, placeholder: "Type what the tool gives back" });
      fields.push(field);
      return h("details", { class: "fold call", open: true }, h("summary", {}, icon("tool"), h("span", {}, "Calls "), h("code", {}, call.name || `tool ${i + 1}`)),
        h("pre", { class: "plain-text", tabindex: "0" }, pretty(call.arguments)), writing || answered ? null : field);
    });
    const send = () => this.act("results", node, fields.map((field) => field.value));
    fields.forEach((field) => field.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      send();
    }));
    this.calls.replaceChildren(...cards);
    if (cards.length && !writing && !answered)
      this.calls.append(h("button", { type: "button", class: "plain", onclick: send }, calls.length === 1 ? "Send the result" : "Send the results"));
  }

  updateFoot(writing) {
    const { node, talk, act } = this;
    const buttons = [];
    const versions = [];
    const [at, of] = place(talk, node);
    if (of > 1 && (!node.pair || node.side === "A"))
      versions.push(h("span", { class: "versions", role: "group", "aria-label": "Versions" },
        iconButton("left", "Version before", () => act("version", node, -1)), h("span", { class: "of" }, `${at + 1}/${of}`),
        iconButton("right", "Next version", () => act("version", node, 1))));
    if (!writing && node.role === "assistant") {
      buttons.push(iconButton("copy", "Copy the answer", (event) => copied(event.currentTarget, node.content)));
      buttons.push(iconButton("again", "Answer again", () => act("again", node)));
      buttons.push(iconButton("edit", "Edit the answer", () => act("edit", node)));
      if (node.tokens?.length) {
        this.oddsButton = iconButton("chart", "Show probabilities", () => this.toggleTokens(), { "aria-pressed": String(this.tokensShown) });
        buttons.push(this.oddsButton);
      }
    }
    if (!writing && node.role === "user") {
      buttons.push(iconButton("copy", "Copy the message", (event) => copied(event.currentTarget, node.content)));
      buttons.push(iconButton("edit", "Edit the message", () => act("edit", node)));
    }
    if (!writing) buttons.push(iconButton("bin", "Delete from here on", () => act("delete", node)));
    this.stats = node.role === "assistant" ? h("span", { class: "stats" }) : null;
    this.foot.replaceChildren(...versions, ...(this.stats ? [this.stats] : []), ...buttons);
  }

  toggleTokens() {
    this.tokensShown = !this.tokensShown;
    this.oddsButton.setAttribute("aria-pressed", String(this.tokensShown));
    if (this.tokensShown) {
      this.body.replaceChildren(tokenView(this.node.tokens));
      this.growing.raws = [];
    } else {
      this.body.replaceChildren();
      this.growing.set(this.node.content);
    }
  }

  /** Puts a field in place of the message. */
  edit() {
    const { node } = this;
    const field = h("textarea", { class: "edit", "aria-label": "Edit the message", value: node.content, rows: "3" });
    const close = () => { box.remove(); this.body.hidden = false; this.element.classList.remove("editing"); this.element.querySelector(".foot button")?.focus(); };
    const keep = () => this.act("edited", node, field.value);
    const box = h("form", { class: "edit-box", onsubmit: (event) => { event.preventDefault(); keep(); } }, field,
      h("div", { class: "buttons" }, h("button", { type: "button", class: "plain", onclick: close }, "Cancel"),
        h("button", { type: "submit", class: "main" }, node.role === "user" ? "Send" : "Keep")));
    field.addEventListener("keydown", (event) => {
      if (event.key === "Escape") { event.stopPropagation(); close(); }
      if (event.key === "Enter" && !event.shiftKey && !event.isComposing && node.role === "user") { event.preventDefault(); keep(); }
    });
    this.body.hidden = true;
    this.element.classList.add("editing");
    this.body.after(box);
    field.style.height = `${Math.min(field.scrollHeight + 4, innerHeight / 2)}px`;
    field.focus();
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

async function copied(button, text) {
  if (!(await copyText(text))) return;
  button.replaceChildren(icon("done"));
  setTimeout(() => button.replaceChildren(icon("copy")), 1500);
}

/** A file in a message or above the field. */
export function fileView(file) {
  if (file.kind === "image") return h("img", { class: "file-image", src: file.data, alt: file.name });
  if (file.kind === "sound") return h("audio", { controls: true, src: file.data, "aria-label": file.name });
  return h("details", { class: "fold file-text" }, h("summary", {}, file.name, h("span", { class: "faint" }, ` ${count(file.text.length)} characters`)),
    h("pre", { class: "plain-text", tabindex: "0" }, file.text));
}
