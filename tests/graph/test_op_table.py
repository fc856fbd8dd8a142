"""Native code is built from the table of ops, and refused where it was built from another."""

import inspect
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from weft import _native
from weft.graph import op_table as table
from weft.graph.native_header import costs_header, native_header
from weft.graph.op import OPS, Op
from weft.graph.op_table import check_native, op_table
from weft.graph.ops import SoftMaxParams
from weft.graph.ops_page import ops_page
from weft.graph.params import pack

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("file", "text", "command"),
    [
        ("native/include/weft/ops.h", native_header, "headers"),
        ("native/src/runtime/multiply_adds.h", costs_header, "headers"),
        ("docs/ops.md", ops_page, "docs"),
    ],
)
def test_generated_files_are_those_of_the_table(
    file: str, text: Callable[[], str], command: str
) -> None:
    if not (ROOT / file).parent.is_dir():
        pytest.skip("not a checkout")
    assert (ROOT / file).read_text(encoding="utf-8") == text(), f"run `make {command}`"


@pytest.mark.parametrize("op", [op for op in OPS.values() if op.constructor], ids=str)
def test_a_constructor_says_its_errors_and_its_source(op: Op) -> None:
    text = inspect.getdoc(op.constructor) or ""
    family = inspect.getdoc(inspect.getmodule(op.constructor)) or ""
    assert "GraphError" in text + family or "errors as" in text
    assert re.search("ggml|torch|PyTorch", text)


def test_native_module_has_the_same_table() -> None:
    assert _native.op_table() == op_table()


def test_slots_are_as_many_numbers_as_are_packed() -> None:
    slots = table.slots_of(SoftMaxParams)
    assert [s.name for s in slots] == ["scale", "max_bias"]
    assert len(pack(SoftMaxParams())) == sum(s.count for s in slots)


@dataclass(frozen=True, slots=True)
class Swapped:
    """SoftMaxParams the other way round."""

    max_bias: float = 0.0
    scale: float = 1.0


def changed(monkeypatch: pytest.MonkeyPatch, **fields: object) -> None:
    monkeypatch.setitem(OPS, "SOFT_MAX", replace(OPS["SOFT_MAX"], **fields))


@pytest.mark.parametrize("fields", [{"params": Swapped}, {"max_src": 4}, {"params_optional": True}])
def test_another_declaration_is_an_import_error_that_names_the_op(
    fields: dict[str, object], monkeypatch: pytest.MonkeyPatch
) -> None:
    changed(monkeypatch, **fields)
    with pytest.raises(ImportError, match=r"the native module .* SOFT_MAX is declared .*reinstall"):
        check_native(_native.op_table(), "the native module")


def test_a_renumbered_function_is_an_import_error() -> None:
    native = [row.replace("FLOOR=18,CEIL=19", "CEIL=18,FLOOR=19") for row in op_table()]
    with pytest.raises(ImportError, match="UNARY is declared"):
        check_native(native, "x")


def test_a_missing_and_an_additional_op_are_named() -> None:
    rows = op_table()
    last = rows[-1].split()[0]
    with pytest.raises(ImportError, match=f"lacks the op {last}, which weft has"):
        check_native(rows[:-1], "x")
    with pytest.raises(ImportError, match="has the op NEW, which weft lacks"):
        check_native([*rows, "NEW 1..1"], "x")
    with pytest.raises(ImportError, match=f"in another order, from {rows[3].split()[0]} on"):
        check_native([*rows[:3], *rows[4:], rows[3]], "x")
