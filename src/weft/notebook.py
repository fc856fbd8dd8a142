"""How objects show themselves in notebooks: as the report, in a frame that may do nothing else.

`weft.report` stands above everything that it describes, so what shows itself cannot import it; it
is found by its name when a notebook asks.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from weft.errors import WeftError

_REPORT = "weft.report"


def in_notebook(subject: object, plain: str) -> str:
    """The HTML that a notebook shows for `subject`: its report, with `plain` (HTML) folded below.

    It is `plain` alone where the report would make a notebook's file large, or there is no plan."""
    report: Any = import_module(_REPORT)
    try:
        frame: str | None = report.frame_html(subject)
    except WeftError:
        return plain
    if frame is None:
        return plain
    return f"{frame}<details><summary>as tables</summary>{plain}</details>"
