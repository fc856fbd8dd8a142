// The tokens of an answer, each coloured by its probability; what else was likely on hover, on
// focus, and with the arrow keys.
import { h } from "./dom.js";

const percent = (logprob) => {
  const p = Math.exp(logprob) * 100;
  return p >= 99.95 ? "100 %" : p >= 0.1 ? `${p.toFixed(1)} %` : "under 0.1 %";
};

const shown = (token) => token.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "␣") || "∅";

function level(logprob) {
  const p = Math.exp(logprob);
  return p > 0.9 ? 0 : p > 0.6 ? 1 : p > 0.3 ? 2 : p > 0.1 ? 3 : 4;
}

const about = ({ token, logprob }) => `${shown(token)}, ${percent(logprob)}`;

function card(one) {
  const rows = one.top.some((other) => other.token === one.token) || !one.top.length ? one.top : [...one.top, one];
  return h("div", { class: "odds", "aria-hidden": "true" },
    h("div", { class: "odds-head" }, h("code", {}, shown(one.token)), ` ${percent(one.logprob)} · ${one.logprob.toFixed(3)}`),
    rows.map((other) => {
      const bar = h("span", { class: "odds-bar" });
      bar.style.width = `${Math.max(1, Math.exp(other.logprob) * 100)}%`;
      return h("div", { class: ["odds-row", other.token === one.token && "drawn"] },
        h("code", {}, shown(other.token)), h("span", { class: "odds-track" }, bar), h("span", {}, percent(other.logprob)));
    }));
}

/** The tokens as an element; one stop of the tab key, arrow keys go on from there. */
export function tokenView(tokens) {
  const said = h("span", { class: "unseen", "aria-live": "polite" });
  const spans = tokens.map((one, i) =>
    h("span", { class: `token p${level(one.logprob)}`, dataset: { i }, tabindex: i === 0 ? "0" : "-1", role: "button", "aria-label": about(one) }, one.token));
  let open = null;
  const close = () => {
    open?.remove();
    open = null;
  };
  const show = (span) => {
    close();
    open = card(tokens[span.dataset.i]);
    view.append(open);
    const box = view.getBoundingClientRect();
    const at = span.getClientRects()[0] ?? box;
    open.style.left = `${Math.max(0, Math.min(at.left - box.left, box.width - open.offsetWidth))}px`;
    open.style.top = `${at.bottom - box.top + 4}px`;
  };
  const view = h("div", {
    class: "tokens", role: "group", "aria-label": "Tokens with their probabilities",
    onmouseover: (event) => event.target.dataset?.i && show(event.target),
    onmouseleave: close,
    onfocusin: (event) => event.target.dataset?.i && show(event.target),
    onfocusout: close,
    onkeydown: (event) => {
      const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
      const at = Number(event.target.dataset?.i);
      const next = spans[at + by];
      if (!by || !next) return;
      event.preventDefault();
      event.target.tabIndex = -1;
      next.tabIndex = 0;
      next.focus();
      const others = tokens[at + by].top.filter((other) => other.token !== tokens[at + by].token).map(about);
      said.textContent = others.length ? `Also likely: ${others.join("; ")}` : "";
    },
  }, spans, said);
  return view;
}
