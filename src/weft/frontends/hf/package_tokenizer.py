"""`PackageTokenizers`: tokenizers of the package `tokenizers`, in a process with limits.

What a tokenizer.json asks for is a stranger's choice, and the package sets no limits to it. The
process may end where this one must not; it is started again for the next text.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from weft.bounds import ENCODING_BYTES_PER_SECOND, ENCODING_MEMORY, ENCODING_SECONDS
from weft.errors import TokenizerError
from weft.frontends.hf import encode_texts

_NAME = "tokenizers"


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
        self._child: _Child | None = None

    def add(self, key: str, tokenizer: str, *, plain: bool = False) -> None:
        """Makes a tokenizer; with `plain` it reads special tokens as text. Raises TokenizerError if
        the package cannot."""
        with self._lock:
            self._made[key] = tokenizer, plain
            if self._child is None or not self._child.usable:
                self._running()  # with this tokenizer
            else:
                self._read(self._child, key)

    def __contains__(self, key: str) -> bool:
        return key in self._made

    def encode(self, key: str, text: str, *, special: bool = False) -> list[int]:
        """The ids of a text; with `special` the package adds tokens. Raises TokenizerError if there
        are none, or if they take more than the limits."""
        seconds = ENCODING_SECONDS + len(text.encode()) // ENCODING_BYTES_PER_SECOND
        asked = {"key": key, "text": text, "special": special, "seconds": seconds}
        with self._lock:
            found: list[int] = self._running().answer(asked)
        return found

    def named(self, key: str, ids: Sequence[int]) -> list[str | None]:
        """The texts of tokens; None for ids that have none."""
        asked = {"key": key, "named": list(ids), "seconds": ENCODING_SECONDS}
        with self._lock:
            found: list[str | None] = self._running().answer(asked)
        return found

    def _running(self) -> _Child:
        """The process with all tokenizers."""
        if self._child is None or not self._child.usable:
            self._child = _Child()
            for key in self._made:
                self._read(self._child, key)
        return self._child

    def _read(self, child: _Child, key: str) -> None:
        tokenizer, plain = self._made[key]
        try:
            child.answer(
                {"key": key, "tokenizer": tokenizer, "special": plain, "seconds": ENCODING_SECONDS}
            )
        except TokenizerError:
            del self._made[key]
            raise


class _Child:
    """A process that encodes."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec(_NAME)
        if spec is None or spec.origin is None:
            raise TokenizerError("the package tokenizers is not installed")
        folder, program = Path(spec.origin).parent.parent, encode_texts.__file__
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", program, str(folder), str(ENCODING_MEMORY)],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            raise TokenizerError(
                f"the package tokenizers encodes in a process of its own, and {sys.executable!r} "
                f"cannot be started ({error})"
            ) from None
        self._pid = os.getpid()
        self._whole = True
        self._end = weakref.finalize(self, _end, self._process, self._pid)

    @property
    def usable(self) -> bool:
        """False if it has ended, or if it belongs to the process that this one was forked from."""
        return self._whole and self._pid == os.getpid() and self._process.poll() is None

    def answer(self, message: dict[str, Any]) -> Any:
        """The answer to a message. Raises TokenizerError if there is none."""
        data = json.dumps(message).encode()
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None and stdout is not None
        self._whole, found = False, None  # until the answer is read, whatever comes between
        with suppress(OSError, ValueError):
            stdin.write(len(data).to_bytes(8, "little") + data)
            stdin.flush()
            head = stdout.read(8)
            answer = stdout.read(int.from_bytes(head, "little"))
            found = json.loads(answer) if answer else None
        if found is None:
            self._end()
            raise TokenizerError(
                f"it takes more than {message['seconds']} s of a processor or "
                f"{ENCODING_MEMORY >> 30} GiB of memory"
            )
        self._whole = True
        if "error" in found:
            raise TokenizerError(found["error"])
        return found["answer"]


def _end(process: subprocess.Popen[bytes], pid: int) -> None:
    if pid == os.getpid():
        process.kill()
        process.wait()
    for pipe in (process.stdin, process.stdout):
        with suppress(OSError):
            if pipe is not None:
                pipe.close()
