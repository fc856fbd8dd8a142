"""Reads the log of llama.cpp's `llama-eval-callback`: every tensor of a run with some of its values.

    common_debug_cb_eval:      Qcur-0 = (f32)  MUL_MAT(blk.0.attn_q.weight{64, 64, 1, 1}, ...}) = {64, 4, 1, 1}
        [
            [
                [     -1.8242,      -2.0670,  ...,       0.4096,      -2.7917  ],
                ...,
        sum = -19.934383

Older versions begin lines with `ggml_debug:`, indent otherwise, and may lack the last values of a row
and the sum. Other lines may stand anywhere.
"""  # noqa: E501

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from dataclasses import field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import FormatError
from weft.records import dataclass

_HEAD = re.compile(r"(?:^|\s)\w+:\s+(\S.*?) = \((\w+)\)\s+(\S+?)\((.*)\) = \{([\d, ]+)\}$")
_SOURCE = re.compile(r"([^{},][^{}]*)\{([\d, ]+)\}")
_COUNT = re.compile(r"number of input tokens = (\d+)$")
_TOKEN = re.compile(r"(?:\S+ [A-Z] +)?(\d+)")  # with or without the time and level of a log
_ELLIPSIS = "..."


@dataclass(frozen=True, slots=True)
class LoggedTensor:
    """A tensor of a log."""

    name: str
    op: str
    type: str
    ne: tuple[int, ...]
    """Four sizes, innermost first."""
    sources: tuple[tuple[str, tuple[int, ...]], ...]
    """Name and sizes of the first two sources."""
    places: NDArray[np.int64]
    """Where the printed values are, [n, 4], innermost first."""
    values: NDArray[np.float64]
    sum: float | None
    """The sum of all elements, which was added up in float32; None where the log has none."""


@dataclass(slots=True)
class TensorLog:
    """A log: its tokens and the runs of its graphs, one for each ubatch."""

    tokens: list[int] | None = None
    """The ids of the prompt; None where the log has none."""
    runs: list[list[LoggedTensor]] = field(default_factory=list)
    cut: str = ""
    """The tensor in the middle of which the log ends; empty: it ends behind one."""

    sizes: list[int] | None = None
    """The number of tokens of each run, if something else than its tensors tells."""

    def n_tokens(self, run: int) -> int:
        """The number of tokens of a run, as its inputs or else the first of its tensors say."""
        if self.sizes is not None:
            return self.sizes[run]
        for tensor in self.runs[run]:
            for name, ne in tensor.sources:
                if name.rpartition("#inp_")[2].partition("#")[0] in ("tokens", "inp_tokens"):
                    return ne[0]
        return self.runs[run][0].ne[1]


def read_tensor_log(path: str | os.PathLike[str]) -> TensorLog:
    """Reads a log. Raises FormatError for a file that cannot be read or has no tensors."""
    try:
        with Path(path).open(encoding="utf-8", errors="replace") as file:
            log = parse_tensor_log(file)
    except OSError as error:
        raise FormatError(f"{path}: {error.strerror}") from error
    if not log.runs:
        raise FormatError(
            f"{path}: there is no tensor in it; write it with "
            "`llama-eval-callback -m MODEL -p TEXT > LOG 2>&1`"
        )
    return log


def parse_tensor_log(lines: Iterable[str]) -> TensorLog:
    """The log of these lines; one without tensors has no runs."""
    log = TensorLog()
    first: Any = None
    for tensor in _tensors(log, lines):
        key = tensor.name, tensor.op, tensor.sources and tensor.sources[0][0]
        if not log.runs or key == first:
            log.runs.append([])
            first = key
        log.runs[-1].append(tensor)
    return log


def _tensors(log: TensorLog, lines: Iterable[str]) -> Iterator[LoggedTensor]:
    head: re.Match[str] | None = None
    body = _Body()
    wanted = 0
    for line in lines:
        text = line.strip()
        if wanted and (found := _TOKEN.fullmatch(text)) is not None and log.tokens is not None:
            log.tokens.append(int(found[1]))
            wanted -= 1
        elif head is not None and text[:1] in ("[", "]", "."):
            body.add(text)
        elif head is not None and text.startswith("sum = "):
            body.sum = _number(text[6:])
        elif " = (" in text and (found := _HEAD.search(text)) is not None:
            if head is not None:
                yield _tensor(head, body)
            head, body = found, _Body()
        elif log.tokens is None and (found := _COUNT.search(text)) is not None:
            log.tokens, wanted = [], int(found[1])
    if head is not None:
        yield _tensor(head, body)
        if body.depth:
            log.cut = head[1]


class _Body:
    """The lines of values below the head of a tensor."""

    def __init__(self) -> None:
        self.outer: list[list[Any]] = []
        """For each index of the fourth dimension matrices, of which each is a list of rows; an
        ellipsis stands for those that are left out."""
        self.depth = 0
        self.sum: float | None = None

    def add(self, text: str) -> None:
        """Takes a line that begins with a bracket or dots."""
        if text == "[":
            self.depth += 1
            if self.depth == 1:
                self.outer.append([])
            elif self.depth == 2:
                self.outer[-1].append([])
        elif text.startswith("]"):
            self.depth -= 1
        elif text.startswith("."):
            if self.depth == 1:
                self.outer[-1].append(_ELLIPSIS)
            elif self.depth == 2:
                self.outer[-1][-1].append(_ELLIPSIS)
        elif self.depth == 2:
            words = text[1:].partition("]")[0].replace(",", " ").split()
            self.outer[-1][-1].append([w if w == _ELLIPSIS else _number(w) for w in words])


def _tensor(head: re.Match[str], body: _Body) -> LoggedTensor:
    ne = tuple(int(n) for n in head[5].split(","))
    ne = (*ne, 1, 1, 1)[:4]
    places, values = [], []
    for i3, matrices in enumerate(body.outer):
        for i2, rows in _placed(matrices, ne[2]):
            for i1, row in _placed(rows, ne[1]):
                for i0, value in _placed(row, ne[0]):
                    places.append((i0, i1, i2, i3))
                    values.append(value)
    sources = tuple(
        (m[1].strip(), tuple(int(n) for n in m[2].split(","))) for m in _SOURCE.finditer(head[4])
    )
    where = np.array(places, np.int64).reshape(-1, 4)
    inside = bool(np.all((where >= 0) & (where < np.array(ne))))
    if not inside:  # more rows than the head says: lines of something else
        where, values = where[:0], []
    numbers = np.array(values, np.float64)
    return LoggedTensor(head[1], head[3], head[2], ne, sources, where, numbers, body.sum)


def _placed(items: list[Any], n: int) -> Iterator[tuple[int, Any]]:
    """The items of a dimension of size `n` with their indices; those behind an ellipsis are the
    last ones."""
    at = items.index(_ELLIPSIS) if _ELLIPSIS in items else len(items)
    yield from enumerate(items[:at])
    behind = items[at + 1 :]
    yield from enumerate(behind, n - len(behind))


def _number(word: str) -> float:
    try:
        return float(word)
    except ValueError:
        return float("nan")
