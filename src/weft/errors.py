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
      ChatError           a chat template that is broken, or messages that it refuses
      BusyError           a request that an engine has no room for now
      ArgumentError       an option that a call does not have, or a value of the wrong type
                          (a TypeError, too)

A message names the tensor, file or argument, and says what is wrong and how to fix it.
"""

__all__ = [
    "AbortedError",
    "AllocationError",
    "ArgumentError",
    "BusyError",
    "ChatError",
    "ContextError",
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


class WeftError(Exception):
    """Base of every error that weft raises on purpose."""


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


class BusyError(WeftError):
    """An engine has no room for a request now; the same request may succeed later."""


class ChatError(WeftError):
    """A chat template is broken, or refuses the messages."""


class ArgumentError(WeftError, TypeError):
    """A call has no option of this name, or an argument is of the wrong type."""
