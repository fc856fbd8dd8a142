"""`weft chat` as a person and as a script use it."""

from __future__ import annotations

import importlib.util
import json
import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import Done, weft
from tests.cli.terminal import Terminal
from tests.llm.tiny import metadata, tokens, write_model
from weft.cli.chat import read_message
from weft.cli.console import WordWrap
from weft.cli.conversation import Conversation
from weft.errors import ChatError, ContextError
from weft.llm import LLM, SamplingParams
from weft.llm.generate_options import GenerateOptions

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
)
OPTIONS: GenerateOptions = {"max_tokens": 8, "temperature": 0.0}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never ends a text."""
    names = tokens()[0]
    names[2] = "<x>"
    changes: dict[str, Any] = {
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.eos_token_id": -1,
        "tokenizer.chat_template": TEMPLATE,
        "llama.context_length": 256,
    }
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", metadata(**changes))


@pytest.fixture(scope="module")
def llm(path: Path) -> LLM:
    return LLM(path, n_threads=1)


def chat(path: Path, typed: str, *args: str) -> Done:
    return weft("chat", path, "--temp", "0", "-n", "8", *args, typed=typed)


# **** a script ****


def test_lines_of_a_pipe_are_messages(path: Path, llm: LLM) -> None:
    process = chat(path, "abc\n/stats\nthe\n", "-sys", "b")
    assert process.returncode == 0, process.stderr
    system, first = {"role": "system", "content": "b"}, {"role": "user", "content": "abc"}
    one = llm.chat([system, first], **OPTIONS)
    history = [system, first, {"role": "assistant", "content": one}]
    two = llm.chat([*history, {"role": "user", "content": "the"}], **OPTIONS)
    assert process.stdout == f"{one}\n{two}\n"
    assert "256 tokens of context" in process.stderr and "answer: 8 tokens" in process.stderr


def test_a_pipe_stops_at_the_first_mistake(path: Path) -> None:
    process = chat(path, "abc\n/nope\nthe\n", "-q", "-c", "0.1k")
    assert process.returncode == 1 and len(process.stdout.splitlines()) == 1
    assert process.stderr == "error: there is no command /nope; /help lists them, //nope sends it\n"
    long_text = chat(path, "abc " * 100, "-q", "-c", "0.1k")
    assert long_text.returncode == 1 and "but the context holds 102" in long_text.stderr


def test_options_of_run_and_context(path: Path) -> None:
    more = ("-n", "200", "-c", "0.1k", "--repeat-penalty", "1.2", "-t", "1")
    cut = chat(path, "abc\n/stats\n", *more)
    assert "the context of 102 tokens is full" in cut.stderr
    process = chat(path, "abc\n/stats\n", *more, "--context-shift", "--keep", "4")
    assert process.returncode == 0 and "answer: 200 tokens" in process.stderr, process.stderr
    assert "--top-p is 3" in chat(path, "abc\n", "--top-p", "3").stderr


def test_a_template_from_a_file(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "t.jinja"
    file.write_text("{{ messages[0].content }")
    process = chat(path, "abc\n", "--chat-template", str(file))
    assert process.returncode == 1 and "does not compile" in process.stderr and not process.stdout
    gone = chat(path, "abc\n", "--chat-template", str(tmp_path / "none"))
    assert gone.returncode == 1 and "none: no such file; give a file" in gone.stderr


# **** reasoning ****

THINKS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.reasoning_content %}<think>"
    "{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if enable_thinking is not defined or "
    "enable_thinking %}<think>{% endif %}{% endif %}"
)
ALWAYS = THINKS.replace("enable_thinking is not defined or enable_thinking", "true")


def prompts_of(
    monkeypatch: pytest.MonkeyPatch, path: Path, template: str, *words: str
) -> tuple[str, Done]:
    """The last prompt of a chat whose answers are a thought and a word, and what is printed."""
    seen: list[str] = []

    def answer(llm: LLM, ids: list[int], **_: Any) -> Iterator[str]:
        seen.append(llm.detokenize(ids, special=True))
        inside = seen[-1].endswith("<think>")
        return iter(["I wonder", "</thi", "nk>", "Four."] if inside else ["Four."])

    monkeypatch.setattr(LLM, "generate", answer)
    done = chat(path, "a\nb\n", "--chat-template", template, *words)
    assert done.returncode == 0, done.stderr
    return seen[-1], done


def test_reasoning_is_shown_apart(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt, done = prompts_of(monkeypatch, path, THINKS)
    assert done.stdout == "Four.\nFour.\n" and done.stderr.count("I wonder") == 2
    assert "</think>" not in done.stderr and "<think>I wonder</think>Four.<user>b" in prompt
    _, quiet = prompts_of(monkeypatch, path, THINKS, "-q")
    assert quiet.stdout == done.stdout and "wonder" not in quiet.stderr


@pytest.mark.parametrize(
    "words", ["--no-think", "--reasoning off", "-rea off", "--think=false", "--reasoning-budget 0",
              '--chat-template-kwargs {"enable_thinking":false}'],
)  # fmt: skip
def test_reasoning_is_switched_off(path: Path, monkeypatch: pytest.MonkeyPatch, words: str) -> None:
    prompt, done = prompts_of(monkeypatch, path, THINKS, *words.split())
    assert prompt.endswith("<user>b<assistant>") and "wonder" not in done.stderr
    prompt, done = prompts_of(monkeypatch, path, ALWAYS, *words.split())
    assert prompt.endswith("<think>\n</think>\n\n") and done.stdout == "Four.\nFour.\n"


def test_how_much_reasoning(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    effort = THINKS + "{% if reasoning_effort %}[{{ reasoning_effort }}]{% endif %}"
    assert prompts_of(monkeypatch, path, effort, "--think=high")[0].endswith("[high]")
    on = THINKS.replace("enable_thinking is not defined or ", "")
    assert not prompts_of(monkeypatch, path, on)[0].endswith("<think>")
    assert prompts_of(monkeypatch, path, on, "--think")[0].endswith("<think>")
    for words, said in (
        (("--reasoning", "much"), "write on, off, auto, or low"),
        (("--reasoning-budget", "500"), "it is 0 for no reasoning or -1"),
        (("--chat-template-kwargs", "{"), "no JSON"),
        (("--chat-template-kwargs", '{"messages": []}'), "has 'messages', which is not to be set"),
    ):
        refused = chat(path, "a\n", *words)
        assert refused.returncode in (1, 2) and said in refused.stderr


# **** commands ****


def test_clear_regen_save_load(
    llm: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = Conversation(llm, "b", OPTIONS)
    with pytest.raises(ChatError, match="no answer yet"):
        conversation.take("/regen")
    conversation.take("abc")
    conversation.take("//clear")
    assert [m["role"] for m in conversation.messages] == ["system"] + ["user", "assistant"] * 2
    assert conversation.messages[3]["content"] == "/clear"
    said = capsys.readouterr().out
    conversation.take("/regen")
    assert said.endswith(capsys.readouterr().out) and len(conversation.messages) == 5
    file = tmp_path / "talk.json"
    conversation.take(f"/save {file}")
    kept = list(conversation.messages)
    conversation.take("/clear")
    assert conversation.messages == kept[:1]
    other = Conversation(llm, None, OPTIONS)
    other.take(f"/load {file}")
    assert other.messages == kept
    other.take("/clear")
    assert other.messages == kept[:1]
    for word in ("/exit", "/bye", "/quit"):
        other.done = False
        other.take(word)
        assert other.done
    capsys.readouterr()
    other.take("/?")
    assert "/regen" in capsys.readouterr().err


def test_regen_with_a_seed_says_something_else(
    llm: LLM, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = Conversation(
        llm, None, {"max_tokens": 20, "sampling": SamplingParams(temperature=2.0, seed=1)}
    )
    conversation.take("abc")
    first = capsys.readouterr().out
    conversation.take("/regen")
    assert capsys.readouterr().out != first
    again = Conversation(
        llm, None, {"max_tokens": 20, "sampling": SamplingParams(temperature=2.0, seed=1)}
    )
    again.take("abc")
    assert capsys.readouterr().out == first


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "cannot be read"),
        ("[1]", "no conversation of weft chat"),
        ('{"format": "weft-chat 1", "messages": [{"role": "user"}]}', "has no role or no content"),
    ],
)
def test_files_that_are_no_conversation(llm: LLM, tmp_path: Path, text: str, message: str) -> None:
    conversation = Conversation(llm, None, OPTIONS)
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(ChatError, match=message):
        conversation.take(f"/load {file}")
    assert conversation.messages == []
    with pytest.raises(ContextError, match="needs the name"):
        conversation.take("/load")
    with pytest.raises(ChatError, match="cannot write"):
        conversation.take(f"/save {tmp_path / 'none' / 'x'}")


def test_a_message_that_does_not_fit_changes_nothing(llm: LLM) -> None:
    conversation = Conversation(llm, None, OPTIONS)
    conversation.take("abc")
    before = list(conversation.messages)
    with pytest.raises(ContextError, match="the context holds 256"):
        conversation.take("abc " * 300)
    assert conversation.messages == before


def test_a_full_context_is_said(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    Conversation(llm, None, {**OPTIONS, "max_tokens": None}).take("abc")
    assert "the context of 256 tokens is full" in capsys.readouterr().err


def test_messages_of_several_lines() -> None:
    def read(*lines: str) -> str:
        rest: Iterator[str] = iter(lines)

        def line(_: str) -> str:
            try:
                return next(rest)
            except StopIteration:
                raise EOFError from None

        return read_message(line)

    assert read("one") == "one"
    assert read("one\\", "two\\", "three", "four") == "one\ntwo\nthree"
    assert read("one\\") == "one"
    assert read('"""one', "", 'two"""') == "one\n\ntwo"
    assert read('"""', "one\\", '"""', "x") == "one\\"
    assert read('"""one"""') == "one"
    assert read('"""one', "two") == "one\ntwo"
    with pytest.raises(EOFError):
        read()


