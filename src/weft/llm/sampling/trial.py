"""Compiles a constraint in a process of its own first, which may fail where this one must not."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections import OrderedDict
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
from weft.worker import Worker

_SHORT = 600
"""Maximum number of characters of a library's message that are passed on."""
_IDLE_SECONDS = 300
"""Number of seconds without a constraint after which a process ends."""
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

    Raises ContextError for a constraint that is malformed, or exceeds a bound; NoCompilerError
    where none can be compiled; BusyError if others keep it waiting for too long."""
    data = text.encode("utf-8", "surrogatepass")
    if len(data) > CONSTRAINT_BYTES:
        raise ContextError(
            f": it has {len(data)} bytes; a constraint may have {CONSTRAINT_BYTES}", argument=kind
        )
    request = {"kind": kind, "text": text, "vocabulary": vocabulary, "tokens": tokens or {}}
    reply = _trials.answer(request)
    if "error" in reply:
        raise ContextError(f": {short_reason(reply['error'])}", argument=kind)
    return reply["answer"]


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


def _worker() -> Worker:
    limits = {"memory": CONSTRAINT_MEMORY, "stack": _stack_bytes(), "idle": _IDLE_SECONDS}
    try:
        return Worker(compile_constraint.__file__, "llguidance", **limits)
    except (OSError, ValueError) as error:
        raise NoCompilerError(
            f"constraints are compiled by a process of their own, and {sys.executable!r} "
            f"cannot be started ({error})"
        ) from None


def _why(status: int) -> str:
    """Says why a process ended with this status."""
    ends = {getattr(signal, name, None): reason for name, reason in _SIGNALS.items()}
    reason = _LARGE if status == 0 else ends.get(-status)
    if reason is None and status == _WINDOWS_STACK:
        reason = _DEEP
    return reason or f"the process that compiles constraints ended with status {status}"


class NoCompilerError(ContextError):
    """No constraint can be compiled here: the package for it is missing, or a process of its own
    does not start."""


class _Trials:
    """The processes that compile constraints, and their latest answers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(CONSTRAINTS_AT_ONCE)
        self._idle: list[Worker] = []
        self._kept: OrderedDict[bytes, dict[str, str]] = OrderedDict()
        self._n_bytes = 0

    def answer(self, request: dict[str, Any]) -> dict[str, str]:
        """The reply to a request, perhaps from an earlier time."""
        key = hashlib.sha256(json.dumps(request).encode()).digest()
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
                return self._kept[key]
        deadline = time.monotonic() + CONSTRAINT_SECONDS
        if not self._room.acquire(timeout=CONSTRAINT_SECONDS):
            raise BusyError("too many constraints are being compiled; try again in a moment")
        try:
            reply = self._asked(request, deadline)
        finally:
            self._room.release()
        self._keep(key, reply)
        return reply

    def _asked(self, request: dict[str, Any], deadline: float) -> dict[str, str]:
        with self._lock:
            worker = self._idle.pop() if self._idle else None
        if worker is None or not worker.usable:  # it ends by itself after a while
            worker = _worker()
        left = deadline - time.monotonic()
        reply = worker.ask(request, seconds=CONSTRAINT_CPU_SECONDS, deadline=left)
        if reply is None:
            return {"error": _why(worker.status())}
        with self._lock:
            self._idle.append(worker)
        return reply

    def _keep(self, key: bytes, answer: dict[str, str]) -> None:
        with self._lock:
            if key in self._kept:
                return
            self._kept[key] = answer
            self._n_bytes += sum(map(len, answer.values()))
            while len(self._kept) > _KEPT or self._n_bytes > _KEPT_BYTES:
                _, old = self._kept.popitem(last=False)
                self._n_bytes -= sum(map(len, old.values()))


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


def _after_fork() -> None:
    """Processes belong to the process that started them."""
    global _trials
    _trials = _Trials()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
