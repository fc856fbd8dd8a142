"""The program of a `Worker` (`worker.py`): it answers messages, each within limits of the system.

The module whose path it is given has a function `answerer()`, which returns the function that
answers messages. The module imports the package and files beside it; nothing here imports `weft`,
so that the process starts at once.

Arguments: the path of the module; the folder of the package that it imports; the maximum number of
bytes of address space; the number of bytes of stack, or 0; the number of seconds without a message
after which the process ends, or 0. On standard input and output are messages of JSON, each behind
the eight bytes of its length:

    {"seconds" of a processor that the answer may take, "asked": what the function is given}
    {"answer": what it returned} or {"error": the message of what it raised}
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from math import ceil
from typing import Any, BinaryIO

Answerer = Callable[[Any], Any]
_MESSAGE = 10_000
"""Maximum number of characters of an error's message."""


def _read(file: BinaryIO) -> Any:
    """The next message; None at the end."""
    head = file.read(8)
    if len(head) < 8:
        return None
    return json.loads(file.read(int.from_bytes(head, "little")))


def _write(file: BinaryIO, message: dict[str, Any]) -> None:
    data = json.dumps(message).encode()
    file.write(len(data).to_bytes(8, "little") + data)
    file.flush()


def _bound(seconds: int, memory: int) -> None:
    """Sets the limits of the system for the next message, where the system has them."""
    try:
        import resource
    except ImportError:
        return
    used = resource.getrusage(resource.RUSAGE_SELF)
    soft = ceil(used.ru_utime + used.ru_stime + seconds)
    limits = [(resource.RLIMIT_CPU, soft), (resource.RLIMIT_AS, memory), (resource.RLIMIT_CORE, 0)]
    for what, limit in limits:
        try:
            resource.setrlimit(what, (limit, resource.getrlimit(what)[1]))
        except (OSError, ValueError):
            pass


def _reply(answer: Answerer, asked: Any) -> dict[str, Any] | None:
    """The reply to a message; None if memory was short."""
    try:
        return {"answer": answer(asked)}
    except MemoryError:
        return None
    except BaseException as error:  # libraries raise Exception, or panic
        return {"error": str(error)[:_MESSAGE] or type(error).__name__}


def _serve(answer: Answerer, memory: int, idle: int) -> None:
    """Answers messages until standard input ends, or until there is no answer: the process that
    asks says then that the message was too much."""
    alarm = getattr(signal, "alarm", lambda _seconds: None)  # Windows has none
    while True:
        alarm(idle)
        message = _read(sys.stdin.buffer)
        alarm(0)
        if message is None:
            return
        _bound(message["seconds"], memory)
        reply = _reply(answer, message["asked"])
        if reply is None:
            return
        _write(sys.stdout.buffer, reply)


def main() -> None:
    """Answers messages in a thread that has the stack."""
    path, folder = sys.argv[1:3]
    memory, stack, idle = map(int, sys.argv[3:6])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that asks
    sys.path += [folder, os.path.dirname(path)]
    name = os.path.splitext(os.path.basename(path))[0]
    answer: Answerer = importlib.import_module(name).answerer()
    threading.stack_size(stack)
    thread = threading.Thread(target=_serve, args=(answer, memory, idle))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
