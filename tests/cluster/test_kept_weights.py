"""Tensors that a worker keeps on disk under the hash of their bytes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import numpy as np
import pytest

import weft
from weft.cluster.weights import WeightFiles

BYTES = np.arange(100, dtype=np.uint8)
SHA = hashlib.sha256(BYTES.tobytes()).hexdigest()


def kept(cache: Path) -> list[str]:
    """The names of the files that are kept, those of tensors that come included."""
    return sorted(path.name for path in (cache / "tensors").iterdir())


def test_a_tensor_that_came_whole_is_kept(tmp_path: Path) -> None:
    files = WeightFiles([], tmp_path)
    coming = files.incoming(SHA, 100)
    assert [coming.add(BYTES[:60]), coming.add(BYTES[60:])] == [False, True]
    assert files.stored(SHA, 100) is None
    files.store(coming)
    assert kept(tmp_path) == [SHA]
    found = WeightFiles([], tmp_path).stored(SHA, 100)
    assert found is not None and np.array_equal(found, BYTES)
    assert files.stored(SHA, 99) is None


def test_a_tensor_that_came_damaged_is_not_kept(tmp_path: Path) -> None:
    files = WeightFiles([], tmp_path)
    coming = files.incoming(SHA, 100)
    damaged = BYTES.copy()
    damaged[99] ^= 1
    assert coming.add(damaged)
    with pytest.raises(weft.DeviceError, match="arrived damaged"):
        files.store(coming)
    assert kept(tmp_path) == [] and files.stored(SHA, 100) is None


def test_a_tensor_that_came_in_part_is_not_kept(tmp_path: Path) -> None:
    files = WeightFiles([], tmp_path)
    coming = files.incoming(SHA, 100)
    coming.add(BYTES[:60])
    with pytest.raises(weft.DeviceError, match="120 bytes came of a tensor of 100"):
        coming.add(BYTES[:60])
    coming.drop()
    assert kept(tmp_path) == []


def test_a_file_that_was_changed_on_disk_is_dropped(tmp_path: Path) -> None:
    files = WeightFiles([], tmp_path)
    coming = files.incoming(SHA, 100)
    coming.add(BYTES)
    files.store(coming)
    (tmp_path / "tensors" / SHA).write_bytes(bytes(100))
    assert WeightFiles([], tmp_path).stored(SHA, 100) is None
    assert kept(tmp_path) == []


def test_the_oldest_go_first(tmp_path: Path) -> None:
    files = WeightFiles([], tmp_path, most=250)
    names = []
    for n in range(4):
        data = BYTES + np.uint8(n)
        names.append(hashlib.sha256(data.tobytes()).hexdigest())
        coming = files.incoming(names[-1], 100)
        coming.add(data)
        files.store(coming)
        path = tmp_path / "tensors" / names[-1]
        os.utime(path, (n, n))
    assert kept(tmp_path) == sorted(names[2:])
    with pytest.raises(weft.OutOfMemoryError, match="at most 250 bytes"):
        files.incoming(SHA, 251)
