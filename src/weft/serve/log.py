"""The log of the server: a line for each request, and warnings without frequent repetition.

12:01:07 info: 127.0.0.1 POST /v1/completions 200, prompt 12, generated 16 tokens, 81 ms
"""

from __future__ import annotations

import asyncio
import logging
import sys
from time import monotonic, perf_counter
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["LEVELS", "RequestLog", "logger", "say_tokens", "start_log"]

logger = logging.getLogger("weft.serve")
LEVELS = ("debug", "info", "warning", "error")
"""The values of `--log-level`."""
_POLLED = frozenset(("/health", "/metrics"))
"""Paths that are polled all the time; they are logged at level `debug`, like the files of the
page."""
_REPEATS = 10.0
"""Seconds in which the same warning is logged only once."""


def start_log(level: str) -> None:
    """Lets the server and uvicorn write to stderr, from `level` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Lines())
    handler.addFilter(_Once())
    for name in ("weft.serve", "uvicorn", "asyncio"):
        log = logging.getLogger(name)
        log.handlers[:] = [handler]
        log.propagate = False
        # the server logs itself what uvicorn would log as information
        log.setLevel(
            level.upper() if name == "weft.serve" else "ERROR" if level == "error" else "WARNING"
        )


class _Lines(logging.Formatter):
    """Formats a line as `12:01:07 info: text`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        record.levelname = record.levelname.lower()
        return super().format(record)


class _Once(logging.Filter):
    """Passes the same warning only once in a while, with the number of those left out."""

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[str, tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """True if the record is to be logged."""
        if record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError):
            return False  # the request ended with the server
        if record.levelno != logging.WARNING:
            return True
        now, text = monotonic(), str(record.msg)
        since, hidden = self._seen.get(text, (-_REPEATS, 0))
        if now - since < _REPEATS:
            self._seen[text] = since, hidden + 1
            return False
        self._seen[text] = now, 0
        if hidden:
            record.msg = f"{text} ({hidden} more of these since the last such line)"
        return True


def say_tokens(state: dict[str, Any], n_prompt: int, n_generated: int) -> None:
    """Adds the numbers of tokens to the line of a request, whose scope has this `state`."""
    state["tokens"] = n_prompt, n_generated


class RequestLog:
    """ASGI middleware that logs a line for each request after its answer, and adds the header that
    names ignored fields (`state["ignored"]`)."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Passes a request on and logs it."""
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        state = scope.setdefault("state", {})
        start, status = perf_counter(), 499  # stays if the client leaves before an answer

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                names = _header(state.get("ignored", ()))
                if names:
                    message["headers"] = [*message["headers"], (b"x-weft-ignored", names)]
            await send(message)

        try:
            await self._app(scope, receive, noted)
        except Exception:
            status = 500
            raise
        finally:
            quiet = scope["path"] in _POLLED or scope["path"].startswith("/page/")
            level = logging.DEBUG if quiet else logging.INFO
            if logger.isEnabledFor(level):
                logger.log(level, _line(scope, status, perf_counter() - start))


def _line(scope: Scope, status: int, seconds: float) -> str:
    client = (scope.get("client") or ("-",))[0]
    path = scope.get("raw_path", b"").decode("latin-1")
    path = path if len(path) <= 100 else f"{path[:96]} ..."
    tokens = scope["state"].get("tokens")
    took = f", prompt {tokens[0]}, generated {tokens[1]} tokens" if tokens else ""
    return f"{client} {scope['method'][:20]} {path} {status}{took}, {seconds * 1000:.0f} ms"


def _header(names: Any) -> bytes:
    """The first few names in the form of a header."""
    plain = [name for name in names if name.isascii() and name.isprintable() and len(name) <= 64]
    more = len(names) - len(plain[:16])
    return ", ".join([*plain[:16], *([f"and {more} more"] if more else [])]).encode()
