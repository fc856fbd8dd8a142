"""A delegate that was built from another table of ops is refused when it is loaded."""

from dataclasses import replace

import pytest

library = pytest.importorskip("weft_executorch.library")
pytestmark = pytest.mark.xdist_group("executorch")

from weft.graph.op import OPS  # noqa: E402
from weft.graph.op_table import op_table  # noqa: E402


def test_delegate_has_the_table() -> None:
    library.load()
    assert library._op_table(library._loaded[0]) == op_table()


def test_another_table_is_an_import_error_that_names_the_op(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(library, "_loaded", [])
    monkeypatch.setitem(OPS, "SOFT_MAX", replace(OPS["SOFT_MAX"], max_src=4))
    with pytest.raises(ImportError, match=r"libweft_executorch\.so .* SOFT_MAX .* delegate\)"):
        library.load()
    assert not library._loaded
