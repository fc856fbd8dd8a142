"""What `weft quantize` reads of its arguments beside types, and the lines that it shows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from weft.cli.command import usage_error
from weft.cli.console import PATIENCE, WaitingBar, errors, note, size_text
from weft.frontends.gguf.importance import Importance, read_importance
from weft.frontends.gguf.quantize import QuantizedTensor

__all__ = ["Shown", "importance_from", "layers_from", "show_tensor", "threads_from"]

_MOST_THREADS = 1024


def importance_from(
    path: Path | None, include: Sequence[str] | None, exclude: Sequence[str] | None
) -> Importance | None:
    """The importance matrix that --imatrix names, for the tensors that the other two choose."""
    if path is None:
        if include or exclude:
            flag = "--include-weights" if include else "--exclude-weights"
            raise usage_error(f"{flag} chooses from an importance matrix: add --imatrix FILE")
        return None
    if include and exclude:
        raise usage_error("give --include-weights or --exclude-weights, not both")
    found = read_importance(path, include or (), exclude or ())
    if found is None:
        note(f"{path}: no tensor is left of the importance matrix, which changes nothing")
    return found


def layers_from(text: str | None) -> list[int]:
    """The layers that --prune-layers names."""
    words = [] if text is None else text.split(",")
    if not all(word.strip().isdecimal() for word in words):
        raise usage_error(f"--prune-layers {text}: write numbers of layers, as in 3,4,5")
    return [int(word) for word in words]


def threads_from(n: int | None) -> int | None:
    """The number of threads; None: all processors."""
    if n is not None and not 1 <= n <= _MOST_THREADS:
        raise usage_error(f"{n} threads: give 1 to {_MOST_THREADS}")
    return n


class Shown:
    """Lines of the tensors that are done, over a bar."""

    def __init__(self, nbytes: int) -> None:
        """`nbytes` are those of all tensors before."""
        self._bar = WaitingBar("quantizing", "bytes", PATIENCE)
        self._done, self._total = 0, nbytes

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, t: QuantizedTensor) -> None:
        """Shows a tensor."""
        show_tensor(t)
        self._done += t.old_bytes
        self._bar(self._done, self._total)


def show_tensor(t: QuantizedTensor) -> None:
    """A line for a tensor, on stderr."""
    kept = t.before is t.after
    errors.print(
        f"{t.name:<40} {t.before.name:>7} {'kept' if kept else '-> ' + t.after.name:<10} "
        f"{size_text(t.old_bytes):>12} -> {size_text(t.new_bytes)}",
        markup=False,
        soft_wrap=True,
    )
