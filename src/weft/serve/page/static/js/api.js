// Talks to the server. A key is asked for when the server wants one, and kept until the tab closes.

const KEY = "weft-key";
let askForKey = async () => null;
let asking = null;

/** `ask(wrong)` gets a key from the user; `wrong` says that there was one that the server refused. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

export class ServerError extends Error {
  constructor(status, message, param = null) {
    super(message);
    this.status = status;
    this.param = param;
  }
}

export function key() {
  try {
    return sessionStorage.getItem(KEY);
  } catch {
    return null;
  }
}

async function newKey(had) {
  asking ??= askForKey(had !== null).finally(() => { asking = null; });
  const given = await asking;
  if (given) sessionStorage.setItem(KEY, given);
  return given;
}

/** A request. Throws ServerError with the server's own words. */
export async function request(path, { body = null, signal = null, method = null } = {}) {
  for (;;) {
    const had = key();
    const headers = { Accept: "application/json" };
    if (body) headers["Content-Type"] = "application/json";
    if (had) headers.Authorization = `Bearer ${had}`;
    let answer;
    try {
      answer = await fetch(path, { method: method ?? (body ? "POST" : "GET"), headers, signal, body: body && JSON.stringify(body) });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError(0, "The server cannot be reached. Is it still running?");
    }
    if (answer.status === 401 && (key() !== had || (await newKey(had)))) continue;
    if (answer.ok) return answer;
    throw await asError(answer);
  }
}

async function asError(answer) {
  let said = null;
  try {
    said = (await answer.json()).error;
  } catch {
    // a proxy may answer with a page
  }
  return new ServerError(answer.status, said?.message ?? `The server answered ${answer.status}.`, said?.param);
}

export const getJson = async (path) => (await request(path)).json();

/** The events of a streamed answer, parsed. `onStart` gets the names of fields that had no effect. */
export async function* events(path, body, signal, onStart = () => {}) {
  const answer = await request(path, { body, signal });
  onStart((answer.headers.get("X-Weft-Ignored") ?? "").split(", ").filter(Boolean));
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    let part;
    try {
      part = await reader.read();
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ServerError(0, "The connection to the server broke off.");
    }
    rest += part.value ?? "";
    const lines = rest.split("\n");
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data: ")) continue;
      const text = line.slice(6);
      if (text === "[DONE]") return;
      const event = JSON.parse(text);
      if (event.error) throw new ServerError(event.error.code ?? 500, event.error.message, event.error.param);
      yield event;
    }
    if (part.done) throw new ServerError(0, "The connection to the server broke off.");
  }
}

/** The models of the server: [{id, n_ctx, chats, sees, hears, sampling}]; null where the server does not say. */
export async function models() {
  const { data } = await getJson("v1/models");
  return data.map(({ id, meta, status }) => ({
    id,
    n_ctx: meta?.n_ctx ?? null,
    chats: meta?.n_ctx !== null, // a model that gives embeddings has none
    sees: meta?.modalities?.vision ?? null,
    hears: meta?.modalities?.audio ?? null,
    sampling: meta?.sampling ?? {},
    status: status?.value ?? status ?? null,
  }));
}
