"""Files with types of ik_llama.cpp: rows with headers, and rows that lie together."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf_files import fields, kv, put, raw_file, tensor_info

from tests.cli.in_process import weft as command
from tests.llm.tiny import metadata, weights, write_model
from weft import quants
from weft.dtype import DTYPES
from weft.errors import ContextError, FormatError
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.row_forms import ROW_FORMS, RowForm
from weft.frontends.gguf.writer import write_gguf
from weft.llm import Context, Model

FORMS = {form.name: form for form in ROW_FORMS.values()}
WIDTH = 256
MIXED = {
    "token_embd.weight": "iq4_ks",
    "output.weight": "iq5_ks",
    "blk.0.attn_q.weight": "iq4_ks_r4",
    "blk.0.attn_k.weight": "iq2_kl",
    "blk.0.attn_v.weight": "iq4_kss",
    "blk.0.attn_output.weight": "iq4_kt",
    "blk.0.ffn_gate_exps.weight": "iq2_ks",
    "blk.0.ffn_up_exps.weight": "iq5_ks_r4",
    "blk.0.ffn_down_exps.weight": "iq3_ks",
}


def stored(form: RowForm, ne: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Random bytes whose scales make weights of an ordinary size, `[panels, rows * row bytes]`."""
    n_rows = int(np.prod(ne[1:]))
    data = rng.integers(0, 256, (n_rows // form.rows, form.nbytes(ne) // n_rows * form.rows))
    data = data.astype(np.uint8)
    scale = np.full((form.rows,), 1e-5, "<f4" if form.header == 4 else "<f2")
    data[:, : form.header * form.rows] = scale.view(np.uint8)
    return data


def with_types(path: Path, names: dict[str, str], sizes: dict[str, tuple[int, ...]]) -> None:
    """Gives tensors of bytes other types and sizes, which `write_gguf` does not write."""
    data = path.read_bytes()
    seen: dict[str, int] = {}
    for field in fields(data):
        if field.what not in names:
            continue
        if field.kind == "size":
            seen[field.what] = seen.get(field.what, -1) + 1
            data = put(data, field, sizes[field.what][seen[field.what]])
        elif field.kind == "type":
            data = put(data, field, FORMS[names[field.what]].id)
    path.write_bytes(data)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A mixture of one layer with the types of `MIXED`, and the same weights as floats."""
    folder = tmp_path_factory.mktemp("ik")
    meta = metadata(**{
        "llama.embedding_length": WIDTH, "llama.feed_forward_length": WIDTH, "llama.block_count": 1,
        "llama.expert_count": 3, "llama.expert_used_count": 2,
    })  # fmt: skip
    tensors = weights(meta)
    rng = np.random.default_rng(4)
    sources: list[Any] = []
    sizes: dict[str, tuple[int, ...]] = {}
    for name, x in tensors.items():
        ne = x.shape[::-1]
        if name not in MIXED:
            sources.append((name, "f32", ne, x.tobytes()))
            continue
        form = FORMS[MIXED[name]]
        if ne[1] % form.rows:
            raise AssertionError(name)
        data = stored(form, ne, rng)
        rows = form.in_memory(data.reshape(-1), ne[0]).reshape(-1, form.dtype.row_bytes(ne[0]))
        tensors[name] = quants.decode(rows, form.dtype).reshape(x.shape)
        sizes[name] = ne
        sources.append((name, "i8", (data.size // int(np.prod(ne[1:])), *ne[1:]), data.tobytes()))
    path = folder / "mixed.gguf"
    write_gguf(path, meta, sources)
    with_types(path, MIXED, sizes)
    return path, write_model(folder / "floats.gguf", meta, tensors)


def logits(path: Path, **options: Any) -> np.ndarray:
    """Logits of a prompt, and of two tokens after it one by one."""
    context = Context(Model.open(path), 48, n_threads=2, **options)
    rows = [context.decode([1, *range(5, 30)], outputs="all")]
    rows += [context.decode([token]) for token in (7, 21)]
    return np.concatenate(rows)


def test_a_model_of_many_types_gives_the_logits_of_its_values(models: tuple[Path, Path]) -> None:
    """Embeddings, products and experts; activations are rounded to eight bits."""
    got, want = (logits(path) for path in models)
    assert np.abs(want).max() > 0.5
    assert ((got - want) ** 2).sum() <= 1e-3 * (want**2).sum()


def test_inspect_names_the_types(models: tuple[Path, Path]) -> None:
    done = command("inspect", str(models[0]))
    assert done.returncode == 0
    for text in ("iq4_ks_r4 (iq4_ks in memory)", "iq4_kss (iq4_ks in memory)", "iq2_kl"):
        assert text in done.stdout


def test_experts_in_such_forms_do_not_stay_in_the_file(models: tuple[Path, Path]) -> None:
    with pytest.raises(ContextError, match="has experts in iq2_ks, which are brought into another"):
        Context(Model.open(models[0]), 48, expert_budget="1M")


@pytest.mark.parametrize(
    "args", [("quantize", "IN", "OUT", "IQ4_KS"), ("gguf", "set", "IN", "general.name", "b", "OUT")]
)
def test_such_types_are_not_written(
    args: tuple[str, ...], models: tuple[Path, Path], tmp_path: Path
) -> None:
    paths = {"IN": str(models[0]), "OUT": str(tmp_path / "out.gguf")}
    done = command(*(paths.get(arg, arg) for arg in args))
    assert done.returncode != 0
    assert "reads and does not write" in done.stderr


def one_tensor(path: Path, id_: int, ne: list[int], size: int) -> Path:
    keys = [kv("general.architecture", 8, struct.pack("<Q", 5) + b"llama")]
    path.write_bytes(raw_file(keys, [tensor_info("w", ne, id_, 0)], bytes(size)))
    return path


@pytest.mark.parametrize("form", ROW_FORMS.values(), ids=lambda form: form.name)
def test_bad_sizes_are_refused_by_name(form: RowForm, tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    n = 2 * form.block
    size = form.nbytes((n, form.rows))
    with open_gguf(one_tensor(path, form.id, [n, form.rows], size)) as file:
        assert file.tensors["w"].data.size == form.rows * form.dtype.row_bytes(n)
    wrong = [
        ([n, form.rows], size - 1, "the file ends"),
        ([n + 1, form.rows], 2 * size, "multiple"),
    ]
    if form.rows > 1:
        wrong.append(([n, form.rows + 1], 2 * size, f"{form.rows} rows together"))
        wrong.append(([n, 1, form.rows], 2 * size, f"{form.rows} rows together"))
        wrong.append(([n], 2 * size, f"{form.rows} rows together"))
    for ne, n_bytes, text in wrong:
        with pytest.raises(FormatError, match=text) as refused:
            open_gguf(one_tensor(path, form.id, ne, n_bytes))
        assert "'w'" in str(refused.value) and form.name in str(refused.value)


def test_unknown_numbers_are_named_as_ik_llama_cpps(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"type id 136 of ik_llama\.cpp's, which weft"):
        open_gguf(one_tensor(tmp_path / "m.gguf", 136, [256, 4], 4096))


def test_tensors_that_overlap_are_refused(tmp_path: Path) -> None:
    form = FORMS["iq4_ks"]
    infos = [tensor_info("a", [256], form.id, 0), tensor_info("b", [8], 0, 128)]
    path = tmp_path / "m.gguf"
    keys = [kv("general.architecture", 8, struct.pack("<Q", 5) + b"llama")]
    path.write_bytes(raw_file(keys, infos, bytes(256)))
    with pytest.raises(FormatError, match="share bytes"):
        open_gguf(path)


def test_a_file_that_is_only_a_beginning_is_planned(tmp_path: Path) -> None:
    """The bytes that are missing are counted as in the file, and read as zeros without memory."""
    form = FORMS["iq2_ks"]
    path = one_tensor(tmp_path / "m.gguf", form.id, [512, 4], 0)
    with open_gguf(path, whole=False) as file:
        assert file.n_missing == form.nbytes((512, 4)) == 4 * 142
        tensor = file.tensors["w"]
        assert tensor.nbytes == tensor.data.size == 4 * DTYPES["iq2_ks"].row_bytes(512)
        assert tensor.data.strides == (0,)
