// Conversations in the browser's database. Nothing of them is kept by the server.
import { newId, toast } from "./dom.js";

const NAME = "weft-conversations";
let database = null;
let memory = null; // stands in where the browser forbids a database
const news = typeof BroadcastChannel === "undefined" ? null : new BroadcastChannel(NAME);

function open() {
  return new Promise((resolve, reject) => {
    const asked = indexedDB.open(NAME, 1);
    asked.onupgradeneeded = () => {
      asked.result.createObjectStore("heads", { keyPath: "id" });
      asked.result.createObjectStore("talks", { keyPath: "id" });
    };
    asked.onsuccess = () => resolve(asked.result);
    asked.onerror = () => reject(asked.error);
    asked.onblocked = () => reject(new Error("another tab holds an older version"));
  });
}

/** Opens the database. `onNews` is called when another tab changed something. */
export async function openStore(onNews) {
  news?.addEventListener("message", onNews);
  try {
    database = await open();
  } catch {
    memory = new Map();
    toast("This browser keeps no data for this page: conversations last until the tab closes. Export what you need.", null, 12);
  }
}

function run(mode, work) {
  return new Promise((resolve, reject) => {
    const change = database.transaction(["heads", "talks"], mode);
    const asked = work(change.objectStore("heads"), change.objectStore("talks"));
    change.oncomplete = () => resolve(asked?.result);
    change.onerror = change.onabort = () => reject(change.error);
  });
}

const headOf = ({ id, title, created, updated }) => ({ id, title, created, updated });

/** The heads of all conversations, {id, title, created, updated}, the latest first. */
export async function list() {
  const heads = memory ? [...memory.values()].map(headOf) : await run("readonly", (store) => store.getAll());
  return heads.sort((a, b) => b.updated - a.updated);
}

export async function load(id) {
  return memory ? memory.get(id) : run("readonly", (_, store) => store.get(id));
}

/** Keeps a conversation. */
export async function save(talk) {
  if (memory) {
    memory.set(talk.id, talk);
    return;
  }
  try {
    await run("readwrite", (heads, talks) => {
      heads.put(headOf(talk));
      return talks.put(talk);
    });
  } catch (error) {
    toast(`This conversation cannot be kept: ${error?.message ?? "the browser refused"}. Export it.`, null, 12);
    return;
  }
  news?.postMessage(talk.id);
}

export async function remove(id) {
  if (memory) memory.delete(id);
  else
    await run("readwrite", (heads, talks) => {
      heads.delete(id);
      return talks.delete(id);
    });
  news?.postMessage(id);
}

const FORMAT = "weft-conversations";

/** The text of a file with these conversations. */
export function exported(talks) {
  return JSON.stringify({ format: FORMAT, version: 1, conversations: talks }, null, 1);
}

class Refused extends Error {}

const must = (holds, where, what) => {
  if (!holds) throw new Refused(`${where} ${what}`);
};
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);
const text = (value, where, { most = 20_000_000, absent = false } = {}) => {
  if (absent && value === undefined) return "";
  must(typeof value === "string", where, "must be a text");
  must(value.length <= most, where, "is too long");
  return value;
};
const time = (value) => (Number.isFinite(value) && value >= 0 && value <= 8.64e15 ? value : Date.now());
const list_ = (value, where, most) => {
  if (value === undefined) return [];
  must(Array.isArray(value), where, "must be a list");
  must(value.length <= most, where, `may have ${most} entries`);
  return value;
};

function checkedFile(file, where) {
  must(isObject(file), where, "must be an object");
  const name = text(file.name, `${where}.name`, { most: 500 });
  if (file.kind === "text") return { kind: "text", name, text: text(file.text, `${where}.text`) };
  const data = text(file.data, `${where}.data`);
  if (file.kind === "image") {
    must(/^data:image\/(?:png|jpeg|gif|webp|bmp);base64,[A-Za-z0-9+/=]+$/.test(data), `${where}.data`, "must be an image as a data: address");
    return { kind: "image", name, data };
  }
  must(file.kind === "sound", `${where}.kind`, "must be image, sound or text");
  must(/^data:audio\/[\w.+-]+;base64,[A-Za-z0-9+/=]+$/.test(data), `${where}.data`, "must be a sound as a data: address");
  must(["wav", "mp3", "flac", "ogg"].includes(file.format), `${where}.format`, "must be wav, mp3, flac or ogg");
  return { kind: "sound", name, data, format: file.format };
}

const number = (value) => (Number.isFinite(value) ? value : null);

