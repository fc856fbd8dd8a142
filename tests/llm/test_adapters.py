"""LoRA adapters: against merged weights, in batches with others, and files that do not fit."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.llm.adapter_files import Tensors, pairs, write_adapter
from tests.llm.tiny import metadata, weights, write_model
from weft.errors import ArgumentError, ContextError, FormatError, MissingFileError
from weft.frontends.gguf import open_gguf
from weft.llm import LLM, Context, Model, SamplingParams
from weft.llm.engine import Done, Engine, Request
from weft.llm.tokenizers.tokenizer import Tokenizer

PROMPT = [1, 262, 263, 264, 265, 266, 261]


def merged(tensors: Tensors, pair: Tensors, scale: float) -> Tensors:
    made = dict(tensors)
    for name in tensors:
        if f"{name}.lora_a" in pair:
            a, b = pair[f"{name}.lora_a"], pair[f"{name}.lora_b"]
            made[name] = tensors[name] + (scale * b.astype(np.float64) @ a).astype(np.float32)
    return made


class Files:
    """A tiny llama and two adapters: one of all matrices, and one of another rank and some."""

    def __init__(self, folder: Path) -> None:
        self.meta = metadata()
        self.tensors = weights(self.meta)
        matrices = {
            n: t.shape for n, t in self.tensors.items() if t.ndim == 2 and n != "token_embd.weight"
        }
        self.wide = pairs(1, 4, matrices)
        self.small = pairs(2, 3, {n: s for n, s in matrices.items() if "ffn" in n})
        self.base = write_model(folder / "base.gguf", self.meta, self.tensors)
        self.both = [
            write_adapter(folder / "wide.gguf", self.wide),
            write_adapter(folder / "small.gguf", self.small),
        ]
        # alpha 8: wide is scaled by 8 / 4, small by 8 / 3
        changed = merged(self.tensors, self.wide, 2.0)
        self.merged_wide = write_model(folder / "m1.gguf", self.meta, changed)
        changed = merged(merged(self.tensors, self.wide, 1.0), self.small, 8 / 3)
        self.merged_both = write_model(folder / "m2.gguf", self.meta, changed)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("adapters"))


def logits(model: Model, device: str, chosen: object = None) -> NDArray[np.float32]:
    """The logits of a prompt, and of two tokens one by one behind it."""
    context = Context(model, 32, devices=[device], type_k="f32", type_v="f32", activations="f32")
    if chosen is not None:
        context.use_adapters(chosen)  # type: ignore[arg-type]
    rows = [context.decode(PROMPT, outputs="all")]
    rows += [context.decode([token]) for token in (262, 270)]
    return np.concatenate(rows)


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_logits_are_those_of_merged_weights(files: Files, device: str) -> None:
    model = Model(open_gguf(files.base), files.both)
    base = logits(Model(open_gguf(files.base)), device)
    assert np.array_equal(logits(model, device, {}), base)
    cases = [("wide", files.merged_wide), ({"wide": 0.5, "small": 1.0}, files.merged_both)]
    for chosen, path in cases:
        expected = logits(Model(open_gguf(path)), device)
        assert np.abs(expected - base).max() > 0.1
        np.testing.assert_allclose(logits(model, device, chosen), expected, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_rows_of_a_mixed_batch_are_those_alone(files: Files, device: str) -> None:
    model = Model(open_gguf(files.base), files.both)
    choices: list[dict[str, float]] = [{}, {"wide": 1.0}, {"small": -0.5}, {"wide": 2, "small": 1}]
    context = Context(model, 64, n_seq_max=4, devices=[device])
    for seq, chosen in enumerate(choices):
        context.use_adapters(chosen, seq)
    n = len(PROMPT)
    tokens, positions = PROMPT * 4, [*range(n)] * 4
    seqs = [[seq] for seq in range(4) for _ in range(n)]
    rows = context.decode(tokens, positions, seqs=seqs, outputs="all").reshape(4, n, -1)
    for chosen, own in zip(choices, rows, strict=True):
        # as many columns, all with the same adapters
        alone = Context(model, 64, n_seq_max=4, devices=[device])
        for seq in range(4):
            alone.use_adapters(chosen, seq)
        same = alone.decode(tokens, positions, seqs=seqs, outputs="all").reshape(4, n, -1)
        assert np.array_equal(own, same[choices.index(chosen)])


def test_texts_choose_their_adapters(files: Files) -> None:
    def text(llm: LLM, **options: object) -> str:
        return llm.generate(
            PROMPT,
            max_tokens=12,
            temperature=0,
            ignore_eos=True,
            special=True,
            **options,  # type: ignore[arg-type]
        )

    with LLM(files.base) as base, LLM(files.merged_wide) as changed:
        plain, wide = text(base), text(changed)
    assert plain != wide
    with LLM(files.base, adapters=[files.both[0], (files.both[1], 0.0)], n_seq_max=2) as llm:
        assert text(llm) == wide
        # the second text must not continue the cells of the first
        assert text(llm, adapters={}) == plain
        assert llm.stats.n_cached == 0
        assert text(llm, adapters=["wide"]) == wide
        assert text(llm, adapters="wide") == wide
        assert llm.stats.n_cached == len(PROMPT) - 1
        with pytest.raises(ContextError, match="no adapter 'nope'; loaded are wide, small"):
            text(llm, adapters="nope")
    with LLM(files.base) as base, pytest.raises(ContextError, match="no adapters"):
        text(base, adapters="wide")


def test_an_engine_writes_texts_with_different_adapters(files: Files) -> None:
    file = open_gguf(files.base)
    model = Model(file, {"a": files.both[0], "b": (files.both[1], 0.5)})
    choices: list[object] = [{}, "a", "b", ["a", "b"], None]

    def engine(n_seq: int) -> Engine:
        # the reference: rows of a batch do not depend on each other
        context = Context(
            model, 120, n_seq_max=n_seq, n_ubatch=32, n_outputs=n_seq, devices=["reference"]
        )
        return Engine(context, Tokenizer.from_gguf(file))

    def request(chosen: object) -> Request:
        greedy = SamplingParams(temperature=0)
        return Request(
            tuple(PROMPT), max_tokens=8, sampling=greedy, ignore_eos=True, special=True,
            adapters=chosen,  # type: ignore[arg-type]
        )  # fmt: skip

    def text(events: object) -> str:
        return "".join(e.text for e in events if not isinstance(e, Done))  # type: ignore[attr-defined]

    one = engine(1)
    alone = [text(one.generate(request(chosen))) for chosen in choices]
    one.close()
    assert len(set(alone)) > 2
    several = engine(5)
    with ThreadPoolExecutor(len(choices)) as threads:
        texts = threads.map(lambda chosen: text(several.generate(request(chosen))), choices)
        assert list(texts) == alone
    several.close()


def test_states_are_for_the_same_adapters(files: Files) -> None:
    model = Model(open_gguf(files.base), files.both)
    first, second = (Context(model, 32, devices=["cpu"]) for _ in range(2))
    first.use_adapters("wide")
    first.decode(PROMPT)
    state = first.save_state(0)
    with pytest.raises(FormatError, match="its adapters is"):
        second.load_state(state, 0)
    second.use_adapters("wide")
    second.load_state(state, 0)
    assert np.array_equal(first.decode([262]), second.decode([262]))
    with pytest.raises(ContextError, match="computed with other adapters"):
        second.use_adapters("small")


def test_the_plan_counts_them(files: Files) -> None:
    plain = Context(Model(open_gguf(files.base)), 32, repack=False).memory.weights
    model = Model(open_gguf(files.base), files.both)
    stacked = sum(7 * sum(files.tensors[n].shape) * 4 for n in adapted(files))
    assert Context(model, 32, repack=False).memory.weights == plain + stacked


def adapted(files: Files) -> list[str]:
    return [name for name in files.tensors if f"{name}.lora_a" in files.wide]


NAME = "blk.0.ffn_up.weight"
A, B = f"{NAME}.lora_a", f"{NAME}.lora_b"


@pytest.mark.parametrize(
    ("change", "meta", "says"),
    [
        ({A: np.zeros((4, 17))}, {}, r"lora_a must be \[rank, 16\]"),
        ({B: np.zeros((24, 5))}, {}, r"lora_b \[24, rank\]"),
        ({A: None}, {}, "has a .lora_b only"),
        ({"blk.9.ffn_up.weight.lora_a": np.zeros((4, 16)),
          "blk.9.ffn_up.weight.lora_b": np.zeros((24, 4))}, {}, "which the model does not have"),
        ({"output_norm.weight": np.zeros(16)}, {}, "neither a .lora_a nor a .lora_b"),
        ({"token_embd.weight.lora_a": np.zeros((4, 16)),
          "token_embd.weight.lora_b": np.zeros((274, 4))}, {}, r"lora_a must be \[274, rank\]"),
        ({A: np.full((4, 16), np.nan)}, {}, "not numbers"),
        ({A: None, B: None}, {}, "has no tensors"),
        ({}, {"adapter.lora.alpha": float("nan")}, "alpha is nan"),
        ({}, {"adapter.lora.alpha": None}, "adapter.lora.alpha"),
        ({}, {"general.type": "model"}, "this is a model, not an adapter"),
        ({}, {"adapter.type": "other"}, "of type other"),
        ({}, {"general.architecture": "qwen3"}, "for architecture qwen3, the model is llama"),
    ],
)  # fmt: skip
def test_files_that_do_not_fit(
    files: Files, tmp_path: Path, change: dict[str, object], meta: dict[str, object], says: str
) -> None:
    made = {name: a for name, a in files.wide.items() if name in (A, B)}
    for name, array in change.items():
        made.pop(name, None)
        if array is not None:
            made[name] = np.asarray(array, np.float32)
    path = write_adapter(tmp_path / "bad.gguf", made, **meta)
    with pytest.raises(FormatError, match=says) as caught:
        Model(open_gguf(files.base), path)
    assert "bad.gguf" in str(caught.value)


def test_arguments_that_are_no_files(files: Files) -> None:
    for wrong in (7, [], {"a": 3}, [(files.both[0], "x")], [(files.both[0], float("inf"))]):
        with pytest.raises((ArgumentError, ContextError)):
            Model(open_gguf(files.base), wrong)  # type: ignore[arg-type]
    with pytest.raises(ContextError, match="two adapters are called wide"):
        Model(open_gguf(files.base), [files.both[0], files.both[0]])
    with pytest.raises(MissingFileError):
        Model(open_gguf(files.base), "missing.gguf")
