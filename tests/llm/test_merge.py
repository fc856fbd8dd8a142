"""Models with adapters in their weights: against adapters applied at run time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.frontends.peft_files import write_peft
from tests.llm.adapter_files import EMBEDDINGS, adapter_of, write_adapter
from tests.llm.tiny import metadata, weights, write_model
from weft import quants
from weft.dtype import find_dtype
from weft.errors import FormatError
from weft.frontends.gguf import GGUFFile, open_gguf
from weft.frontends.gguf.mixes import Choices
from weft.frontends.gguf.quantize import quantize_file
from weft.frontends.gguf.writer import write_gguf
from weft.frontends.hf.convert import convert_folder
from weft.llm import Context, Model
from weft.llm.merge import MergedTensor, merge_adapters

PROMPT = [1, 262, 263, 264, 265, 266, 261]
DATA = Path(__file__).parents[1] / "data" / "hf"
HF = DATA / "qwen3-tiny-moe"
F32: dict[str, Any] = {"type_k": "f32", "type_v": "f32", "activations": "f32"}


def rows(path: Path, adapters: Any = None, prompt: list[int] = PROMPT) -> NDArray[np.float32]:
    model = Model.open(path, adapters=adapters)
    return Context(model, 32, devices=["reference"], **F32).decode(prompt, outputs="all")


class Files:
    """A mixture of experts of 64 wide rows, and two adapters of it."""

    def __init__(self, folder: Path) -> None:
        sizes = {"llama.embedding_length": 64, "llama.feed_forward_length": 64}
        experts = {"llama.expert_count": 4, "llama.expert_used_count": 2}
        self.meta = metadata(**sizes, **experts)
        self.tensors = weights(self.meta)
        shapes = {name: t.shape for name, t in self.tensors.items() if t.ndim > 1}
        some = {name: shape for name, shape in shapes.items() if "exps" in name or "attn_q" in name}
        self.base = write_model(folder / "base.gguf", self.meta, self.tensors)
        self.files = [
            write_adapter(folder / "all.gguf", adapter_of(1, 4, shapes), alpha=1.0),
            write_adapter(folder / "some.gguf", adapter_of(2, 2, some), alpha=2.0),
        ]
        self.given = [(self.files[0], 0.5), (self.files[1], -1.0)]
        self.want = rows(self.base, self.given)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("merged"))


STEP = {"f32": 0.0, "f16": 2**-11, "bf16": 2**-8, "q8_0": 1 / 254 + 2**-11}
"""What rounding to a type costs at most, as a share of the weight."""


def values_of(file: GGUFFile) -> Iterator[tuple[str, NDArray[np.float32]]]:
    for name, t in file.tensors.items():
        rows = t.data.reshape(-1, t.dtype.row_bytes(t.ne[0]))
        yield name, quants.decode(rows, t.dtype).reshape(t.shape)


def test_f32_is_what_adapters_do(files: Files, tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    seen: list[MergedTensor] = []
    n = merge_adapters(files.base, out, files.given, progress=seen.append)
    before, after = open_gguf(files.base), open_gguf(out)
    assert list(before.tensors) == list(after.tensors) == [t.name for t in seen]
    assert n == sum(t.changed for t in seen) == sum(t.n_dims > 1 for t in
                                                            before.tensors.values())  # fmt: skip
    assert before.copy_metadata() == after.copy_metadata()
    assert np.abs(files.want - rows(files.base)).max() > 0.5
    np.testing.assert_allclose(rows(out), files.want, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("kind", ["f16", "bf16", "q8_0"])
def test_a_file_keeps_its_types(files: Files, tmp_path: Path, kind: str) -> None:
    base, out = tmp_path / "base.gguf", tmp_path / "m.gguf"
    quantize_file(files.base, base, kind, choices=Choices(pure=True))
    merge_adapters(base, out, files.given)
    before, after = open_gguf(base), open_gguf(out)
    whole = tmp_path / "whole.gguf"  # the same sums, not rounded
    merge_adapters(base, whole, files.given, "f32")
    for name, t in open_gguf(whole).tensors.items():
        assert after.tensors[name].dtype is before.tensors[name].dtype
        got = after.tensors[name]
        sums = t.data.view(np.float32).reshape(t.shape)
        want: NDArray[Any] = quants.to_storage(sums, got.dtype)
        if got.dtype.is_quantized:
            want = quants.encode(sums, got.dtype)
        assert np.array_equal(got.data, np.ascontiguousarray(want).reshape(-1).view(np.uint8))
        # half a step of the type: of each weight, or of the largest of 32, whose scale is f16
        off = np.abs(dict(values_of(after))[name] - sums).reshape(-1, min(32, sums.shape[-1]))
        most = np.abs(sums).reshape(off.shape)
        if got.dtype.is_quantized:
            most = most.max(axis=1, keepdims=True)
        assert (off <= STEP[got.dtype.name] * most + 1e-7).all()
    np.testing.assert_allclose(rows(whole), rows(base, files.given), rtol=1e-4, atol=1e-4)


def test_quantized_at_once(files: Files, tmp_path: Path) -> None:
    whole, at_once, later = (tmp_path / f"{n}.gguf" for n in range(3))
    merge_adapters(files.base, whole, files.given)
    merge_adapters(files.base, at_once, files.given, "q5_0")
    quantize_file(whole, later, "q5_0")
    assert at_once.read_bytes() == later.read_bytes()


def test_shared_embeddings_become_two(files: Files, tmp_path: Path) -> None:
    tensors = {name: t for name, t in files.tensors.items() if name != "output.weight"}
    base = write_model(tmp_path / "tied.gguf", files.meta, tensors)
    only = {EMBEDDINGS: tensors[EMBEDDINGS].shape}
    adapter = write_adapter(tmp_path / "a.gguf", adapter_of(3, 4, only))
    merge_adapters(base, tmp_path / "m.gguf", [(adapter, 1.0)])
    made = open_gguf(tmp_path / "m.gguf").tensors
    assert np.array_equal(made["output.weight"].data, open_gguf(base).tensors[EMBEDDINGS].data)
    want = rows(base, adapter)
    assert np.abs(want - rows(base)).max() > 0.1
    np.testing.assert_allclose(rows(tmp_path / "m.gguf"), want, rtol=1e-5, atol=1e-5)


def test_matrices_with_factors(files: Files, tmp_path: Path) -> None:
    name = "blk.0.ffn_up_exps"
    scales = {f"{name}.scale": np.array([0.5, 2, 4, -1], np.float32)}
    base = write_model(tmp_path / "base.gguf", files.meta, files.tensors | scales)
    merge_adapters(base, tmp_path / "m.gguf", files.given)
    want = rows(base, files.given)
    np.testing.assert_allclose(rows(tmp_path / "m.gguf"), want, rtol=2e-5, atol=2e-5)
    scales[f"{name}.scale"][1] = 0
    base = write_model(tmp_path / "base.gguf", files.meta, files.tensors | scales)
    with pytest.raises(FormatError, match=r"ffn_up_exps\.scale has a 0"):
        merge_adapters(base, tmp_path / "m.gguf", files.given)


@pytest.mark.parametrize("kind", ["auto", "f32", "q8_0", "Q4_0"])
def test_a_folder_and_an_adapter_of_peft(tmp_path: Path, kind: str) -> None:
    pytest.importorskip("gguf")
    law, out, plain = write_peft(tmp_path, HF), tmp_path / "m.gguf", tmp_path / "plain.gguf"
    merge_adapters(HF, out, [(law, 0.5)], kind)
    if kind != "Q4_0":
        convert_folder(HF, plain, kind)
        before, after = open_gguf(plain), open_gguf(out)
        assert {n: t.dtype for n, t in before.tensors.items()} == {
            n: t.dtype for n, t in after.tensors.items()
        }
        assert list(before.metadata) == list(after.metadata)
    ids = [5, 90, 17, 201, 8, 90]
    want, got = rows(HF, [(law, 0.5)], ids), rows(out, None, ids)
    share = {"auto": 2**-6, "f32": 1e-5, "q8_0": 2**-4, "Q4_0": 0.5}[kind]
    assert np.abs(got - want).max() < share * np.abs(want).max()


def test_what_cannot_be_merged(files: Files, tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    with pytest.raises(FormatError, match="file being read"):
        merge_adapters(files.base, files.base, files.given)
    other = write_adapter(tmp_path / "b.gguf", adapter_of(1, 2, {"blk.9.attn_q.weight": (64, 64)}))
    with pytest.raises(FormatError, match="which the model does not have"):
        merge_adapters(files.base, out, [(other, 1.0)])


def test_types_that_are_read_alone(tmp_path: Path) -> None:
    meta = metadata(**{"llama.embedding_length": 256})
    tensors = weights(meta)
    name, (n_out, n_in) = "blk.0.attn_q.weight", tensors["blk.0.attn_q.weight"].shape
    rows_of = [
        (n, "f32", t.shape[::-1], t.tobytes()) for n, t in tensors.items() if n != name
    ]  # fmt: skip
    zeros = np.zeros(n_out * find_dtype("iq2_xxs").row_bytes(n_in), np.uint8)
    base, out = tmp_path / "odd.gguf", tmp_path / "m.gguf"
    write_gguf(base, meta, [*rows_of, (name, "iq2_xxs", (n_in, n_out), zeros)])
    pair = adapter_of(1, 2, {name: (n_out, n_in)})
    adapter = write_adapter(tmp_path / "a.gguf", pair, alpha=2.0)
    with pytest.raises(FormatError, match="whose type iq2_xxs weft cannot write; choose another"):
        merge_adapters(base, out, [(adapter, 1.0)])
    assert not out.exists()
    merge_adapters(base, out, [(adapter, 1.0)], "f32")
    got = open_gguf(out).tensors[name].data.view(np.float32).reshape(n_out, n_in)
    want = pair[f"{name}.lora_b"] @ pair[f"{name}.lora_a"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
