from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from weft.errors import FormatError
from weft.frontends.gguf import open_gguf, shards
from weft.frontends.gguf.writer import write_gguf


def write_shards(folder: Path, n: int, total: int | None = None) -> list[Path]:
    """A model of 2 * n tensors in n files, as llama-gguf-split writes them."""
    paths = []
    for i in range(n):
        path = folder / f"model-{i + 1:05d}-of-{n:05d}.gguf"
        metadata: dict[str, object] = {"general.architecture": "llama"} if i == 0 else {}
        metadata |= {
            "split.no": np.uint16(i),
            "split.count": np.uint16(n),
            "split.tensors.count": np.int32(2 * n if total is None else total),
        }
        data = np.full(8, i, np.uint8)
        write_gguf(path, metadata, [(f"t{i}.{j}", "i8", (8,), data) for j in range(2)])
        paths.append(path)
    return paths


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_shard_opens_the_model(tmp_path: Path, given: int) -> None:
    paths = write_shards(tmp_path, 3)
    with open_gguf(paths[given]) as file:
        assert file.path == paths[0] and file.paths == tuple(paths)
        assert file.architecture == "llama"
        assert list(file.tensors) == [f"t{i}.{j}" for i in range(3) for j in range(2)]
        for i in range(3):
            assert file.tensors[f"t{i}.1"].data.tolist() == [i] * 8
            assert file.tensors[f"t{i}.1"].path == paths[i]
        assert file.nbytes == sum(p.stat().st_size for p in paths)


def test_copy_of_a_split_model_is_one_file(tmp_path: Path) -> None:
    with open_gguf(write_shards(tmp_path, 2)[0]) as file:
        target = tmp_path / "joined.gguf"
        rows = [(t.name, t.dtype, t.ne, t.data) for t in file.tensors.values()]
        write_gguf(target, file.copy_metadata(), rows)
    with open_gguf(target) as joined:
        assert len(joined.tensors) == 4 and list(joined.metadata) == ["general.architecture"]


SIZES = {"a": 8, "b": 8, "c": 32, "d": 8, "e": 8}
KEYS: dict[str, object] = {"general.architecture": "llama", "general.alignment": np.uint32(64)}


@pytest.mark.parametrize(
    ("limits", "parts"),
    [
        ({"max_tensors": 1}, ["a", "b", "c", "d", "e"]),
        ({"max_tensors": 2}, ["ab", "cd", "e"]),
        ({"max_tensors": 4}, ["abcd", "e"]),
        ({"max_bytes": 16}, ["ab", "c", "de"]),
        ({"max_bytes": 15}, ["a", "b", "c", "d", "e"]),
        ({"max_bytes": 48}, ["abc", "de"]),
        ({"max_bytes": 47, "max_tensors": 3}, ["ab", "cd", "e"]),
    ],
)
def test_files_of_limited_size(tmp_path: Path, limits: dict[str, int], parts: list[str]) -> None:
    """Tensors a to e have 8 bytes each, c has 32; their numbers are those of their letters."""
    tensors = [(c, "i8", (n,), np.full(n, ord(c), np.uint8)) for c, n in SIZES.items()]
    paths = shards.write_shards(tmp_path / "m.gguf", KEYS, tensors, shards.ShardLimits(**limits))
    n = len(parts)
    assert [p.name for p in paths] == [f"m-{i + 1:05d}-of-{n:05d}.gguf" for i in range(n)]
    for given in (paths[0], paths[-1]):
        with open_gguf(given) as file:
            assert file.architecture == "llama" and file.metadata["general.alignment"] == 64
            assert {t.name: (t.path, set(t.data.tolist())) for t in file.tensors.values()} == {
                c: (path, {ord(c)}) for path, part in zip(paths, parts, strict=True) for c in part
            }
    joined = tmp_path / "joined.gguf"
    shards.merge_shards(paths[-1], joined)
    with open_gguf(joined) as file:
        assert list(file.tensors) == list(SIZES) and list(file.metadata) == list(KEYS)
    again = shards.split_file(joined, tmp_path / "again.gguf", shards.ShardLimits(**limits))
    assert [p.read_bytes() for p in again] == [p.read_bytes() for p in paths]


def test_one_file_keeps_its_name(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tensors = [("a", "i8", (8,), bytes(8))]
    assert shards.write_shards(path, KEYS, tensors, shards.ShardLimits(0, 1)) == [path]
    with open_gguf(path) as file:
        assert list(file.metadata) == list(KEYS)
    with pytest.raises(FormatError, match="is a file being read"):
        shards.merge_shards(path, path)


def test_missing_shard(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, 3)
    paths[1].unlink()
    with pytest.raises(FormatError, match=r"shard 2 of 3 is missing: .*model-00002-of-00003\.gguf"):
        open_gguf(paths[0])


def test_damaged_shard_is_named(tmp_path: Path) -> None:
    paths = write_shards(tmp_path, 2)
    paths[1].write_bytes(paths[1].read_bytes()[:-40])
    with pytest.raises(FormatError, match=r"model-00002-of-00002\.gguf: tensor 't1\.1'"):
        open_gguf(paths[0])


def test_renamed_shard(tmp_path: Path) -> None:
    path = write_shards(tmp_path, 2)[0].rename(tmp_path / "other.gguf")
    with pytest.raises(FormatError, match=r"rename it to end in -00001-of-00002\.gguf"):
        open_gguf(path)


def test_swapped_shards(tmp_path: Path) -> None:
    a, b = write_shards(tmp_path, 2)
    b.write_bytes(a.read_bytes())
    with pytest.raises(FormatError, match=r"split\.no=0, split\.count=2"):
        open_gguf(a)


def test_shards_that_repeat_a_tensor(tmp_path: Path) -> None:
    a, b = write_shards(tmp_path, 2)
    metadata = {"split.no": 1, "split.count": 2}
    write_gguf(b, metadata, [("t0.0", "i8", (8,), bytes(8))])
    with pytest.raises(FormatError, match=r"'t0\.0' is also in model-00001-of-00002\.gguf"):
        open_gguf(a)


def test_wrong_total(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"split\.tensors\.count is 5, but the 2 shards hold 4"):
        open_gguf(write_shards(tmp_path, 2, total=5)[0])


@pytest.mark.parametrize("count", [-1, 0, 1])
def test_a_count_below_two_is_one_file(tmp_path: Path, count: int) -> None:
    path = tmp_path / "whole.gguf"
    write_gguf(path, {"split.count": np.int32(count)}, [])
    with open_gguf(path) as file:
        assert file.paths == (path,)


@pytest.mark.parametrize("count", [np.uint64(1 << 60), np.int32(100_000), "3", 2.0])
def test_lying_count(tmp_path: Path, count: object) -> None:
    path = tmp_path / "model-00001-of-00003.gguf"
    write_gguf(path, {"split.no": 0, "split.count": count}, [])
    with pytest.raises(FormatError, match=r"split\.count|shard 1 of"):
        open_gguf(path)
