"""The chat page in a browser, over real models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.pages.chat import Chat
from tests.serve.in_process import ROOT, Server

pytestmark = pytest.mark.xdist_group("browser")

Open = Callable[..., Any]


def cancelled(server: Server) -> float:
    return server.metrics().get('requests_ended_total{reason="cancelled"}', 0)


def go_on_past_the_end(chat: Chat) -> None:
    """Answers end when the test stops them."""
    chat.page.click("#sliders")
    chat.page.click("details[data-name='More samplers'] summary")
    chat.page.check("[data-key=ignore_eos]")
    chat.page.click("#settings [aria-label='Close the settings']")


def test_settings_show_what_the_server_uses(chat: Chat) -> None:
    page, bodies = chat.page, []
    page.on("request", lambda r: bodies.append(r.post_data_json) if r.method == "POST" else None)
    chat.settings(max_tokens="2")
    shown = {
        key: page.get_attribute(f"#settings [data-key={key}]", "placeholder")
        for key in ("temperature", "top_p", "top_k", "min_p", "repeat_penalty", "seed")
    }
    assert shown == {
        "temperature": "0.8", "top_p": "0.95", "top_k": "40", "min_p": "0.05",
        "repeat_penalty": "1", "seed": "-1",
    }  # fmt: skip
    chat.send("a")
    chat.settings(temperature="0.5")
    chat.send("b")
    said = [(b.get("temperature"), b.get("top_p"), b.get("top_k"), b.get("min_p")) for b in bodies]
    assert said == [(None,) * 4, (0.5, 0.95, 40, 0.05)]


def test_a_conversation_is_kept_with_its_versions(
    chat: Chat, picture: Callable[..., Path], server: Server
) -> None:
    page = chat.page
    chat.settings(temperature="0", max_tokens="24")
    chat.send("What is 17 + 25?")
    first = chat.texts()
    assert first[0] == "What is 17 + 25?" and first[1]
    assert "24 tokens" in page.inner_text(".message.assistant .stats")
    assert "of 16,384 tokens" in page.inner_text("#status")

    chat.act("Answer again")
    chat.done()
    assert page.inner_text(".message.assistant .of") == "2/2"
    assert chat.texts() == first  # at temperature 0

    chat.act("Edit the message")
    page.fill(".edit", "Sort 7 0 9?")
    page.press(".edit", "Enter")
    chat.done()
    second = chat.texts()
    assert second[0] == "Sort 7 0 9?" and second[1] != first[1]
    assert page.inner_text(".message.user .of") == "2/2"
    chat.act("Version before", 0)
    assert chat.texts() == first
    picture(page, "chat-1280")

    page.reload()
    chat = Chat(page)
    assert chat.texts() == first
    talk = chat.kept()
    assert sorted(node["role"] for node in talk["nodes"].values()) == [
        "assistant", "assistant", "assistant", "user", "user",
    ]  # fmt: skip


def test_an_answer_is_stopped(chat: Chat, server: Server) -> None:
    page, before = chat.page, cancelled(server)
    go_on_past_the_end(chat)
    chat.send("Count from 8 to 11?", wait=False)
    chat.until("document.querySelector('.message.assistant .markdown').innerText")
    chat.until("document.querySelector('#status').innerText.includes('tokens/s')")
    page.press("#input", "Escape")
    chat.done()
    assert page.inner_text(".message.assistant .ending") == "Stopped."
    assert chat.texts()[1]
    for _ in range(600):
        if cancelled(server) > before:
            break
        page.wait_for_timeout(50)
    assert cancelled(server) == before + 1


@pytest.mark.part("pages")
def test_nothing_typed_is_lost(chat: Chat) -> None:
    """An edit that is open stays open when an answer ends; a reload keeps the field's text."""
    page = chat.page
    chat.settings(max_tokens="12", temperature="0")
    chat.send("What is 17 + 25?")
    go_on_past_the_end(chat)
    chat.settings(max_tokens="")
    chat.send("Sort 7 0 9?", wait=False)
    chat.act("Edit the message", 0)
    page.fill(".edit", "half an edit")
    page.click("#send.busy")
    chat.done()
    page.wait_for_timeout(200)
    assert page.input_value(".edit") == "half an edit"
    page.press(".edit", "Escape")
    page.fill("#input", "half a message")
    page.reload()
    Chat(page)
    assert page.input_value("#input") == "half a message"


