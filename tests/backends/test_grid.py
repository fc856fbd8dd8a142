"""The grid of ops and devices: complete, honest, and the page in docs is current."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.conftest import ROOT
from weft.backends import make_backend
from weft.backends.base import YES, Support
from weft.backends.cases import FORMATS, Case, all_cases
from weft.backends.grid import make_grid
from weft.backends.null import NullBackend
from weft.cli.ops_grid import devices_of, grid_as_json, grid_as_markdown, page_devices
from weft.graph.op import OPS
from weft.graph.tensor import Tensor


class Picky(NullBackend):
    """Takes sums of float32 only."""

    def supports_op(self, node: Tensor) -> Support:
        if node.op.name != "ADD":
            return Support(False, f"{node.op} on {self.name}: only sums")
        sources = {s.dtype.name for s in node.src if s is not None}
        wrong = sources - {"f32"}
        return Support(False, f"sources must be f32, not {min(wrong)}") if wrong else YES


def test_counts_and_sentences() -> None:
    grid = make_grid({"picky": Picky(), "null": make_backend("null")})
    assert grid.devices == ("picky", "null") and not grid.uncovered
    yes, total = grid.count("ADD", 0)
    assert 0 < yes < total and grid.count("ADD", 1) == (total, total)
    assert grid.count("MUL_MAT", 0)[0] == 0
    assert grid.takes("MUL_MAT", "q4_0", 0) == "none" and grid.takes("MUL_MAT", "q4_0", 1) == "all"
    assert grid.takes("no such role", "q4_0", 0) is None
    assert grid.refusals(1) == {}
    assert {c.op for c in grid.refusals(0)["only sums"]} == set(grid.ops) - {"ADD"}


def test_every_op_and_every_format_is_asked() -> None:
    grid = make_grid({"null": make_backend("null")})
    assert grid.ops == [n for n, op in OPS.items() if not op.is_view and n != "NONE"]
    for role in ("MUL_MAT", "GET_ROWS"):
        assert all(grid.takes(role, name, 0) == "all" for name in FORMATS), role


def test_an_op_without_a_case_is_listed() -> None:
    cases = [c for c in all_cases() if c.op != "ADD"]
    grid = make_grid({"null": make_backend("null")}, cases)
    assert grid.uncovered == ("ADD",)


def test_devices_that_differ_keep_their_columns() -> None:
    same = make_grid({"x:a": make_backend("null"), "x:b": make_backend("null")})
    assert same.devices == ("x",)
    differ = make_grid({"x:a": make_backend("null"), "x:b": Picky()})
    assert differ.devices == ("x:a", "x:b")


def test_what_the_cpu_refuses_no_reference_computes() -> None:
    """No gap: kernels take all that the ops' definition takes, but activations in 16 bits."""
    cpu, reference = make_backend("cpu"), make_backend("reference")

    def gap(case: Case) -> bool:
        node = case.node()
        return bool(reference.supports_op(node)) and not cpu.supports_op(node)

    assert [c.name for c in all_cases() if gap(c) and c.op != "QUANTIZE"] == []


def test_every_cpu_target_takes_the_same() -> None:
    assert make_grid(devices_of(["cpu"])).devices == ("cpu",)


@pytest.mark.skipif(find_spec("scipy_openblas32") is None, reason="needs the blas extra")
def test_the_page_is_current() -> None:
    page = grid_as_markdown(page_devices())
    current = (ROOT / "docs" / "devices.md").read_text()
    assert page == current, "run `make docs`"


def test_json_has_every_answer() -> None:
    grid = grid_as_json({"picky": Picky()})
    assert len(grid["cases"]) == len(all_cases())
    sums = [c for c in grid["cases"] if c["op"] == "ADD" and c["variant"] == "f32 f32"]
    assert sums[0]["why_not"] == {"picky": ""}
