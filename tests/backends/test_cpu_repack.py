"""Repacked weights in memory: what reads them back, who shares them, what becomes of the file."""

from __future__ import annotations

import gc
import mmap
import re
import sys
from pathlib import Path

import numpy as np
import pytest

from weft import _native
from weft.backends.cpu.repack import PanelBufferType, PanelMemory, can_repack, forget_pages
from weft.dtype import DTYPES
from weft.errors import DeviceError
from weft.graph.tensor import Tensor

TYPE = PanelBufferType(_native.ThreadPool(2))


def load(name: str, ne: tuple[int, int, int, int]) -> tuple[np.ndarray, PanelMemory]:
    dtype = DTYPES[name]
    n = ne[0] * ne[1] * ne[2] * ne[3] // dtype.block * dtype.bytes + dtype.tail
    data = np.random.default_rng(3).integers(0, 256, n, np.uint8)
    memory = TYPE.load(data, dtype, ne)
    assert isinstance(memory, PanelMemory)
    return data, memory


@pytest.mark.parametrize("name", ["q4_0", "q6_K", "f16", "i2_s"])
def test_parts_read_as_rows(name: str) -> None:
    data, memory = load(name, (512, 64, 3, 1))
    assert memory.nbytes == data.nbytes
    assert not np.array_equal(memory.panels, data)
    assert memory.panels.ctypes.data % 64 == 0
    n = data.nbytes
    for start, end in ((0, n), (0, 1), (n - 1, n), (n // 3, 2 * n // 3), (5, 5)):
        np.testing.assert_array_equal(memory.read(start, end - start), data[start:end])


def test_rows_behind_the_last_panel_are_read() -> None:
    data, memory = load("q4_0", (64, 77, 1, 1))
    row = data.nbytes // 77
    for first, last in ((0, 77), (63, 64), (63, 65), (64, 77), (70, 71), (0, 64), (77, 77)):
        start, end = first * row, last * row
        np.testing.assert_array_equal(memory.read(start, end - start), data[start:end])
    np.testing.assert_array_equal(memory.panels[64 * row :], data[64 * row :])


def test_what_it_refuses() -> None:
    data, memory = load("q4_0", (64, 32, 1, 1))
    assert memory.host() is None
    with pytest.raises(DeviceError, match="cannot be written; plan with repack=False"):
        memory.write(0, data[:4])
    with pytest.raises(DeviceError, match="of a block of 1152 bytes"):
        memory.read(1150, 3)
    with pytest.raises(DeviceError, match="repacked weights only"):
        TYPE.allocate(64)


def test_the_same_array_is_repacked_once_and_only_while_used() -> None:
    data, memory = load("q8_0", (64, 32, 1, 1))
    other = PanelBufferType(_native.ThreadPool(1))
    assert other.load(data, DTYPES["q8_0"], (64, 32, 1, 1)) is memory
    assert TYPE.load(data.copy(), DTYPES["q8_0"], (64, 32, 1, 1)) is not memory
    from weft.backends.cpu import repack

    key = (id(data), "interleaved", "q8_0", (64, 32, 1, 1))
    assert key in repack._SHARED
    del memory
    gc.collect()
    assert key not in repack._SHARED


def test_arrays_of_the_element_type() -> None:
    data = np.arange(64 * 32, dtype=np.float32).reshape(64, 32)
    memory = TYPE.load(data, DTYPES["f32"], (32, 64, 1, 1))
    np.testing.assert_array_equal(memory.read(0, data.nbytes).view(np.float32), data.ravel())


@pytest.mark.parametrize(
    ("name", "ne", "fits"),
    [
        ("q4_0", (64, 32, 1, 1), True),
        ("q4_0", (64, 96, 8, 2), True),
        ("q4_0", (64, 48, 1, 1), True),
        ("q4_0", (64, 48, 2, 1), False),
        ("q4_0", (64, 31, 1, 1), False),
        ("i2_s", (128, 48, 1, 1), False),
        ("f32", (64, 48, 1, 1), True),
        ("f32", (64, 48, 2, 1), False),
        ("f32", (64, 31, 1, 1), False),
        ("f16", (64, 32, 1, 1), True),
        ("f16", (63, 32, 1, 1), False),
        ("f32", (63, 32, 1, 1), True),
        ("i32", (64, 32, 1, 1), False),
        ("q8_K", (256, 32, 1, 1), False),
    ],
)
def test_which_matrices_have_panels(name: str, ne: tuple[int, int, int, int], fits: bool) -> None:
    assert can_repack(Tensor(DTYPES[name], ne)) == fits


def test_gaps_have_no_panels() -> None:
    assert not can_repack(Tensor(DTYPES["f32"], (8, 32, 1, 1), nb=(4, 64, 2048, 2048)))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_of_a_mapped_file_are_given_back(tmp_path: Path) -> None:
    path = tmp_path / "weights"
    content = np.random.default_rng(0).integers(0, 256, 4 << 20, np.uint8)
    path.write_bytes(content.tobytes())
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    array = np.frombuffer(mapped, np.uint8, 3 << 20, 1000)
    assert array.sum() and resident(path) > 2000
    forget_pages(array)
    assert resident(path) < 1500  # the mebibyte behind the array may still be there
    np.testing.assert_array_equal(array, content[1000 : 1000 + (3 << 20)])
    # memory that is no file keeps what it holds
    forget_pages(content)
    np.testing.assert_array_equal(array, content[1000 : 1000 + (3 << 20)])


def resident(path: Path) -> int:
    """Resident KiB of this process' map of a file."""
    text = Path("/proc/self/smaps").read_text()
    match = re.search(re.escape(str(path)) + r".*?Rss:\s+(\d+) kB", text, re.DOTALL)
    assert match is not None
    return int(match[1])
