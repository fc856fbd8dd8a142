"""`PackageTokenizers`: tokenizers of the package `tokenizers`, in a process with limits.

What a tokenizer.json asks for is a stranger's choice, and the package sets no limits to it. The
process may end where this one must not; it is started again for the next text.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Sequence
from typing import Any

from weft.bounds import ENCODING_BYTES_PER_SECOND, ENCODING_MEMORY, ENCODING_SECONDS
from weft.errors import TokenizerError
from weft.frontends.hf import encode_texts
from weft.worker import Worker

_NAME = "tokenizers"
_SHORT = 1000
"""Maximum number of characters of the package's message that are passed on."""


def has_package() -> bool:
    """True if the package `tokenizers` is installed."""
    try:
        return importlib.util.find_spec(_NAME) is not None
    except ValueError:
        return False


class PackageTokenizers:
    """Tokenizers by name, each made of its JSON text."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[str, bool]] = {}
        self._lock = threading.Lock()
        self._worker: Worker | None = None

    def add(self, key: str, tokenizer: str, *, plain: bool = False) -> None:
        """Makes a tokenizer; with `plain` it reads special tokens as text. Raises TokenizerError if
        the package cannot."""
        with self._lock:
            self._made[key] = tokenizer, plain
            if self._worker is None or not self._worker.usable:
                self._running()  # with this tokenizer
            else:
                self._read(self._worker, key)

    def __contains__(self, key: str) -> bool:
        return key in self._made

    def encode(self, key: str, text: str, *, special: bool = False) -> list[int]:
        """The ids of a text; with `special` the package adds tokens. Raises TokenizerError if there
        are none, or if they take more than the limits."""
        seconds = ENCODING_SECONDS + len(text.encode()) // ENCODING_BYTES_PER_SECOND
        asked = {"key": key, "text": text, "special": special}
        with self._lock:
            found: list[int] = _answer(self._running(), asked, seconds)
        return found

    def named(self, key: str, ids: Sequence[int]) -> list[str | None]:
        """The texts of tokens; None for ids that have none."""
        with self._lock:
            found: list[str | None] = _answer(self._running(), {"key": key, "named": list(ids)})
        return found

    def _running(self) -> Worker:
        """The process with all tokenizers."""
        if self._worker is None or not self._worker.usable:
            self._worker = _worker()
            for key in self._made:
                self._read(self._worker, key)
        return self._worker

    def _read(self, worker: Worker, key: str) -> None:
        tokenizer, plain = self._made[key]
        try:
            _answer(worker, {"key": key, "tokenizer": tokenizer, "special": plain})
        except TokenizerError:
            del self._made[key]
            raise


def _worker() -> Worker:
    try:
        return Worker(encode_texts.__file__, _NAME, memory=ENCODING_MEMORY)
    except ModuleNotFoundError as error:
        raise TokenizerError(str(error)) from None
    except (OSError, ValueError) as error:
        raise TokenizerError(
            f"the package tokenizers encodes in a process of its own, and {sys.executable!r} "
            f"cannot be started ({error})"
        ) from None


def _answer(worker: Worker, asked: dict[str, Any], seconds: int | None = None) -> Any:
    """The answer to a message, which may take ENCODING_SECONDS. Raises TokenizerError if there is
    none."""
    seconds = ENCODING_SECONDS if seconds is None else seconds
    reply = worker.ask(asked, seconds=seconds)
    if reply is None:
        worker.end()
        raise TokenizerError(
            f"it takes more than {seconds} s of a processor or "
            f"{ENCODING_MEMORY >> 30} GiB of memory"
        )
    if "error" in reply:
        raise TokenizerError(reply["error"][:_SHORT])
    return reply["answer"]
