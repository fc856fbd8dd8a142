// A conversation is a tree: an edited message and an answer made again are further children of the
// same parent. `chosen` says which child is shown. Two answers side by side share a `pair`.
import { newId } from "./dom.js";

export function newConversation(settings) {
  const now = Date.now();
  return { id: newId(), title: "", created: now, updated: now, settings, compare: false, nodes: {}, children: [], chosen: null };
}

/** What holds the children of a message: another message, or the conversation. */
export const holder = (talk, id) => (id === null ? talk : talk.nodes[id]);

/** Adds a message behind `parent` (null: the first) and shows it. */
export function addNode(talk, parent, node) {
  const made = { id: newId(), parent, created: Date.now(), content: "", children: [], chosen: null, ...node };
  talk.nodes[made.id] = made;
  const over = holder(talk, parent);
  over.children.push(made.id);
  over.chosen = made.id;
  return made;
}

/** The messages that are shown, first to last. */
export function shownPath(talk) {
  const path = [];
  for (let id = talk.chosen; id; id = talk.nodes[id].chosen) path.push(talk.nodes[id]);
  return path;
}

/** The versions of a message, its own among them; two answers side by side are one version. */
export function versions(talk, node) {
  const groups = [];
  const byPair = new Map();
  for (const id of holder(talk, node.parent).children) {
    const one = talk.nodes[id];
    const group = one.pair ? byPair.get(one.pair) : null;
    if (group) group.push(one);
    else {
      groups.push([one]);
      if (one.pair) byPair.set(one.pair, groups.at(-1));
    }
  }
  return groups;
}

/** The place of a message among its versions: [from 0, of how many]. */
export function place(talk, node) {
  const groups = versions(talk, node);
  return [groups.findIndex((group) => group.includes(node)), groups.length];
}

/** Shows another version of a message. */
export function step(talk, node, by) {
  const groups = versions(talk, node);
  const [at] = place(talk, node);
  const next = groups[(at + by + groups.length) % groups.length];
  holder(talk, node.parent).chosen = next[0].id;
}

/** Removes a message with all that follows it. */
export function removeNode(talk, id) {
  const over = holder(talk, talk.nodes[id].parent);
  over.children = over.children.filter((child) => child !== id);
  if (over.chosen === id) over.chosen = over.children.at(-1) ?? null;
  const gone = [id];
  while (gone.length) {
    const next = gone.pop();
    gone.push(...talk.nodes[next].children);
    delete talk.nodes[next];
  }
}

/** The messages up to `id`, first to last, whatever is shown. */
export function pathTo(talk, id) {
  const path = [];
  for (let at = id; at !== null; at = talk.nodes[at].parent) path.unshift(talk.nodes[at]);
  return path;
}

function fenced(file) {
  const longest = Math.max(2, ...(file.text.match(/`+/g) ?? []).map((run) => run.length));
  const fence = "`".repeat(longest + 1);
  return `${file.name}:\n${fence}\n${file.text}\n${fence}`;
}

function userContent(node) {
  const files = node.files ?? [];
  const texts = files.filter((file) => file.kind === "text").map(fenced);
  const text = [...texts, node.content].filter(Boolean).join("\n\n");
  const media = files.filter((file) => file.kind !== "text").map((file) =>
    file.kind === "image"
      ? { type: "image_url", image_url: { url: file.data } }
      : { type: "input_audio", input_audio: { data: file.data.slice(file.data.indexOf(",") + 1), format: file.format } });
  return media.length ? [...media, ...(text ? [{ type: "text", text }] : [])] : text;
}

function message(node) {
  if (node.role === "user") return { role: "user", content: userContent(node) };
  if (node.role === "tool") return { role: "tool", tool_call_id: node.call, name: node.name, content: node.content };
  const calls = (node.calls ?? []).map(({ id, name, arguments: text }) => ({ id, type: "function", function: { name, arguments: text } }));
  return { role: "assistant", content: node.content || (calls.length ? null : ""), ...(calls.length ? { tool_calls: calls } : {}) };
}

/** The messages that the server gets for an answer behind `id`. Answers that failed are left out. */
export function toMessages(talk, id, system) {
  const path = pathTo(talk, id).filter((node) => node.role !== "assistant" || node.content || node.calls?.length);
  return [...(system ? [{ role: "system", content: system }] : []), ...path.map(message)];
}
