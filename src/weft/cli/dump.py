"""`--dump-tensors GLOB` prints a line for each matching tensor when it is computed, `--beside LOG`
compares them with a log."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import typer
from numpy.typing import NDArray

from weft.cli.console import errors
from weft.cli.mistakes import show_error
from weft.errors import ContextError, FormatError
from weft.execute import WatchedTensor
from weft.llm import LLM
from weft.llm.models.names import their_names

if TYPE_CHECKING:
    from weft.llm.quality.tensor_log import TensorLog

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
            names = their_names(tensor.name)
            matches = any(fnmatchcase(name, self._glob) for name in names)
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


def read_log(path: Path) -> TensorLog:
    """The log at `path`; exits with 2 if there is none."""
    from weft.llm.quality.tensor_log import read_tensor_log

    try:
        return read_tensor_log(path)
    except FormatError as error:
        show_error(error)
        raise typer.Exit(2) from None


def show_beside(
    llm: LLM, log: TensorLog, prompt: str, glob: str | None, parse_special: bool, verbose: bool
) -> None:
    """Prints what differs between a prompt's tensors here and in a log; exits with 1 if one does,
    with 2 where they cannot be compared."""
    from weft.llm.quality.beside import compare_tensors

    tokens = llm.tokenize(prompt, parse_special=parse_special)
    try:
        found = compare_tensors(llm.context, log, tokens, "*" if glob is None else glob)
    except ContextError as error:
        show_error(error)
        raise typer.Exit(2) from None
    finally:
        llm.close()
    print(found if verbose else found.summary())
    if found.differs:
        raise typer.Exit(1)
