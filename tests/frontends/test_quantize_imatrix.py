"""Quantizing with an importance matrix, without layers, again, and after an interruption."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from weft.dtype import DTYPES
from weft.errors import FormatError, UnsupportedOpError
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf import quantize as quantize_module
from weft.frontends.gguf.imatrix_file import (
    Imatrix,
    ImatrixEntry,
    Importance,
    read_importance,
    write_imatrix,
)
from weft.frontends.gguf.mixes import MIXES, Choices
from weft.frontends.gguf.quantize import QuantizedTensor, quantize_file
from weft.frontends.gguf.writer import TensorSource, write_gguf
from weft.quants.native_rows import convert_rows

LAYERS = 3
EXPERTS = 4
SHAPES = {
    "attn_q": (256, 8), "attn_k": (256, 4), "attn_v": (256, 4), "attn_output": (256, 8),
    "ffn_up_exps": (256, 6, EXPERTS), "ffn_gate_exps": (256, 6, EXPERTS),
    "ffn_down_exps": (512, 4, EXPERTS),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    """A mixture of three layers with rows of 256 and 512 values."""
    random = np.random.RandomState(5)
    rows: list[TensorSource] = []
    names = {"token_embd.weight": (256, 20), "output.weight": (256, 20)}
    for i in range(LAYERS):
        names |= {f"blk.{i}.{part}.weight": ne for part, ne in SHAPES.items()}
        names[f"blk.{i}.attn_norm.weight"] = (256,)
    for name, ne in names.items():
        x = random.standard_normal(ne[::-1]).astype(np.float32)
        rows.append((name, "f32", ne, x))
    path = folder / "model.gguf"
    metadata = {"general.architecture": "llama", "llama.block_count": LAYERS,
                "llama.expert_count": EXPERTS}  # fmt: skip
    write_gguf(path, metadata, rows)
    return path


@pytest.fixture(scope="module")
def imatrix(folder: Path) -> Path:
    """Of all matrices but the embeddings and the output; expert 1 of each stack saw nothing."""
    random = np.random.RandomState(6)
    entries = {}
    for i in range(LAYERS):
        for part, ne in SHAPES.items():
            n = ne[2] if len(ne) > 2 else 1
            counts = np.arange(n) * 10 + 7
            if n > 1:
                counts[1] = 0
            sums = random.random_sample((n, ne[0])).astype(np.float32) * 100
            entries[f"blk.{i}.{part}.weight"] = ImatrixEntry(sums * (counts[:, None] > 0), counts)
    path = folder / "imatrix.gguf"
    write_imatrix(path, Imatrix(entries, ("text.txt",), 5, 512, False, True))
    return path


@pytest.mark.parametrize("name", [n for n in MIXES if n not in ("F32", "I2_S")])
def test_every_mix_can_be_written(name: str, model: Path, imatrix: Path, folder: Path) -> None:
    out = folder / "out.gguf"
    quantize_file(model, out, name, importance=read_importance(imatrix))
    with open_gguf(out) as file:
        assert file.get_int("general.file_type") == MIXES[name].number
        assert file.get_str("quantize.imatrix.file") == str(imatrix)
        assert file.get_str("quantize.imatrix.dataset") == "text.txt"
        assert file.get_int("quantize.imatrix.entries_count") == LAYERS * len(SHAPES)
        assert file.get_int("quantize.imatrix.chunks_count") == 5


def test_each_expert_has_its_weights(model: Path, imatrix: Path, folder: Path) -> None:
    out = folder / "out.gguf"
    importance = read_importance(imatrix)
    assert importance is not None
    quantize_file(model, out, "Q4_K_S", importance=importance)
    name = "blk.1.ffn_up_exps.weight"
    with open_gguf(model) as old, open_gguf(out) as new:
        x = old.tensors[name].data.view(np.float32).reshape(EXPERTS, 6, 256)
        got = new.tensors[name].data.reshape(EXPERTS, -1)
    weights = importance.weights[name].reshape(EXPERTS, 256)
    assert (weights[1] == 1).all()
    for expert in range(EXPERTS):
        one = convert_rows(x[expert], DTYPES["f32"], DTYPES["q4_K"], 256, rows_per_matrix=6,
                           weights=weights[expert])  # fmt: skip
        np.testing.assert_array_equal(got[expert], one)


def test_parts_of_names_choose_what_is_weighted(model: Path, imatrix: Path, folder: Path) -> None:
    names = [folder / f"{kind}.gguf" for kind in ("none", "some")]
    quantize_file(model, names[0], "Q6_K")
    quantize_file(model, names[1], "Q6_K", importance=read_importance(imatrix, exclude=["exps"]))
    with open_gguf(names[0]) as none, open_gguf(names[1]) as some:
        for name, t in none.tensors.items():
            same = np.array_equal(t.data, some.tensors[name].data)
            weighted = name.startswith("blk") and "exps" not in name and "norm" not in name
            assert same is not weighted, name
    assert read_importance(imatrix, include=["nothing"]) is None


@pytest.mark.parametrize(
    ("name", "without", "said"),
    [
        ("IQ2_XS", None, r"attn_q\.weight as iq2_xs needs an importance matrix; make one"),
        ("Q2_K_S", None, "as q2_K needs an importance matrix; make one"),
        ("IQ1_S", "blk.1.attn_q", r"blk\.1\.attn_q\.weight as iq1_s needs .* does not have it"),
    ],
)
def test_types_of_no_use_without_one(
    name: str, without: str | None, said: str, model: Path, imatrix: Path, tmp_path: Path
) -> None:
    importance = None if without is None else read_importance(imatrix, exclude=[without])
    with pytest.raises(UnsupportedOpError, match=said):
        quantize_file(model, tmp_path / "out.gguf", name, importance=importance)
    assert not list(tmp_path.iterdir())


def test_weights_of_another_model(model: Path, tmp_path: Path) -> None:
    wrong = Importance({"blk.0.attn_q.weight": np.ones(128, np.float32)}, {})
    with pytest.raises(FormatError, match=r"128 weights for blk\.0\.attn_q\.weight, and the tens"):
        quantize_file(model, tmp_path / "out.gguf", "Q4_K_M", importance=wrong)
    # embeddings are the exception, as in the reference
    embeddings = Importance({"token_embd.weight": np.ones(1, np.float32)}, {})
    quantize_file(model, tmp_path / "out.gguf", "Q4_K_M", importance=embeddings)


def test_layers_are_left_out(model: Path, imatrix: Path, folder: Path) -> None:
    whole, pruned = folder / "whole.gguf", folder / "pruned.gguf"
    importance = read_importance(imatrix)
    quantize_file(model, whole, "Q8_0", importance=importance)
    quantize_file(
        model, pruned, "Q8_0", importance=importance, choices=Choices(without_layers=(1,))
    )
    with open_gguf(whole) as a, open_gguf(pruned) as b:
        assert b.get_int("llama.block_count") == 2
        assert not any(name.startswith("blk.2") for name in b.tensors)
        for name, t in b.tensors.items():
            np.testing.assert_array_equal(
                t.data, a.tensors[name.replace("blk.1.", "blk.2.")].data, err_msg=name
            )


@pytest.mark.parametrize(
    ("layers", "said"),
    [([3], "no layer 3; the model has layers 0 to 2"), ([0, 1, 2], "no layer w")],
)
def test_layers_that_cannot_be(layers: list[int], said: str, model: Path, tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=said):
        quantize_file(model, tmp_path / "out.gguf", "Q8_0", choices=Choices(without_layers=layers))


def test_quantizing_again_is_asked_for(model: Path, folder: Path, tmp_path: Path) -> None:
    first = folder / "first.gguf"
    quantize_file(model, first, "Q8_0", choices=Choices(requantize=False))
    for to in ("Q4_0", "F16", "BF16"):
        with pytest.raises(UnsupportedOpError, match=r"is q8_0 already, .* add --allow-requantize"):
            quantize_file(first, tmp_path / "again.gguf", to, choices=Choices(requantize=False))
    quantize_file(first, tmp_path / "f32.gguf", "F32", choices=Choices(requantize=False))
    quantize_file(first, tmp_path / "again.gguf", "Q4_0")


class Stopper:
    """Stops a run after some tensors, as Ctrl-C does."""

    def __init__(self, after: int, error: BaseException) -> None:
        self.left, self.error = after, error

    def __call__(self, _: QuantizedTensor) -> None:
        self.left -= 1
        if self.left < 0:
            raise self.error


@pytest.fixture
def converted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of tensors that are converted."""
    names: list[str] = []
    convert = quantize_module.convert_tensor

    def counted(t: object, *args: object) -> object:
        names.append(t.name)  # type: ignore[attr-defined]
        return convert(t, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(quantize_module, "convert_tensor", counted)
    yield names


def stop(model: Path, out: Path, after: int = 4) -> list[str]:
    with pytest.raises(KeyboardInterrupt):
        quantize_file(model, out, "Q4_K_M", progress=Stopper(after, KeyboardInterrupt()))
    assert not out.exists()
    return sorted(path.name for path in out.parent.iterdir())


def test_a_run_that_was_stopped_goes_on(model: Path, tmp_path: Path, converted: list[str]) -> None:
    straight, out = tmp_path / "straight.gguf", tmp_path / "sub" / "out.gguf"
    out.parent.mkdir()
    report = quantize_file(model, straight, "Q4_K_M")
    converted.clear()
    assert stop(model, out) == [".out.gguf.journal", ".out.gguf.partial"]
    first = len(converted)
    assert 0 < first < len(report)
    converted.clear()
    assert quantize_file(model, out, "Q4_K_M") == report
    assert out.read_bytes() == straight.read_bytes()
    changed = sum(t.before is not t.after for t in report)
    assert len(converted) == changed - first
    assert sorted(path.name for path in out.parent.iterdir()) == ["out.gguf"]


def test_what_is_damaged_or_of_other_work_is_not_kept(
    model: Path, tmp_path: Path, converted: list[str]
) -> None:
    straight, out = tmp_path / "straight.gguf", tmp_path / "out.gguf"
    quantize_file(model, straight, "Q4_K_M")
    n = len(converted)
    stop(model, out)
    partial = tmp_path / ".out.gguf.partial"
    with open_gguf(straight) as file:
        second = list(file.tensors.values())[1]
    data = bytearray(partial.read_bytes())
    data[second.offset] ^= 1
    partial.write_bytes(data)
    converted.clear()
    quantize_file(model, out, "Q4_K_M")
    assert len(converted) == n - 1  # the first tensor is kept
    assert out.read_bytes() == straight.read_bytes()
    for change in ("other mix", "journal", "source"):
        stop(model, out := tmp_path / f"{change}.gguf")
        source = model
        if change == "journal":
            (tmp_path / f".{out.name}.journal").write_bytes(b'{"stamp": 5}\n[]\nx')
        if change == "source":
            source = tmp_path / "copy.gguf"
            source.write_bytes(model.read_bytes())
        converted.clear()
        quantize_file(source, out, "Q4_K_S" if change == "other mix" else "Q4_K_M")
        assert len(converted) == n
        assert (out.read_bytes() == straight.read_bytes()) is (change != "other mix")


def test_errors_leave_nothing(model: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        quantize_file(model, tmp_path / "out.gguf", "Q4_0", progress=Stopper(2, RuntimeError()))
    assert not list(tmp_path.iterdir())


def test_a_file_that_is_there_stays_until_the_end(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.gguf"
    out.write_bytes(b"before")
    with pytest.raises(KeyboardInterrupt):
        quantize_file(model, out, "Q4_0", progress=Stopper(2, KeyboardInterrupt()))
    assert out.read_bytes() == b"before"
    with pytest.raises(FormatError, match="it is a folder"):
        quantize_file(model, tmp_path, "Q4_0")


def test_two_runs_do_not_write_one_file(model: Path, tmp_path: Path) -> None:
    def second(_: QuantizedTensor) -> None:
        quantize_file(model, tmp_path / "out.gguf", "Q4_0")

    with pytest.raises(FormatError, match="another process is writing"):
        quantize_file(model, tmp_path / "out.gguf", "Q4_0", progress=second)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_values_that_are_not_finite(value: float, tmp_path: Path) -> None:
    x = np.ones((4, 256), np.float32)
    x[2, 9] = value
    write_gguf(tmp_path / "bad.gguf", {"general.architecture": "llama", "llama.block_count": 1},
               [("blk.0.attn_q.weight", "f32", (256, 4), x)])  # fmt: skip
    with pytest.raises(FormatError, match=r"blk\.0\.attn_q\.weight has values that are not fin"):
        quantize_file(tmp_path / "bad.gguf", tmp_path / "out.gguf", "Q4_K_M")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.gguf"]


def test_tensors_one_value_wide(tmp_path: Path) -> None:
    rows: list[TensorSource] = [
        ("blk.0.attn_q.weight", "f32", (1, 5), np.ones(5, np.float32)),
        ("blk.0.attn_k.weight", "f32", (1, 1), np.ones(1, np.float32)),
        ("blk.0.attn_v.weight", "f32", (33, 3), np.ones(99, np.float32)),
    ]
    metadata = {"general.architecture": "llama", "llama.block_count": 1}
    write_gguf(tmp_path / "thin.gguf", metadata, rows)
    weights = {name: np.ones(ne[0], np.float32) for name, _, ne, _ in rows}
    quantize_file(tmp_path / "thin.gguf", tmp_path / "out.gguf", "IQ2_XS",
                  importance=Importance(weights, {}))  # fmt: skip
    with open_gguf(tmp_path / "out.gguf") as file:
        assert {t.dtype.name for t in file.tensors.values()} == {"f16", "f32"}
