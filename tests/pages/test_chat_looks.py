"""The chat page at several widths, in the dark, by keyboard, and for screen readers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pages.chat import HOSTILE, MARKDOWN, Chat, conversation
from tests.serve.in_process import Server

pytestmark = pytest.mark.xdist_group("browser")


@pytest.mark.parametrize(
    ("width", "dark"),
    [
        (360, True),
        *(
            pytest.param(*look, marks=pytest.mark.part("pages"))
            for look in ((360, False), (1280, True), (2560, False), (4000, True))
        ),
    ],
)
def test_no_barriers_at_any_width(
    server: Server, open_page: Callable[..., Any], picture: Callable[..., Path],
    barriers: Callable[..., list[str]], width: int, dark: bool,
) -> None:  # fmt: skip
    page = open_page(server.url, width=width, height=min(1400, width + 400), dark=dark)
    chat = Chat(page)
    name = f"chat-{width}-{'dark' if dark else 'light'}"
    chat.give(
        "a.json", conversation("x", MARKDOWN, "y", HOSTILE), "application/json", to="#sidebar"
    )
    page.wait_for_selector(".message.assistant")
    chat.settings(max_tokens="6", probabilities="3")
    page.click("#compare")
    if page.is_visible("#settings"):
        page.click("#sliders")
    chat.send("Is 358 even or odd?")
    page.wait_for_timeout(50)
    for toast in page.locator(".toast button[aria-label^=Close]").all():
        toast.click()
    assert barriers(page) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    picture(page, name)
    chat.act("Show probabilities")
    page.click("#sliders")
    assert barriers(page) == []
    picture(page, f"{name}-settings")
    page.click("#settings [aria-label='Close the settings']")
    page.keyboard.press("?")
    page.wait_for_selector("dialog[open]")
    assert barriers(page) == []
    page.keyboard.press("Escape")


def test_all_of_it_by_keyboard(chat: Chat) -> None:
    page = chat.page
    chat.settings(max_tokens="5")
    page.focus("#input")
    page.keyboard.type("What is 17 + 25?")
    page.keyboard.press("Shift+Enter")
    page.keyboard.type("Please.")
    page.keyboard.press("Enter")
    chat.done()
    assert chat.texts()[0] == "What is 17 + 25?\nPlease."
    page.keyboard.press("Tab")
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("r")
    chat.done()
    assert page.inner_text(".message.assistant .of") == "2/2"
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("[")
    assert page.inner_text(".message.assistant .of") == "1/2"
    page.keyboard.press("n")
    assert chat.texts() == []
    assert page.evaluate("document.activeElement.id") == "input"
    page.keyboard.type("n?")  # in a field, keys are text
    assert page.input_value("#input") == "n?"
    assert "The answer is complete." in page.inner_text("#live")
