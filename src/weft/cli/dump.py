"""`--dump-tensors GLOB` prints a line for each matching tensor whenever it is computed."""

from __future__ import annotations

from fnmatch import fnmatchcase

import numpy as np
from numpy.typing import NDArray

from weft.cli.console import errors
from weft.errors import ContextError
from weft.execute import WatchedTensor

_FIRST = 4
"""Number of first values that are printed."""


class TensorDump:
    """A callback for `LLM` that prints matching tensors to stderr."""

    def __init__(self, glob: str) -> None:
        self._glob = glob
        self._names: dict[str, None] = {}
        self._matched = False

    def __call__(self, tensor: WatchedTensor, ask: bool) -> bool:
        if ask:
            self._names[tensor.name] = None
            matches = fnmatchcase(tensor.name, self._glob)
            self._matched |= matches
            return matches
        sizes = ", ".join(map(str, reversed(tensor.shape)))  # innermost first, as in a listing
        line = f"{tensor.name} {tensor.op} {tensor.dtype.name}[{sizes}] on {tensor.device}: "
        errors.print(line + statistics(tensor.numbers()), markup=False, soft_wrap=True)
        return True

    def require_match(self) -> None:
        """Raises ContextError if no tensor of the model matches."""
        if not self._matched:
            own = [name for name in self._names if not name.startswith("node_")]
            some = ", ".join([*own, *self._names][:8])
            raise ContextError(
                f"--dump-tensors {self._glob!r} matches no tensor of the model; "
                f"some of its names: {some}"
            )


def statistics(values: NDArray[np.number]) -> str:
    """Statistics of finite values, such as `min -1.25 max 3 mean 0.5, 0 NaN, begins 0.1 0.2`."""
    flat = values.reshape(-1).astype(np.float64)
    finite = flat[np.isfinite(flat)]
    n_nan = int(np.count_nonzero(np.isnan(flat)))
    n_inf = len(flat) - len(finite) - n_nan
    first = " ".join(f"{x:.6g}" for x in flat[:_FIRST])
    parts = [f"{n_nan} NaN"] + [f"{n_inf} infinite"] * (n_inf > 0) + [f"begins {first}"]
    if len(finite):
        summary = f"min {finite.min():.6g} max {finite.max():.6g} mean {finite.mean():.6g}"
        parts.insert(0, summary)
    return ", ".join(parts)
