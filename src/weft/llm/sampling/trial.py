"""Compiles a constraint in a process of its own first, which may fail where this one must not."""

from __future__ import annotations

import atexit
import hashlib
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from weft.bounds import (
    CONSTRAINT_BYTES,
    CONSTRAINT_CPU_SECONDS,
    CONSTRAINT_MEMORY,
    CONSTRAINT_SECONDS,
    CONSTRAINTS_AT_ONCE,
)
from weft.errors import BusyError, ContextError
from weft.llm.sampling import compile_constraint

_SHORT = 600
"""Maximum number of characters of a library's message that are passed on."""
_KEPT = 64
"""Maximum number of kept answers."""
_KEPT_BYTES = 16 << 20
"""Maximum number of bytes of all kept answers."""
_DEEP = (
    "it is nested too deeply to be compiled; its rules, references and groups may be nested some "
    "hundred levels deep"
)
_SLOW = (
    f"compiling it takes more than {CONSTRAINT_CPU_SECONDS} s of a processor; "
    "make it smaller or plainer"
)
_LONG = (
    f"compiling it and waiting for others take more than {CONSTRAINT_SECONDS:g} s; try again, or "
    "make it smaller or plainer"
)
_LARGE = (
    f"compiling it takes more than {CONSTRAINT_MEMORY >> 20} MiB of memory; "
    "make it smaller or plainer"
)
_SIGNALS = {
    "SIGXCPU": _SLOW, "SIGKILL": _LONG, "SIGABRT": _LARGE, "SIGSEGV": _DEEP, "SIGBUS": _DEEP,
}  # fmt: skip
_WINDOWS_STACK = 0xC00000FD
"""The status of a process of Windows whose stack was too small."""


def tried(
    kind: str,
    text: str,
    vocabulary: dict[str, Any] | None = None,
    tokens: dict[str, int] | None = None,
) -> str:
    """The grammar for llguidance of a constraint that another process could compile.

    `kind` is "grammar", "json_schema" or "regex"; `vocabulary` has the number of tokens, the end
    tokens and the special ones (see `compile_constraint`); `tokens` has the ids of tokens that a
    grammar names.

    Raises ContextError for a constraint that is malformed, or exceeds a bound; BusyError if others
    keep it waiting for too long."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > CONSTRAINT_BYTES:
        raise ContextError(
            f": it has {len(data)} bytes; a constraint may have {CONSTRAINT_BYTES}", argument=kind
        )
    request = {"kind": kind, "text": text, "vocabulary": vocabulary, "tokens": tokens or {}}
    message = json.dumps(request).encode()
    answer = _trials.answer(message)
    if "error" in answer:
        raise ContextError(f": {short_reason(answer['error'])}", argument=kind)
    return answer["source"]


def short_reason(message: str) -> str:
    """A library's message without the dump of its state and stack."""
    text = re.split(r"\n<(?:state|backtrace)>", message)[0].strip()
    if "symbols.len()" in text:
        return "it has too many rules and alternatives; make it smaller"
    if "regex parse error" in text or "lookarounds not" in text:
        text = f"a pattern cannot be followed: {text}"
    if "coerce_one_of" in text:
        text = (
            "oneOf has alternatives that overlap, which no answer can be held to; write anyOf "
            "where more than one may be true"
        )
    return text if len(text) <= _SHORT else text[:_SHORT] + " ..."


