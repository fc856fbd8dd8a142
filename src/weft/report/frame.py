"""The report in a frame, for notebooks."""

from __future__ import annotations

from html import escape
from typing import Any

from weft.report.html import report_html
from weft.report.planned import plan_of
from weft.report.programs import program_of

MOST_BYTES = 300_000
"""The largest frame: a notebook's file keeps a copy for each cell that shows one."""

_MOST_NODES = 6000
"""Graphs beyond that make pages that are too large, and take seconds to describe."""

_HEIGHT = 620


def frame_html(subject: Any, most: int = MOST_BYTES) -> str | None:
    """The report of `subject`, see `report_html`, as an HTML element of at most `most` bytes, or
    None.

    The frame is a document of its own that may run scripts and nothing else: it has no access to
    the notebook, and no request leaves it. It has no sliders, whose formulas take long to make."""
    if _nodes(subject) > _MOST_NODES:
        return None
    page = escape(report_html(subject, sliders=False))
    frame = (
        f'<iframe sandbox="allow-scripts" title="weft report" srcdoc="{page}" '
        f'style="width:100%;height:{_HEIGHT}px;border:1px solid #8884;border-radius:6px"></iframe>'
    )
    return frame if len(frame.encode()) <= most else None


def _nodes(subject: Any) -> int:
    program = program_of(subject)
    if program is not None:
        return sum(len(split.steps) for split in program.splits)
    return sum(len(regime.graph.nodes) for regime in plan_of(subject).all_regimes)
