"""Tells the version of weft, and what its native module was built for and from."""

from __future__ import annotations

import json
import platform
from typing import Any

from weft.version import __version__

__all__ = ["about", "about_as_json", "about_lines", "built_lines"]


def about() -> dict[str, Any]:
    """Tells the versions of weft and Python, and what the native module is: the system, processor
    and compiler that it was built for, its commit (None where it is unknown), and its kernel
    targets with their scores here, which are 0 where this processor cannot run them.

    Raises ImportError where the native module is missing or cannot be loaded."""
    from weft.native import _native

    return {
        "version": __version__,
        "python": platform.python_version(),
        "built_for": _native.built_for(),
        "built_from": _native.built_from() or None,
        "targets": dict(_native.targets()),
    }


def built_lines(facts: dict[str, Any]) -> list[str]:
    """A line says what the native module was built for and from, another one has its targets."""
    commit = facts["built_from"] or "not known (built without git, or outside a checkout)"
    targets = facts["targets"]
    names = [name if score else f"{name} (not on this machine)" for name, score in targets.items()]
    only = (
        "" if "baseline" in targets else " (built for one processor only; every target: "
        "pip install . -C cmake.define.WEFT_TARGETS=all)"
    )  # fmt: skip
    return [
        f"built for: {facts['built_for']}; commit {commit}",
        f"kernel targets: {', '.join(names)}{only}",
    ]


def about_lines() -> str:
    """Says the version and the build, or why the native module cannot be loaded."""
    try:
        built = built_lines(about())
    except ImportError as error:
        built = [f"the native module cannot be loaded ({error}); install weft again"]
    return "\n".join([f"weft {__version__}", *built])


def about_as_json() -> str:
    """The same as JSON."""
    try:
        facts = about()
    except ImportError as error:
        facts = {"version": __version__, "python": platform.python_version(), "why": str(error)}
    return json.dumps(facts, indent=1)
