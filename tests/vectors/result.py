"""What running a golden case gives, and the options of a run."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import Literal, NamedTuple

__all__ = ["Options", "Result", "Status"]

Status = Literal["passed", "failed", "skipped"]


class Result(NamedTuple):
    """Outcome of one case; `message` says why it failed or was skipped."""

    name: str
    status: Status
    message: str = ""


@dataclass(frozen=True)
class Options:
    """How to run: backend (models: or several, with commas between), its kernel target, and a glob
    over case names."""

    backend: str = "cpu"
    target: str | None = None
    filter: str = "*"
    planes: bool = False
    """opencl, cuda: only op cases with weights that are repacked into planes."""
    sample: bool = False
    """Only some op cases, so that every op and every type of a leaf has one."""
    places: int | None = None
    """Models: a number that decides which weights the backend has; None: all it can have."""
    ops: frozenset[str] | None = None
    """Op cases: only those of these ops, and the block formats; None: all."""

    def wants(self, name: str) -> bool:
        """Whether the filter takes the case, so that a runner can leave it out early."""
        return fnmatch.fnmatch(name, self.filter)
