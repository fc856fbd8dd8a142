"""Kept prefixes: a text goes on from a checkpoint, from host memory or from a folder, and has the
bits of a fresh run."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest

from tests.llm.adapter_files import matrices_of, pairs, write_adapter
from tests.llm.engine_requests import finish, request, side_by_side
from tests.llm.prefix_texts import END, kept_in, make_lasting, words
from tests.llm.tiny import metadata, write_model
from weft.errors import ContextError
from weft.frontends.gguf import open_gguf
from weft.llm import LLM, Context, Model, Tokenizer
from weft.llm.cache.prefix_cache import PrefixCache
from weft.llm.cache.snapshots import Checkpoint, KeptText
from weft.llm.engine import Engine
from weft.llm.engine.prefixes import Prefixes

RECURRENT = ["mamba", "rwkv7", "qwen35", "granitehybrid", "lfm2", "kimi"]
OPTIONS: dict[str, Any] = {
    "max_tokens": 6, "temperature": 0, "ignore_eos": True, "logprobs": 1,
}  # fmt: skip


def turn(seed: int, n: int = 20) -> list[int]:
    """A message, its end, and what stands before an answer."""
    return [*words(seed, n), END, 9, 11]


@pytest.fixture(scope="module", params=RECURRENT)
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_lasting(request.param, tmp_path_factory.mktemp("model"))


def opened(path: Path, **options: Any) -> LLM:
    given = {"n_threads": 1, "n_ctx": 256, "n_seq_max": 1}  # texts take the sequence in turn
    return LLM(path, **{**given, **options})


@pytest.fixture(scope="module")
def fresh(path: Path) -> LLM:
    return opened(path, cache_ram=0)


def kept(llm: LLM) -> Prefixes:
    return llm._writing.prefixes


Answer = tuple[str, list[Any]]


def ask(llm: LLM, prompt: list[int], **options: Any) -> Answer:
    text = llm.generate(prompt, **OPTIONS | options)
    return text, list(llm.stats.logprobs)


def ask_afresh(llm: LLM, prompt: list[int], **options: Any) -> Answer:
    return ask(llm, prompt, cache_prompt=False, **options)


def counted(llm: LLM, prompt: list[int]) -> tuple[Answer, int]:
    """The answer, and the number of tokens that were computed for it."""
    with mock.patch.object(Context, "decode", autospec=True, side_effect=Context.decode) as decode:
        answer = ask(llm, prompt)
    return answer, sum(np.size(call.args[1].tokens) for call in decode.call_args_list)


def test_a_second_turn_computes_what_is_new(path: Path, fresh: LLM) -> None:
    """Though the template has left out a part of the answer, and the state is behind it."""
    llm = opened(path, drafting=None)
    first = [1, *turn(1), *turn(2)]
    assert ask(llm, first) == ask_afresh(fresh, first)
    second = [*first, 5, 6, END, *turn(3)]
    answer, n = counted(llm, second)
    assert answer == ask_afresh(fresh, second)
    assert (llm.stats.n_cached, llm.stats.why_not_reused) == (len(first), "")
    assert n == len(second) - len(first) + OPTIONS["max_tokens"] - 1
    assert ask(llm, second) == answer  # the same again, from the end of the last message
    assert llm.stats.n_cached == len(second) - 2
    edited = [*first, 5, 6, END, *turn(4)]  # and another message instead
    assert ask(llm, edited) == ask_afresh(fresh, edited)
    assert llm.stats.n_cached == len(first)
    assert "checkpoints only" in llm.stats.why_not_reused


def test_a_chat_goes_on(path: Path, fresh: LLM) -> None:
    llm = opened(path)
    messages = [{"role": "user", "content": "the abc"}]
    n = len(llm.chat_prompt(messages))
    for question in ("a", "teh"):
        llm.chat(messages, **OPTIONS)
        messages += [
            {"role": "assistant", "content": "he he/think" + question},
            {"role": "user", "content": question},
        ]
        got = llm.chat(messages, **OPTIONS), list(llm.stats.logprobs)
        assert llm.stats.n_cached == n
        prompt = llm.chat_prompt(messages)
        assert got == ask_afresh(fresh, prompt)
        n = len(prompt)


def test_several_conversations_take_turns(path: Path, fresh: LLM) -> None:
    llm = opened(path)
    talks = [[1, *turn(10 + i)] for i in range(3)]
    for talk in talks:
        ask(llm, talk)
    for round_ in range(2):
        for i, talk in enumerate(talks):
            n = len(talk)
            talk += [7, 8, END, *turn(20 + 3 * round_ + i, 12)]
            assert ask(llm, talk) == ask_afresh(fresh, talk)
            assert llm.stats.n_cached == n
    assert llm.prefixes.n_restored == 6


def test_little_memory(path: Path, fresh: LLM) -> None:
    """What was used longest ago goes, and the bytes stay within the limit."""
    talks = [[1, *turn(30 + i)] for i in range(4)]
    llm = opened(path)
    ask(llm, talks[0])
    ask(llm, talks[1])
    memory = kept(llm).memory
    memory.most_bytes = most = memory.nbytes + 16
    for talk in talks[2:]:
        assert ask(llm, talk) == ask_afresh(fresh, talk)
        assert memory.nbytes <= most
    assert memory.n_evicted > 0
    assert ask(llm, talks[0]) == ask_afresh(fresh, talks[0])
    assert llm.stats.n_cached == 0
    assert llm.stats.why_not_reused


def test_after_a_restart(path: Path, fresh: LLM, tmp_path: Path) -> None:
    talks = [[1, *turn(40)], [1, *turn(41)]]
    with opened(path, cache_dir=tmp_path) as llm:
        for talk in talks:
            ask(llm, talk)
    assert len(kept_in(tmp_path)) == 2
    with opened(path, cache_dir=tmp_path) as llm:
        for talk in talks:
            n = len(talk)
            talk += [3, 4, END, *turn(42)]
            assert ask(llm, talk) == ask_afresh(fresh, talk)
            assert llm.stats.n_cached == n
    assert len(kept_in(tmp_path)) == 2  # longer ones in place of those


# **** one model is enough ****


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_lasting("qwen35", tmp_path_factory.mktemp("one"))


@pytest.fixture(scope="module")
def fresh_one(one: Path) -> LLM:
    return opened(one, cache_ram=0)


def damages(data: bytes) -> Iterator[tuple[str, bytes]]:
    yield "a bit", data[:-50] + bytes([data[-50] ^ 1]) + data[-49:]
    yield "a token", data.replace(data[300:304], b"\1\0\0\0", 1)
    yield "cut", data[:-7]
    yield "cut to the header", data[:20]
    yield "empty", b""
    yield "longer", data + b"x"
    yield "something else", b"GGUF" + data[4:]
    yield "another version", data.replace(b'"version": 1', b'"version": 9')
    yield "a long header", data[:8] + b"\xff\xff\xff\xff" + data[12:]
    yield "many tokens", data.replace(b'"n_tokens": 3', b'"n_tokens": 93')


def test_damaged_files(one: Path, fresh_one: LLM, tmp_path: Path) -> None:
    talk = [1, *turn(50, 30)]
    want = ask_afresh(fresh_one, talk)
    with opened(one, cache_dir=tmp_path) as llm:
        ask(llm, talk)
    (file,) = kept_in(tmp_path)
    good = file.read_bytes()
    for what, data in damages(good):
        assert data != good
        file.write_bytes(data)
        llm = opened(one, cache_dir=tmp_path)
        with pytest.warns(RuntimeWarning, match="is not used: .*; remove it"):
            got = ask(llm, talk)
        assert (got, llm.stats.n_cached, llm.prefixes.n_refused) == (want, 0, 1), what
        llm.close()  # writes it anew
        assert file.read_bytes() == good


def test_files_of_other_models_are_left_alone(one: Path, tmp_path: Path) -> None:
    """Of another file of the same architecture, too."""
    talk = [1, *turn(51)]
    with opened(one, cache_dir=tmp_path) as llm:
        ask(llm, talk)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "folder.weftprefix").mkdir()
    other = tmp_path / "other.gguf"
    other.write_bytes(one.read_bytes())
    data = bytearray(one.read_bytes())
    data[-9] ^= 1
    other.write_bytes(data)
    for changed in ({"path": other}, {"path": one, "type_k": "f32"}, {"path": one, "flash": False}):
        with opened(**changed, cache_dir=tmp_path) as llm:  # type: ignore[arg-type]
            ask(llm, talk)
            assert llm.stats.n_cached == 0
    assert (tmp_path / "notes.txt").read_text() == "mine"
    with opened(one, cache_dir=tmp_path) as llm:
        ask(llm, talk)
        assert llm.stats.n_cached == len(talk) - 2


def test_the_folder_has_a_limit(one: Path, tmp_path: Path) -> None:
    with opened(one, cache_dir=tmp_path) as llm:
        ask(llm, [1, *turn(60)])
    (first,) = kept_in(tmp_path)
    size = first.stat().st_size
    os.utime(first, (1, 1))
    with opened(one, cache_dir=tmp_path, cache_dir_size=2 * size + size // 2) as llm:
        for i in range(4):
            ask(llm, [1, *turn(61 + i)])
    assert 0 < sum(file.stat().st_size for file in kept_in(tmp_path)) <= 2.5 * size
    assert first not in kept_in(tmp_path)
    with opened(one, cache_dir=tmp_path, cache_dir_size=10) as llm:
        ask(llm, [1, *turn(70)])


def test_a_folder_for_two(one: Path, fresh_one: LLM, tmp_path: Path) -> None:
    """One goes on with what the other has written; files that vanish are only missed."""
    a, b = opened(one, cache_dir=tmp_path), opened(one, cache_dir=tmp_path)
    talk = [1, *turn(80)]
    ask(a, talk)
    ask(b, [1, *turn(81)])
    a.close()
    assert ask(b, talk) == ask_afresh(fresh_one, talk)
    assert b.stats.n_cached == len(talk) - 2
    found = kept(b).files.texts("")  # type: ignore[union-attr]
    for file in kept_in(tmp_path):
        file.unlink()
    assert kept(b).files.read(found[0], b"") is None  # type: ignore[union-attr]
    b.close()


def test_a_folder_that_cannot_be(one: Path, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(ContextError, match=r"cache_dir .*file"):
        opened(one, cache_dir=file)


@pytest.mark.parametrize(
    "options", [{"cache_ram": -1}, {"cache_ram": "many"}, {"ctx_checkpoints": -1},
                {"checkpoint_every": -5}, {"cache_dir_size": -3}],
)  # fmt: skip
def test_options_out_of_range(one: Path, options: dict[str, Any]) -> None:
    with pytest.raises(ContextError, match=next(iter(options))):
        opened(one, **options)


def test_a_checkpoint_every_so_many_tokens(one: Path, fresh_one: LLM) -> None:
    llm = opened(one, checkpoint_every=16)
    text = words(90, 60)
    ask(llm, text)
    other = [*text[:50], *words(91, 9)]
    assert ask(llm, other) == ask_afresh(fresh_one, other)
    assert llm.stats.n_cached == 48
    few = opened(one, checkpoint_every=16, ctx_checkpoints=1)
    ask(few, text)
    assert few.prefixes.n_checkpoints == 1
    assert ask(few, other) == ask_afresh(fresh_one, other)
    assert few.stats.n_cached == 0
    assert "it begins with 50 tokens of a text that is kept" in few.stats.why_not_reused


def test_why_nothing_is_reused(one: Path) -> None:
    llm = opened(one)
    prompt = [1, *turn(95)]
    ask(llm, prompt)
    assert llm.stats.why_not_reused == "no text that is kept begins like it"
    ask(llm, prompt, cache_prompt=False)
    assert llm.stats.why_not_reused == "cache_prompt is False"
    ask(llm, prompt)
    assert (llm.stats.n_cached, "checkpoints" in llm.stats.why_not_reused) == (
        len(prompt) - 2,
        True,
    )
    without = opened(one, ctx_checkpoints=0)
    ask(without, prompt)
    ask(without, prompt)
    assert (without.stats.n_cached, without.prefixes.nbytes) == (0, 0)
    assert "there is none before that" in without.stats.why_not_reused


def test_running_texts_share_what_they_begin_with(one: Path) -> None:
    """A recurrent text that begins while another one is being written, from a checkpoint of it."""
    file = open_gguf(one)
    context = Context(Model(file), 256, n_seq_max=3, n_outputs=3, n_threads=1)
    engine = Engine(context, Tokenizer.from_gguf(file))
    prompt = [1, *turn(97)]
    alone, _ = finish(engine.generate(request(prompt, 12, reuse=False)))
    ended = side_by_side(engine, [request(prompt, 12)] * 3)
    assert [text for text, _ in ended] == [alone] * 3
    started, left = threading.Event(), threading.Event()
    leader = engine.submit(
        request([1, *turn(98)], 100), lambda event: (started.set(), left.wait(10))
    )
    assert started.wait(10)
    left.set()
    _, last = finish(engine.generate(request([1, *turn(98)], 3)))
    assert last.n_reused == len(turn(98)) + 1 - 2
    leader.cancel()
    engine.close()


# **** attention ****


def test_a_displaced_text_of_attention_comes_back(tmp_path: Path) -> None:
    """Bit for bit, though it needs no checkpoints."""
    keys: dict[str, Any] = {"llama.context_length": 512}
    path = write_model(tmp_path / "m.gguf", metadata(**keys))
    fresh = opened(path, cache_ram=0)
    with opened(path, cache_dir=tmp_path) as llm:
        talks = [words(100 + i, 40) for i in range(3)]
        for talk in talks:
            ask(llm, talk)
        for talk in talks:
            talk += [END, *words(110, 20)]
            assert ask(llm, talk) == ask_afresh(fresh, talk)
            assert llm.stats.n_cached == 40
        assert llm.prefixes.n_checkpoints == 0
    with opened(path, cache_dir=tmp_path) as llm:
        shorter = [*talks[0][:30], 5, 6]
        assert ask(llm, shorter) == ask_afresh(fresh, shorter)
        assert llm.stats.n_cached == 30


def test_texts_go_on_with_the_same_adapters(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf", metadata(**{"llama.context_length": 512}))
    shapes = matrices_of(path)
    files = {
        name: write_adapter(tmp_path / f"{name}.gguf", pairs(i, 2, shapes))
        for i, name in enumerate("ab")
    }
    fresh = opened(path, adapters=files, cache_ram=0)
    prompt = words(130, 40)

    def check(llm: LLM, chosen: Any, n_cached: int) -> None:
        assert ask(llm, prompt, adapters=chosen) == ask_afresh(fresh, prompt, adapters=chosen)
        assert llm.stats.n_cached == n_cached

    with opened(path, adapters=files, cache_dir=tmp_path / "kept") as llm:
        for chosen, n in (("a", 0), ("b", 0), (None, 0), ("a", 39), ("b", 39)):
            check(llm, chosen, n)
    with opened(path, adapters=files, cache_dir=tmp_path / "kept") as llm:
        for chosen, n in (("b", 39), ({"b": 0.5}, 0), ([], 0), ("a", 39)):
            check(llm, chosen, n)


def test_small_windows_have_checkpoints(tmp_path: Path) -> None:
    """Results are right, but not to the last bit: attention adds up in the order of cells."""
    path = make_lasting("cohere2", tmp_path)

    def rows(prompt: list[int], before: list[list[int]]) -> tuple[np.ndarray, int]:
        options: dict[str, Any] = {"swa_full": False, "n_ubatch": 16, "type_k": "f32"}
        llm = opened(path, **options)
        for text in before:
            ask(llm, text)
        ask(llm, prompt)
        (first, *_) = llm.stats.logprobs
        return np.array([value for _, value in first.top]), llm.stats.n_cached

    first = [1, *turn(120, 60)]
    second = [*first, *words(121, 8)]
    want, _ = rows(second, [])
    for before in ([first], [first, words(122, 60)]):
        got, n = rows(second, before)
        assert n == len(first)
        np.testing.assert_allclose(got, want, atol=1e-3)


# **** what is kept ****


def ids(*tokens: int) -> np.ndarray:
    return np.array(tokens, np.int32)


def test_texts_with_other_adapters_are_apart() -> None:
    cache = PrefixCache(1000, 5)
    cache.add_checkpoint(b"a", ids(1, 2), Checkpoint(2, b"xx"))
    cache.add_text(KeptText(b"a", ids(1, 2, 3), ()))
    assert [c.n for c in cache.checkpoints(b"a", ids(1, 2, 5))] == [2]
    assert cache.checkpoints(b"", ids(1, 2, 5)) == []
    assert cache.longest(b"a", ids(1, 2, 5))[1] == 2
    assert cache.longest(b"b", ids(1, 2, 5)) == (None, 0)
    cache.add_text(KeptText(b"b", ids(1, 2, 3, 4), ()))
    assert cache.n_texts == 2
    cache.add_text(KeptText(b"a", ids(1, 2, 3, 4), ()))  # in place of its beginning
    assert (cache.n_texts, cache.nbytes) == (2, 34)


def test_what_is_too_large_is_not_kept() -> None:
    cache = PrefixCache(10, 5)
    cache.add_checkpoint(b"", ids(1), Checkpoint(1, b"x" * 4))
    cache.add_checkpoint(b"", ids(1, 2), Checkpoint(2, b"x" * 11))
    cache.add_text(KeptText(b"", ids(1, 2, 3), ()))
    assert (cache.n_checkpoints, cache.n_texts, cache.nbytes) == (1, 0, 4)
    cache.add_text(KeptText(b"", ids(1, 2), ()))  # the checkpoint goes
    assert (cache.n_checkpoints, cache.n_texts, cache.nbytes, cache.n_evicted) == (0, 1, 8, 1)
