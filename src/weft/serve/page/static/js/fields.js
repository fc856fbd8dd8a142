// The settings of a request: what there is, what is a legal value, and the body they make.

const number = (key, label, help, min, max, step = 0.05) => ({ key, label, help, type: "number", min, max, step });
const whole = (key, label, help, min = null, max = null) => ({ key, label, help, type: "number", min, max, step: 1 });

/** The fields, in groups. An empty field leaves the choice to the server. */
export const GROUPS = [
  { name: "Sampling", open: true, fields: [
    number("temperature", "Temperature", "0 always takes the likeliest token; larger is more varied.", 0, 2),
    number("top_p", "Top p", "Keeps the likeliest tokens until their probabilities sum to this.", 0, 1, 0.01),
    whole("top_k", "Top k", "Keeps this many of the likeliest tokens; 0 keeps all.", 0),
    number("min_p", "Min p", "Keeps tokens at least this likely beside the likeliest.", 0, 1, 0.01),
    whole("max_tokens", "Max tokens", "The answer ends there; -1 means no limit.", -1),
    whole("seed", "Seed", "The same seed gives the same draws; -1 is random.", -1),
    { key: "stop", label: "Stop sequences", help: "One a line. The answer ends before the first of them.", type: "lines" },
  ] },
  { name: "Penalties", fields: [
    number("repeat_penalty", "Repeat penalty", "Above 1 makes recent tokens less likely.", 0, null),
    whole("repeat_last_n", "Repeat window", "Number of last tokens that penalties look at; -1: all.", -1),
    number("presence_penalty", "Presence penalty", "For tokens that were there.", -2, 2),
    number("frequency_penalty", "Frequency penalty", "For each time that a token was there.", -2, 2),
    number("dry_multiplier", "DRY weight", "Penalty for going on with a repeated sequence; 0 is off.", 0, null),
    number("dry_base", "DRY base", "Growth with each repeated token.", 0, null),
    whole("dry_allowed_length", "DRY free length", "Shorter repetitions are free.", 0),
    whole("dry_last_n", "DRY window", "Number of last tokens that DRY looks at; -1: all.", -1),
  ] },
  { name: "More samplers", fields: [
    number("typical_p", "Typical p", "Keeps the tokens whose surprise is nearest to the expected.", 0, 1, 0.01),
    number("top_n_sigma", "Top n sigma", "Keeps logits within this many deviations of the largest.", null, null, 0.1),
    number("xtc_probability", "XTC probability", "How often the likeliest tokens are left out.", 0, 1),
    number("xtc_threshold", "XTC threshold", "Tokens at least this likely can be left out.", 0, 1),
    number("dynatemp_range", "Temperature range", "The temperature varies by this much with the entropy.", 0, null),
    number("dynatemp_exponent", "Temperature exponent", "Form of that variation.", 0, null, 0.1),
    { key: "mirostat", label: "Mirostat", help: "Keeps the surprise of tokens steady.", type: "choice", choices: [["", "server's choice"], ["0", "off"], ["2", "mirostat 2.0"]], numeric: true },
    number("mirostat_tau", "Mirostat aim", "The surprise it aims at, in bits.", 0, null, 0.1),
    number("mirostat_eta", "Mirostat rate", "How fast it learns.", 0, null, 0.01),
    { key: "samplers", label: "Order of samplers", help: "Such as top_k;top_p;temperature. Others are left out.", type: "text" },
    { key: "logit_bias", label: "Logit bias", help: 'JSON: {"TOKEN ID": -100 to 100}.', type: "json", is: "object" },
    { key: "ignore_eos", label: "Go on past the end", help: "End tokens do not end the answer.", type: "switch" },
  ] },
  { name: "Output format", fields: [
    { key: "form", label: "Form", help: "What the answer must be. The server holds the model to it.", type: "choice",
      choices: [["", "any text"], ["json", "any JSON object"], ["schema", "JSON of a schema"], ["grammar", "a grammar"], ["regex", "a regular expression"]] },
    { key: "form_text", label: "Schema, grammar or expression", help: "A JSON schema; a grammar in Lark's or llama.cpp's notation; or a regular expression.", type: "code" },
    { key: "reasoning_effort", label: "Reasoning effort", help: "For models whose template knows it.", type: "choice", choices: [["", "server's choice"], ["none", "none"], ["minimal", "minimal"], ["low", "low"], ["medium", "medium"], ["high", "high"]] },
  ] },
  { name: "Tools", fields: [
    { key: "tools", label: "Tools", help: "A JSON list of functions. You type the result of each call.", type: "json", is: "list", example: true },
    { key: "tool_choice", label: "Calls", help: "auto, none, required, or the name of a function.", type: "text" },
    { key: "parallel", label: "One call at a time", help: "The answer has at most one call.", type: "switch" },
  ] },
  { name: "Probabilities", fields: [
    { key: "probabilities", label: "Log-probabilities", help: "Shows how likely each token was, and what else was likely.", type: "choice",
      choices: [["", "off"], ["0", "of the tokens drawn"], ["3", "and the 3 likeliest"], ["5", "and the 5 likeliest"], ["10", "and the 10 likeliest"], ["20", "and the 20 likeliest"]] },
  ] },
  { name: "Other fields", fields: [
    { key: "extra", label: "Fields of the request", help: "A JSON object, added to the body as it is.", type: "json", is: "object" },
  ] },
];