# **** settings ****


def test_settings_are_changed_and_shown(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    conversation = Conversation(llm, "b", {"max_tokens": 8, "sampling": SamplingParams(0.9)})
    for line in (
        "parameter temperature 0", "parameter top-k 3", "parameter seed 7", "system c",
        "parameter num_predict 3", "parameter stop zz", "nothink", "think high",
    ):  # fmt: skip
        conversation.take(f"/set {line}")
    conversation.take("/show")
    shown = capsys.readouterr().err
    for line in ("system: c", "temperature 0", "top_k 3", "seed 7", "num_predict 3", "stop 'zz'"):
        assert f"{line}\n" in shown
    assert '{"enable_thinking": true, "reasoning_effort": "high"}' in shown
    conversation.take("abc")
    asked = [{"role": "system", "content": "c"}, {"role": "user", "content": "abc"}]
    assert conversation.messages[:-1] == asked
    assert conversation.messages[-1]["content"] == llm.chat(asked, max_tokens=3, temperature=0.0)
    conversation.take("/set verbose")
    conversation.take("abc")
    assert "memory: weights" in capsys.readouterr().err
    for line, said in (
        ("parameter foo 1", "no parameter 'foo'; there are temperature"),
        ("parameter temperature -1", "temperature is -1"),
        ("parameter temperature x", "temperature is 'x'; it must be a number"),
        ("parameter num_ctx 99", "weft chat -c 99"),
        ("parameter num_predict nan", "num_predict is 'nan'; it must be a whole number"),
        ("parameter seed inf", "seed"),
        ("think much", "low, medium, high"),
        ("x", "write /set parameter NAME VALUE, /set system TEXT"),
    ):
        with pytest.raises((ChatError, ContextError), match=said):
            conversation.take(f"/set {line}")


def test_help_lists_what_the_model_can(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    Conversation(llm, None, OPTIONS).take("/help")
    shown = capsys.readouterr().err
    assert "/set" in shown and "/image" not in shown and "/audio" not in shown


def test_a_loaded_conversation_is_shown(
    llm: LLM, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    conversation = Conversation(llm, None, OPTIONS)
    conversation.take("abc")
    conversation.take(f"/save {tmp_path / 'x'}")
    conversation.take(f"/load {tmp_path / 'x'}")
    shown = capsys.readouterr().err
    assert "user: abc\n" in shown and f"assistant: {conversation.messages[1]['content']}" in shown
    with pytest.raises(ChatError, match=r"nothere cannot be read: No such file or directory$"):
        conversation.take("/load nothere")


@pytest.mark.parametrize("cut", [1, 3, 100])
def test_lines_break_between_words(cut: int) -> None:
    text = "one two three fourfourfour\n\nfive-five-five-five six"

    def shown(text: str) -> str:
        wrap = WordWrap(12)
        parts = [wrap.push(text[i : i + cut]) for i in range(0, len(text), cut)]
        return "".join([*parts, wrap.end()])

    lines = shown(text).split("\n")
    assert all(len(line) < 12 for line in lines)
    words = [line.rstrip() for line in lines]
    assert words[:3] == ["one two", "three", "fourfourfou"]
    assert "".join(shown(text).split()) == "".join(text.split())
    assert all(len(line) < 6 for line in shown("一二三四五六七八九").split("\n"))
    assert WordWrap(0).push(text) == text


# **** a person ****


@pytest.mark.skipif(importlib.util.find_spec("pty") is None, reason="no pseudo terminals here")
def test_typed_lines_are_there_at_the_next_start(path: Path, tmp_path: Path) -> None:
    own = {**os.environ, "WEFT_CACHE": str(tmp_path)}
    with Terminal("chat", path, "-n", "4", environment=own) as terminal:
        at = terminal.wait_for("> ")
        terminal.send("/show\r")
        at = terminal.wait_for("num_predict", at)
        at = terminal.wait_for("> ", at)
        terminal.send("/sta\t")
        at = terminal.wait_for("/stats", at)
        terminal.send("\r")
        at = terminal.wait_for("nothing has been computed yet", at)
        at = terminal.wait_for("> ", at)
        terminal.send("\x04")
        assert terminal.exit_code() == 0
    assert (tmp_path / "chat_history").stat().st_mode & 0o777 == 0o600
    with Terminal("chat", path, "-n", "4", environment=own) as terminal:
        at = terminal.wait_for("> ")
        terminal.send("\x1b[A\x1b[A\r")
        terminal.wait_for("num_predict", at)


@pytest.mark.skipif(importlib.util.find_spec("pty") is None, reason="no pseudo terminals here")
def test_keys_during_an_answer_are_not_shown(path: Path) -> None:
    with Terminal("chat", path, "-c", "64k", "--temp", "0", "-t", "1") as terminal:
        at = terminal.wait_for("> ")
        terminal.send("abc\r")
        at = terminal.wait_for("abc\r\n", at)
        begun = terminal.wait_for("a", at)
        terminal.send("QQ\x15")
        time.sleep(0.5)
        terminal.send("\x03")
        end = terminal.wait_for("stopped; /regen", begun)
        assert "Q" not in terminal.text[at:end]
        at = terminal.wait_for("> ", end)
        terminal.send("/exit\r")
        assert terminal.exit_code() == 0


@pytest.mark.skipif(importlib.util.find_spec("pty") is None, reason="no pseudo terminals here")
def test_in_a_terminal(path: Path, tmp_path: Path) -> None:
    with Terminal("chat", path, "-c", "64k", "--temp", "0", "-t", "1") as terminal:
        at = terminal.wait_for("> ")
        terminal.send("abc\r")
        at = terminal.wait_for("abc\r\n", at)
        terminal.wait_for("a", at)  # the answer has begun
        terminal.send("\x03")
        at = terminal.wait_for("stopped; /regen answers again", at)
        at = terminal.wait_for("> ", at)
        terminal.send("/stats\r")
        at = terminal.wait_for("of 65536 tokens", at)
        at = terminal.wait_for("> ", at)
        # Python's input() shows its prompt before it listens to signals: no person is that fast
        time.sleep(0.5)
        terminal.send("\x03")
        at = terminal.wait_for("Ctrl-D or /exit leaves", at)
        at = terminal.wait_for("> ", at)
        terminal.send("/nope\r")
        at = terminal.wait_for("error: there is no command /nope", at)
        at = terminal.wait_for("> ", at)
        file = tmp_path / "talk.json"
        terminal.send(f"/save {file}\r")
        at = terminal.wait_for("2 messages saved", at)
        at = terminal.wait_for("> ", at)
        terminal.send("\x04")
        assert terminal.exit_code() == 0
        assert "Traceback" not in terminal.text
        messages = json.loads(file.read_text())["messages"]
        assert [m["role"] for m in messages] == ["user", "assistant"] and messages[1]["content"]


def test_a_warning_that_python_makes_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_model(tmp_path / "m.gguf", metadata())  # it has no chat template
    monkeypatch.setattr(warnings, "filters", [("error", None, UserWarning, None, 0)])
    process = weft("chat", path, "-n", 2, "-c", 64, typed="a\n")
    assert process.returncode == 1
    assert process.stderr.endswith(
        "m.gguf has no chat template; ChatML is used, which it may not know\n"
    )
    assert "\nerror: " in process.stderr
