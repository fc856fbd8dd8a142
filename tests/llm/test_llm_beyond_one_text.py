"""`LLM` beyond one text: chat, prompts together, threads, embeddings, perplexity."""

from __future__ import annotations

import gc
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.encoder_models import make_encoder
from tests.llm.made_models import configure, keys_of, made_up
from tests.llm.other_models import OTHERS
from tests.llm.tiny import metadata, write_model
from weft.errors import ChatError, ContextError
from weft.llm import LLM

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'critic' %}"
    "{{ raise_exception('no critics') }}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PROMPTS = ["the abc", "a", "abc abc abc", "teh", "b the"]


def user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, str]:
    return {"role": "assistant", "content": text}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    keys: dict[str, Any] = {"tokenizer.chat_template": TEMPLATE, "llama.context_length": 256}
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", metadata(**keys))


@pytest.fixture(scope="module")
def llm(path: Path) -> LLM:
    return LLM(path, n_threads=1, n_seq_max=1)


@pytest.fixture(scope="module")
def four(path: Path) -> LLM:
    return LLM(path, n_threads=1, n_seq_max=4)


# **** chat ****


def test_chat_continues_the_rendered_messages(llm: LLM) -> None:
    messages = [user("abc"), answer("the"), user("b")]
    ids = llm.tokenize("<user>abc<assistant>the<user>b<assistant>")
    assert llm.chat_prompt(messages) == ids
    assert ids.count(llm.tokenizer.vocab.bos) == 1
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    want = llm.generate(ids, **options)
    assert llm.chat(messages, **options) == want
    assert "".join(llm.chat(messages, stream=True, **options)) == want