export const FIELDS = GROUPS.flatMap((group) => group.fields);
const SYSTEM = { key: "system", label: "System prompt", type: "code" };
const MODEL = { key: "model", label: "Model", type: "text" };

export const TOOL_EXAMPLE = JSON.stringify([{ type: "function", function: { name: "get_weather", description: "The weather at a place",
  parameters: { type: "object", properties: { place: { type: "string" } }, required: ["place"] } } }], null, 2);

/** What is wrong with a value (the text of its field); null: nothing. */
export function problem(field, value) {
  if (value === "" || value === undefined || value === false) return null;
  if (field.type === "number") {
    const is = Number(value);
    if (!Number.isFinite(is)) return "must be a number";
    if (field.step === 1 && !Number.isInteger(is)) return "must be a whole number";
    if (field.min !== null && is < field.min) return `must be ${field.min} or more`;
    if (field.max !== null && is > field.max) return `must be ${field.max} or less`;
  }
  if (field.type === "json") {
    try {
      const is = JSON.parse(value);
      if (field.is === "list" ? !Array.isArray(is) : typeof is !== "object" || is === null || Array.isArray(is))
        return `must be a JSON ${field.is}`;
      if (field.key === "tools") return is.map(toolProblem).find(Boolean) ?? null;
    } catch (error) {
      return `is not JSON: ${error.message}`;
    }
  }
  return null;
}

function toolProblem(tool, i) {
  const made = asTool(tool);
  if (!made || typeof made.function?.name !== "string" || !made.function.name) return `: tool ${i + 1} has no function with a name`;
  return null;
}

/** A tool in the API's form; a bare function is one, too. */
function asTool(tool) {
  if (typeof tool !== "object" || tool === null) return null;
  return tool.function ? { type: "function", ...tool } : { type: "function", function: tool };
}

/** The first problem of settings, as a sentence; null: none. */
export function firstProblem(settings) {
  for (const field of FIELDS) {
    const what = problem(field, settings[field.key] ?? "");
    if (what) return `${field.label} ${what}`.replace(" : ", ": ");
  }
  if (settings.form === "schema") {
    const what = problem({ type: "json", is: "object" }, settings.form_text || " ");
    if (what) return `The schema ${what}`;
  }
  if (["grammar", "regex"].includes(settings.form) && !settings.form_text) return "The form of the answer has no text";
  return null;
}

const CUTS = ["temperature", "top_p", "top_k", "min_p"];

/** The fields of a request's body, without messages. The server takes the API's values for those of
 * `CUTS` that are missing where one is there; `usual` has the server's own, which the panel shows. */
export function bodyOf(settings, usual = {}) {
  const body = {};
  const direct = new Set(GROUPS.slice(0, 3).flatMap((group) => group.fields).map((field) => field.key));
  for (const field of FIELDS) {
    const value = settings[field.key];
    if (!direct.has(field.key) || value === undefined || value === "" || value === false) continue;
    if (field.type === "number" || field.numeric) body[field.key] = Number(value);
    else if (field.type === "lines") body[field.key] = value.split("\n").filter(Boolean).map((line) => line.replaceAll("\\n", "\n"));
    else body[field.key] = field.type === "json" ? JSON.parse(value) : value;
  }
  if (settings.model) body.model = settings.model;
  if (settings.form === "json") body.response_format = { type: "json_object" };
  if (settings.form === "schema")
    body.response_format = { type: "json_schema", json_schema: { name: "answer", strict: true, schema: JSON.parse(settings.form_text) } };
  if (settings.form === "grammar" || settings.form === "regex") body[settings.form] = settings.form_text;
  if (settings.reasoning_effort) body.reasoning_effort = settings.reasoning_effort;
  if (settings.tools) {
    body.tools = JSON.parse(settings.tools).map(asTool);
    const choice = settings.tool_choice?.trim();
    if (choice) body.tool_choice = ["auto", "none", "required"].includes(choice) ? choice : { type: "function", function: { name: choice } };
    if (settings.parallel) body.parallel_tool_calls = false;
    if (!body.tools.length) delete body.tools;
  }
  if (settings.probabilities) Object.assign(body, { logprobs: true, top_logprobs: Number(settings.probabilities) });
  Object.assign(body, settings.extra ? JSON.parse(settings.extra) : {});
  if (CUTS.some((key) => key in body)) for (const key of CUTS) if (key in usual) body[key] ??= usual[key];
  return body;
}

/** Settings from a file or an older version: texts and switches of known fields, nothing else. */
export function checkedSides(sides) {
  const one = (side) =>
    Object.fromEntries([SYSTEM, MODEL, ...FIELDS].map(({ key, type }) => [key, side?.[key], type])
      .filter(([, value, type]) => (type === "switch" ? value === true : typeof value === "string" && value.length < 1_000_000))
      .map(([key, value]) => [key, value]));
  return { A: one(sides?.A), B: one(sides?.B) };
}
