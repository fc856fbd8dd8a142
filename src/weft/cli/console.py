"""The output of subcommands: consoles, notes, progress bars; and lists of devices."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Lock
from time import perf_counter
from typing import IO, TYPE_CHECKING, Literal, Self, cast

from weft.flags import FLAGS
from weft.tables import CONTROLS, size_text

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, ProgressColumn, TaskID

__all__ = [
    "CompileProgress",
    "CountProgress",
    "LoadProgress",
    "PromptProgress",
    "StatusLine",
    "TextOut",
    "TimeLeft",
    "WaitingBar",
    "WordWrap",
    "chosen_devices",
    "console",
    "errors",
    "forget_notes",
    "note",
    "say",
    "shape_lines",
    "size_text",
    "span_text",
    "text_out",
    "unechoed",
    "wide",
]


_HIDDEN = dict.fromkeys(c for c in CONTROLS if c < 160)  # texts may need the order of Arabic


if TYPE_CHECKING:
    console: Console
    """The console for results (stdout)."""
    errors: Console
    """The console for progress, summaries and errors (stderr), so that stdout can be piped."""


def __getattr__(name: str) -> Console:
    """Makes `console` or `errors` when it is first used: rich is slow to import, and the output of
    most commands to pipes needs none of it."""
    if name not in ("console", "errors"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from weft.cli.screen import Screen

    made: Console = Screen(stderr=name == "errors", highlight=False)
    globals()[name] = made
    return made


def _errors() -> Console:
    return sys.modules[__name__].errors  # type: ignore[no-any-return]


def _on_terminal() -> bool:
    """Whether stderr is a terminal, for rich; most pipes are told apart without it."""
    may_be = "errors" in globals() or sys.stderr.isatty() or not _FORCED.isdisjoint(os.environ)
    return may_be and _errors().is_terminal


_FORCED = frozenset(("FORCE_COLOR", "TTY_COMPATIBLE"))
"""Variables that let rich take pipes for terminals."""


def say(text: str, style: str | None = None) -> None:
    """Prints a line to stderr; long lines are broken between words on a terminal only."""
    if _shapes:
        sys.stderr.write(f"{_shapes[-1](text)}\n")
        sys.stderr.flush()
    elif _on_terminal():
        _errors().print(text, style=style, markup=False)
    else:
        sys.stderr.write(f"{text.translate(CONTROLS)}\n")
        sys.stderr.flush()


_shapes: list[Callable[[str], str]] = []


def shape_lines(shape: Callable[[str], str]) -> None:
    """Lets `say` print what `shape` makes of its lines, until the command ends."""
    _shapes.append(shape)


def note(text: str, style: str = "dim") -> None:
    """Prints a note about the command line, the same one only once."""
    if text not in _noted:
        _noted.add(text)
        say(f"note: {text}", style)


_noted: set[str] = set()


def forget_notes() -> None:
    """Lets the next command print every note again, and lines as they are."""
    _noted.clear()
    _shapes.clear()


PATIENCE = 0.3
"""Seconds before a progress bar is shown."""
PROMPT_PATIENCE = 1.0
"""Seconds before the bar of a prompt is shown; most prompts are short."""


def wide(to_error: bool = False) -> Console:
    """A console that, unless it is a terminal, neither wraps nor cuts tables and drops spaces at
    the end of lines."""
    from weft.cli.screen import Screen, Trimmed

    plain = Screen(stderr=to_error, highlight=False)
    if plain.is_terminal:
        return plain
    stream = cast(IO[str], Trimmed(sys.stderr if to_error else sys.stdout))
    return Screen(file=stream, highlight=False, width=10_000)


def chosen_devices(text: str | None) -> list[str]:
    """The devices named in `text`, as `weft.backends.registry.device_names` reads it; None means
    the value of WEFT_DEVICES, by default `cpu`. Raises ScheduleError for a text that names none."""
    from weft.backends.registry import device_names  # a command that names none needs no NumPy

    return device_names(text if text is not None else FLAGS.devices or "cpu")


class TextOut:
    """Writes text to stdout piece by piece, as it comes."""

    def __init__(self) -> None:
        self._in_line = False

    def write(self, piece: str) -> None:
        """Writes a piece and flushes it; a terminal gets no control characters."""
        sys.stdout.write(piece.translate(_HIDDEN) if sys.stdout.isatty() else piece)
        sys.stdout.flush()
        if piece:
            self._in_line = not piece.endswith("\n")

    def end_line(self) -> None:
        """Ends the line if stdout and stderr are on the same terminal, so that a message does not
        continue it."""
        if self._in_line and sys.stdout.isatty() and _on_terminal():
            self.write("\n")


text_out = TextOut()


class WordWrap:
    """Breaks a text between words where a terminal would break within them. The last word of what
    has come is kept back until it is whole."""

    def __init__(self, width: int) -> None:
        """`width` is the number of columns; 0: the text stays as it is."""
        self._width = width
        self._column = 0
        self._word = ""

    def push(self, text: str) -> str:
        """What is to be written, now that `text` has come."""
        if not self._width:
            return text
        from rich.cells import cell_len

        out = []
        for sign in text:
            wide = cell_len(sign) > 1
            if not (sign.isspace() or wide):
                self._word += sign
                if cell_len(self._word) < self._width - 1:
                    continue
                sign = ""
            out.append(self.end())
            if sign == "\n":
                self._column = 0
            else:
                size = cell_len(sign) if sign != "\t" else 8
                if self._column + size >= self._width:
                    out.append("\n")
                    self._column = 0
                    sign = sign.lstrip(" ")
                self._column += cell_len(sign)
            out.append(sign)
        return "".join(out)

    def end(self) -> str:
        """The last word, at the beginning of a line if it does not fit behind the others."""
        if not self._width:
            return ""
        from rich.cells import cell_len

        word, size = self._word, cell_len(self._word)
        breaks = self._column > 0 and self._column + size >= self._width
        self._column = size if breaks else self._column + size
        self._word = ""
        return f"\n{word}" if word and breaks else word


@contextmanager
def unechoed() -> Iterator[None]:
    """Keys that are typed meanwhile do not appear on the terminal; they are read afterwards."""
    try:
        import termios

        number = sys.stdin.fileno()
        before = termios.tcgetattr(number)
    except (ImportError, OSError, ValueError, termios.error):  # no terminal
        yield
        return
    silent = [*before[:3], before[3] & ~termios.ECHO, *before[4:]]
    termios.tcsetattr(number, termios.TCSANOW, silent)
    try:
        yield
    finally:
        termios.tcsetattr(number, termios.TCSANOW, before)


LINE_SECONDS = 10.0
"""Seconds between lines about work that takes long, where stderr is a file or a pipe."""


class _Lines:
    """Lines on a stderr that is a file or a pipe: one about every `LINE_SECONDS`."""

    def __init__(self) -> None:
        self._next = perf_counter() + LINE_SECONDS

    def __call__(self, text: str) -> None:
        """Prints `text` if the last line is old enough."""
        now = perf_counter()
        if text and now >= self._next:
            self._next = now + LINE_SECONDS
            say(text)


class TimeLeft:
    """The time that steps of about the same length still take, judged by those that are done."""

    def __init__(self, seconds: float | None = None) -> None:
        """`seconds` is a first guess of one step."""
        self._guess = seconds
        self._start: float | None = None

    def __call__(self, done: int, total: int) -> str:
        """Text such as `, about 12 min left`; empty before the first step is done."""
        if self._start is None:
            self._start = perf_counter() if done == 0 else None
        spent = 0.0 if self._start is None else perf_counter() - self._start
        each = spent / done if done and self._start is not None else self._guess
        return "" if each is None else f", about {span_text(each * (total - done))} left"


def span_text(seconds: float) -> str:
    """A span of time such as `40 s`, `12 min` or `2 h 20 min`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


