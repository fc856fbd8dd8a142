"""The consoles of rich, which `console.py` imports when the first of them is needed."""

from __future__ import annotations

import io
from collections.abc import Iterable
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from weft.tables import CONTROLS


class Screen(Console):
    """A console that raises BrokenPipeError if the reader of a pipe has left, and shows control
    characters of texts, which may be a stranger's, as escapes."""

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """The parts of something that is printed."""
        for part in super().render(renderable, options):
            if part.control is None:
                part = part._replace(text=part.text.translate(CONTROLS))
            yield part

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class Trimmed(io.TextIOBase):
    """A stream that drops the spaces at the end of lines, which pad tables."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes whole lines."""
        return self._stream.write("\n".join(line.rstrip(" ") for line in text.split("\n")))

    def flush(self) -> None:
        """Flushes the stream."""
        self._stream.flush()
