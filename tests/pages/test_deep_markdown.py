"""Answers that nest more than the stack of a browser holds are shown plainly, and can be kept."""

from __future__ import annotations

import pytest

from tests.pages.chat import Chat, conversation
from tests.serve.server import Server

pytestmark = pytest.mark.xdist_group("browser")

DEEP = {
    "quotes": "> " * 3000 + "end",
    "quotes without spaces": ">" * 5000 + " end",
    "lists": "- " * 3000 + "end",
    "numbers": "1. " * 3000 + "end",
    "mixed": "> - 1. " * 1000 + "end",
    "emphasis": "*a _b " * 3000 + "end",
    "emphasis that ends late": "*a " * 6000 + "**b** end",
    "links": "[" * 5000 + "a" + "](b)" * 5000 + "end",
    "tags": "<b>" * 5000 + "end",
    "lines": "\n".join("> " * i + "a" for i in range(1, 400)) + "\nend",
}


def test_deep_answers_are_shown_and_kept(chat: Chat, server: Server) -> None:
    page = chat.page
    shown = page.evaluate(
        """async (texts) => {
          const { Growing } = await import("/page/js/markdown.js");
          return texts.map((text) => {
            const element = document.createElement("div");
            new Growing(element).set(text);
            return element.textContent.trim().endsWith("end");
          });
        }""",
        list(DEEP.values()),
    )
    assert dict(zip(DEEP, shown, strict=True)) == dict.fromkeys(DEEP, True)
    chat.give("a.json", conversation("x", DEEP["lists"]), "application/json", to="#sidebar")
    page.wait_for_selector(".message.assistant")
    page.reload()
    page.wait_for_selector(".message.assistant")
    assert page.locator("#main .message").count() == 2
    assert page.locator("#sidebar").inner_text().count("Imported") == 1


def test_what_is_not_deep_stays_markdown(chat: Chat) -> None:
    texts = ["-" * 200, "a\n" + "=" * 200, "> " * 20 + "end", "* " * 20 + "end", "*" * 100]
    tags = chat.page.evaluate(
        """async (texts) => {
          const { Growing } = await import("/page/js/markdown.js");
          return texts.map((text) => {
            const element = document.createElement("div");
            new Growing(element).set(text);
            return element.querySelector(".plain-text") === null;
          });
        }""",
        texts,
    )
    assert tags == [True] * len(texts)


@pytest.mark.parametrize("tag", ["code", "kbd", "pre", "script"])
def test_what_follows_a_tag_of_code_is_text(chat: Chat, tag: str) -> None:
    """The reader takes it for HTML that needs no escapes; a browser reads such halves as tags."""
    halves = "<img src=x onerror=alert(1) <b> 1 < 2 &lt; 3 <a href=http://localhost/ <i>"
    shown = chat.page.evaluate(
        """async (text) => {
          const { rendered } = await import("/page/js/markdown.js");
          return rendered(text).textContent;
        }""",
        f"a <{tag}>{halves} end",
    )
    for part in ("<img src=x onerror=alert(1) ", "1 < 2 < 3 <a href=http://localhost/", "end"):
        assert part in shown, shown


def test_emphasis_that_ends_is_bounded(chat: Chat) -> None:
    """The reader reads the inner text again for each: the time would grow with the square."""
    texts = ["*a " * 500 + "b* " * 500 + "end", "~~a " * 500 + "b~~ " * 500 + "end",
             "*" * 600 + "a" + "*" * 600 + " end"]  # fmt: skip
    shown = chat.page.evaluate(
        """async (texts) => {
          const { rendered } = await import("/page/js/markdown.js");
          const deepest = (e) => 1 + Math.max(0, ...[...e.children].map(deepest));
          return texts.map((text) => [deepest(rendered(text)), rendered(text).textContent]);
        }""",
        texts,
    )
    for depth, text in shown:
        assert 30 < depth < 50 and text.strip().endswith("end"), (depth, text)
