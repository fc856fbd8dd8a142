// Answers: asks the server for them, and gives what comes to the messages they become.
import { events, ServerError } from "./api.js";
import { newId } from "./dom.js";
import { bodyOf, firstProblem } from "./fields.js";
import { addNode, toMessages } from "./tree.js";

const running = new Map(); // id of a message to {abort, talk, node, started, ...}
let onChange = () => {};
let usual = () => ({});

/** `change(talk, node, done)` is called whenever a message that is being written has changed;
 * `valuesOf(settings)` are the server's values of sampling. */
export function onProgress(change, valuesOf) {
  onChange = change;
  usual = valuesOf;
}

export const isRunning = (id) => running.has(id);
export const runningIn = (talk) => [...running.values()].filter((run) => run.talk === talk);

/** The conversation `id` if an answer is being written in it: that object grows, not the kept one. */
export const runningById = (id) => [...running.values()].find((run) => run.talk.id === id)?.talk ?? null;

/** Stops the answers of a conversation, or one. What was written stays. */
export function stop(talk, id = null) {
  for (const run of runningIn(talk)) if (id === null || run.node.id === id) run.abort.abort();
}

/** Writes the next answer behind `parent` with the settings of a side, or two of both. */
export function answer(talk, parent, sides) {
  const pair = sides.length > 1 ? newId() : null;
  const nodes = sides.map((side) => addNode(talk, parent, { role: "assistant", side, ...(pair ? { pair } : {}) }));
  if (pair) (parent === null ? talk : talk.nodes[parent]).chosen = nodes[0].id;
  const done = Promise.all(nodes.map((node) => write(talk, node, talk.settings[node.side] ?? {})));
  return { nodes, done };
}

async function write(talk, node, settings) {
  const abort = new AbortController();
  const run = { abort, talk, node, started: performance.now(), firstAt: null, thoughtAt: null };
  running.set(node.id, run);
  node.stats = { n: 0, speed: null, first: null, context: null, cached: null, thought: null };
  onChange(talk, node, false);
  try {
    const wrong = firstProblem(settings);
    if (wrong) throw new ServerError(0, `${wrong}. It is in the settings.`);
    const body = {
      ...bodyOf(settings, usual(settings)),
      messages: toMessages(talk, node.parent, settings.system),
      stream: true,
      stream_options: { include_usage: true },
      timings_per_token: true,
    };
    const ignored = (names) => {
      const odd = names.filter((name) => name !== "timings_per_token");
      if (odd.length) node.note = `The server does not know ${odd.join(", ")}.`;
    };
    for await (const event of events("v1/chat/completions", body, abort.signal, ignored)) {
      take(run, event);
      onChange(talk, node, false);
    }
  } catch (error) {
    if (error.name === "AbortError") node.finish = "stopped";
    else {
      node.finish = "error";
      node.error = error.message;
      if (!(error instanceof ServerError)) console.warn(error);
    }
  } finally {
    running.delete(node.id);
    talk.updated = Date.now();
    onChange(talk, node, true);
  }
}

function take(run, event) {
  const { node } = run;
  if (event.model) node.model = event.model;
  if (event.usage) takeUsage(node, event.usage);
  if (event.timings) takeTimings(node, event.timings);
  const choice = event.choices?.[0];
  if (!choice) return;
  const { content, reasoning_content: thought, tool_calls: calls } = choice.delta ?? {};
  if ((content || thought || calls) && run.firstAt === null) {
    run.firstAt = performance.now();
    node.stats.first = run.firstAt - run.started;
  }
  if (thought) {
    node.reasoning = (node.reasoning ?? "") + thought;
    node.stats.thought = performance.now() - run.firstAt;
  }
  if (content) node.content += content;
  for (const call of calls ?? []) takeCall(node, call);
  if (choice.logprobs?.content) {
    node.tokens ??= [];
    for (const { token, logprob, top_logprobs: top } of choice.logprobs.content)
      node.tokens.push({ token, logprob, top: (top ?? []).map((one) => ({ token: one.token, logprob: one.logprob })) });
  }
  if (choice.finish_reason) node.finish = choice.finish_reason;
}

function takeCall(node, { index = 0, id, function: part }) {
  node.calls ??= [];
  const call = (node.calls[index] ??= { id: "", name: "", arguments: "" });
  if (id) call.id = id;
  if (part?.name) call.name += part.name;
  if (part?.arguments) call.arguments += part.arguments;
}

function takeTimings(node, timings) {
  node.stats.n = timings.predicted_n;
  node.stats.speed = timings.predicted_per_second || null;
  node.stats.context = timings.cache_n + timings.prompt_n + timings.predicted_n;
  node.stats.cached = timings.cache_n;
}

function takeUsage(node, usage) {
  node.stats.n = usage.completion_tokens;
  node.stats.context = usage.total_tokens;
  node.stats.cached = usage.prompt_tokens_details?.cached_tokens ?? null;
}
