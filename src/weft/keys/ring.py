"""Finds the key that a client sends."""

from __future__ import annotations

import hmac
import re
import secrets
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from time import monotonic

from weft.errors import FormatError, WeftError
from weft.files import read_text
from weft.keys.store import Key, KeyStore, digest_of

LOOK_SECONDS = 1.0
"""Seconds after which changes of keys by another process are noticed."""
SHORTEST_LOOK = 0.005
"""Minimum number of seconds between two looks for new keys, so that wrong ones cost little."""


class KeyRing:
    """The keys of a server: from the command line, from a text file and from a store.

    A key is found by an HMAC of its hash with a secret of this process, so that the time of a
    look-up says nothing about the keys there are, and then compared in constant time."""

    def __init__(
        self, api_key: str | None = None, file: Path | None = None, store: KeyStore | None = None
    ) -> None:
        """Raises FormatError if `file` cannot be read or has no key."""
        self._api_key, self._file, self.store = api_key, file, store
        self._salt = secrets.token_bytes(32)
        self._n_changes = -1
        self._looked = 0.0
        self._plain: list[Key] = []
        self._keys: Mapping[bytes, Key] = {}
        self.reload()

    def reload(self) -> None:
        """Reads all keys again. Raises FormatError if that fails; the keys are as before then."""
        plain = [] if self._api_key is None else [Key("api-key", digest_of(self._api_key))]
        if self._file is not None:
            plain += read_key_file(self._file)
        self._plain = plain
        self._read_store()

    def find(self, secret: bytes) -> Key | None:
        """The key with this secret, which may be revoked or have expired; None: there is none."""
        self._look(LOOK_SECONDS)
        digest = digest_of(secret)
        place = self._place(digest)
        if place not in self._keys:  # it may have been added just now
            self._look(SHORTEST_LOOK)
        key = self._keys.get(place)
        if key is None or not hmac.compare_digest(key.digest, digest):
            return None
        return key

    def named(self, name: str) -> Key | None:
        """The key of this name."""
        self._look(LOOK_SECONDS)
        return next((key for key in self._keys.values() if key.name == name), None)

    def _look(self, after: float) -> None:
        """Takes up what has changed in the store, if the last look is so many seconds ago."""
        now = monotonic()
        if self.store is None or now < self._looked + after:
            return
        self._looked = now
        with suppress(sqlite3.Error):  # the keys stay as they were
            if self.store.n_changes != self._n_changes:
                self._read_store()

    def _read_store(self) -> None:
        keys = list(self._plain)
        if self.store is not None:
            n_changes = self.store.n_changes
            keys += self.store.all()
            self._n_changes = n_changes
        self._keys = {self._place(key.digest): key for key in keys}

    def _place(self, digest: bytes) -> bytes:
        return hmac.digest(self._salt, digest, sha256)


def read_key_file(path: Path) -> list[Key]:
    """The keys of a text file, one a line; empty lines and those that begin with # are not keys.
    They are named by their lines: `file:3`. Raises FormatError if there is none or one is wrong."""
    try:
        lines = read_text(path).splitlines()
    except OSError as error:
        raise FormatError(f"--api-key-file {path}: {error.strerror or error}") from None
    except (ValueError, WeftError):
        raise FormatError(f"--api-key-file {path}: it is no text in UTF-8") from None
    keys = []
    for number, line in enumerate(lines, 1):
        secret = line.strip()
        if not secret or secret.startswith("#"):
            continue
        if not re.fullmatch(r"[!-~]+", secret):
            raise FormatError(
                f"--api-key-file {path}: line {number} is no key; keys are of ASCII without spaces"
            )
        keys.append(Key(f"file:{number}", digest_of(secret)))
    if not keys:
        raise FormatError(f"--api-key-file {path} has no key; write one a line")
    return keys
