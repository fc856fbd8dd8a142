"""Answers made of trees of Markdown: the page in Chromium shows each within seconds of a
processor, to its end, as elements that do nothing."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path
from typing import Any

from tests.fuzz.mutate import mutate_text
from tests.fuzz.rounds import Round

NATIVE = False

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")

MANY = (0, 1, 2, 5, 40, 70, 300, 3000)
LEAVES = ("a", "**b**", "`c`", "$x^2$", "$$\\frac{1}{2}$$", "\\[" * 30, "<b>", "</b>", "<script>",
          "<img src=x onerror=alert(1)>", "[a](javascript:alert(1))", "![a](http://other.example/b)",
          "<svg onload=alert(1)>", "&lt;", "http://a.example", "~~d~~", "[^1]", "\\", "😀",
          "\u202e", "<!--", "<details>", "$\\def\\a{\\a\\a}\\a$", "{{a}}", "\0")  # fmt: skip
WRAPS = (("> ", ""), ("- ", ""), ("1. ", ""), ("*a ", ""), ("**", "**"), ("_", "_"), ("[", "](b)"),
         ("![", "](b)"), ("`", "`"), ("<b>", "</b>"), ("<ul><li>", ""), ("# ", ""), ("    ", ""),
         ("~~", "~~"), ("$", "$"), ("\\(", "\\)"), ("(", ")"), ("<", ">"), ("<i", ">"), ("a_", ""),
         ("[^", "]: "), ("|", "|"), ("```", ""), ("&", ";"))  # fmt: skip

SHOW = """async (text) => {
  const { Growing } = await import("/page/js/markdown.js");
  const element = document.createElement("div");
  document.body.append(element);
  const growing = new Growing(element);
  growing.set(text.slice(0, text.length / 2));
  growing.set(text);
  const tag = /^(script|iframe|object|form|style|base|link|meta)$/i;
  const attribute = (a) => /^on/i.test(a.name) || /^\\s*javascript:/i.test(a.value);
  const all = [...element.querySelectorAll("*")];
  const bad = all.filter((e) => tag.test(e.tagName) || [...e.attributes].some(attribute));
  const shown = {
    bad: bad.map((e) => e.outerHTML.slice(0, 200)),
    end: element.textContent.includes("THEEND"), tags: all.length,
  };
  element.remove();
  return shown;
}"""


def tree(rng: random.Random, depth: int) -> str:
    """A text with parts within one another."""
    kind = rng.randrange(5)
    if not depth or kind == 0:
        return rng.choice(LEAVES)
    if kind == 1:
        start, end = rng.choice(WRAPS)
        n = rng.choice(MANY)
        return start * n + tree(rng, depth - 1) + end * n
    if kind == 2:
        rows = [" | ".join(tree(rng, 0) for _ in range(3)) for _ in range(rng.choice((1, 3, 200)))]
        return "\n\na | b | c\n--- | --- | ---\n" + "\n".join(rows) + "\n\n"
    if kind == 3:
        lines = tree(rng, depth - 1).split("\n")
        start = rng.choice(("> ", "- ", "  ", "    ", "> - ", "1. ", "\t"))
        return "\n".join(start + line for line in lines)
    parts = [tree(rng, depth - 1) for _ in range(rng.randrange(1, 5))]
    return rng.choice((" ", "\n", "\n\n", "")).join(parts) * rng.choice((1, 1, 1, 20))


def prepare(folder: Path) -> Round:
    """The page of a server, in a browser."""
    from playwright import sync_api

    from tests.pages.conftest import Watch, beyond
    from tests.serve.in_process import Server
    from tests.serve.server import DEMO

    server = Server(DEMO, "--threads", 1)
    server.__enter__()
    driver = sync_api.sync_playwright().start()
    found = next(filter(None, map(shutil.which, CHROMIUM)), None)
    browser = driver.chromium.launch(
        executable_path=found, args=["--no-sandbox", "--disable-dev-shm-usage"]
    )
    page: Any = browser.new_page()
    watch = Watch(frozenset(("127.0.0.1", "localhost")))
    page.route(lambda url: beyond(url, watch.hosts), lambda route: route.abort())
    watch.follow(page)
    page.on("dialog", lambda dialog: watch.problems.append(f"dialog {dialog.message}"))
    page.goto(server.url)
    page.wait_for_selector("html[data-ready]")
    measured = page.context.new_cdp_session(page)
    measured.send("Performance.enable", {"timeDomain": "threadTicks"})

    def processor_seconds() -> float:
        found = measured.send("Performance.getMetrics")["metrics"]
        return next(one["value"] for one in found if one["name"] == "ThreadTime")

    def one(rng: random.Random) -> str:
        text = tree(rng, rng.randrange(1, 6))[:100_000]
        if rng.randrange(3) == 0:
            text = mutate_text(text, rng, LEAVES)
        began = processor_seconds()
        shown = page.evaluate(SHOW, f"{text}\n\n\nTHEEND")
        took = processor_seconds() - began
        assert not shown["bad"] and not watch.problems, (shown, watch.problems, text[:500])
        assert shown["end"], (shown, json.dumps(text[:500]))
        assert took < 5, (took, shown, json.dumps(text[:500]))
        return "elements" if shown["tags"] > 2 else "text"

    return one