def test_a_conversation_computes_what_is_new(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    fed: list[int] = []
    decode = llm.context.decode

    def counted(batch: Any) -> Any:
        fed.append(len(batch.tokens))
        return decode(batch)

    options: dict[str, Any] = {"max_tokens": 10, "temperature": 0, "ignore_eos": True}
    messages = [user("the abc the abc")]
    first = llm.chat(messages, **options)
    messages += [answer(first), user("abc")]
    ids = llm.chat_prompt(messages)
    want = llm.generate(ids, **options)
    llm.chat(messages[:1], **options)
    monkeypatch.setattr(llm.context, "decode", counted)
    assert llm.chat(messages, **options) == want
    assert fed[0] == len(ids) - llm.stats.n_cached
    assert llm.stats.n_cached >= len(llm.chat_prompt(messages[:1]))
    assert llm.stats.n_prompt == len(ids)
    # another beginning shares BOS and "<user>" only
    llm.chat([user("b")], **options)
    assert llm.stats.n_cached == len(llm.tokenize("<user>"))


def test_a_cache_that_somebody_else_used_is_not_reused(llm: LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 5, "temperature": 0, "ignore_eos": True}
    want = llm.chat([user("the abc")], **options)
    meddlers: list[tuple[Any, int]] = [
        (lambda: llm.context.cache.clear(), 0),
        (lambda: (llm.context.cache.clear(), llm.context.decode([5] * 9)), 0),
        (lambda: llm.context.cache.seq_rm(0, 3, -1), 3),
    ]
    for meddle, n_cached in meddlers:
        meddle()
        llm._writing.prefixes.memory.clear()  # of earlier texts
        assert llm.chat([user("the abc")], **options) == want
        assert llm.stats.n_cached == n_cached


def test_an_interrupted_chat_goes_on(llm: LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 0, "ignore_eos": True}
    want = llm.chat([user("abc the")], **options)
    pieces = llm.chat([user("abc the")], stream=True, **options)
    begun = next(pieces)
    pieces.close()
    assert want.startswith(begun) and llm.chat([user("abc the")], **options) == want


def test_a_model_without_a_template_is_said_once(tmp_path: Path) -> None:
    llm = LLM(write_model(tmp_path / "m.gguf", metadata(**{"llama.context_length": 256})))
    with pytest.warns(UserWarning, match=r"m\.gguf has no chat template; ChatML is used"):
        llm.chat([user("a")], max_tokens=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        llm.chat([user("a")], max_tokens=2)


def test_another_template_and_what_it_refuses(path: Path, llm: LLM) -> None:
    other = LLM(path, chat_template="{{ messages[0].content }}{{ mood }}")
    assert other.chat_prompt([user("ab")], variables={"mood": "c"}) == other.tokenize("abc")
    with pytest.raises(ChatError, match="refuses these messages: no critics"):
        llm.chat([{"role": "critic", "content": "x"}])
    with pytest.raises(ChatError, match="does not compile"):
        LLM(path, chat_template="{% if").chat([user("a")])


@pytest.mark.parametrize("arch", ["mamba", "lfm2"])
def test_a_recurrent_model_reuses_only_what_goes_on(tmp_path: Path, arch: str) -> None:
    """A state cannot go back to an earlier token, only on, where it has no checkpoints."""
    _, changes = OTHERS[arch]
    meta = keys_of(arch, changes)
    path = write_model(tmp_path / "m.gguf", meta, made_up(configure(tmp_path, meta)))
    llm = LLM(path, ctx_checkpoints=0)
    options: dict[str, Any] = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
    ids = [5, 9, 4, 7, 5, 11]

    def check(prompt: list[int], n_cached: int) -> None:
        got = llm.generate(prompt, **options)
        assert llm.stats.n_cached == n_cached
        assert got == fresh.generate(prompt, cache_prompt=False, **options)

    fresh = LLM(tmp_path / "m.gguf")
    check(ids[:3], 0)
    check(ids, 0)  # the cache went on with other tokens
    llm.generate(ids[:3], **options | {"max_tokens": 1})  # none of it is decoded
    check(ids, 3)
    check(ids[:4], 0)


# **** several prompts ****


@pytest.mark.parametrize("max_tokens", [9, 60, None])
def test_prompts_together_give_what_each_gives_alone(
    llm: LLM, four: LLM, max_tokens: int | None
) -> None:
    options: dict[str, Any] = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True}
    want = [llm.generate(p, **options) for p in PROMPTS]
    assert four.generate(PROMPTS, **options) == want
    assert llm.generate(PROMPTS, **options) == want
    assert four.generate([four.tokenize(p) for p in PROMPTS], **options) == want
    assert four.stats.finish_reason == ("length" if max_tokens else "context")


def test_what_prompts_of_a_list_have_in_common_is_kept(four: LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 4, "temperature": 0, "ignore_eos": True}
    prompts = [[5, 9, 40, 7, n] for n in (11, 12, 13)]
    want = [four.generate(p, cache_prompt=False, **options) for p in prompts]
    assert four.generate(prompts, cache_prompt=False, **options) == want
    assert four.stats.n_cached == 0
    assert four.generate(prompts, **options) == want
    assert four.stats.n_cached >= 3 * 4


def test_they_share_the_steps(four: LLM) -> None:
    def runs(prompts: list[str]) -> int:
        before = four.context.counters.graphs_reused
        four.generate(prompts, max_tokens=20, temperature=0, ignore_eos=True)
        return four.context.counters.graphs_reused - before

    assert runs(PROMPTS[:4]) == 1 + 19
    assert runs(PROMPTS[:1]) == 1 + 19


def test_seeds_and_ends_of_each(llm: LLM, four: LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 30, "temperature": 1.0, "seed": 3, "stop": "b"}
    want = [llm.generate(p, **options) for p in PROMPTS]
    assert four.generate(PROMPTS, **options) == want
    assert not any("b" in text for text in want)


def test_a_bad_prompt_is_refused_before_any_is_written(four: LLM) -> None:
    before = four.context.counters.graphs_reused
    with pytest.raises(ContextError, match="no tokens"):
        four.generate([[1, 2], []])
    with pytest.raises(ContextError, match="the context holds 256"):
        four.generate(["a", "a b " * 300])
    assert four.context.counters.graphs_reused == before


# **** threads ****


def test_threads_queue_up(llm: LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 15, "temperature": 0, "ignore_eos": True}
    want = {p: llm.generate(p, **options) for p in PROMPTS}
    got: list[tuple[str, str]] = []

    def work(number: int) -> None:
        prompt = PROMPTS[number % len(PROMPTS)]
        got.append((prompt, llm.generate(prompt, **options)))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(15)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(got) == 15
    assert all(text == want[prompt] for prompt, text in got)


def test_a_text_that_nobody_finishes_gives_way_when_it_is_dropped(llm: LLM) -> None:
    pieces = llm.generate("abc", stream=True, max_tokens=30, temperature=0, ignore_eos=True)
    next(pieces)
    got: list[str] = []
    thread = threading.Thread(target=lambda: got.append(llm.chat([user("a")], max_tokens=3)))
    thread.start()
    thread.join(0.2)
    assert thread.is_alive() and not got
    del pieces
    gc.collect()
    thread.join(60)
    assert len(got) == 1


# **** embeddings, perplexity ****


def test_embeddings(llm: LLM) -> None:
    one = llm.embed("the abc")
    assert one.shape == (16,) and np.linalg.norm(one) == pytest.approx(1, abs=1e-6)
    many = llm.embed(["the abc", "b"])
    np.testing.assert_allclose(many[0], one, atol=1e-6)
    rows = llm.embed("the abc", pooling="none", normalize=False)
    assert rows.shape == (len(llm.tokenize("the abc")), 16)
    mean = rows.mean(axis=0)
    np.testing.assert_allclose(one, mean / np.linalg.norm(mean), atol=1e-5)
    np.testing.assert_allclose(llm.embed("the abc", pooling="last", normalize=False), rows[-1])
    with pytest.raises(ContextError, match="one by one"):
        llm.embed(["a", "b"], pooling="none")
    with pytest.raises(ContextError, match="the context holds 256"):
        llm.embed("a b " * 300)


def test_a_model_of_embeddings(tmp_path: Path) -> None:
    # its tokens are those of the tiny SentencePiece vocabulary
    llm = LLM(make_encoder(tmp_path)[0])
    assert llm.embed("the abc").shape == (16,)
    with pytest.raises(ContextError, match="embeddings, no text"):
        llm.generate("a")


def test_perplexity_is_that_of_the_definition(llm: LLM) -> None:
    """Chunk by chunk, with logits of a plain decode."""
    ids = llm.tokenize("the abc teh b " * 20)
    n_ctx, nll = 32, []
    for c in range(len(ids) // n_ctx):
        chunk = ids[c * n_ctx : (c + 1) * n_ctx]
        for at in range(n_ctx // 2, n_ctx - 1):
            llm.context.cache.clear()
            logits = llm.context.decode([1, *chunk[1 : at + 1]])[0].astype(np.float64)
            nll.append(np.log(np.exp(logits - logits.max()).sum()) + logits.max())
            nll[-1] -= logits[chunk[at + 1]]
    got = llm.perplexity(ids, n_ctx=n_ctx)
    assert (got.n_chunks, got.n_scored) == (len(ids) // n_ctx, len(nll))
    assert got.nll == pytest.approx(np.mean(nll), abs=1e-4)
    assert got.value == pytest.approx(np.exp(np.mean(nll)), rel=1e-4)
    error = np.exp(np.mean(nll)) * np.sqrt(np.var(nll) / (len(nll) - 1))
    assert got.error == pytest.approx(error, rel=1e-3)
    assert llm.perplexity(ids, n_ctx=n_ctx, n_chunks=2).n_scored == 2 * (n_ctx // 2 - 1)


def test_a_text_too_short_for_perplexity(llm: LLM) -> None:
    with pytest.raises(ContextError, match="but 1024 are needed"):
        llm.perplexity("abc")
    with pytest.raises(ContextError, match="n_chunks is 0"):
        llm.perplexity("abc " * 200, n_ctx=64, n_chunks=0)
