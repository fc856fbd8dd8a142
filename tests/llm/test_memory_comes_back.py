"""Closing a model returns its memory to the system, without the help of the garbage collector."""

from __future__ import annotations

import asyncio
import gc
import os
import platform
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import weft
from tests.llm.test_tokenizer_unigram import unigram
from tests.llm.test_tokenizer_wpm import KEYS, SPECIAL, TOKENS
from tests.llm.vocabularies import byte_level, make
from tests.serve.server import DEMO, ROOT
from weft.llm.tokenizers.tokenizer import Tokenizer


@pytest.fixture
def without_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


TOKENIZERS: dict[str, Callable[[Path], Tokenizer]] = {
    "gpt2": lambda path: byte_level(path, ["a b"]),
    "bert": lambda path: make(path, "bert", TOKENS, SPECIAL, **KEYS),  # type: ignore[arg-type]
    "t5": unigram,
    "llama": lambda _: Tokenizer.from_gguf(weft.open_gguf(DEMO)),
}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tokenizers_are_freed(kind: str, tmp_path: Path, without_collector: None) -> None:
    tokenizer = TOKENIZERS[kind](tmp_path)
    assert tokenizer.encode("a b ab")
    metadata = weakref.ref(tokenizer.vocab.metadata)
    del tokenizer
    assert metadata() is None


def test_models_are_freed(without_collector: None) -> None:
    def used() -> weakref.ref[weft.Model]:
        with weft.LLM(DEMO, n_ctx=64, n_threads=1) as llm:
            next(iter(llm.generate("2 + 2", max_tokens=4, stream=True)))
            llm.generate("2 + 2", max_tokens=4, grammar='root ::= " "* [0-9]+')
            return weakref.ref(llm.model)

    assert used()() is None


def test_models_of_asyncio_are_freed(without_collector: None) -> None:
    async def used() -> weakref.ref[weft.Model]:
        async with weft.AsyncLLM(DEMO, n_ctx=64, n_threads=1) as llm:
            await asyncio.gather(*(llm.generate(p, max_tokens=4) for p in ("2 + 2", "3 + 3")))
            async for _ in llm.generate("2 + 2", max_tokens=4):
                pass
            return weakref.ref(llm.model)

    assert asyncio.run(used())() is None


def test_no_thread_stays() -> None:
    tasks = Path("/proc/self/task")
    if not tasks.is_dir():
        pytest.skip("only Linux lists the threads of a process")
    before = len(list(tasks.iterdir()))
    with weft.LLM(DEMO, n_ctx=64, n_threads=3) as llm:
        llm.generate("2 + 2", max_tokens=2)
        assert len(list(tasks.iterdir())) > before
    assert len(list(tasks.iterdir())) <= before  # threads of an earlier test may have ended


PROGRAM = """
import sys, weft
def anonymous():
    lines = open("/proc/self/status").read().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))
def opened():
    llm = weft.LLM(sys.argv[1], n_ctx=1 << 16, n_threads=1, type_k="f32", type_v="f32")
    llm.generate("2 + 2 = " * 100, max_tokens=2)
    return llm
opened().close()
before = anonymous()
for _ in range(4):
    llm = opened()
    most = anonymous()
    llm.close()
    print(most - before, anonymous() - before)
"""


def test_memory_returns_to_the_system() -> None:
    """Here glibc returns nothing by itself, as it does after a while with large models."""
    if platform.libc_ver()[0] != "glibc":
        pytest.skip("only glibc keeps memory that was freed")
    names = ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_")
    answer = subprocess.check_output(
        [sys.executable, "-W", "ignore", "-c", PROGRAM, str(DEMO)], cwd=ROOT, text=True,
        env=os.environ | dict.fromkeys(names, str(1 << 30)),
    )  # fmt: skip
    rows = [[int(word) << 10 for word in line.split()] for line in answer.splitlines()]
    assert max(taken for taken, _ in rows) > 64 << 20, rows
    assert all(left < 16 << 20 for _, left in rows), rows


def test_a_text_that_is_dropped_ends(without_collector: None) -> None:
    async def main() -> None:
        async with weft.AsyncLLM(DEMO, n_ctx=256, n_threads=1) as llm:
            text = llm.generate("2 + 2", max_tokens=240, ignore_eos=True)
            assert await anext(text)
            del text
            async with asyncio.timeout(20):
                while llm._engine.n_running:
                    await asyncio.sleep(0.01)
            assert llm._engine.stats.ended["cancelled"] == 1

    asyncio.run(main())