class _Process:
    """A process that compiles constraints."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("llguidance")
        assert spec is not None and spec.origin is not None
        folder = Path(spec.origin).parent.parent
        program = compile_constraint.__file__
        limits = (_stack_bytes(), CONSTRAINT_CPU_SECONDS, CONSTRAINT_MEMORY)
        try:
            self._child = subprocess.Popen(
                [sys.executable, "-I", "-S", program, str(folder), *map(str, limits)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise ContextError(
                f"constraints are compiled by a process of their own, and {sys.executable!r} "
                f"cannot be started ({error})"
            ) from None

    @property
    def alive(self) -> bool:
        """False if it has ended."""
        return self._child.poll() is None

    def ask(self, message: bytes, seconds: float) -> dict[str, str] | None:
        """The answer to a message; None if the process ended over it."""
        timer = threading.Timer(max(seconds, 0.0), self._child.kill)
        timer.daemon = True
        timer.start()
        assert self._child.stdin is not None and self._child.stdout is not None
        try:
            self._child.stdin.write(len(message).to_bytes(8, "little") + message)
            self._child.stdin.flush()
            head = self._child.stdout.read(8)
            data = self._child.stdout.read(int.from_bytes(head, "little"))
            return json.loads(data) if data else None
        except (OSError, ValueError):
            return None
        finally:
            timer.cancel()

    def reason(self) -> str:
        """Says why it ended."""
        code = self._child.wait()
        ends = {getattr(signal, name, None): reason for name, reason in _SIGNALS.items()}
        reason = _LARGE if code == 0 else ends.get(-code)
        if reason is None and code == _WINDOWS_STACK:
            reason = _DEEP
        return reason or f"the process that compiles constraints ended with status {code}"

    def end(self) -> None:
        """Ends it."""
        self._child.kill()
        self._child.wait()
        for pipe in (self._child.stdin, self._child.stdout):
            try:
                if pipe is not None:
                    pipe.close()
            except OSError:
                pass


class _Trials:
    """The processes that compile constraints, and their latest answers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(CONSTRAINTS_AT_ONCE)
        self._idle: list[_Process] = []
        self._kept: OrderedDict[bytes, dict[str, str]] = OrderedDict()
        self._n_bytes = 0

    def answer(self, message: bytes) -> dict[str, str]:
        """The answer to a message, perhaps from an earlier time."""
        key = hashlib.sha256(message).digest()
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        deadline = time.monotonic() + CONSTRAINT_SECONDS
        if not self._room.acquire(timeout=CONSTRAINT_SECONDS):
            raise BusyError("too many constraints are being compiled; try again in a moment")
        try:
            answer = self._asked(message, deadline)
        finally:
            self._room.release()
        self._keep(key, answer)
        return answer

    def _asked(self, message: bytes, deadline: float) -> dict[str, str]:
        with self._lock:
            process = self._idle.pop() if self._idle else None
        if process is not None and not process.alive:  # it ends by itself after a while
            process.end()
            process = None
        fresh = process or _Process()
        try:
            answer = fresh.ask(message, deadline - time.monotonic())
        except BaseException:  # for example Ctrl-C: its next answer would be of this message
            fresh.end()
            raise
        if answer is None:
            reason = fresh.reason()
            fresh.end()
            return {"error": reason}
        with self._lock:
            self._idle.append(fresh)
        return answer

    def _keep(self, key: bytes, answer: dict[str, str]) -> None:
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = answer
            self._n_bytes += sum(map(len, answer.values()))
            while len(self._kept) > _KEPT or self._n_bytes > _KEPT_BYTES:
                _, old = self._kept.popitem(last=False)
                self._n_bytes -= sum(map(len, old.values()))

    def end(self) -> None:
        """Ends the processes that wait."""
        with self._lock:
            idle, self._idle = self._idle, []
        for process in idle:
            process.end()


def _stack_bytes() -> int:
    """A quarter of the stack that this process's threads have, for a wide margin."""
    threads = 1 << 20  # musl's, as Python sets it
    try:
        import resource

        if os.confstr("CS_GNU_LIBC_VERSION") or sys.platform == "darwin":
            soft = resource.getrlimit(resource.RLIMIT_STACK)[0]
            threads = 2 << 20 if soft == resource.RLIM_INFINITY else soft
    except (ImportError, AttributeError, OSError, ValueError):
        pass
    asked = threading.stack_size()
    return max(min(asked or threads, 8 << 20) // 4, 128 << 10)


_trials = _Trials()
_inherited: list[_Trials] = []


def _end() -> None:
    _trials.end()


def _after_fork() -> None:
    """Processes belong to the process that started them."""
    global _trials
    _inherited.append(_trials)  # whose pipes and processes are not to be touched
    _trials = _Trials()


atexit.register(_end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
