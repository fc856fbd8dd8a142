// Tells screen readers of answers in whole sentences, now and then, not token by token.
import { byId, h } from "./dom.js";

const EVERY = 2500;
let told = new Map(); // id of a message to {upTo, at}

function say(text) {
  const live = byId("live");
  live.append(h("p", {}, text));
  while (live.children.length > 8) live.firstChild.remove();
}

/** Called with every change of an answer; speaks at most once in a few seconds. */
export function announce(node, done) {
  const state = told.get(node.id) ?? { upTo: 0, at: 0 };
  const now = performance.now();
  if (!told.has(node.id)) say("Answering.");
  told.set(node.id, state);
  if (!done && now - state.at < EVERY) return;
  state.at = now;
  const rest = node.content.slice(state.upTo);
  const end = done ? rest.length : Math.max(...[". ", "! ", "? ", "\n"].map((mark) => rest.lastIndexOf(mark))) + 1;
  if (end > 0 && rest.slice(0, end).trim()) {
    say(rest.slice(0, end).slice(0, 2000));
    state.upTo += end;
  }
  if (!done) return;
  told.delete(node.id);
  say(node.error ? `No answer. ${node.error}` : node.finish === "stopped" ? "Stopped." : node.calls?.length ? "The answer calls a tool." : "The answer is complete.");
}
