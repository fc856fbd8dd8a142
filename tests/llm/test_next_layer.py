"""Layers that draft (multi-token prediction): against plain NumPy, and texts with their drafts."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.drafted_texts import PROMPTS, SAMPLING, drafting, request, written
from tests.llm.next_models import with_next_layer
from tests.llm.plain_llama import Array, angles, rms, rotate, softmax, swiglu
from tests.llm.tiny import write_model
from weft.errors import ContextError, FormatError
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.writer import write_gguf
from weft.llm import LLM, Batch, Context, DraftOptions, Model
from weft.llm.drafting.next_tokens import NextTokens
from weft.llm.opening import DraftModels

IDS = [1, 259, 265, 270, 261, 262, 7, 90]
ARCHS = ["glm4moe", "qwen35", "qwen3next", "deepseek2", "minimax-m2", "nemotron_h_moe",
         "exaone-moe", "deepseek32", "glm-dsa", "hy_v3", "ernie4_5-moe", "ling3", "step35",
         "mimo2"]  # fmt: skip


def tensors_of(path: Path) -> dict[str, Array]:
    file = open_gguf(path)
    return {
        name: np.asarray(info.data.numpy() if hasattr(info.data, "numpy") else info.data)
        .view(np.float32).reshape([n for n in info.ne[::-1] if n > 1] or [1]).astype(np.float64)
        for name, info in file.tensors.items()
        if info.dtype.name == "f32"
    }  # fmt: skip


def expected(path: Path, tokens: list[int], states: Array) -> tuple[Array, Array]:
    """Logits and states of the layer that drafts, for tokens and the states before them: the
    equations of arXiv 2412.19437 around the block of GLM-4.5 or Qwen3.5, whose heads are 4 wide and
    rotate two elements."""
    w = tensors_of(path)
    il = max(int(name.split(".")[1]) for name in w if name.startswith("blk."))
    layer = {k.removeprefix(f"blk.{il}.").removesuffix(".weight"): v
             for k, v in w.items() if k.startswith(f"blk.{il}.")}  # fmt: skip
    n, d, n_head, n_kv = len(tokens), 4, 4, 2
    embedding = layer.get("nextn.embed_tokens", w["token_embd.weight"])
    e = rms(embedding[tokens]) * layer["nextn.enorm"]
    h = rms(states) * layer["nextn.hnorm"]
    x = np.concatenate([e, h], axis=1) @ layer["nextn.eh_proj"].T

    y = rms(x) * layer["attn_norm"]
    q, gate = (y @ layer["attn_q"].T).reshape(n, n_head, -1), None
    k, v = ((y @ layer[f"attn_{name}"].T).reshape(n, n_kv, d) for name in "kv")
    if "attn_q_norm" in layer:  # Qwen3.5
        q, gate = q[:, :, :d], q[:, :, d:].reshape(n, -1)
        q, k = rms(q) * layer["attn_q_norm"], rms(k) * layer["attn_k_norm"]
    turn = angles({"llama.rope.freq_base": 1000.0}, {}, n, 2)
    q, k = (np.concatenate([rotate(t[..., :2], turn), t[..., 2:]], axis=-1) for t in (q, k))
    mask = np.where(np.tril(np.ones((n, n), bool)), 0.0, -np.inf)
    heads = [
        softmax(q[:, i] @ k[:, i // 2].T / math.sqrt(d) + mask) @ v[:, i // 2] for i in range(4)
    ]
    y = np.concatenate(heads, axis=1)
    y = y if gate is None else y / (1 + np.exp(-gate))
    x = x + y @ layer["attn_output"].T

    y = rms(x) * layer["post_attention_norm"]
    if "ffn_gate_inp" in layer:  # GLM-4.5
        x = (
            x
            + routed(y, layer)
            + swiglu(y, *(layer[f"ffn_{m}_shexp"] for m in ("gate", "up", "down")))
        )
    else:
        x = x + swiglu(y, *(layer[f"ffn_{m}"] for m in ("gate", "up", "down")))
    x = rms(x) * layer.get("nextn.shared_head_norm", w["output_norm.weight"])
    head = layer.get("nextn.shared_head_head", w["output.weight"])
    return x @ head.T + w["output.bias"], x


def routed(x: Array, layer: dict[str, Array]) -> Array:
    """Two of the experts, by sigmoids and a bias; weights of sum 1.5."""
    scores = 1 / (1 + np.exp(-(x @ layer["ffn_gate_inp"].T)))
    out = np.zeros_like(x)
    for t, p in enumerate(scores):
        best = np.argsort(-(p + layer.get("exp_probs_b.bias", 0.0)))[:2]
        for e in best:
            parts = (layer[f"ffn_{m}_exps"][e] for m in ("gate", "up", "down"))
            out[t] += 1.5 * p[e] / p[best].sum() * swiglu(x[t], *parts)
    return out


@pytest.mark.parametrize("own", [(), ("shared_head_norm", "embed_tokens", "shared_head_head")])
@pytest.mark.parametrize("name", ["glm4moe", "qwen35"])
def test_against_numpy(tmp_path: Path, name: str, own: tuple[str, ...]) -> None:
    path = with_next_layer(tmp_path, name, own=own)
    model = Model.open(path)
    options: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "activations": "f32",
                               "n_threads": 1, "states": True}  # fmt: skip
    target, layer = (Context(m, 64, **options) for m in (model, *model.next_layers()))
    logits = target.decode(IDS, outputs="all")
    w = tensors_of(path)
    assert target.states is not None
    again = target.states @ w["output.weight"].T + w["output.bias"]
    np.testing.assert_allclose(again, logits, atol=1e-4)
    states = target.states
    want, wide = expected(path, IDS[1:], states[:-1].astype(np.float64))
    got = layer.decode(Batch(IDS[1:], states=states[:-1], outputs="all"))
    np.testing.assert_allclose(got, want, atol=2e-4, rtol=2e-4)
    assert layer.states is not None
    np.testing.assert_allclose(layer.states, wide, atol=2e-4, rtol=2e-4)
    # one after another, and in parts, it is the same
    layer.clear()
    for i, token in enumerate(IDS[1:]):
        row = layer.decode(Batch([token], [i], states=states[i : i + 1]))
        np.testing.assert_array_equal(row[0], got[i])
    small = Context(model.next_layers()[0], 64, n_ubatch=3, **options)
    parts = small.decode(Batch(IDS[1:], states=states[:-1], outputs="all"))
    np.testing.assert_array_equal(parts, got)
    assert small.states is not None and np.array_equal(small.states, layer_states(layer, states))


def test_the_last_norm_of_ling_has_another_name(tmp_path: Path) -> None:
    path = with_next_layer(tmp_path, "ling3")
    got = []
    for new in ("nextn.shared_head_norm", "layer_output_norm"):
        file = open_gguf(path)
        arrays = {n: a.astype(np.float32).reshape(file.tensors[n].shape)
                  for n, a in tensors_of(path).items()}  # fmt: skip
        arrays = {n.replace("nextn.shared_head_norm", new): a for n, a in arrays.items()}
        meta = {key: file.metadata[key] for key in file.metadata}
        model = Model.open(write_model(tmp_path / "other.gguf", meta, arrays))
        layer = Context(model.next_layers()[0], 64, n_threads=1)
        states = np.ones((len(IDS), model.config.n_embd), np.float32)
        got.append(layer.decode(Batch(IDS, states=states, outputs="all")))
    np.testing.assert_array_equal(*got)


def layer_states(layer: Context, states: np.ndarray) -> np.ndarray:
    layer.clear()
    layer.decode(Batch(IDS[1:], states=states[:-1]))
    assert layer.states is not None
    return layer.states


@pytest.mark.parametrize("name", ARCHS)
def test_the_same_text(tmp_path: Path, name: str) -> None:
    path = with_next_layer(
        tmp_path, name, dense=name == "qwen35", n_draft=2 if name in ("step35", "mimo2") else 1
    )
    model = Model.open(path)
    n = model.config.n_vocab
    prompts = [[t % n for t in p] for p in PROMPTS[:2]]
    requests = [request(p, SAMPLING[i], 14, ignore_eos=True) for i, p in enumerate(prompts)]
    plain, _ = written(path, requests, None, n_seq_max=2, n_ctx=128)
    windows = {m.config.window for m in model.next_layers()}
    assert windows == ({6} if name in ("step35", "mimo2") else {0})  # as the last layer
    drafts = drafting(drafter := next_tokens(model, 2), n_vocab=n)
    text, _ = written(path, requests, drafts, n_seq_max=2, n_ctx=128, states=True)
    assert text == plain and drafts.n_drafted and not drafts._sources[0].failed
    assert drafter.context.cache.states is None


def next_tokens(model: Model, n: int = 1, n_ctx: int = 128, p_min: float = 0.0) -> NextTokens:
    options: dict[str, Any] = {"n_seq_max": n, "n_outputs": 1, "n_threads": 1, "n_ubatch": 64}
    one, *others = (Context(m, n_ctx, states=True, **options) for m in model.next_layers())
    return NextTokens(one, n, p_min, further=others)


def knowing(folder: Path, name: str = "glm4moe", n_draft: int = 1) -> Path:
    """A model whose next token depends on the last one alone, and whose layers know it."""
    path = with_next_layer(folder, name, n_draft=n_draft)
    file = open_gguf(path)
    rows, w = [], tensors_of(path)
    for key, info in file.tensors.items():
        x = w[key].astype(np.float32)
        if any(name in key for name in (".attn_output.", ".ssm_out.", ".ffn_down")):
            x[:] = 0
        elif key.endswith("eh_proj.weight"):
            x[:] = np.eye(*x.shape)
        elif "nextn.enorm" in key:
            x[:] = 1
        elif "nextn.shared_head_norm" in key:
            x = w["output_norm.weight"].astype(np.float32)
        rows.append((key, "f32", info.ne[: info.n_dims], x.tobytes()))
    write_gguf(folder / "knowing.gguf", dict(file.metadata.items()), rows)
    return folder / "knowing.gguf"


@pytest.mark.parametrize("name", ["glm4moe", "qwen35"])
def test_what_it_knows_is_accepted(tmp_path: Path, name: str) -> None:
    """Also several texts at once, with prefixes that others have read, and a full context."""
    path = knowing(tmp_path, name)
    model = Model.open(path)
    prompts = [PROMPTS[0], [*PROMPTS[0], 265, 266], PROMPTS[1], [*PROMPTS[0], 265]]
    requests = [request(p, n=30 + i, ignore_eos=True) for i, p in enumerate(prompts)]
    plain, _ = written(path, requests, None, n_seq_max=2, n_ctx=256)
    drafts = drafting(next_tokens(model, 2, 256))
    text, _ = written(path, requests, drafts, n_seq_max=2, n_ctx=256, states=True)
    assert text == plain and drafts.n_accepted == drafts.n_drafted > 80
    if name == "glm4moe":
        one = request(PROMPTS[1], n=100, n_keep=3, ignore_eos=True)
        plain, _ = written(path, [one], None, n_ctx=40, n_ubatch=40)
        drafts = drafting(next_tokens(model, 1, 40))
        text, _ = written(path, [one], drafts, n_ctx=40, n_ubatch=40, states=True)
        assert text == plain and drafts.n_accepted == drafts.n_drafted > 50


@pytest.mark.filterwarnings("ignore:the layer that drafts is not asked")
def test_a_layer_for_each_guess(tmp_path: Path) -> None:
    """Each layer reads the text, and then the guesses before its own with the states of those."""
    path = with_next_layer(tmp_path, "glm4moe", n_draft=3)
    model = Model.open(path)
    target = Context(model, 64, states=True, n_threads=1)
    target.decode(IDS, outputs="all")
    states = target.states
    assert states is not None
    drafter = next_tokens(model)
    drafter.take(0, 0, states[:-1])
    draft = list(drafter.propose(0, IDS, 9))
    want, guessed = list[int](), np.empty((0, states.shape[1]), np.float32)
    for one in model.next_layers():
        layer = Context(one, 64, states=True, n_threads=1)
        text = [*IDS[1:], *want]
        rows = np.concatenate([states[:-1], guessed])
        want.append(int(layer.decode(Batch(text, states=rows))[0].argmax()))
        assert layer.states is not None
        guessed = np.concatenate([guessed, layer.states[-1:]])
    assert draft == want and len(want) == 3
    path = knowing(tmp_path, n_draft=2)
    plain, _ = written(path, [request(PROMPTS[0], n=40, ignore_eos=True)], None, n_ctx=256)
    drafts = drafting(next_tokens(Model.open(path), 1, 256))
    text, _ = written(path, [request(PROMPTS[0], n=40, ignore_eos=True)], drafts, n_ctx=256,
                      states=True)  # fmt: skip
    assert text == plain and drafts.n_accepted == drafts.n_drafted > 20
    with LLM(path, n_ctx=128, n_threads=1, drafting=DraftOptions(layers=True, p_min=0)) as llm:
        assert llm.generate("the abc", max_tokens=20, temperature=0, ignore_eos=True)
        assert list(llm.draft_contexts) == ["layer that drafts", "layer that drafts 2"]
        assert "layer that drafts 2" in llm.explain()


def test_states_in_any_order(tmp_path: Path) -> None:
    """After rollbacks and gaps, it proposes what a fresh layer does that has read the same."""
    path = with_next_layer(tmp_path, "glm4moe")
    model, rng = Model.open(path), random.Random(5)
    target = Context(model, 64, states=True, n_threads=1)
    text = [1, *(rng.randrange(259, 274) for _ in range(50))]
    target.decode(text, outputs="last")
    states = target.states
    assert states is not None
    drafter, n = next_tokens(model), 0
    for _ in range(12):
        start = rng.randrange(max(n - 4, 0), n + 1)  # some are computed again
        n = min(max(n, start) + rng.randrange(1, 6), 49)
        drafter.take(0, start, states[start:n])
        if rng.random() < 0.4:
            drafter.read(0, text[:n])
        tokens = text[: n + 1]
        if drafter.look(0, tokens)[1]:
            fresh = next_tokens(model)
            fresh.take(0, 0, states[:n])
            assert list(drafter.propose(0, tokens, 3)) == list(fresh.propose(0, tokens, 3))
    drafter.forget(0)
    drafter.take(0, 10, states[10:14])  # the beginning was computed by another text
    assert drafter.look(0, text[:15])[1] and len(drafter.propose(0, text[:15], 2)) == 2
    drafter.forget(0)
    drafter.take(0, 5, states[5:6])
    drafter.take(0, 8, states[8:9])
    assert not drafter.look(0, text[:7])[1] and drafter.look(0, text[:10])[1]


@pytest.mark.filterwarnings("ignore:the layer that drafts is not asked")
def test_llm(tmp_path: Path) -> None:
    path = knowing(tmp_path)
    texts = []
    for options in (
        None,
        DraftOptions(ngram=False, layers=True, p_min=0),
        DraftOptions(layers=True),
    ):
        with LLM(path, n_ctx=128, n_threads=1, drafting=options) as llm:
            texts.append(llm.generate("the abc", max_tokens=40, temperature=0, ignore_eos=True))
            assert bool(llm.draft_contexts) == (options is not None)
            assert "layer that drafts" in llm.explain() or options is None
    assert texts[0] == texts[1] == texts[2]


def test_a_context_without_states(tmp_path: Path) -> None:
    model, options = Model.open(with_next_layer(tmp_path, "glm4moe")), DraftOptions(layers=True)
    models = DraftModels(model, options)
    with pytest.warns(UserWarning, match="no model drafts: layers .* states=True"):
        drafts = models.drafting(Context(model, 64, n_threads=1))
    assert drafts is not None and len(drafts.drafters) == 1
    layer = Context(model.next_layers()[0], 64, n_threads=1)
    with pytest.raises(ContextError, match=r"give Batch\.states"):
        layer.decode([1])
    with pytest.raises(ContextError, match="2 states for 1 tokens"):
        layer.decode(Batch([1], states=np.zeros((2, 16))))


def test_files_without_such_layers(tmp_path: Path) -> None:
    path = write_model(tmp_path / "m.gguf")
    with pytest.raises(ContextError, match=r"m\.gguf has no layers that draft"):
        LLM(path, drafting=DraftOptions(layers=True))
    broken = with_next_layer(tmp_path, "glm4moe")
    file, w = open_gguf(broken), tensors_of(broken)
    rows = [
        (key, "f32", info.ne[: info.n_dims], w[key].astype(np.float32).tobytes())
        for key, info in file.tensors.items()
        if "nextn.enorm" not in key
    ]
    write_gguf(tmp_path / "broken.gguf", dict(file.metadata.items()), rows)
    with pytest.raises(FormatError, match=r"nextn\.enorm\.weight .* is missing"):
        Model.open(tmp_path / "broken.gguf").next_layers()
