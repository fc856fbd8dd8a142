"""Puts data and the files of `page/` into one HTML file, with a policy that allows nothing else,
and the page into a frame for notebooks."""

from __future__ import annotations

import gzip
import json
import re
from base64 import b64encode
from collections.abc import Mapping
from hashlib import sha256
from html import escape
from importlib.resources import files
from typing import Any

from weft.report.planned import HasPlan, plan_data, plan_of
from weft.report.programs import ProgramLike, program_data, program_of

MOST_BYTES = 300_000
"""The largest frame: a notebook's file keeps a copy for each cell that shows one."""

_MOST_NODES = 6000
"""Graphs beyond that make pages that are too large, and take seconds to describe."""

_HEIGHT = 620


def frame_html(subject: Any, most: int = MOST_BYTES) -> str | None:
    """The report of `subject`, see `report_html`, as an HTML element of at most `most` bytes, or
    None.

    The frame is a document of its own that may run scripts and nothing else: it has no access to
    the notebook, and no request leaves it. It has no sliders, whose formulas take long to make, and
    the steps of the placement only where there is room for them."""
    if not isinstance(subject, Mapping) and _nodes(subject) > _MOST_NODES:
        return None
    data = _data(subject, sliders=False)
    frame = _frame(data)
    if len(frame.encode()) > most and "regimes" in data:
        slim = [{k: v for k, v in one.items() if k != "passes"} for one in data["regimes"]]
        frame = _frame({**data, "regimes": slim})
    return frame if len(frame.encode()) <= most else None


def _frame(data: Mapping[str, Any]) -> str:
    page = escape(page_html(data))
    return (
        f'<iframe sandbox="allow-scripts" title="weft report" srcdoc="{page}" '
        f'style="width:100%;height:{_HEIGHT}px;border:1px solid #8884;border-radius:6px"></iframe>'
    )


def _nodes(subject: Any) -> int:
    program = program_of(subject)
    if program is not None:
        return sum(len(split.steps) for split in program.splits)
    return sum(len(regime.graph.nodes) for regime in plan_of(subject).all_regimes)


def report_html(
    subject: HasPlan | ProgramLike | Mapping[str, Any],
    *,
    title: str | None = None,
    sliders: bool = True,
) -> str:
    """The report of a plan as HTML: one file that asks nothing of a network.

    `subject` is a `ContextPlan`, an object whose `plan` is one (a `Context`), one whose `context`
    has one (an `LLM`), a program (a `Program`, a `Session` or what `weft.from_torch` returns), or
    data with a `kind` that some view of the page shows. With `sliders`, the page shows other sizes
    of the same model; making that takes about as long as planning it twenty times."""
    return page_html(_data(subject, sliders), title)


def _data(subject: Any, sliders: bool) -> Mapping[str, Any]:
    if isinstance(subject, Mapping):
        return subject
    program = program_of(subject)
    return plan_data(subject, sliders=sliders) if program is None else program_data(subject)


def page_html(data: Mapping[str, Any], title: str | None = None) -> str:
    """The page of some data, which must be JSON: scripts, style and the data, compressed."""
    title = title or str(data.get("title") or "weft")
    style, script = _style(), _script()
    text = json.dumps(data, separators=(",", ":"), ensure_ascii=False).encode(errors="replace")
    packed = b64encode(gzip.compress(text, 9, mtime=0)).decode()
    policy = (
        f"default-src 'none'; script-src '{_hash(script)}'; style-src '{_hash(style)}'; "
        "img-src data: blob:; base-uri 'none'; form-action 'none'"
    )
    parts = {
        "POLICY": escape(policy),
        "TITLE": escape(title),
        "STYLE": style,
        "DATA": packed,
        "SCRIPT": script,
    }
    # in one pass: what is put in may look like a place to put something in
    return re.sub(r"\{\{(\w+)\}\}", lambda found: parts[found[1]], _asset("shell.html"))


def _script() -> str:
    """All scripts of the page, the core's before the views'."""
    parts = []
    for folder in ("core", "views"):
        room = files("weft.report").joinpath("page", folder)
        names = sorted(f.name for f in room.iterdir() if f.name.endswith(".js"))
        parts += [room.joinpath(name).read_text("utf-8") for name in names]
    script = '"use strict";\n' + "\n".join(parts) + "\nreport.start();\n"
    assert "</script" not in script.lower() and "<!--" not in script
    return script


def _style() -> str:
    """The style of the page and of its views."""
    room = files("weft.report").joinpath("page", "views")
    names = sorted(f.name for f in room.iterdir() if f.name.endswith(".css"))
    views = [room.joinpath(name).read_text("utf-8") for name in names]
    return "\n".join([_asset("style.css"), *views])


def _asset(name: str) -> str:
    return files("weft.report").joinpath("page", name).read_text("utf-8")


def _hash(text: str) -> str:
    return "sha256-" + b64encode(sha256(text.encode()).digest()).decode()