class WaitingBar:
    """A progress bar on stderr for work that takes long, one at a time; without a terminal, a line
    now and then."""

    _shown: WaitingBar | None = None

    def __init__(self, label: str, unit: Literal["bytes", "things"], patience: float) -> None:
        """`unit` is the unit of the numbers; `patience` is the seconds before the bar is shown."""
        self._label, self._unit, self._patience = label, unit, patience
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._start = perf_counter()
        self._lines = _Lines()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Removes the bar."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = WaitingBar._shown = None

    def __call__(self, done: int, total: int) -> None:
        """Shows `done` of `total`, unless the work has just begun."""
        if not _on_terminal():
            if done < total:
                self._lines(f"{self._label}: {self._counted(done)} of {self._counted(total)}")
            return
        if self._bar is None:
            if perf_counter() - self._start < self._patience or done == total:
                return
            if WaitingBar._shown is not None:
                return
            self._bar, WaitingBar._shown = self._new_bar(), self
            self._task = self._bar.add_task("", total=total)
            self._bar.start()
        assert self._task is not None
        self._bar.update(self._task, completed=done, total=total)

    def _counted(self, n: int) -> str:
        return size_text(n) if self._unit == "bytes" else f"{n:,}"

    def _new_bar(self) -> Progress:
        """Creates the bar. Its modules are imported only now, since most commands need none."""
        from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        counts: ProgressColumn = DownloadColumn() if self._unit == "bytes" else MofNCompleteColumn()
        return Bar(TextColumn(self._label), BarColumn(), counts, console=_errors(), transient=True)


class StatusLine:
    """A line on the terminal that says what runs now; without a terminal, a line now and then.

    It needs no thread."""

    def __init__(self) -> None:
        self._width = 0
        self._lines = _Lines()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self("")

    def __call__(self, text: str) -> None:
        """Replaces the line by `text`."""
        if not _on_terminal():
            self._lines(text)
            return
        errors = _errors()
        text = text[: max(errors.width - 1, 0)]
        errors.file.write(f"\r{text:<{self._width}}" if text else f"\r{' ' * self._width}\r")
        errors.file.flush()
        self._width = len(text)


class CountProgress(WaitingBar):
    """A bar for work on items, one by one."""

    def __init__(self, label: str) -> None:
        super().__init__(label, "things", PATIENCE)


class LoadProgress(WaitingBar):
    """A bar for weights that are repacked or sent to a device, in bytes."""

    def __init__(self) -> None:
        super().__init__("loading weights", "bytes", PATIENCE)


class PromptProgress(WaitingBar):
    """A bar for a prompt, in tokens; it is removed when the text begins."""

    def __init__(self) -> None:
        super().__init__("reading the prompt", "things", PROMPT_PATIENCE)

    def __call__(self, done: int, total: int) -> None:
        """See `WaitingBar`; removes the bar at the end, because the text follows on its line."""
        super().__call__(done, total)
        if done == total:
            self.stop()


class CompileProgress:
    """Says how many kernels of a device are compiled while the command waits for them."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._device = ""
        self._bar: CountProgress | None = None

    def __call__(self, device: str, ready: int, asked: int) -> None:
        """Shows `ready` of `asked` kernels of a device; another device takes the bar over."""
        with self._lock:
            if self._bar is None or device != self._device:
                self._end()
                self._device, self._bar = device, CountProgress(f"compiling kernels for {device}")
            self._bar(ready, asked)

    def stop(self) -> None:
        """Removes the bar."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
