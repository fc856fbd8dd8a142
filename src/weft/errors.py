"""Every exception that weft raises on purpose.

    WeftError
      GraphError          a tensor or graph that breaks a shape or type rule
      UnsupportedOpError  no device of the list can run a node
      ScheduleError       a placement that cannot be made
      AllocationError     a memory plan that cannot be made, or is wrong
      FormatError         a file that is not what it claims to be
        MissingFileError  a file that is not there (a FileNotFoundError, too)
      ProgramError        a Program that breaks its own rules, or a wrong input to one
      DeviceError         a device that failed while running
        OutOfMemoryError  a plan that needs more bytes than the device has
        LinkError       a connection to another process or machine that failed, or was refused
      AbortedError        a run that abort() stopped
      TokenizerError      a vocabulary or text that cannot be tokenized
      ContextError        a call that an inference context cannot serve
        ContextFull       a call with more tokens than there is room for
      ChatError           a chat template that is broken, or messages that it refuses
      BusyError           a request that an engine has no room for now
      ArgumentError       an option that a call does not have, or a value of the wrong type
                          (a TypeError, too)

A message names the tensor, file or argument, and says what is wrong and how to fix it. Arguments
have other names on the command line, in files of settings and in requests; see `WeftError.told`.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Callable

__all__ = [
    "AbortedError",
    "AllocationError",
    "ArgumentError",
    "BusyError",
    "ChatError",
    "ContextError",
    "ContextFull",
    "DeviceError",
    "FormatError",
    "GraphError",
    "LinkError",
    "MissingFileError",
    "OutOfMemoryError",
    "ProgramError",
    "ScheduleError",
    "TokenizerError",
    "UnsupportedOpError",
    "WeftError",
]


_REFERENCE = re.compile(r"`(\w+)`")


def named(text: str, name: Callable[[str], str]) -> str:
    """A text in which `name` has replaced the arguments of weft that stand in backquotes."""
    return _REFERENCE.sub(lambda found: name(found[1]), text)


class WeftError(Exception):
    """Base of every error that weft raises on purpose.

    `argument` is the argument that is wrong: its name comes in front of the text, in which others
    stand in backquotes. `calls`, behind the text, is advice for programs only."""

    def __init__(self, text: str = "", *, argument: str | None = None, calls: str = "") -> None:
        super().__init__(text)
        self.argument = argument
        self._calls = calls

    def told(self, name: Callable[[str], str]) -> str:
        """The message for people, in which `name` gives the names of weft's arguments."""
        text = str(self.args[0])
        if self.argument is not None:
            text = f"`{self.argument}`{text}" if text[:1] == ":" else f"`{self.argument}` {text}"
        return named(text, name)

    def __str__(self) -> str:
        return self.told(str) + self._calls

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"


class ErrorWarning(UserWarning):
    """A warning with the words of an error, whose arguments a surface may name."""

    def __init__(self, error: WeftError) -> None:
        super().__init__(str(error))
        self.error = error


def warn(message: str | Warning, category: type[Warning] = UserWarning) -> None:
    """Warns as `warnings.warn` does, at the line that called weft, however deep the call is."""
    outermost, level, frame = 2, 3, sys._getframe(1).f_back
    while frame is not None:  # calls of weft pass through other modules, such as contextlib
        if frame.f_globals.get("__name__", "").startswith("weft."):
            outermost = level
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=outermost + 1)


class GraphError(WeftError):
    """A tensor or graph breaks a shape or type rule."""


class UnsupportedOpError(WeftError):
    """No device of the list can run a node."""


class ScheduleError(WeftError):
    """A placement cannot be made."""


class AllocationError(WeftError):
    """A memory plan cannot be made, or is wrong."""


class FormatError(WeftError):
    """A file is not what it claims to be."""


class MissingFileError(FormatError, FileNotFoundError):
    """A file is not there."""


class ProgramError(WeftError):
    """A Program breaks its own rules, or was given a wrong input."""


class DeviceError(WeftError):
    """A device failed while running."""


class OutOfMemoryError(DeviceError):
    """A plan needs more bytes than the device has."""


class LinkError(DeviceError):
    """A connection to another process or machine failed, or one side refused the other."""


class AbortedError(WeftError):
    """A run was stopped by `abort()`, from another thread."""


class TokenizerError(WeftError):
    """A vocabulary or a text cannot be tokenized."""


class ContextError(WeftError):
    """An inference context cannot serve a call."""


class ContextFull(ContextError):
    """A context has no room for the tokens of a call."""


class BusyError(WeftError):
    """An engine has no room for a request now; the same request may succeed later."""

    def __init__(self, text: str = "", *, retry_after: int = 1) -> None:
        """`retry_after` is the seconds after which it may succeed."""
        super().__init__(text)
        self.retry_after = retry_after


class ChatError(WeftError):
    """A chat template is broken, or refuses the messages."""


class ArgumentError(WeftError, TypeError):
    """A call has no option of this name, or an argument is of the wrong type."""
