"""The log of the server: a line for each request, and warnings without frequent repetition.

12:01:07 info: 127.0.0.1 POST /v1/completions 200, prompt 12, generated 16 tokens, 81 ms

or, with `--log-format json`, an object a line with `time`, `level`, `message`, and for requests the
fields of `_fields`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import time
from logging.handlers import WatchedFileHandler
from pathlib import Path
from time import monotonic
from typing import Any

from starlette.types import Scope

from weft.errors import FormatError
from weft.serve.endpoints import nearest
from weft.serve.record import tokens_of
from weft.tables import CONTROLS

logger = logging.getLogger("weft.serve")
LEVELS = ("debug", "info", "warning", "error")
"""The values of `--log-level`."""
FORMATS = ("text", "json")
"""The values of `--log-format`."""
_REPEATS = 10.0
"""Seconds in which the same warning is logged only once."""
_LOGS = ("weft.serve", "uvicorn", "asyncio", "opentelemetry")


def start_log(level: str, format: str = "text", file: Path | None = None) -> None:
    """Lets the server and its libraries write to stderr, or to the end of `file`, from `level` on.
    A file that is moved away is opened anew, as programs that rotate logs expect.

    Raises FormatError if the file cannot be written."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if file is not None:
        try:
            handler = WatchedFileHandler(file, encoding="utf-8")
        except OSError as error:
            raise FormatError(f"--log-file {file}: {error.strerror or error}") from None
    handler.setFormatter(_Objects() if format == "json" else _Lines())
    handler.addFilter(_Once())
    for name in _LOGS:
        log = logging.getLogger(name)
        for old in log.handlers:
            old.close()
        log.handlers[:] = [handler]
        log.propagate = False
        # the server logs itself what uvicorn would log as information
        log.setLevel(
            level.upper() if name == "weft.serve" else "ERROR" if level == "error" else "WARNING"
        )


def said_as_object(text: str) -> str:
    """A line of the command as an object of JSON; `warning: ` and the like become its level."""
    name, colon, rest = text.partition(": ")
    level = {"error": "error", "warning": "warning", "note": "info"}.get(name if colon else "")
    return _object(time.time(), level or "info", rest if level else text)


def _object(seconds: float, level: str, message: str, **more: Any) -> str:
    at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    shown = {"time": f"{at}.{int(seconds % 1 * 1000):03}Z", "level": level, "message": message}
    return json.dumps(shown | more)


class _Lines(logging.Formatter):
    """Formats a line as `12:01:07 info: text`."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s: %(message)s", "%H:%M:%S")

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        record.levelname = record.levelname.lower()
        return super().format(record).translate(CONTROLS)  # templates and files have words in it


class _Objects(logging.Formatter):
    """Formats a record as an object of JSON in a line."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        more: dict[str, Any] = dict(getattr(record, "request", {}))
        if record.exc_info:
            more["exception"] = self.formatException(record.exc_info)
        return _object(record.created, record.levelname.lower(), record.getMessage(), **more)


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


_SHOWN = 8
"""Maximum number of fields without an effect that a line names."""


def say_tokens(state: dict[str, Any], n_prompt: int, n_generated: int) -> None:
    """Notes the numbers of tokens of a request without `texts`, whose scope has this `state`."""
    state["tokens"] = n_prompt, n_generated


def log_request(scope: Scope, status: int, seconds: float) -> None:
    """Logs a request that has ended; at level debug if programs ask all the time, and for the files
    of the page."""
    endpoint = nearest(scope["path"])
    quiet = endpoint.polled or endpoint.access == "files"
    level = logging.DEBUG if quiet else logging.INFO
    if logger.isEnabledFor(level):
        fields = _fields(scope, status, seconds)
        logger.log(level, "%s", _line(fields), extra={"request": fields})


def _fields(scope: Scope, status: int, seconds: float) -> dict[str, Any]:
    state = scope["state"]
    path = scope.get("raw_path", b"").decode("latin-1")
    fields: dict[str, Any] = {
        "request_id": state["request_id"],
        "client": (scope.get("client") or ("-",))[0],
        "method": scope["method"][:20],
        "path": path if len(path) <= 100 else f"{path[:96]} ...",
        "status": status,
        "ms": round(seconds * 1000, 1),
    }
    tokens = tokens_of(state)
    if tokens is not None:
        fields |= {f"{name}_tokens": n for name, n in tokens._asdict().items()}
    ignored = [name[:60] for name in state.get("ignored", ())]
    if ignored:
        fields["ignored"] = ignored[:_SHOWN]
    return fields | {name: state[name] for name in ("key", "trace_id") if state.get(name)}


def _line(fields: dict[str, Any]) -> str:
    took = key = ""
    if "prompt_tokens" in fields:
        took = f", prompt {fields['prompt_tokens']}, generated {fields['generated_tokens']} tokens"
    if "key" in fields:
        key = f", key {fields['key']}"
    if "ignored" in fields:
        key += f", without effect: {' '.join(fields['ignored'])}"
    where = f"{fields['client']} {fields['method']} {fields['path']} {fields['status']}"
    return f"{where}{took}{key}, {fields['ms']:.0f} ms"
