"""The interleaved layout against a NumPy shuffle, and what the executor refuses of it."""

from __future__ import annotations

import numpy as np
import pytest

from weft import _native
from weft.dtype import DTYPES
from weft.graph.op import OPS

# (offset, bytes of a word, words) of each field, as panels store them: written down from the block
# structures, not from the native table.
FIELDS = {
    "f32": (1, [(0, 4, 1)]),
    "f16": (2, [(0, 4, 1)]),
    "bf16": (2, [(0, 4, 1)]),
    "q4_0": (32, [(0, 2, 1), (2, 4, 4)]),
    "q4_1": (32, [(0, 2, 1), (2, 2, 1), (4, 4, 4)]),
    "q5_0": (32, [(0, 2, 1), (2, 4, 1), (6, 4, 4)]),
    "q5_1": (32, [(0, 2, 1), (2, 2, 1), (4, 4, 1), (8, 4, 4)]),
    "q8_0": (32, [(0, 2, 1), (2, 4, 8)]),
    "q2_K": (256, [(80, 2, 1), (82, 2, 1), (0, 4, 4), (16, 4, 16)]),
    "q3_K": (256, [(108, 2, 1), (0, 4, 8), (32, 4, 16), (96, 4, 3)]),
    "q4_K": (256, [(0, 2, 1), (2, 2, 1), (4, 4, 3), (16, 4, 32)]),
    "q5_K": (256, [(0, 2, 1), (2, 2, 1), (4, 4, 3), (16, 4, 8), (48, 4, 32)]),
    "q6_K": (256, [(208, 2, 1), (192, 4, 4), (0, 4, 32), (128, 4, 16)]),
    "tq1_0": (256, [(52, 2, 1), (0, 4, 12), (48, 4, 1)]),
    "tq2_0": (256, [(64, 2, 1), (0, 4, 16)]),
    "i2_s": (128, [(0, 4, 8)]),
    "iq4_nl": (32, [(0, 2, 1), (2, 4, 4)]),
    "iq4_xs": (256, [(0, 2, 1), (2, 2, 1), (4, 4, 1), (8, 4, 32)]),
    "iq2_xxs": (256, [(0, 2, 1), (2, 4, 16)]),
    "iq2_xs": (256, [(0, 2, 1), (2, 4, 16), (66, 4, 2)]),
    "iq2_s": (256, [(0, 2, 1), (2, 4, 8), (34, 4, 8), (66, 4, 2), (74, 4, 2)]),
    "iq3_xxs": (256, [(0, 2, 1), (2, 4, 16), (66, 4, 8)]),
    "iq3_s": (256, [(0, 2, 1), (2, 4, 16), (66, 4, 2), (74, 4, 8), (106, 4, 1)]),
    "iq1_s": (256, [(0, 2, 1), (2, 4, 8), (34, 4, 4)]),
    "iq1_m": (256, [(0, 4, 8), (32, 4, 4), (48, 4, 2)]),
    "mxfp4": (32, [(0, 1, 1), (1, 4, 4)]),
    "nvfp4": (64, [(0, 4, 1), (4, 4, 8)]),
    "q1_0": (128, [(0, 2, 1), (2, 4, 4)]),
    "q2_0": (64, [(0, 2, 1), (2, 4, 4)]),
    "iq2_k": (256, [(0, 2, 1), (2, 2, 1), (4, 4, 2), (12, 4, 16)]),
    "iq3_k": (256, [(0, 2, 1), (2, 2, 1), (4, 2, 1), (6, 4, 2), (14, 4, 16), (78, 4, 8)]),
    "iq4_k": (256, [(0, 2, 1), (2, 2, 1), (4, 4, 1), (8, 4, 2), (16, 4, 32)]),
    "iq5_k": (256, [(0, 2, 1), (2, 2, 1), (4, 4, 1), (8, 4, 2), (16, 4, 32), (144, 4, 8)]),
    "iq6_k": (256, [(0, 2, 1), (2, 2, 1), (4, 4, 4), (20, 4, 32), (148, 4, 16)]),
    "iq2_ks": (256, [(0, 2, 1), (2, 2, 1), (4, 4, 1), (8, 4, 16)]),
    "iq3_ks": (256, [(0, 2, 1), (2, 2, 1), (4, 4, 1), (8, 4, 16), (72, 4, 8)]),
    "iq4_ks": (256, [(0, 4, 1), (4, 4, 2), (12, 4, 32)]),
    "iq5_ks": (256, [(0, 4, 1), (4, 4, 2), (12, 4, 32), (140, 4, 8)]),
    "iq2_kl": (256, [(0, 2, 1), (2, 2, 1), (4, 4, 1), (8, 4, 16), (72, 4, 4)]),
    "iq1_kt": (256, [(0, 4, 1), (4, 4, 2), (12, 4, 8), (44, 4, 4)]),
    "iq2_kt": (256, [(0, 4, 1), (4, 4, 1), (8, 4, 16)]),
    "iq3_kt": (256, [(0, 4, 1), (4, 4, 1), (8, 4, 16), (72, 4, 8)]),
    "iq4_kt": (256, [(0, 4, 1), (4, 4, 8), (36, 4, 16), (100, 4, 8)]),
    "iq2_bn": (64, [(0, 4, 1), (4, 4, 4)]),
    "q6_0": (32, [(0, 2, 1), (2, 4, 2), (10, 4, 4)]),
    "q8_KV": (32, [(0, 4, 1), (4, 4, 8)]),
}


