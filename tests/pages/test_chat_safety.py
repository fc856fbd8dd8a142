"""What a model writes, and what a file has, does nothing on the page but to be shown."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pages.chat import HOSTILE, MARKDOWN, Chat, conversation
from tests.serve.in_process import Server

pytestmark = pytest.mark.xdist_group("browser")


def test_hostile_answers_do_nothing(chat: Chat, server: Server) -> None:
    """The policy would hold most of it; nothing gets so far as to be reported by it."""
    page = chat.page
    chat.give("a.json", conversation("x", HOSTILE), "application/json", to="#sidebar")
    page.wait_for_selector(".message.assistant")
    page.locator(".message.assistant b").hover()
    page.locator(".markdown summary").click()
    page.wait_for_timeout(300)
    assert page.evaluate("window.hit") is None
    assert page.url.rstrip("/") == server.url
    found = page.evaluate(
        """() => {
          const inside = [...document.querySelectorAll(".message.assistant .markdown *")];
          return {
            tags: [...new Set(inside.map((e) => e.localName))],
            links: inside.filter((e) => e.href).map((e) => [e.getAttribute("href"), e.target, e.rel]),
            handlers: inside.filter((e) => [...e.attributes].some((a) => /^on|^(id|name|srcdoc|action|formaction)$/.test(a.name))).length,
            sources: inside.filter((e) => e.src).length,
          };
        }"""  # noqa: E501
    )
    forbidden = {"script", "style", "iframe", "form", "input", "img", "base", "meta", "article"}
    assert not forbidden & set(found["tags"])
    assert found["handlers"] == found["sources"] == 0
    assert found["links"] and all(
        href.startswith("https://") and target == "_blank" and "noopener" in rel
        for href, target, rel in found["links"]
    )
    # the page is whole, and nothing stands over it
    assert page.locator("#main .message").count() == 2
    chat.settings(max_tokens="4")
    chat.send("What is 17 + 25?")
    assert len(chat.texts()) == 4


def test_markdown_code_and_formulas(
    chat: Chat, open_page: Callable[..., Any], picture: Callable[..., Path]
) -> None:
    page = chat.page
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    chat.give("a.json", conversation("x", MARKDOWN), "application/json", to="#sidebar")
    page.wait_for_selector(".message.assistant")
    assert page.locator(".markdown math").count() == 3
    assert "It costs $5 or $10." in page.inner_text(".markdown")
    assert page.locator(".markdown .hljs-keyword").all_inner_texts() == ["def", "return"]
    assert page.locator(".markdown h3").inner_text() == "Least squares"
    page.click(".copy")
    chat.until("document.querySelector('.copy').innerText.includes('Copied')")
    copied = page.evaluate("navigator.clipboard.readText()")
    assert copied == "def fit(x, y):\n    return x @ y  # fast"
    picture(page, "chat-markdown")


def test_text_that_grows_is_drawn_like_text_that_is_there(chat: Chat) -> None:
    same = chat.page.evaluate(
        """async (text) => {
          const { Growing } = await import("/page/js/markdown.js");
          const [a, b] = [document.createElement("div"), document.createElement("div")];
          const growing = new Growing(a);
          for (let end = 1; end <= text.length; end += 3) growing.set(text.slice(0, end));
          growing.set(text);
          new Growing(b).set(text);
          return a.innerHTML === b.innerHTML && a.innerHTML.length > 1000;
        }""",
        MARKDOWN + HOSTILE,
    )
    assert same


REFUSED: list[tuple[Callable[[dict[str, Any]], bytes], str]] = [
    (lambda file: b"[1", "is not JSON"),
    (lambda file: b"{}", "has no"),
    (lambda file: json.dumps(file | {"version": 2}).encode(), "this page reads version 1"),
    (lambda file: damaged(file, "role", "root"), "must be user, assistant or tool"),
    (lambda file: damaged(file, "parent", "7"), "must be null or another message"),
    (lambda file: damaged(file, "parent", "1"), "in a circle"),
    (lambda file: damaged(file, "content", 3), "must be a text"),
    (
        lambda file: damaged(
            file, "files", [{"kind": "image", "name": "a", "data": "https://other.invalid/a"}]
        ),
        "must be an image as a data: address",
    ),
]


def test_damaged_files_are_refused(chat: Chat) -> None:
    for change, words in REFUSED:
        data = change(json.loads(conversation("a", "b")))
        chat.give("damaged.json", data, "application/json", to="#sidebar")
        chat.page.wait_for_selector(".toast")
        assert words in chat.page.inner_text(".toast")
        chat.page.click(".toast [aria-label='Close this note']")
    assert chat.page.locator(".talk").count() == 0


def damaged(file: dict[str, Any], key: str, value: object) -> bytes:
    """The file with another value in its second message."""
    file["conversations"][0]["nodes"]["1"][key] = value
    return json.dumps(file).encode()
