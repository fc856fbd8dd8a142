// The messages of the conversation that is shown, and where it is scrolled to.
import { byId, h } from "./dom.js";
import { MessageView } from "./message.js";
import { shownPath, versions } from "./tree.js";

const NEAR = 90; // pixels from the end within which the view follows
const GAP = 160; // ms between two drawings, at least
let views = new Map();
let follows = true;
let dirty = new Set();
let timer = 0;
let took = 0; // ms of the last drawing

const main = () => byId("main");

/** Draws all messages. `act` is that of MessageView; `empty` makes what stands in an empty one. */
export function drawThread(talk, act, empty) {
  const old = views;
  views = new Map();
  dirty = new Set();
  const rows = [];
  for (const node of shownPath(talk)) {
    const group = node.pair ? versions(talk, node).find((one) => one.includes(node)) : [node];
    const made = group.map((one) => {
      const view = new MessageView(talk, one, act);
      view.tokensShown = false;
      views.set(one.id, view);
      if (one.pair && one !== node) view.element.classList.add("other");
      return view.element;
    });
    rows.push(group.length > 1 ? h("div", { class: "pair" }, made) : made[0]);
  }
  const thread = byId("thread");
  thread.classList.toggle("empty", rows.length === 0);
  thread.replaceChildren(...(rows.length ? rows : [empty()]));
  if (!old.size || follows) toEnd();
}

export const viewOf = (id) => views.get(id);
export const lastView = (role) => [...views.values()].filter((view) => view.node.role === role && !view.element.classList.contains("other")).at(-1);

/** Draws a message again soon, with `also`, not more often than what drawing costs allows: a frame
 * takes time from the model where both share the processor. */
export function changed(node, now = false, also = () => {}) {
  dirty.add(node.id);
  if (now) {
    clearTimeout(timer);
    timer = 0;
    draw();
  } else timer ||= setTimeout(() => requestAnimationFrame(() => { draw(); also(); }), Math.min(1000, Math.max(GAP, took * 20)));
}

function draw() {
  timer = 0;
  const start = performance.now();
  for (const id of dirty) views.get(id)?.update();
  dirty.clear();
  if (follows) toEnd();
  took = performance.now() - start;
}

export function toEnd() {
  main().scrollTop = main().scrollHeight;
  follows = true;
  byId("latest").hidden = true;
}

/** Follows the end again, as when the user has sent something. */
export function follow() {
  follows = true;
  toEnd();
}

export function watchScroll() {
  let last = 0;
  main().addEventListener("scroll", () => {
    const { scrollTop, scrollHeight, clientHeight } = main();
    const left = scrollHeight - scrollTop - clientHeight;
    if (left < NEAR) follows = true;
    else if (scrollTop < last) follows = false; // the user went up; growth alone is not leaving
    last = scrollTop;
    byId("latest").hidden = follows || left < NEAR * 2;
  }, { passive: true });
  byId("latest").addEventListener("click", toEnd);
}
