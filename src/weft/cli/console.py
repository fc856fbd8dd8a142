"""What the subcommands share: consoles, sizes in words, option types."""

from __future__ import annotations

import io
import re
import sys
from time import perf_counter
from types import TracebackType
from typing import IO, TYPE_CHECKING, Literal, Self, TextIO, cast

from rich.console import Console

from weft.errors import ScheduleError
from weft.flags import FLAGS
from weft.tables import size_text

if TYPE_CHECKING:
    from rich.progress import Progress, ProgressColumn, TaskID

__all__ = [
    "CountProgress",
    "LoadProgress",
    "PromptProgress",
    "StatusLine",
    "TextOut",
    "WaitingBar",
    "console",
    "device_list",
    "errors",
    "forget_notes",
    "note",
    "say",
    "size_text",
    "text_out",
    "wide",
]


class _Console(Console):
    """One that lets the caller know when the reader of a pipe has left."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


class _Trimmed(io.TextIOBase):
    """A stream whose lines end with their text, without the spaces that fill tables up."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        """Writes whole lines."""
        return self._stream.write("\n".join(line.rstrip(" ") for line in text.split("\n")))

    def flush(self) -> None:
        """As the stream does."""
        self._stream.flush()


console = _Console(highlight=False)
"""Results go here (stdout)."""
errors = _Console(stderr=True, highlight=False)
"""Progress, summaries and errors go here, so that stdout can be piped."""


def say(text: str, style: str | None = None) -> None:
    """A line on stderr; a screen breaks long ones between words, a pipe gets them whole."""
    errors.print(text, style=style, markup=False, soft_wrap=not errors.is_terminal)


def note(text: str, style: str = "dim") -> None:
    """A line about what was typed, before anything runs; the same one only once."""
    if text not in _noted:
        _noted.add(text)
        say(f"note: {text}", style)


_noted: set[str] = set()


def forget_notes() -> None:
    """Lets every note be said again, by the next command."""
    _noted.clear()


PATIENCE = 0.3
"""Seconds of waiting before a progress bar is shown."""
PROMPT_PATIENCE = 1.0
"""The same for prompts: most are short."""


def wide(to_error: bool = False) -> Console:
    """A console that never wraps or cuts tables when its output is not a terminal; lines end with
    their text then."""
    plain = _Console(stderr=to_error, highlight=False)
    if plain.is_terminal:
        return plain
    stream = cast(IO[str], _Trimmed(sys.stderr if to_error else sys.stdout))
    return _Console(file=stream, highlight=False, width=10_000)


_OTHER_GPU = re.compile(r"(?:cuda|vulkan|metal|mtl|rocm|hip|sycl|musa|cann)[:\d]*$", re.I)
"""Devices as other engines name them."""


def device_list(text: str | None) -> list[str]:
    """`opencl,cpu` -> ["opencl", "cpu"]; `none`: the cpu alone; without one WEFT_DEVICES, else the
    cpu."""
    chosen = text if text is not None else FLAGS.devices or "cpu"
    found = [name.strip() for name in chosen.split(",") if name.strip()]
    if found == ["none"]:
        return ["cpu"]
    if not found:
        raise ScheduleError(f"{chosen!r} names no device; write e.g. opencl:0,cpu")
    gpu = next((name for name in found if _OTHER_GPU.match(name)), None)
    if gpu is not None:
        raise ScheduleError(
            f"there is no device {gpu}: weft computes on processors, and on GPUs through OpenCL; "
            "`weft devices` lists those there are"
        )
    return found


class TextOut:
    """Text on stdout as it comes, piece by piece."""

    def __init__(self) -> None:
        self._in_line = False

    def write(self, piece: str) -> None:
        """Shows a piece at once."""
        sys.stdout.write(piece)
        sys.stdout.flush()
        if piece:
            self._in_line = not piece.endswith("\n")

    def end_line(self) -> None:
        """Lets what comes on stderr begin a line of its own, where both are on one screen."""
        if self._in_line and sys.stdout.isatty() and errors.is_terminal:
            self.write("\n")


text_out = TextOut()


class WaitingBar:
    """A bar on stderr where that is a terminal and something takes long."""

    def __init__(self, label: str, unit: Literal["bytes", "things"], patience: float) -> None:
        """`unit`: of what is done, and of all there is; `patience`: seconds without a bar."""
        self._label, self._unit, self._patience = label, unit, patience
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._start = perf_counter()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def stop(self) -> None:
        """Takes the bar away."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def __call__(self, done: int, total: int) -> None:
        """Shows `done` of `total`, once there was enough time to wonder."""
        if not errors.is_terminal:
            return
        if self._bar is None:
            if perf_counter() - self._start < self._patience or done == total:
                return
            self._bar = self._new_bar()
            self._task = self._bar.add_task("", total=total)
            self._bar.start()
        assert self._task is not None
        self._bar.update(self._task, completed=done)

    def _new_bar(self) -> Progress:
        """Imports what draws bars only now: most commands are done before one is shown."""
        from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        counts: ProgressColumn = DownloadColumn() if self._unit == "bytes" else MofNCompleteColumn()
        return Bar(TextColumn(self._label), BarColumn(), counts, console=errors, transient=True)


class StatusLine:
    """A line on the terminal that says what is done now; nothing runs beside to show it."""

    def __init__(self) -> None:
        self._width = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self("")

    def __call__(self, text: str) -> None:
        """Shows `text` in place of what was there."""
        if not errors.is_terminal:
            return
        text = text[: max(errors.width - 1, 0)]
        errors.file.write(f"\r{text:<{self._width}}" if text else f"\r{' ' * self._width}\r")
        errors.file.flush()
        self._width = len(text)


class CountProgress(WaitingBar):
    """While things are worked off one by one."""

    def __init__(self, label: str) -> None:
        super().__init__(label, "things", PATIENCE)


class LoadProgress(WaitingBar):
    """While weights are repacked or sent to a device, in bytes."""

    def __init__(self) -> None:
        super().__init__("loading weights", "bytes", PATIENCE)


class PromptProgress(WaitingBar):
    """While a prompt is computed, in tokens; gone when the text begins."""

    def __init__(self) -> None:
        super().__init__("reading the prompt", "things", PROMPT_PATIENCE)

    def __call__(self, done: int, total: int) -> None:
        """As `WaitingBar`; the text follows on the line."""
        super().__call__(done, total)
        if done == total:
            self.stop()
