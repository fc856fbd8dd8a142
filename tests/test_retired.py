"""Names that go: the version that replaces one takes it, and says what to write instead."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import weft
from weft.errors import ArgumentError
from weft.llm.llm import RETIRED
from weft.options import Retired, without_retired
from weft.version import __version__

ROOT = Path(__file__).resolve().parent.parent
MODEL = ROOT / "tests/data/vectors/models/archs/llama3.gguf"


def number(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version)[:3]))


def test_a_retired_option_is_taken_under_its_new_name() -> None:
    table = {"n_context": Retired("write n_ctx", "9.0.0", "n_ctx")}
    with pytest.warns(DeprecationWarning) as seen:
        taken = without_retired("A model", {"n_context": 8, "type": "q8_0"}, table)
    assert taken == {"n_ctx": 8, "type": "q8_0"}
    (one,) = seen
    assert str(one.message) == "A model refuses 'n_context' from weft 9.0.0 on; write n_ctx"
    assert one.filename == __file__
    with pytest.raises(ArgumentError, match="give n_ctx alone"):
        without_retired("A model", {"n_context": 8, "n_ctx": 9}, table)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert without_retired("A model", {"n_ctx": 9}, table) == {"n_ctx": 9}


@pytest.mark.parametrize(("old", "value"), [("states", True), ("beside", ())])
def test_options_of_the_last_version_warn_where_they_are_written(old: str, value: Any) -> None:
    with pytest.warns(DeprecationWarning) as seen:
        weft.LLM(MODEL, n_ctx=64, **{old: value}).close()
    (one,) = seen
    assert one.filename == __file__
    assert f"LLM refuses {old!r} from weft 0.3.0 on; it has no" in str(one.message)


def test_no_entry_has_outlived_its_version() -> None:
    for old, retired in RETIRED.items():
        assert number(retired.refused_from) > number(__version__), f"delete {old!r} from the table"
