// Markdown, code and formulas as elements. What a model writes is hostile until shown otherwise:
// tags lose all attributes or stay text, what becomes of it goes through DOMPurify with short lists of
// what may stay, formulas through a renderer that makes elements itself, and the page's policy stands
// behind all of them.
import { copyText, h, icon } from "./dom.js";

const { marked, DOMPurify, temml, hljs } = window;
const LONGEST_CODE = 60_000; // characters that are coloured
const LONGEST_TEX = 4_000;
// Markers of quotes and lists at the start of a line. The reader calls itself for each, and the browser's
// stack ends at some hundreds; what has more of them is shown as it was written.
const TOO_DEEP = /^[ \t]*(?:>[ \t]*|(?:[-*+]|\d{1,9}[.)])[ \t]+){65}/m;

const TAGS = ["a", "abbr", "b", "blockquote", "br", "caption", "code", "dd", "del", "details", "div", "dl", "dt", "em",
  "h3", "h4", "h5", "h6", "hr", "i", "img", "ins", "kbd", "li", "mark", "ol", "p", "pre", "q", "s", "small", "span",
  "strong", "sub", "summary", "sup", "table", "tbody", "td", "tfoot", "th", "thead", "tr", "u", "ul"];
const ATTRIBUTES = ["href", "title", "alt", "src", "class", "data-tex", "data-display", "data-lang", "colspan", "rowspan", "align", "start", "open"];
const CLASSES = /^(?:hljs(?:-[\w-]+)?|function_|class_|inherited__|invoke__|language_|code|tex|task)$/;
const PICTURE = /^data:image\/(?:png|jpeg|gif|webp);base64,[a-z0-9+/=]+$/i;
const LINK = /^(?:https?:\/\/|mailto:)/i;

