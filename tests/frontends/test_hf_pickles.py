"""`pytorch_model.bin`: tensors are read where they lie, and nothing of a pickle runs."""

from __future__ import annotations

import io
import json
import pickle
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import FormatError
from weft.frontends.hf import pickles
from weft.frontends.hf.safetensors import open_shards
from weft.frontends.hf.values import stored_values

torch = pytest.importorskip("torch")


def made() -> dict[str, Any]:
    """Tensors of several types; one is a part of another's storage, one a parameter."""
    torch.manual_seed(1)
    whole = torch.randn(6, 4)
    return {
        "a.weight": whole, "a.part": whole[2:4], "b.weight": torch.nn.Parameter(torch.randn(3, 5)),
        "half": torch.randn(7).half(), "brain": torch.randn(2, 3, 4).bfloat16(),
        "codes": torch.arange(9, dtype=torch.int8), "ids": torch.arange(4),
        "one": torch.tensor(2.5), "none": torch.zeros(0, 4), "row": torch.randn(1, 8)[:, ::1],
    }  # fmt: skip


@pytest.mark.parametrize("protocol", [2, 4])
def test_tensors_of_torch_save(tmp_path: Path, protocol: int) -> None:
    tensors = made()
    torch.save(tensors, tmp_path / "pytorch_model.bin", pickle_protocol=protocol)
    found = open_shards(tmp_path)
    assert list(found) == sorted(tensors)
    for name, t in tensors.items():
        assert found[name].shape == tuple(t.shape)
        want = t.detach().view(torch.uint8 if t.dim() else torch.float32) if t.numel() else t
        if t.dtype in (torch.float32, torch.float16, torch.bfloat16):
            np.testing.assert_array_equal(
                stored_values(found[name]).load(), t.detach().float().numpy()
            )
        else:
            assert found[name].data.tobytes() == want.numpy().tobytes()


def test_state_of_a_module(tmp_path: Path) -> None:
    """An OrderedDict with attributes, in two files with an index."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.LayerNorm(3))
    state = model.state_dict()
    names = list(state)
    files = ["pytorch_model-00001-of-00002.bin", "pytorch_model-00002-of-00002.bin"]
    for file, part in zip(files, (names[:2], names[2:]), strict=True):
        kept = state.copy()
        for name in set(names) - set(part):
            del kept[name]
        kept._metadata = state._metadata
        torch.save(kept, tmp_path / file)
    assert list(open_shards(tmp_path)) == sorted(names)
    where = {name: files[i // 2] for i, name in enumerate(names)}
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": where}))
    assert list(open_shards(tmp_path)) == sorted(names)
    index.write_text(json.dumps({"weight_map": where | {"x": files[0]}}))
    with pytest.raises(FormatError, match=r"pytorch_model\.bin\.index\.json lists are missing \(x"):
        open_shards(tmp_path)
    index.unlink()
    (tmp_path / files[1]).unlink()
    with pytest.raises(FormatError, match=r"1 of 2 files are missing \(pytorch_model-00002-of-"):
        open_shards(tmp_path)


class Runs:
    def __reduce__(self) -> Any:
        return (pytest.fail, ("a pickle ran",))


def archive(folder: Path, program: bytes, compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(folder / "pytorch_model.bin", "w", compression) as made:
        made.writestr("x/data.pkl", program)
        made.writestr("x/data/0", bytes(64))


def refusal(folder: Path) -> str:
    with pytest.raises(FormatError) as caught:
        open_shards(folder)
    assert str(folder / "pytorch_model.bin") in str(caught.value)
    return str(caught.value)


def test_nothing_else_runs(tmp_path: Path) -> None:
    archive(tmp_path, pickle.dumps({"a": Runs()}, protocol=2))
    assert "and weft reads tensors only" in refusal(tmp_path)
    for program in (b"cos\nsystem\n(U\x02ls\x85R.", b"\x80\x02(cos\nsystem\nX\x02\0\0\0lso."):
        archive(tmp_path, program)
        assert "weft reads tensors only" in refusal(tmp_path)
    archive(tmp_path, pickle.dumps([1, 2], protocol=2))
    assert "is not a dictionary of tensors" in refusal(tmp_path)
    archive(tmp_path, pickle.dumps({"state": {"x": 1}}, protocol=2))
    assert "has no tensors by name" in refusal(tmp_path)


def test_damaged_and_old_files(tmp_path: Path) -> None:
    torch.save({"a": torch.ones(3)}, tmp_path / "pytorch_model.bin",
               _use_new_zipfile_serialization=False)  # fmt: skip
    assert "a pickle of PyTorch before 1.6" in refusal(tmp_path)
    torch.save({"a": torch.ones(3, 4).T}, tmp_path / "pytorch_model.bin")
    assert "numbers of tensor 'a' are not in order" in refusal(tmp_path)
    good = io.BytesIO()
    torch.save({"a": torch.ones(300)}, good)
    data = good.getvalue()
    random = np.random.default_rng(2)
    for _ in range(150):  # read, or refused
        wrong = bytearray(data)
        for at in random.integers(0, len(wrong), 3):
            wrong[at] = random.integers(0, 256)
        (tmp_path / "pytorch_model.bin").write_bytes(wrong[: random.integers(1, len(wrong) + 1)])
        try:
            for t in open_shards(tmp_path).values():
                assert t.data.nbytes == t.nbytes
        except FormatError:
            pass
    archive(tmp_path, pickle.dumps({}, protocol=2), zipfile.ZIP_DEFLATED)
    assert "is compressed" in refusal(tmp_path)


def test_long_pickles_take_little_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Marks that lie under others are not searched again and again."""
    start = time.process_time()
    archive(tmp_path, b"\x80\x02" + b"(" * 200_000 + b"}" * 200_000 + b"t" * 200_000 + b".")
    refusal(tmp_path)
    archive(tmp_path, b"\x80\x02)" + b"q\x00h\x00h\x00\x86" * 100 + b"q\x01h\x01h\x01\x93.")
    assert "damaged" in refusal(tmp_path)
    archive(tmp_path, b"\x80\x02" + bytes(1 << 23))
    assert "weft reads up to 8388608" in refusal(tmp_path)
    monkeypatch.setattr(pickles, "PICKLE_STEPS", 1000)
    archive(tmp_path, b"\x80\x02" + b"}" * 1001 + b".")
    assert "more than 1000 instructions" in refusal(tmp_path)
    assert time.process_time() - start < 10


def test_tensors_with_many_axes_are_refused(tmp_path: Path) -> None:
    """Many tensors may share one long tuple, which would be read for each of them."""
    shared = b"(" + b"K\1" * 9 + b"tq\1"
    storage = b"(X\7\0\0\0storagectorch\nFloatStorage\nX\1\0\0\0000X\3\0\0\0cpuK\x10tQ"
    tensor = b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"K\0h\1h\1tR"
    archive(tmp_path, b"\x80\2" + shared + b"}X\1\0\0\0a" + tensor + b"s.")
    assert "a tensor of the pickle has 9 axes; weft reads up to 8" in refusal(tmp_path)
    archive(tmp_path, b"\x80\2" + shared.replace(b"K\1", b"", 1) + b"}X\1\0\0\0a" + tensor + b"s.")
    assert open_shards(tmp_path)["a"].shape == (1,) * 8
