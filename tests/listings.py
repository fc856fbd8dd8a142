"""What a page shows of the output of a command, beside what the command prints."""

from __future__ import annotations

__all__ = ["missing", "runs"]


def runs(shown: str) -> list[list[str]]:
    """The lines that a page shows, as runs between lines `...`, without empty lines."""
    found: list[list[str]] = [[]]
    for line in shown.splitlines():
        if line.strip() == "...":
            found.append([])
        elif line.strip():
            found[-1].append(line)
    return found


def missing(shown: str, printed: str) -> str | None:
    """The first run of lines of `shown` that does not follow in `printed`, or None. Empty lines
    count in neither."""
    left = [line for line in printed.splitlines() if line.strip()]
    for run in runs(shown):
        starts = [i for i in range(len(left)) if left[i : i + len(run)] == run]
        if not starts:
            return "\n".join(run)
        left = left[starts[0] + len(run) :]
    return None
