"""Types of arguments that Python programs have at hand: numbers of NumPy are numbers, and what is
of another type is an error that says what is wanted."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.llm.tiny import metadata, write_model
from weft.errors import ArgumentError, ContextError, DeviceError
from weft.llm import LLM
from weft.llm.chat.template import ChatTemplate

USER = [{"role": "user", "content": "a"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", metadata())


@pytest.fixture(scope="module")
def llm(path: Path) -> LLM:
    return LLM(path, devices=["reference"], chat_template="{{ messages[0].content }}")


def test_numbers_of_numpy(path: Path) -> None:
    sizes = {"n_ctx": np.int64(24), "n_ubatch": np.uint16(8), "n_seq_max": np.int32(1)}
    llm = LLM(path, devices=["reference"], flash=np.True_, **sizes)
    assert llm.context.n_ctx == 24 and type(llm.context.n_ctx) is int
    text = llm.generate("a", max_tokens=np.int64(3), logprobs=np.int8(1), ignore_eos=np.True_)
    assert llm.stats.n_generated == 3 and text.logprobs is not None
    threads = weft.ThreadOptions(n_threads=np.int64(1), cpus=np.array([0]), poll=np.int8(5))
    assert (threads.n_threads, threads.cpus, threads.poll) == (1, (0,), 5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_ctx": True}, "n_ctx is True; it must be a whole number"),
        ({"n_ctx": "64"}, "n_ctx is '64'; it must be a whole number"),
        ({"n_ctx": float("nan")}, "n_ctx is nan; it must be a whole number"),
        ({"n_ctx": 1 << 40}, "n_ctx is 1099511627776; it must be at most 2147483647"),
        ({"n_seq_max": "x"}, "n_seq_max is 'x'; it must be a whole number"),
        ({"n_gpu_layers": "all"}, "n_gpu_layers is 'all'; it must be a whole number"),
        ({"n_keep": 1.5}, r"n_keep is 1\.5; it must be a whole number"),
        ({"flash": "off"}, "flash is 'off'; it must be True or False"),
        ({"context_shift": 1}, "context_shift is 1; it must be True or False"),
        ({"progress": 5}, "progress is 5; it must be a function"),
        ({"metadata": 5}, "metadata is 5; it must be a dict of keys and values"),
        ({"mmproj": 5}, "mmproj is 5; it must be a text or a pathlib.Path"),
        ({"type_k": 5}, "type_k: unknown type 5"),
        ({"chat_template": b"x"}, "chat_template is b'x'; it must be the source"),
        ({"chat_template": " \n"}, "chat_template is empty; give the source"),
    ],
)
def test_options_of_a_model(path: Path, options: dict[str, Any], message: str) -> None:
    with pytest.raises((ArgumentError, ContextError), match=message):
        LLM(path, devices=["reference"], **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_tokens": 2.0}, r"max_tokens is 2\.0; it must be a whole number"),
        ({"max_tokens": True}, "max_tokens is True; it must be a whole number"),
        ({"min_tokens": "x"}, "min_tokens is 'x'; it must be a whole number"),
        ({"parse_special": "no"}, "parse_special is 'no'; it must be True or False"),
        ({"progress": 5}, "progress is 5; it must be a function"),
        ({"logit_bias": [[5, 1]]}, "it must be a dict of token ids and numbers"),
        ({"sampling": {"top_k": 1}}, "it must be a SamplingParams"),
    ],
)
def test_options_of_a_text(llm: LLM, options: dict[str, Any], message: str) -> None:
    for write in (lambda: llm.generate("a", **options), lambda: llm.chat(USER, **options)):
        with pytest.raises((ArgumentError, ContextError), match=message):
            write()


def test_threads_that_are_no_numbers() -> None:
    for name in ("n_threads", "n_threads_batch", "poll"):
        with pytest.raises(DeviceError, match=f"{name} is '2'; it must be a whole number"):
            weft.ThreadOptions(**{name: "2"})


@pytest.mark.parametrize("given", [None, 5, b"m.gguf", "", ["m.gguf"]])
def test_paths_that_are_none(given: Any) -> None:
    for opened in (LLM, weft.AsyncLLM, weft.open_gguf):
        with pytest.raises(ArgumentError, match=r"path is .*; it must be a text or a pathlib.Path"):
            opened(given)


def test_texts_and_ids_that_are_none(llm: LLM) -> None:
    for text in (None, b"a", 5):
        with pytest.raises(ArgumentError, match=r"text is .*; it must be a text"):
            llm.tokenize(text)  # type: ignore[arg-type]
    for ids in (5, "a", [1.5], None):
        with pytest.raises(ArgumentError, match=r"ids is .*; it must be a list of token ids"):
            llm.detokenize(ids)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="the prompt is NoneType"):
        llm.perplexity(None)  # type: ignore[arg-type]


def test_what_an_async_model_has_instead(path: Path) -> None:
    async def ask() -> None:
        async with weft.AsyncLLM(path, devices=["reference"]) as llm:
            for write in (llm.generate, llm.chat):
                with pytest.raises(ArgumentError, match="async for piece in llm"):
                    write("a", stream=True)  # type: ignore[operator]
            with pytest.raises(ArgumentError, match=r"one at a time; .* asyncio\.gather"):
                llm.generate(["a", "b"])  # type: ignore[list-item]

    asyncio.run(ask())


def test_an_empty_template_of_a_file_is_none() -> None:
    for source in ("", " \n", {"default": ""}):
        template = ChatTemplate(source)
        assert template.is_fallback
        assert "<|im_start|>user\na<|im_end|>" in template.render(USER)
    kept = ChatTemplate({"default": "{{ messages[0].content }}", "tool_use": ""})
    assert list(kept.sources) == ["default"] and not kept.is_fallback