@pytest.mark.part("pages")
def test_a_deleted_conversation_does_not_come_back(chat: Chat) -> None:
    page = chat.page
    go_on_past_the_end(chat)
    chat.send("Count from 8 to 11?", wait=False)
    page.hover(".talk")
    page.click("[aria-label='Delete Count from 8 to 11?']")
    chat.until("!document.querySelector('.talk')")
    page.wait_for_timeout(300)
    page.reload()
    Chat(page)
    assert page.locator(".talk").count() == 0


def test_a_call_of_a_tool_gets_its_result(chat: Chat, picture: Callable[..., Path]) -> None:
    page = chat.page
    schema = {"type": "object", "properties": {"n": {"enum": [17, 25]}}, "required": ["n"]}
    tool = {"name": "look_up", "parameters": schema | {"additionalProperties": False}}
    chat.settings(tools=json.dumps([tool]), tool_choice="look_up", max_tokens="400")
    chat.send("What is 17 + 25?")
    assert page.inner_text(".call summary code") == "look_up"
    assert json.loads(page.inner_text(".call pre"))["n"] in (17, 25)
    picture(page, "chat-tool")
    chat.settings(tool_choice="none", max_tokens="8")
    page.fill(".call textarea", "forty-two")
    page.click("text=Send the result")
    chat.done()
    roles = [node["role"] for node in chat.kept()["nodes"].values()]
    assert roles == ["user", "assistant", "tool", "assistant"]
    assert "forty-two" in page.inner_text(".message.tool")
    assert page.locator(".call textarea").count() == 0


@pytest.mark.part("pages")
def test_an_answer_has_the_form_of_a_schema(chat: Chat) -> None:
    schema = {"type": "object", "properties": {"sum": {"type": "integer", "maximum": 99}},
              "required": ["sum"], "additionalProperties": False}  # fmt: skip
    chat.settings(form="schema", form_text="not JSON", temperature="0")
    chat.send("What is 17 + 25?")
    assert "The schema is not JSON" in chat.page.inner_text(".problem")
    chat.settings(form_text=json.dumps(schema), max_tokens="60")
    chat.act("Answer again")
    chat.done()
    assert isinstance(json.loads(chat.texts()[1])["sum"], int)


def test_errors_are_the_servers_own_words(chat: Chat, watch: Any) -> None:
    watch.expected += ["status of 400"]
    chat.settings(extra='{"temperature": 3}')
    chat.send("What is 17 + 25?")
    assert "temperature is 3; it must be 0 to 2" in chat.page.inner_text(".problem")
    chat.settings(extra="", logit_bias="[1]")
    chat.act("Answer again")
    chat.done()
    assert "Logit bias must be a JSON object" in chat.page.inner_text(".problem")


def test_probabilities_of_tokens(chat: Chat) -> None:
    page = chat.page
    chat.settings(temperature="0", max_tokens="5", probabilities="3")
    chat.send("Next after 3 6 9?")
    chat.act("Show probabilities")
    assert page.locator(".token").count() == 5
    page.hover(".token >> nth=1")
    assert page.locator(".odds-row").count() == 3
    page.focus(".token >> nth=0")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.dataset.i") == "1"
    assert page.locator(".tokens [aria-live]").inner_text().startswith("Also likely: ")


@pytest.mark.part("pages")
def test_two_settings_side_by_side(chat: Chat, picture: Callable[..., Path]) -> None:
    page = chat.page
    page.set_viewport_size({"width": 1280, "height": 800})
    chat.settings(temperature="0", max_tokens="12")
    page.click("#compare")
    page.click("#tab-B")
    page.fill("[data-key=max_tokens]", "6")
    page.click("#sliders")
    chat.send("What is 17 + 25?")
    a, b = (page.locator(".pair .message").nth(i) for i in (0, 1))
    assert "12 tokens" in a.inner_text() and "6 tokens" in b.inner_text()
    start = b.locator(".markdown").inner_text()
    assert a.locator(".markdown").inner_text().startswith(start)
    picture(page, "chat-side-by-side")
    b.get_by_text("Continue with this").click()
    chat.send("Is 358 even or odd?")
    nodes = chat.kept()["nodes"]
    asked = next(n for n in nodes.values() if n["content"] == "Is 358 even or odd?")
    assert nodes[asked["parent"]]["side"] == "B"
    assert len(asked["children"]) == 2


