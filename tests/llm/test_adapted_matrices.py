"""Adapters of experts, embeddings and the output, and of models with recurrent layers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.llm.adapter_files import EMBEDDINGS, Tensors, adapter_of, write_adapter
from tests.llm.made_models import TOKENS, configure, keys_of, made_up
from tests.llm.other_models import OTHERS
from tests.llm.tiny import metadata, weights, write_model
from weft.frontends.gguf import open_gguf
from weft.llm import Context, Model

PROMPT = [1, 262, 263, 264, 265, 266, 261]
F32 = {"type_k": "f32", "type_v": "f32", "activations": "f32"}


def merged(tensors: Tensors, pair: Tensors, scale: float) -> Tensors:
    out = dict(tensors)
    for name, tensor in tensors.items():
        if f"{name}.lora_a" not in pair:
            continue
        a, b = (pair[f"{name}.lora_{end}"].astype(np.float64) for end in "ab")
        sum_ = a @ b.T if name == EMBEDDINGS else b @ a
        out[name] = (tensor + scale * sum_).astype(np.float32)
    return out


class Mixture:
    """A tiny mixture of experts, and adapters of everything: one of all, one of the experts."""

    def __init__(self, folder: Path) -> None:
        self.meta = metadata(**{"llama.expert_count": 4, "llama.expert_used_count": 2})
        self.tensors = weights(self.meta)
        shapes = {name: t.shape for name, t in self.tensors.items() if t.ndim > 1}
        experts = {name: shape for name, shape in shapes.items() if "exps" in name}
        assert EMBEDDINGS in shapes and "output.weight" in shapes and experts
        self.all = adapter_of(1, 4, shapes)
        self.some = adapter_of(2, 2, experts)
        self.base = write_model(folder / "base.gguf", self.meta, self.tensors)
        # alpha 2: all is scaled by 2 / 4, some by 2 / 2
        self.files = [
            write_adapter(folder / "all.gguf", self.all, alpha=2.0),
            write_adapter(folder / "some.gguf", self.some, alpha=2.0),
        ]
        changed = merged(merged(self.tensors, self.all, 0.5 * 0.75), self.some, -2.0)
        self.merged = write_model(folder / "merged.gguf", self.meta, changed)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Mixture:
    return Mixture(tmp_path_factory.mktemp("mixture"))


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_experts_embeddings_and_output(mixture: Mixture, device: str) -> None:
    def rows(model: Model, chosen: dict[str, float] | None = None) -> NDArray[np.float32]:
        context = Context(model, 32, devices=[device], **F32)  # type: ignore[arg-type]
        if chosen is not None:
            context.use_adapters(chosen)
        first = context.decode(PROMPT, outputs="all")
        return np.concatenate([first, context.decode([262])])

    model = Model(open_gguf(mixture.base), mixture.files)
    plain = rows(Model(open_gguf(mixture.base)))
    assert np.array_equal(rows(model, {}), plain)
    want = rows(Model(open_gguf(mixture.merged)))
    assert np.abs(want - plain).max() > 0.1
    got = rows(model, {"all": 0.75, "some": -2.0})
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("device", ["reference", "cpu"])
def test_a_mixed_batch_is_each_alone(mixture: Mixture, device: str) -> None:
    """Bit for bit: rows of experts with an adapter do not touch rows without."""
    model = Model(open_gguf(mixture.base), mixture.files)
    choices: list[dict[str, float]] = [{}, {"all": 1.0}, {"some": -0.5}, {"all": 2.0, "some": 1.0}]
    n = len(PROMPT)
    tokens, positions = PROMPT * 4, [*range(n)] * 4
    seqs = [[seq] for seq in range(4) for _ in range(n)]

    def rows(each: list[dict[str, float]]) -> NDArray[np.float32]:
        context = Context(model, 64, n_seq_max=4, devices=[device])
        for seq, chosen in enumerate(each):
            context.use_adapters(chosen, seq)
        return context.decode(tokens, positions, seqs=seqs, outputs="all").reshape(4, n, -1)

    mixed = rows(choices)
    for seq, chosen in enumerate(choices):
        assert np.array_equal(mixed[seq], rows([chosen] * 4)[seq])


LINEAR = re.compile(
    r"blk\.\d+\.(attn_(q|k|v|qkv|output|gate)|ffn_(up|gate|down)(_exps|_shexp)?|ssm_(in|out)|"
    r"shortconv\.(in|out)_proj)\.weight"
)
ARCHS = ["mamba", "mamba2", "lfm2", "qwen35", "qwen3next", "granitehybrid", "falcon-h1", "kimi"]


@pytest.mark.parametrize("name", ARCHS)
def test_recurrent_models(tmp_path: Path, name: str) -> None:
    arch, changes = OTHERS[name]
    meta = keys_of(arch, changes)
    tensors = made_up(configure(tmp_path, meta))
    shapes = {n: t.shape for n, t in tensors.items() if LINEAR.fullmatch(n)}
    pair = adapter_of(3, 3, shapes)
    base = write_model(tmp_path / "base.gguf", meta, tensors)
    law = write_adapter(tmp_path / "law.gguf", pair, 1.5, **{"general.architecture": arch})
    other = write_model(tmp_path / "merged.gguf", meta, merged(tensors, pair, 0.5))

    def context(model: Model) -> Context:
        options = {"n_seq_max": 2, "n_ubatch": 32, "devices": ["reference"], **F32}
        return Context(model, 48, **options)  # type: ignore[arg-type]

    def rows(context: Context) -> NDArray[np.float32]:
        tokens, each = TOKENS[:6] * 2, [[0]] * 6 + [[1]] * 6
        first = context.decode(tokens, [*range(6)] * 2, seqs=each, outputs="all")
        # a token of each
        return np.concatenate(
            [first, context.decode(TOKENS[6:8], [6, 6], seqs=[[0], [1]], outputs="all")]
        )

    model = Model(open_gguf(base), law)
    mixed = context(model)
    mixed.use_adapters({}, 0)
    got = rows(mixed)
    of = np.array([0] * 6 + [1] * 6 + [0, 1], np.bool_)
    plain, want = rows(context(Model(open_gguf(base)))), rows(context(Model(open_gguf(other))))
    assert np.abs(plain - want)[of].max() > 1e-3 * np.abs(want).max()
    tolerance = 1e-4 * np.abs(want).max()
    np.testing.assert_allclose(got[of], want[of], rtol=1e-4, atol=tolerance)
    np.testing.assert_allclose(got[~of], plain[~of], rtol=1e-5, atol=1e-6)