function checkedToken(token, where, deep = true) {
  must(isObject(token) && typeof token.token === "string" && Number.isFinite(token.logprob), where, "must have token and logprob");
  return { token: token.token, logprob: token.logprob,
    ...(deep ? { top: list_(token.top, `${where}.top`, 20).map((one, i) => checkedToken(one, `${where}.top[${i}]`, false)) } : {}) };
}

function checkedNode(node, where) {
  must(isObject(node), where, "must be an object");
  must(["user", "assistant", "tool"].includes(node.role), `${where}.role`, "must be user, assistant or tool");
  const kept = { role: node.role, created: time(node.created), content: text(node.content, `${where}.content`), children: [], chosen: null };
  for (const name of ["reasoning", "model", "side", "pair", "call", "name", "finish", "error"])
    if (typeof node[name] === "string") kept[name] = text(node[name], `${where}.${name}`);
  if (node.files) kept.files = list_(node.files, `${where}.files`, 100).map((file, i) => checkedFile(file, `${where}.files[${i}]`));
  if (node.calls)
    kept.calls = list_(node.calls, `${where}.calls`, 200).map((call, i) => {
      const at = `${where}.calls[${i}]`;
      must(isObject(call), at, "must be an object");
      return { id: text(call.id, `${at}.id`), name: text(call.name, `${at}.name`), arguments: text(call.arguments, `${at}.arguments`) };
    });
  if (node.tokens) kept.tokens = list_(node.tokens, `${where}.tokens`, 1_000_000).map((one, i) => checkedToken(one, `${where}.tokens[${i}]`));
  if (isObject(node.stats))
    kept.stats = Object.fromEntries(["n", "speed", "first", "context", "cached", "thought"].map((name) => [name, number(node.stats[name])]));
  return kept;
}

function checkedTalk(talk, where, checkSettings) {
  must(isObject(talk), where, "must be an object");
  must(isObject(talk.nodes), `${where}.nodes`, "must be an object");
  const entries = Object.entries(talk.nodes);
  must(entries.length <= 100_000, `${where}.nodes`, "has too many messages");
  const ids = new Map(entries.map(([old]) => [old, newId()]));
  const made = {
    id: newId(), title: text(talk.title, `${where}.title`, { most: 1000, absent: true }), created: time(talk.created),
    updated: time(talk.updated), compare: talk.compare === true, nodes: {}, children: [], chosen: null,
    settings: checkSettings(talk.settings),
  };
  for (const [old, node] of entries) {
    const at = `${where}.nodes[${JSON.stringify(old.slice(0, 40))}]`;
    const kept = checkedNode(node, at);
    must(node.parent === null || ids.has(node.parent), `${at}.parent`, "must be null or another message");
    made.nodes[ids.get(old)] = { id: ids.get(old), parent: node.parent === null ? null : ids.get(node.parent), ...kept };
  }
  const originals = new Map(entries.map(([old]) => [ids.get(old), old]));
  const over = (id) => (id === null ? talk : talk.nodes[originals.get(id)]);
  for (const node of Object.values(made.nodes)) (node.parent === null ? made : made.nodes[node.parent]).children.push(node.id);
  for (const one of [made, ...Object.values(made.nodes)]) {
    const source = over(one === made ? null : one.id);
    const order = Array.isArray(source.children) ? source.children.map((old) => ids.get(old)) : [];
    one.children.sort((a, b) => order.indexOf(a) - order.indexOf(b));
    const chosen = ids.get(source.chosen);
    one.chosen = one.children.includes(chosen) ? chosen : (one.children.at(-1) ?? null);
  }
  let reached = 0;
  for (const open = [...made.children]; open.length; reached++) open.push(...made.nodes[open.pop()].children);
  must(reached === entries.length, where, "has messages that follow each other in a circle");
  return made;
}

/** The conversations of a file, checked and with new ids. Throws Error that says where it is wrong. */
export function imported(source, checkSettings) {
  let data;
  try {
    data = JSON.parse(source);
  } catch (error) {
    throw new Error(`the file is not JSON: ${error.message}`);
  }
  if (!isObject(data) || data.format !== FORMAT) throw new Error(`the file has no "format": "${FORMAT}"; export makes such files`);
  if (data.version !== 1) throw new Error(`the file has version ${JSON.stringify(data.version)}; this page reads version 1`);
  const talks = list_(data.conversations, "conversations", 10_000);
  if (!talks.length) throw new Error("the file has no conversations");
  return talks.map((talk, i) => checkedTalk(talk, `conversations[${i}]`, checkSettings));
}
