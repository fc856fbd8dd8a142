"""Models that draft for one other model: against plain NumPy, and texts with their drafts."""

from __future__ import annotations

import json
import math
import random
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.drafted_texts import PROMPTS, SAMPLING, Eager, request, written
from tests.llm.drafter_models import OWN_IDS, drafter_of, target
from tests.llm.plain_llama import Array, angles, rms, rotate, softmax, swiglu
from tests.llm.test_next_layer import tensors_of
from tests.llm.tiny import metadata, write_model
from weft.errors import ContextError, FormatError
from weft.frontends.gguf import open_gguf
from weft.frontends.hf.convert import convert_folder
from weft.llm import LLM, Batch, Context, DraftOptions, Model
from weft.llm.drafting.next_tokens import Blocks, EagleTokens, NextTokens
from weft.llm.opening import DraftModels

IDS = [1, 259, 265, 270, 261, 262, 7, 90, 33]
OPTIONS: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "activations": "f32", "n_threads": 1}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("drafters")
    target(path)
    for arch in ("eagle3", "dflash"):
        drafter_of(path, arch)
    return path


def context_of(folder: Path, arch: str, **options: Any) -> Context:
    """The context of a model that drafts for `target`."""
    model = Model.open(folder / f"{arch}.gguf").drafting_for(Model.open(folder / "target.gguf"))
    return Context(model, 64, **OPTIONS | options)


def read_by(folder: Path, layers: tuple[int, ...]) -> np.ndarray:
    """What the target keeps of IDS."""
    context = Context(Model.open(folder / "target.gguf"), 64, states=layers, **OPTIONS)
    context.decode(IDS)
    assert context.states is not None
    return context.states


def heads(x: Array, w: Array, n: int) -> Array:
    return (x @ w.T).reshape(len(x), n, -1)