# Where codes of more than one plane are in a file, and in panels: for each code of those that share
# bytes, its bits from the lowest on, as (byte of 32, bit); then the 32-byte rows of a run of them.
WHOLE = {
    "q3_K": (
        [[(1 + i // 4, i % 4 * 2), (1 + i // 4, i % 4 * 2 + 1), (0, i)] for i in range(8)],
        [[(i // 2, i % 2 * 3 + b) for b in range(3)] for i in range(6)]
        + [[(0, 6), (0, 7), (2, 6)], [(1, 6), (1, 7), (2, 7)]],
        [[0, 1, 2]],
    ),
    "q5_K": (
        [[*((1 + i // 2, i % 2 * 4 + b) for b in range(4)), (0, i)] for i in range(8)],
        [[(i, b) for b in range(5)] for i in range(5)]
        + [
            [(0, 5), (0, 6), (0, 7), (3, 5), (3, 6)],
            [(1, 5), (1, 6), (1, 7), (3, 7), (4, 7)],
            [(2, 5), (2, 6), (2, 7), (4, 5), (4, 6)],
        ],
        [[0, 1, 2, 3, 4]],
    ),
    "q6_K": (
        [
            [*((i % 2, i // 2 * 4 + b) for b in range(4)), (2, 2 * i), (2, 2 * i + 1)]
            for i in range(4)
        ],
        [[(i, b) for b in range(6)] for i in range(3)]
        + [[(0, 6), (0, 7), (1, 6), (1, 7), (2, 6), (2, 7)]],
        [[0, 1, 4], [2, 3, 5]],
    ),
}


def made_whole(name: str, blocks: np.ndarray) -> np.ndarray:
    """The blocks with the bits of their codes where panels have them."""
    if name not in WHOLE:
        return blocks
    planes, whole, runs = WHOLE[name]
    first = {"q3_K": 0, "q5_K": 16, "q6_K": 0}[name]
    out = blocks.copy()
    for number, rows in enumerate(runs):
        from_at = [first + 32 * row for row in rows]
        to_at = [first + 32 * (number * len(rows) + i) for i in range(len(rows))]
        for at in to_at:
            out[..., at : at + 32] = 0
        for code, places in zip(planes, whole, strict=True):
            for (a, i), (b, j) in zip(code, places, strict=True):
                bits = blocks[..., from_at[a] : from_at[a] + 32] >> i & 1
                out[..., to_at[b] : to_at[b] + 32] |= bits << j
    return out


def shuffled(name: str, data: np.ndarray, rows: int, k: int) -> np.ndarray:
    """The panels of `data` (one matrix, or several behind each other), by NumPy."""
    block, fields = FIELDS[name]
    size = sum(width * count for _, width, count in fields)
    rows -= rows % 32  # those behind the last panel stay rows
    blocks = data[: rows * (k // block) * size].reshape(rows // 32, 32, k // block, size)
    blocks = made_whole(name, blocks)
    parts = []
    for offset, width, count in fields:
        words = blocks[..., offset : offset + width * count]
        words = words.reshape(*blocks.shape[:3], count, width)  # panel, row, block, word, byte
        words = words.transpose(0, 2, 3, 1, 4)  # panel, block, word, row, byte
        parts.append(words.reshape(rows // 32, k // block, -1))
    panels = np.concatenate(parts, axis=2).reshape(-1)
    return np.concatenate([panels, data[panels.size :]])


def random_bytes(name: str, rows: int, k: int) -> np.ndarray:
    dtype = DTYPES[name]
    n = rows * k // dtype.block * dtype.bytes + dtype.tail
    return np.random.default_rng(len(name) + k).integers(0, 256, n, np.uint8)


def test_every_weight_type_has_the_layout() -> None:
    have = {d.name for d in DTYPES.values() if _native.interleaved_block(d.id)}
    assert have == set(FIELDS)
    for name, (block, _) in FIELDS.items():
        assert _native.interleaved_block(DTYPES[name].id) == block


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("name", FIELDS)
def test_panels_and_back(name: str, threads: int) -> None:
    pool = _native.ThreadPool(threads)
    tail = [(77, 5)] if name != "i2_s" else []
    for rows, blocks in ((32, 1), (96, 3), (64, 21), *tail):
        k = FIELDS[name][0] * blocks
        data = random_bytes(name, rows, k)
        panels = np.zeros_like(data)
        _native.interleave(DTYPES[name].id, data, panels, rows, k, pool)
        np.testing.assert_array_equal(panels, shuffled(name, data, rows, k))
        back = np.zeros_like(data)
        _native.deinterleave(DTYPES[name].id, panels, back, rows, k, pool)
        np.testing.assert_array_equal(back, data)


def test_read_only_sources() -> None:
    data = random_bytes("q4_0", 32, 64)
    data.setflags(write=False)
    out = np.zeros_like(data)
    _native.interleave(DTYPES["q4_0"].id, data, out, 32, 64, _native.ThreadPool(1))
    np.testing.assert_array_equal(out, shuffled("q4_0", data, 32, 64))


def test_bad_calls_are_refused() -> None:
    pool = _native.ThreadPool(1)
    q4 = DTYPES["q4_0"].id
    data = random_bytes("q4_0", 32, 64)
    out = np.zeros_like(data)
    with pytest.raises(ValueError, match="no interleaved layout"):
        _native.interleave(DTYPES["q8_K"].id, data, out, 32, 64, pool)
    with pytest.raises(ValueError, match="multiple of 32 rows"):
        _native.interleave(q4, data, out, 16, 128, pool)
    floats = random_bytes("f32", 31, 4)
    with pytest.raises(ValueError, match="multiple of 32 rows"):
        _native.interleave(DTYPES["f32"].id, floats, np.zeros_like(floats), 31, 4, pool)
    ternary = random_bytes("i2_s", 33, 128)
    with pytest.raises(ValueError, match="multiple of 32 rows"):
        _native.interleave(DTYPES["i2_s"].id, ternary, np.zeros_like(ternary), 33, 128, pool)
    with pytest.raises(ValueError, match="rows of whole blocks"):
        _native.interleave(q4, data, out, 64, 16, pool)
    with pytest.raises(ValueError, match="has 2304 bytes"):
        _native.interleave(q4, data, out, 64, 64, pool)
    with pytest.raises(ValueError, match="overlap"):
        _native.interleave(q4, data, data, 32, 64, pool)
    with pytest.raises(ValueError, match="too many bytes"):
        _native.interleave(q4, data, out, 2**60, 64, pool)


def _tensor(buffer: int, ne: tuple[int, int], layout: int, offset: int = 0) -> list[int]:
    row = [DTYPES["f32"].id, buffer, layout]
    for size in (*ne, 1, 1, 4, 4 * ne[0], 4 * ne[0] * ne[1], 4 * ne[0] * ne[1], offset):
        row += [size, -1]
    return row


def _create(op: str, tensors: list[list[int]], dst: int, src: list[int]) -> None:
    program = _native.Program.from_tables(
        symbols=[],
        exprs=np.zeros((0, 3), np.int64),
        buffers=[1 << 14] * 3,
        names=[f"t{i}" for i in range(len(tensors))],
        tensors=np.array(tensors, np.int64),
        steps=np.array([[OPS[op].number, dst, 0, 0, *src, *[-1] * (10 - len(src))]], np.int64),
        stages=np.array([[0, 1]], np.int64),
        params=[],
    )
    memory = [np.zeros(1 << 14, np.uint8) for _ in range(3)]
    blocks = [(m.ctypes.data, m.nbytes) for m in memory]
    _native.Executor.create(program, blocks, _native.best_target(), _native.ThreadPool(1))


def test_only_source_0_of_kernels_that_take_it() -> None:
    weights, x, y = _tensor(0, (8, 32), 1), _tensor(1, (8, 32), 0), _tensor(2, (8, 32), 0)
    with pytest.raises(ValueError, match="t0 is interleaved; ADD can neither write it"):
        _create("ADD", [weights, x, y], 2, [0, 1])
    with pytest.raises(ValueError, match="t0 is interleaved; ADD can neither write it"):
        _create("ADD", [weights, x, y], 2, [1, 0])
    with pytest.raises(ValueError, match="t0 is interleaved; ADD can neither write it"):
        _create("ADD", [weights, x, y], 0, [1, 2])
    with pytest.raises(ValueError, match="t0 is interleaved; MUL_MAT can neither write it"):
        _create("MUL_MAT", [weights, x, _tensor(2, (32, 8), 0), x], 2, [1, 0])


def test_a_refusal_says_so_before_anything_is_planned() -> None:
    sizes = (DTYPES["f32"].id, [8, 32, 1, 1], [4, 32, 1024, 1024])
    call = (_native.best_target(), OPS["ADD"].number, sizes, [sizes, sizes], [])
    assert _native.refusal(*call) is None
    assert _native.refusal(*call, layout=1) == "it does not take repacked weights"


def test_views_into_interleaved_weights_are_refused() -> None:
    weights, x, y = _tensor(0, (8, 64), 1), _tensor(1, (8, 32), 0), _tensor(2, (8, 32), 0)
    for view in (_tensor(0, (8, 32), 0), _tensor(0, (8, 32), 1), _tensor(0, (8, 32), 1, 1024)):
        with pytest.raises(ValueError, match="view into it"):
            _create("ADD", [weights, view, x, y], 3, [1, 2])