def test_export_and_import(chat: Chat, tmp_path: Path) -> None:
    page = chat.page
    chat.settings(max_tokens="8", temperature="0")
    chat.send("What is 17 + 25?")
    chat.act("Answer again")
    chat.done()
    page.wait_for_selector(".talk")
    with page.expect_download() as download:
        page.click("#export-all")
    file = tmp_path / "talks.json"
    download.value.save_as(file)
    shown = chat.texts()
    page.hover(".talk")
    page.click("[aria-label='Delete What is 17 + 25?']")
    chat.until("!document.querySelector('.talk')")
    assert chat.texts() == []
    chat.give("talks.json", file.read_bytes(), "application/json", to="#sidebar")
    page.wait_for_selector(".talk")
    page.wait_for_selector(".message")
    assert chat.texts() == shown
    assert page.inner_text(".message.assistant .of") == "2/2"
    assert chat.kept()["settings"]["A"] == {"max_tokens": "8", "temperature": "0"}


@pytest.mark.part("pages")
def test_reasoning_is_folded(chat: Chat) -> None:
    """With the stream of a model that thinks, since the demo model does not."""
    page = chat.page
    deltas = [
        {"reasoning_content": "17 and 25, "},
        {"reasoning_content": "carry"},
        {"content": "42"},
    ]
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    body = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + "data: [DONE]\n\n"
    page.route(
        "**/v1/chat/completions",
        lambda route: route.fulfill(body=body, content_type="text/event-stream"),
    )
    chat.send("What is 17 + 25?")
    assert chat.texts() == ["What is 17 + 25?", "42"]
    thought = page.locator(".thought")
    assert thought.get_attribute("open") is None
    assert thought.locator("summary").inner_text().startswith("Thought")
    thought.locator("summary").click()
    assert "17 and 25, carry" in thought.inner_text()


@pytest.mark.part("pages")
def test_texts_are_inserted_and_others_refused(chat: Chat) -> None:
    chat.give("notes.txt", b"line one\nline two", "text/plain")
    chat.page.wait_for_selector(".chip")
    chat.give("a.bin", b"\xff\xfe\x00\x01", "application/octet-stream")
    chat.page.wait_for_selector(".toast")
    assert "no image, no sound and no text" in chat.page.inner_text(".toast")
    chat.give("a.png", (ROOT / "examples/shapes/star-and-square.png").read_bytes(), "image/png")
    chat.until("document.querySelectorAll('.toast').length == 2")
    assert "does not see images" in chat.page.locator(".toast").nth(1).inner_text()
    with chat.page.expect_request("**/v1/chat/completions") as asked:
        chat.settings(max_tokens="4")
        chat.send("What is this?")
    content = asked.value.post_data_json["messages"][0]["content"]
    assert content == "notes.txt:\n```\nline one\nline two\n```\n\nWhat is this?"


@pytest.mark.part("pages")
def test_a_model_that_sees(open_page: Callable[..., Any], picture: Callable[..., Path]) -> None:
    pytest.importorskip("PIL")
    shapes = ROOT / "examples" / "shapes"
    tower = ("--mmproj", str(shapes / "mmproj-weft-shapes.gguf"))
    with Server(shapes / "weft-shapes.gguf", *tower, "--parallel", 1) as server:
        chat = Chat(open_page(server.url))
        chat.settings(temperature="0")
        chat.give("a.png", (shapes / "star-and-square.png").read_bytes(), "image/png")
        chat.page.wait_for_selector(".chip img")
        chat.send("What is in the picture?")
        assert chat.texts()[1] == "A green star to the left of a red square."
        picture(chat.page, "chat-image")
        chat.page.reload()
        again = Chat(chat.page)
        assert again.page.locator(".message.user img").count() == 1


def test_a_key_is_asked_for_and_kept_in_the_tab(
    open_page: Callable[..., Any], watch: Any, server: Server, tmp_path: Path
) -> None:
    watch.expected += ["status of 401"]
    with Server(ROOT / "examples/weft-demo.gguf", key="open sesame") as closed:
        page = open_page(closed.url)
        page.fill("dialog input", "wrong")
        page.press("dialog input", "Enter")
        page.wait_for_selector("text=does not know this key")
        page.fill("dialog input", "open sesame")
        page.press("dialog input", "Enter")
        chat = Chat(page)
        chat.settings(max_tokens="4")
        chat.send("What is 17 + 25?")
        assert chat.texts()[1]
        page.reload()
        Chat(page)
        assert page.locator("dialog").count() == 0
        assert page.evaluate("JSON.stringify(localStorage)").find("sesame") < 0