function escape(text) {
  return text.replace(/[&<>"']/g, (c) => `&#${c.charCodeAt(0)};`);
}

// Tags that a text may have itself, without attributes; all others are shown as they were written.
const WRITTEN = /^<(\/?)(abbr|b|blockquote|br|caption|code|dd|del|details|dl|dt|em|h[3-6]|hr|i|ins|kbd|li|mark|ol|p|pre|q|s|small|strong|sub|summary|sup|table|tbody|td|tfoot|th|thead|tr|u|ul)(?=[\s/>])[^>]*>$/i;

function plainTags(html) {
  return html.replace(/<!--[\s\S]*?-->/g, "").split(/(<[^<>]*>)/).map((part) => {
    const tag = WRITTEN.exec(part);
    return tag ? `<${tag[1]}${tag[2].toLowerCase()}>` : escape(part);
  }).join("");
}

function texPlace(tex, display) {
  return `<span class="tex" data-tex="${escape(tex)}"${display ? ' data-display="1"' : ""}></span>`;
}

const INLINE = [
  [/^\\\(([\s\S]+?)\\\)/, false],
  [/^\\\[([\s\S]+?)\\\]/, true],
  [/^\$\$([^$]+?)\$\$/, true],
  [/^\$(?![\s$])((?:\\[^\n]|[^$\\\n])*?[^\s\\$]|[^\s\\$])\$(?!\d)/, false],
];
const BLOCK = [/^ {0,3}\$\$([\s\S]+?)\$\$ *(?:\n|$)/, /^ {0,3}\\\[([\s\S]+?)\\\] *(?:\n|$)/];

const formulas = {
  extensions: [
    {
      name: "texBlock",
      level: "block",
      start: (text) => text.match(/(?:^|\n) {0,3}(?:\$\$|\\\[)/)?.index,
      tokenizer(text) {
        const found = BLOCK.map((rule) => rule.exec(text)).find(Boolean);
        return found && { type: "texBlock", raw: found[0], tex: found[1] };
      },
      renderer: (token) => `<p>${texPlace(token.tex, true)}</p>`,
    },
    {
      name: "texInline",
      level: "inline",
      start: (text) => text.match(/\$|\\[([]/)?.index,
      tokenizer(text) {
        for (const [rule, display] of INLINE) {
          const found = rule.exec(text);
          if (found) return { type: "texInline", raw: found[0], tex: found[1], display };
        }
      },
      renderer: (token) => texPlace(token.tex, token.display),
    },
  ],
};

function coloured(text, lang) {
  if (!lang || text.length > LONGEST_CODE || !hljs.getLanguage(lang)) return escape(text);
  return hljs.highlight(text, { language: lang, ignoreIllegals: true }).value;
}

// The reader reads the text within emphasis and links again, for each of them: what is deeper stays text.
// To find the end of one, it may read all that follows: the characters of a text are counted.
const DEEPEST = 40;
const MOST_READ = 1 << 24;
let depth = 0;
let toRead = 0;

function notDeep(name) {
  return function (...given) {
    toRead -= given[0].length;
    if (depth >= DEEPEST || toRead < 0) return undefined;
    depth++;
    try {
      return marked.Tokenizer.prototype[name].apply(this, given);
    } finally {
      depth--;
    }
  };
}

const reader = new marked.Marked({ gfm: true, breaks: true }, formulas, {
  tokenizer: Object.fromEntries(["emStrong", "del", "link"].map((name) => [name, notDeep(name)])),
  renderer: {
    heading({ tokens, depth }) {
      const level = Math.min(depth + 2, 6); // the page has the first two
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
    code({ text, lang }) {
      const name = (lang ?? "").trim().split(/\s/)[0].slice(0, 30);
      return `<div class="code" data-lang="${escape(name)}"><pre><code class="hljs">${coloured(text, name.toLowerCase())}</code></pre></div>`;
    },
    image({ href, text }) {
      if (PICTURE.test(href)) return `<img src="${escape(href)}" alt="${escape(text)}">`;
      const safe = LINK.test(href) ? href : "";
      return safe ? `<a href="${escape(safe)}">${escape(text || safe)}</a>` : escape(text);
    },
    html: ({ text }) => plainTags(text),
    text(token) { // marked takes what follows <code>, <kbd>, <pre> or <script> for HTML
      token.escaped = false;
      return false;
    },
    checkbox: ({ checked }) => `<span class="task">${checked ? "☑" : "☐"}</span> `,
  },
});

DOMPurify.addHook("uponSanitizeAttribute", (element, data) => {
  if (data.attrName === "class") {
    data.attrValue = data.attrValue.split(/\s+/).filter((name) => CLASSES.test(name)).join(" ");
  } else if (data.attrName === "src") {
    data.keepAttr = element.nodeName === "IMG" && PICTURE.test(data.attrValue);
  } else if (data.attrName === "href") {
    data.keepAttr = element.nodeName === "A" && LINK.test(data.attrValue);
  }
});

const RULES = { ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ATTRIBUTES, ALLOW_DATA_ATTR: false, ALLOW_ARIA_ATTR: false, RETURN_DOM_FRAGMENT: true };

/** Elements for HTML that a model may have written. */
export function purified(html) {
  const fragment = DOMPurify.sanitize(html, RULES);
  for (const link of fragment.querySelectorAll("a[href]")) {
    link.target = "_blank";
    link.rel = "noopener noreferrer nofollow";
  }
  fragment.querySelectorAll("img:not([src])").forEach((image) => image.replaceWith(image.alt));
  fragment.querySelectorAll(".tex").forEach(drawFormula);
  fragment.querySelectorAll("div.code").forEach(addBar);
  fragment.querySelectorAll("pre").forEach((pre) => { pre.tabIndex = 0; });
  fragment.querySelectorAll("table").forEach((table) => {
    const frame = h("div", { class: "table", tabindex: "0", role: "group", "aria-label": "Table" });
    table.replaceWith(frame);
    frame.append(table);
  });
  return fragment;
}

function drawFormula(place) {
  const tex = place.dataset.tex ?? "";
  const display = place.dataset.display === "1";
  try {
    if (tex.length > LONGEST_TEX) throw new Error("too long");
    temml.render(tex, place, { displayMode: display, throwOnError: true, trust: false, maxExpand: 200, maxSize: [20, 200], wrap: "=", annotate: false });
    DOMPurify.sanitize(place, { IN_PLACE: true, USE_PROFILES: { html: true, mathMl: true }, FORBID_TAGS: ["a", "img", "style"], FORBID_ATTR: ["href", "src", "id"] });
    if (display) place.tabIndex = 0;
  } catch {
    place.replaceChildren(h("code", {}, tex)); // not a formula after all, or not one yet
  }
}

function addBar(box) {
  const text = () => box.querySelector("code")?.textContent ?? "";
  const label = h("span", {}, "Copy");
  const copy = h("button", {
    type: "button", class: "copy",
    onclick: async () => {
      const worked = await copyText(text().replace(/\n$/, ""));
      label.textContent = worked ? "Copied" : "Cannot copy";
      setTimeout(() => { label.textContent = "Copy"; }, 1500);
    },
  }, icon("copy"), label);
  box.prepend(h("div", { class: "bar" }, h("span", {}, box.dataset.lang || "text"), copy));
}

/** The blocks of a text; one block of plain text if it cannot be read as Markdown. */
function read(text) {
  toRead = MOST_READ;
  try {
    if (!TOO_DEEP.test(text)) return reader.lexer(text);
  } catch {
    // it nests something else too deeply
  }
  return [{ raw: text, plain: true }];
}

/** Elements for a block, which is a model's: whatever it is, they are drawn. */
function drawn(token) {
  try {
    if (!token.plain) return purified(reader.parser([token]));
  } catch {
    // as above
  }
  return h("div", { class: "plain-text" }, token.raw);
}

/** Markdown that grows. Only blocks that changed are drawn again. */
export class Growing {
  constructor(element) {
    this.element = element;
    this.raws = [];
  }

  set(text) {
    const tokens = read(text);
    let same = 0;
    while (same < tokens.length && same < this.raws.length && tokens[same].raw === this.raws[same]) same++;
    while (this.element.children.length > same) this.element.lastElementChild.remove();
    for (const token of tokens.slice(same)) {
      const block = h("div", { class: "block" });
      block.append(drawn(token));
      this.element.append(block);
    }
    this.raws = tokens.map((token) => token.raw);
  }
}

/** Elements for a text of Markdown. */
export function rendered(text) {
  const element = h("div", { class: "markdown" });
  new Growing(element).set(text);
  return element;
}
