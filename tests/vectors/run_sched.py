"""Runs the golden scheduler and allocator cases. They plan only, so the backend plays no part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from tests.vectors.result import Options, Result
from tests.vectors.sched import SET_ASIDE, load_cases, run_case

__all__ = ["run"]


def run(folder: Path, options: Options) -> Iterator[Result]:
    """Every case of the folder's `cases.jsonl.gz`."""
    for case in load_cases(folder / "cases.jsonl.gz"):
        name = case["id"]
        if not options.wants(name):
            continue
        if name in SET_ASIDE:
            yield Result(name, "skipped", SET_ASIDE[name])
            continue
        ok, message = run_case(case)
        yield Result(name, "passed" if ok else "failed", message)
