"""The recorded op cases as operands of the harness, and the judgement their records ask for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from harness import Operand, Refused, result, run_op
from numpy.typing import NDArray

from tests.targets import TARGETS
from weft import quants
from weft.dtype import find_dtype

Case = dict[str, Any]

VECTORS = Path(__file__).parents[3] / "shared/vectors/ops"
needs_vectors = pytest.mark.skipif(
    not VECTORS.exists(), reason="the golden vectors are not beside the repository"
)


@cache
def cases() -> list[Case]:
    """All records of the golden cases; none when the vectors are absent."""
    if not VECTORS.exists():
        return []
    matching: list[Case] = json.loads((VECTORS / "index.json").read_text())["cases"]
    return matching


def op_cases(*ops: str) -> list[Case]:
    """The cases of these ggml ops."""
    return [case for case in cases() if case["group"] != "quant" and case["ggml_op"] in ops]


def all_pass(cases: Iterable[Case], check: Callable[[Case], None]) -> None:
    """Checks every case, and fails with those that do not pass; there must be one."""
    wrong, count = [], 0
    for case in cases:
        count += 1
        try:
            check(case)
        except (AssertionError, Refused) as error:
            wrong.append(f"{case['id']}: {error}")
    assert not wrong, f"{len(wrong)} of {count} cases:\n" + "\n".join(wrong[:20])
    assert count, "there is no such case"


@cache
def _file(name: str) -> Any:
    return np.load(VECTORS / name)


@cache
def array(file: str, key: str) -> NDArray[Any]:
    """A recorded array; it is cached, because many cases share one."""
    stored: NDArray[Any] = _file(file)[key]
    stored.setflags(write=False)
    return stored


def operands(case: Case) -> tuple[Operand, list[Operand]]:
    """(destination, sources) of a case; a destination that is a view shares its leaf's memory."""
    memory = {
        leaf["name"]: array(case["file"], leaf["key"]).reshape(-1).view(np.uint8).copy()
        for leaf in case["leaves"]
    }
    sources = [
        Operand(memory[i["leaf"]], i["type"], tuple(i["ne"]), tuple(i["nb"]), i["view_offs"])
        for i in sorted(case["inputs"], key=lambda i: i["src_index"])
    ]
    out = case["output"]
    if out["is_view_of"] is None:
        dst = result(out["type"], out["ne"], out["nb"])
    else:
        dst = Operand(
            memory[out["is_view_of"]],
            out["type"],
            tuple(out["ne"]),
            tuple(out["nb"]),
            out["view_offs"],
        )
    return dst, sources


def run_case(
    case: Case, params: Sequence[float] = (), target: str = TARGETS[0], n_threads: int = 1
) -> NDArray[Any]:
    """The destination's elements; the bytes around a view are checked against the record too."""
    dst, sources = operands(case)
    if case["op"] == "CAST":
        sources.append(dst)
    whole = run_op(case["ggml_op"], dst, sources, params, target, n_threads, whole=True)
    if case["output"]["is_view_of"] is not None:
        inside = np.zeros(whole.size, bool)
        dt = find_dtype(dst.dtype)
        units = (*dst.ne[:0:-1], dst.ne[0] // dt.block, dt.bytes)
        window = np.lib.stride_tricks.as_strided(
            inside[dst.offset :], units, (*dst.nb[::-1], 1), writeable=True
        )
        window[...] = True
        golden = array(case["file"], case["output"]["key"]).reshape(-1).view(np.uint8)
        assert np.array_equal(whole[~inside], golden[~inside]), "bytes beside the view changed"
    return dst.read(whole)


def golden_output(case: Case) -> NDArray[Any]:
    """The recorded result's elements `[i3, i2, i1, i0]` in the storage type."""
    out = case["output"]
    memory = array(case["file"], out["key"]).reshape(-1).view(np.uint8)
    return Operand(memory, out["type"], tuple(out["ne"]), tuple(out["nb"]), out["view_offs"]).read()


def nmse(got: NDArray[Any], want: NDArray[Any]) -> float:
    """sum((want - got)**2) / sum(want**2) over the finite entries of `want`."""
    finite = np.isfinite(want)
    want = want[finite].astype(np.float64)
    error = want - got[finite].astype(np.float64)
    norm = float(np.sum(want * want))
    return float(np.sum(error * error)) / (norm if norm > 0 else 1.0)


def judge(case: Case, got: NDArray[Any]) -> None:
    """Fails unless `got` passes as the record says; the float64 reference is the caller's."""
    compare = case["compare"]
    if compare.get("informative"):
        return
    dtype = case["output"]["type"]
    want = golden_output(case)
    if compare["mode"] == "quant":
        size = find_dtype(dtype).bytes
        equal = (got.reshape(-1, size) == want.reshape(-1, size)).all(axis=1)
        assert equal.mean() >= compare["min_equal_block_fraction"], "too few equal blocks"
        return
    if not find_dtype(dtype).is_quantized:
        got, want = quants.from_storage(got, dtype), quants.from_storage(want, dtype)
    if compare["mode"] == "set_per_row":
        got, want = np.sort(got, axis=-1), np.sort(want, axis=-1)
    if compare["mode"] in ("exact", "set_per_row"):
        np.testing.assert_array_equal(got, want)
        return
    assert np.array_equal(np.isfinite(got), np.isfinite(want)), "inf or NaN elsewhere"
    error = nmse(got, want)
    assert error <= compare["max_nmse"], f"NMSE {error:.3g} exceeds {compare['max_nmse']:.3g}"
