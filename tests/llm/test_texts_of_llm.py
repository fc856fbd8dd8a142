"""What a text says of itself (`Completion`), lists of prompts and of conversations, calls of tools,
and `AsyncLLM`."""

from __future__ import annotations

import asyncio
import copy
import json
import pickle
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.llm.tiny import metadata, write_model
from tests.serve.talkers import SCHEMA, talker
from weft import LLM, AsyncLLM, Completion, SamplingParams
from weft.errors import ArgumentError, ContextError
from weft.llm.answers import AnswerFormat

FIXED: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
PROMPTS = ["the abc", "a", "abc abc abc", "b", "the the"]
TOOLS = [{"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}]
CHATS = [[{"role": "user", "content": prompt}] for prompt in PROMPTS]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys: dict[str, Any] = {"tokenizer.chat_template": TEMPLATE, "llama.context_length": 256}
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", metadata(**keys))


@pytest.fixture(scope="module")
def llm(path: Path) -> Iterator[LLM]:
    with LLM(path, devices=["reference"], n_ctx=256) as llm:
        yield llm


def test_a_text_says_how_it_came_about(llm: LLM) -> None:
    text = llm.generate("the abc", logprobs=1, **FIXED)
    assert type(text) is Completion and text.finish_reason == "length"
    n = len(llm.tokenize("the abc"))
    usage = text.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (n, 12)
    assert usage.total_tokens == n + 12
    assert len(text.logprobs) == 12
    again = llm.generate("the abc", **FIXED)
    assert again == text and again.usage.cached_tokens == n - 1 and not again.logprobs
    stopped = llm.generate("the abc", stop=text[2:4], **FIXED)
    assert stopped == text[:2] and stopped.finish_reason == "stop"
    assert text.finish_reason == "length", "an earlier text keeps its own"
    for other in (copy.copy(text), pickle.loads(pickle.dumps(text))):
        assert other == text and other.usage == usage


def test_a_stream_has_the_whole_text_behind_it(llm: LLM) -> None:
    stream = llm.generate("the abc", stream=True, **FIXED)
    text = "".join(stream)
    assert stream.completion == text and stream.completion.finish_reason == "length"
    several = llm.generate(PROMPTS, stream=True, **FIXED)
    grown = [""] * len(PROMPTS)
    for number, piece in several:
        grown[number] += piece
    assert several.completions == grown
    assert [t.usage.completion_tokens for t in several.completions] == [12] * len(PROMPTS)


def test_lists_are_written_together_by_default(llm: LLM) -> None:
    assert llm.context.cache.n_seq_max == 16
    alone = [llm.generate(prompt, **FIXED) for prompt in PROMPTS]
    order = [number for number, _ in llm.generate(PROMPTS, stream=True, **FIXED)]
    assert order != sorted(order), "their pieces come in turns"
    assert llm.generate(PROMPTS, **FIXED) == alone
    assert llm.chat(CHATS, **FIXED) == [llm.chat(messages, **FIXED) for messages in CHATS]
    numbers = {number for number, _ in llm.chat(CHATS, stream=True, **FIXED)}
    assert numbers == set(range(len(CHATS)))
    assert llm.generate([], **FIXED) == []


def test_a_small_context_has_fewer_sequences(path: Path) -> None:
    with LLM(path, devices=["reference"], n_ctx=64, n_ubatch=4) as llm:
        assert llm.context.cache.n_seq_max == 4
        assert len(llm.generate(PROMPTS, **FIXED)) == len(PROMPTS)
    with LLM(path, devices=["reference"], n_ctx=64, n_seq_max=2) as llm:
        assert llm.context.cache.n_seq_max == 2


def test_threads_get_the_numbers_of_their_own_texts(llm: LLM) -> None:
    texts: dict[int, Completion] = {}

    def write(n: int) -> None:
        texts[n] = llm.generate("the abc", max_tokens=n, temperature=0, ignore_eos=True)

    threads = [threading.Thread(target=write, args=(n,)) for n in range(1, 7)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(text.usage.completion_tokens == n for n, text in texts.items())


def test_plumbing_is_no_option(path: Path) -> None:
    with pytest.raises(ArgumentError, match="LLM has no option 'cache_promt'"):
        LLM(path, cache_promt=1)  # type: ignore[call-arg]
    for name in ("beside", "states"):
        with pytest.warns(DeprecationWarning, match=f"LLM refuses '{name}'"):
            LLM(path, n_ctx=32, **{name: 1}).close()  # type: ignore[arg-type]


def test_names_of_python_stay(llm: LLM) -> None:
    names: dict[str, Any] = {}
    exec("from weft import *", names)  # as a reader of a notebook types it
    builtins = names.pop("__builtins__")
    assert not set(names) & set(builtins)
    assert weft.compile is not compile and weft.input is not input
    sampling = SamplingParams(temperature=0)
    assert llm.generate("a", sampling=sampling, max_tokens=3, ignore_eos=True)


# ---- calls of tools ----


def test_calls_are_parsed(tmp_path: Path) -> None:
    with LLM(talker(tmp_path), n_ctx=1024, n_threads=1) as llm:
        messages: list[Any] = [{"role": "user", "content": "call"}]
        form = AnswerFormat.of(llm.chat_template)
        held: dict[str, Any] = {
            "tools": TOOLS, "grammar": form.grammar(llm.tokenizer, TOOLS), "temperature": 0,
        }  # fmt: skip
        answer = llm.chat(messages, **held)
        assert answer.finish_reason == "tool_calls" and answer == ""
        call = answer.tool_calls[0]
        function = call["function"]
        assert call["type"] == "function" and function["name"] == "weather"
        assert json.loads(function["arguments"])["place"] in ("a", "b")
        messages += [answer.message, {"role": "tool", "tool_call_id": call["id"], "content": "1"}]
        assert '"weather"' in llm.detokenize(llm.chat_prompt(messages), special=True)
        stream = llm.chat([messages[0]], stream=True, **held)
        assert "".join(stream) == ""
        assert stream.completion.tool_calls[0]["function"] == function
        raw = llm.generate(
            llm.chat_prompt([messages[0]], tools=TOOLS), grammar=held["grammar"], temperature=0
        )
        assert raw.lstrip().startswith("{") and not raw.tool_calls and raw.finish_reason == "stop"


# ---- AsyncLLM ----


def test_async_texts(path: Path, llm: LLM) -> None:
    want = [llm.generate(prompt, **FIXED) for prompt in PROMPTS]

    async def main() -> None:
        async with AsyncLLM(path, devices=["reference"], n_ctx=256) as model:
            texts = await asyncio.gather(*(model.generate(p, **FIXED) for p in PROMPTS))
            assert list(texts) == want
            assert all(text.usage.completion_tokens == 12 for text in texts)
            stream = model.chat(CHATS[0], **FIXED)
            pieces = [piece async for piece in stream]
            assert "".join(pieces) == stream.completion == want[0] and len(pieces) > 1
            with pytest.raises(ContextError, match="the prompt has"):
                model.generate("a " * 400)
            with pytest.raises(ArgumentError, match="generate has no option 'progress'"):
                model.generate("a", progress=print)
            assert "AsyncLLM" in repr(model)
        with pytest.raises(ContextError, match="this AsyncLLM is closed"):
            model.generate("a")
        await model.close()

    asyncio.run(main())


def test_a_cancelled_task_ends_its_text(path: Path) -> None:
    async def main() -> None:
        async with AsyncLLM(path, devices=["reference"], n_ctx=256) as model:
            text = model.generate("the abc", max_tokens=200, temperature=0, ignore_eos=True)
            assert await anext(text)
            rest = asyncio.ensure_future(_whole(text))
            await asyncio.sleep(0)
            rest.cancel()
            with pytest.raises(asyncio.CancelledError):
                await rest
            other = await model.generate("a", **FIXED)
            assert other.usage.completion_tokens == 12

    asyncio.run(main())


async def _whole(text: Any) -> Completion:
    whole: Completion = await text
    return whole