def attended(q: Array, k: Array, v: Array, mask: Array) -> Array:
    """Attention of heads [n, 4, d] to keys and values of two heads."""
    each = [
        softmax(q[:, i] @ k[:, i // 2].T / math.sqrt(q.shape[-1]) + mask) @ v[:, i // 2]
        for i in range(4)
    ]
    return np.concatenate(each, axis=1)


def eagle(folder: Path, tokens: list[int], g: Array) -> tuple[Array, Array]:
    """The logits and states of EAGLE-3's layer (arXiv 2503.01840) for tokens and the states g of
    the tokens before; adjacent elements of a head rotate."""
    w, shared = tensors_of(folder / "eagle3.gguf"), tensors_of(folder / "target.gguf")
    layer = {k.removeprefix("blk.0.").removesuffix(".weight"): v for k, v in w.items()}
    n = len(tokens)
    e = rms(shared["token_embd.weight"][tokens]) * layer["attn_norm"]
    x = np.concatenate([e, rms(g) * layer["attn_norm_2"]], axis=1)
    q, k, v = (heads(x, layer[f"attn_{name}"], h) for name, h in (("q", 4), ("k", 2), ("v", 2)))
    turn = angles({"llama.rope.freq_base": 1000.0}, {}, n, 4)
    q, k = rotate(q, turn), rotate(k, turn)
    mask = np.where(np.tril(np.ones((n, n), bool)), 0.0, -np.inf)
    y = g + attended(q, k, v, mask) @ layer["attn_output"].T
    parts = (layer[f"ffn_{m}"] for m in ("gate", "up", "down"))
    y = y + swiglu(rms(y) * layer["ffn_norm"], *parts)
    return (rms(y) * w["output_norm.weight"]) @ w["output.weight"].T, y


def halves(x: Array, turn: tuple[Array, Array]) -> Array:
    """Rotates an element of each half of a head together."""
    d = x.shape[-1]
    order = np.arange(d).reshape(2, -1).T.reshape(-1)
    return rotate(x[..., order], turn)[..., np.argsort(order)]


def test_eagle3_against_numpy(folder: Path) -> None:
    """From the target's states, and from its own."""
    w = tensors_of(folder / "eagle3.gguf")
    wide = read_by(folder, (2, 3, 6))
    g = (rms(wide.astype(np.float64)) * w["enc.output_norm.weight"]) @ w["fc.weight"].T
    want, states = eagle(folder, IDS[1:], g[:-1])
    drafter = context_of(folder, "eagle3", states=True)
    got = drafter.decode(Batch(IDS[1:], states=wide[:-1], outputs="all"))
    assert got.shape == (len(IDS) - 1, len(OWN_IDS))
    np.testing.assert_allclose(got, want, atol=3e-4, rtol=3e-4)
    np.testing.assert_allclose(drafter.states, states, atol=3e-4, rtol=3e-4)
    both = np.concatenate([g[:-1], states[-1:]])
    want, _ = eagle(folder, [*IDS[1:], 265], both)
    assert drafter.states is not None
    row = drafter.decode(Batch([265], [len(IDS) - 1], states=drafter.states[-1:]))
    np.testing.assert_allclose(row[0], want[-1], atol=5e-4, rtol=5e-4)


def test_kept_layers(folder: Path) -> None:
    """They are what a callback sees, in the order asked for."""
    context = Context(Model.open(folder / "target.gguf"), 64, states=(5, 1), **OPTIONS)
    seen: dict[str, np.ndarray] = {}

    def note(tensor: Any, ask: bool) -> bool:
        if ask:
            return tensor.name in ("l_out-0", "l_out-4")
        seen[tensor.name] = np.array(tensor.read()).reshape(-1, 16)
        return True

    context.set_eval_callback(note)
    context.decode(IDS)
    assert context.states is not None
    np.testing.assert_array_equal(
        context.states, np.concatenate([seen["l_out-4"], seen["l_out-0"]], axis=1)
    )
    for layers in ((0,), (7,)):
        with pytest.raises(ContextError, match=r"layers 1\.\.6 can be kept"):
            Context(Model.open(folder / "target.gguf"), 64, states=layers)


def flash(folder: Path, wide: Array, block: list[int]) -> Array:
    """The logits of DFlash for a block behind the text whose states are `wide`."""
    w, shared = tensors_of(folder / "dflash.gguf"), tensors_of(folder / "target.gguf")
    g = rms(wide @ w["fc.weight"].T) * w["enc.output_norm.weight"]
    n, x = len(g) + len(block), shared["token_embd.weight"][block]
    turn = angles({"llama.rope.freq_base": 1000.0}, {}, n, 8)
    for il in range(2):
        layer = {k.split(".")[2]: v for k, v in w.items() if k.startswith(f"blk.{il}.")}
        y = rms(x) * layer["attn_norm"]
        q = rms(heads(y, layer["attn_q"], 4)) * layer["attn_q_norm"]
        both = np.concatenate([g, y])
        k = rms(heads(both, layer["attn_k"], 2)) * layer["attn_k_norm"]
        q, k = halves(q, (turn[0][len(g) :], turn[1][len(g) :])), halves(k, turn)
        v = heads(both, layer["attn_v"], 2)
        x = x + attended(q, k, v, np.zeros(1)) @ layer["attn_output"].T
        parts = (layer[f"ffn_{m}"] for m in ("gate", "up", "down"))
        x = x + swiglu(rms(x) * layer["ffn_norm"], *parts)
    return (rms(x) * w["output_norm.weight"]) @ shared["output.weight"].T


def test_dflash_against_numpy(folder: Path) -> None:
    """Also where the text was read in parts, and where a block was taken back."""
    wide = read_by(folder, (1, 3, 5))
    block = [265, 0, 0, 0]
    want = flash(folder, wide.astype(np.float64), block)
    drafter = context_of(folder, "dflash", n_outputs=6)
    at = list(range(len(IDS)))
    for part in (slice(0, 5), slice(5, None)):
        none = np.zeros(len(at[part]), np.bool_)
        drafter.decode(Batch(IDS[part], at[part], states=wide[part], outputs=none))
    for _ in range(2):
        got = drafter.decode(Batch(block, list(range(9, 13)), outputs="all"))
        np.testing.assert_allclose(got, want, atol=5e-4, rtol=5e-4)
        drafter.seq_rm(0, 9)


@pytest.mark.parametrize("arch", ["eagle3", "dflash"])
def test_the_same_texts(folder: Path, arch: str) -> None:
    """Several texts at once, with every sampler, prefixes of others and a context that is full."""
    path = folder / "target.gguf"
    prompts = [*PROMPTS, [*PROMPTS[0], 265, 266], PROMPTS[1]]
    requests = [request(p, SAMPLING[i], 30, ignore_eos=True) for i, p in enumerate(prompts)]
    one = [request(PROMPTS[1], n=70, n_keep=3, ignore_eos=True)]
    for given, sizes in (
        (requests, {"n_seq_max": 2, "n_ctx": 256}),
        (one, {"n_ctx": 40, "n_ubatch": 40}),
    ):
        plain, _ = written(path, given, None, **sizes)
        model = Model.open(path)
        models = DraftModels(
            model, DraftOptions(ngram=False, model=folder / f"{arch}.gguf", p_min=0)
        )
        drafts, text = with_drafts(models, path, given, sizes)
        assert text == plain and drafts.n_drafted > 50 and not drafts._sources[0].failed


def with_drafts(models: DraftModels, path: Path, requests: Any, sizes: dict[str, Any]) -> Any:
    """The drafts and the texts of requests, with a model that drafts whenever it can."""
    options = {
        "n_ctx": 128,
        "n_seq_max": 1,
        "n_outputs": 32,
        "n_threads": 1,
        "n_ubatch": 64,
    } | sizes
    context = Context(models.model, states=models.states, **options)
    drafts = models.drafting(context)
    assert drafts is not None
    drafts.gain = Eager()
    text, _ = written(path, requests, drafts, context=context)
    return drafts, text


@pytest.mark.parametrize("arch", ["eagle3", "dflash"])
def test_what_it_proposes_after_any_past(folder: Path, arch: str) -> None:
    """It is what a fresh one proposes that has read the same states."""
    rng, model = random.Random(4), Model.open(folder / "target.gguf")
    context = Context(model, 64, states=(2, 3, 6) if arch == "eagle3" else (1, 3, 5), **OPTIONS)
    text = [1, *(rng.randrange(259, 274) for _ in range(50))]
    context.decode(text)
    states, kind, n = context.states, EagleTokens if arch == "eagle3" else Blocks, 0
    assert states is not None

    def fresh() -> NextTokens:
        return kind(context_of(folder, arch, states=arch == "eagle3", n_outputs=6), 1)

    drafter, told = fresh(), set[int]()
    for _ in range(10):
        start = rng.randrange(max(n - 4, 0), n + 1)  # some are computed again
        n = min(max(n, start) + rng.randrange(1, 6), 49)
        drafter.take(0, start, states[start:n])
        if rng.random() < 0.4:
            drafter.read(0, text[:n])
        if drafter.look(0, text[: n + 1])[1]:
            other = fresh()
            other.take(0, 0, states[:n])
            draft = drafter.propose(0, text[: n + 1], 3)
            assert list(draft) == list(other.propose(0, text[: n + 1], 3)) and len(draft) == 3
            told |= {*draft}
    assert len(told) > 1 and (arch == "dflash" or told <= {*OWN_IDS})


def test_what_differs_is_named(folder: Path, tmp_path: Path) -> None:
    model = Model.open(folder / "target.gguf")
    wide: dict[str, object] = {"embedding_length": 24, "attention.key_length": 4}
    for changes, without, what in (
        ({"target_layers": np.array([2, 3, 7], np.int32)}, (), r"input of layer 7.* 1\.\.6"),
        ({"target_hidden_size": 20}, ("fc.weight",), "fc.weight .* is missing"),
        (wide, (), r"lacks token_embd.weight and needs one of sizes \[274, 24\]; .* \[274, 16\]"),
        ({}, ("output.weight", "d2t"), "reads states|cannot draft|output.weight"),
    ):
        path = drafter_of(tmp_path, "eagle3", changes, without)
        if "output.weight" in without:  # the target's output projection is taken
            assert Model.open(path).drafting_for(model).config.n_logits == 274
            continue
        with pytest.raises((ContextError, FormatError), match=what):
            DraftModels(model, DraftOptions(model=path))
    other = write_model(tmp_path / "wide.gguf", metadata(**{"llama.embedding_length": 32}))
    with pytest.raises(ContextError, match="width 16, and those of the model have 32"):
        DraftModels(Model.open(other), DraftOptions(model=folder / "eagle3.gguf"))
    with pytest.raises(FormatError, match="'dflash' drafts tokens for another model"):
        LLM(folder / "dflash.gguf")


def test_llm(folder: Path) -> None:
    texts = []
    for name in (None, "eagle3.gguf", "dflash.gguf"):
        options = DraftOptions(model=folder / name, p_min=0) if name else None
        with LLM(folder / "target.gguf", n_ctx=128, n_threads=1, drafting=options) as llm:
            texts.append(llm.generate("the abc", max_tokens=30, temperature=0, ignore_eos=True))
            assert "draft model" in llm.explain() or name is None
    assert texts[0] == texts[1] == texts[2]


def save_folder(folder: Path, config: dict[str, Any], tensors: dict[str, np.ndarray]) -> None:
    """Writes config.json and model.safetensors."""
    kinds, at, header = {"float32": "F32", "int64": "I64", "bool": "BOOL"}, 0, {}
    for name, x in tensors.items():
        end = at + x.nbytes
        header[name] = {"dtype": kinds[x.dtype.name], "shape": x.shape, "data_offsets": [at, end]}
        at = end
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    data = b"".join(x.tobytes() for x in tensors.values())
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)


LAYER = {
    "attn_norm": "input_layernorm", "attn_norm_2": "hidden_norm", "attn_q": "self_attn.q_proj",
    "ffn_norm": "post_attention_layernorm", "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_up": "mlp.up_proj",
    "ffn_gate": "mlp.gate_proj", "ffn_down": "mlp.down_proj", "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
}  # fmt: skip
SHAPE = {
    "vocab_size": 274, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 4,
    "num_key_value_heads": 2, "rms_norm_eps": 1e-5, "rope_theta": 1000.0,
    "max_position_embeddings": 256, "hidden_act": "silu",
}  # fmt: skip
EAGLE_SHAPE = SHAPE | {"num_hidden_layers": 1}
LAYERS = {"eagle_aux_hidden_state_layer_ids": [2, 3, 6]}


def in_folder(name: str, arch: str, layer: str) -> str:
    """The name that a folder has for a tensor of a file."""
    if name.startswith("blk."):
        _, il, stem, _ = name.split(".")
        return f"{layer.format(il)}.{LAYER[stem]}.weight"
    outer = {"output_norm": "norm", "output": "lm_head", "fc": "fc",
             "enc.output_norm": "input_norm" if arch == "eagle3" else "hidden_norm"}  # fmt: skip
    return f"{outer[name.removesuffix('.weight')]}.weight"


@pytest.mark.parametrize(
    ("arch", "layer", "config"),
    [
        ("eagle3", "midlayer", EAGLE_SHAPE | LAYERS | {
            "architectures": ["LlamaForCausalLMEagle3"], "draft_vocab_size": len(OWN_IDS)}),
        ("eagle3", "model.layers.{}", EAGLE_SHAPE | LAYERS | {
            "architectures": ["LlamaForCausalLM"], "draft_vocab_size": len(OWN_IDS)}),
        ("eagle3", "layers.{}", LAYERS | {
            "architectures": ["Eagle3Speculator"], "draft_vocab_size": len(OWN_IDS),
            "transformer_layer_config": EAGLE_SHAPE | {"model_type": "llama"}}),
        ("dflash", "layers.{}", SHAPE | {
            "architectures": ["DFlashDraftModel"], "num_hidden_layers": 2, "head_dim": 8,
            "block_size": 6, "dflash_config": {"mask_token_id": 0, "target_layer_ids": [0, 2, 4]}}),
    ],
)  # fmt: skip
def test_folders(folder: Path, tmp_path: Path, arch: str, layer: str, config: Any) -> None:
    """A folder has the logits of the file, whose rows of queries and keys are in another order,
    and so has the file that it is converted to."""
    file, w = open_gguf(folder / f"{arch}.gguf"), tensors_of(folder / f"{arch}.gguf")
    tensors: dict[str, np.ndarray] = {}
    for name, x in w.items():
        if arch == "eagle3" and name.endswith(("attn_q.weight", "attn_k.weight")):
            x = x.reshape(-1, 2, 2, x.shape[1]).swapaxes(1, 2).reshape(x.shape)
        tensors[in_folder(name, arch, layer)] = x.astype(np.float32)
    if arch == "eagle3":
        tensors["d2t"] = np.array(OWN_IDS) - np.arange(len(OWN_IDS))
        tensors["t2d"] = np.isin(np.arange(274), OWN_IDS)
    save_folder(tmp_path / "folder", config, tensors)
    convert_folder(tmp_path / "folder", tmp_path / "made.gguf", "f32")
    made = open_gguf(tmp_path / "made.gguf")
    for name, info in file.tensors.items():
        np.testing.assert_array_equal(info.data, made.tensors[name].data, err_msg=name)
        assert info.dtype == made.tensors[name].dtype
    target, rows = Model.open(folder / "target.gguf"), []
    layers = (2, 3, 6) if arch == "eagle3" else (1, 3, 5)
    states = read_by(folder, layers)
    for path in (folder / f"{arch}.gguf", tmp_path / "folder", tmp_path / "made.gguf"):
        model = Model.open(path).drafting_for(target)
        assert model.config.drafts is not None and model.config.drafts.layers == layers
        context = Context(model, 64, n_outputs=6, states=arch == "eagle3", **OPTIONS)
        none = np.zeros(len(IDS), np.bool_)
        context.decode(Batch(IDS, states=states, outputs=none))
        if arch == "eagle3":
            assert context.states is not None
            rows.append(context.states.copy())
        else:
            rows.append(context.decode(Batch([265, 0, 0], outputs="all")))
    np.testing.assert_allclose(rows[1], rows[0], atol=1e-5)
    np.testing.assert_array_equal(rows[2], rows[0])
    options = DraftOptions(ngram=False, model=tmp_path / "folder", p_min=0)
    plain, _ = written(folder / "target.gguf", [request(PROMPTS[0], n=12)], None)
    models = DraftModels(target, options)
    drafts, text = with_drafts(models, folder / "target.gguf", [request(PROMPTS[0], n=12)], {})
    assert text == plain and drafts.n_drafted


def test_damaged_folders_and_files(folder: Path, tmp_path: Path) -> None:
    config = EAGLE_SHAPE | {"architectures": ["LlamaForCausalLMEagle3"]}
    with pytest.raises(FormatError, match="num_hidden_layers"):
        save_folder(tmp_path, config | {"num_hidden_layers": 2}, {"x": np.zeros(1, np.float32)})
        Model.open(tmp_path)
    for changes, what in (
        ({"target_layers": np.array([3, 3, 6], np.int32)}, "different layers"),
        ({"target_layers": np.array([3, 6], np.int32)}, "three layers"),
        ({"target_layers": np.array([1, np.nan, 3], np.float32)}, "1 to 64 different layers"),
        ({"block_count": 2}, "block_count is 2; it must be 1"),
    ):
        with pytest.raises(FormatError, match=what):
            Model.open(drafter_of(tmp_path, "eagle3", changes))
    for changes, what in (
        ({"block_size": 1 << 20}, "block_size .* 2..256"),
        ({"selector_rank": 4}, "DFlash 2 are not read yet"),
        ({"attention.sliding_window": 4}, "at least 6"),
    ):
        with pytest.raises(FormatError, match=what):
            Model.open(drafter_of(tmp_path, "dflash", changes))
