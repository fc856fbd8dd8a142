"""Keys and their usage in an SQLite file."""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import NamedTuple

from weft.database import open_database, transaction
from weft.errors import ContextError

APPLICATION = 0x77656B79  # "weky"
MIGRATIONS = (
    """CREATE TABLE keys (
        name TEXT PRIMARY KEY, digest BLOB NOT NULL UNIQUE, hint TEXT NOT NULL,
        created INTEGER NOT NULL, expires INTEGER, revoked INTEGER,
        limit_rpm INTEGER, limit_tpd INTEGER, max_parallel INTEGER
    ) WITHOUT ROWID;
CREATE TABLE usage (
        key TEXT NOT NULL, day TEXT NOT NULL, model TEXT NOT NULL,
        requests INTEGER NOT NULL, prompt INTEGER NOT NULL, cached INTEGER NOT NULL,
        generated INTEGER NOT NULL, PRIMARY KEY (key, day, model)
    ) WITHOUT ROWID;
CREATE TABLE changes (n INTEGER NOT NULL);
INSERT INTO changes VALUES (0)""",
)
"""The statements that lead from each version of the schema to the next."""
_NAME = re.compile(r"[\w.@+-]{1,64}")
_ADD_USAGE = """INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET requests = requests + excluded.requests,
prompt = prompt + excluded.prompt, cached = cached + excluded.cached,
generated = generated + excluded.generated"""


@dataclass(frozen=True, slots=True)
class Key:
    """A key, without its secret."""

    name: str
    digest: bytes
    """SHA-256 of the secret."""
    hint: str = ""
    """The first characters of the secret, by which its owner recognizes it."""
    created: int = 0
    """Seconds since 1970, as all times here."""
    expires: int | None = None
    revoked: int | None = None
    limit_rpm: int | None = None
    """Maximum number of requests in a minute."""
    limit_tpd: int | None = None
    """Maximum number of tokens in a day (UTC), prompts and texts together."""
    max_parallel: int | None = None
    """Maximum number of requests at a time."""

    @property
    def why_refused(self) -> str:
        """Why the key is not accepted; empty if it is."""
        if self.revoked is not None:
            return "this key was revoked; ask for another one"
        if self.expires is not None and self.expires <= time.time():
            return "this key has expired; ask for another one"
        return ""


class Used(NamedTuple):
    """The usage of a request, or of all requests of a key, a day and a model."""

    key: str
    day: str
    """The day in UTC, as 2026-01-31."""
    model: str
    requests: int
    prompt: int
    """Number of prompt tokens, including those in the cache."""
    cached: int
    """Number of prompt tokens that were in the cache."""
    generated: int


class KeyStore:
    """The keys of a file. May be used by any thread, one at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Opens or creates the file. Raises the errors of `open_database`."""
        self._db = open_database(path, "keys", APPLICATION, MIGRATIONS)

    def close(self) -> None:
        """Closes the file."""
        self._db.close()

    def add(
        self,
        name: str,
        *,
        expires: int | None = None,
        limit_rpm: int | None = None,
        limit_tpd: int | None = None,
        max_parallel: int | None = None,
    ) -> str:
        """Adds a key and returns its secret, which is kept nowhere. Raises ContextError for a name
        that is taken, also by a revoked key, or that is no name, and for a limit below 1."""
        if not _NAME.fullmatch(name):
            raise ContextError(f"{name!r} is no name; use 1 to 64 letters, digits, or any of ._@+-")
        limits = {"limit-rpm": limit_rpm, "limit-tpd": limit_tpd, "max-parallel": max_parallel}
        for limit, value in limits.items():
            if value is not None and not 1 <= value < 1 << 62:
                raise ContextError(f"--{limit} {value}: it is 1 or more; leave it out for none")
        secret = new_secret()
        row = (name, digest_of(secret), secret[:12], int(time.time()), expires, None, limit_rpm,
               limit_tpd, max_parallel)  # fmt: skip
        try:
            with transaction(self._db):
                self._db.execute("INSERT INTO keys VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", row)
                self._note_change()
        except sqlite3.IntegrityError:
            raise ContextError(f"there is a key {name} already; choose another name") from None
        return secret

    def revoke(self, name: str) -> None:
        """Ends a key; its usage stays. Raises ContextError if there is none of this name."""
        with transaction(self._db):
            changed = self._db.execute(
                "UPDATE keys SET revoked = coalesce(revoked, ?) WHERE name = ?",
                (int(time.time()), name),
            )
            self._note_change()
        if not changed.rowcount:
            raise ContextError(f"there is no key {name}; `weft keys list` shows the names")

    def all(self) -> list[Key]:
        """All keys, by name."""
        return [Key(*row) for row in self._db.execute("SELECT * FROM keys ORDER BY name")]

    @property
    def n_changes(self) -> int:
        """Number of times that keys were added or revoked, by any process."""
        return int(self._db.execute("SELECT n FROM changes").fetchone()[0])

    def use(self, used: Iterable[Used]) -> None:
        """Adds usage, all in one transaction."""
        with transaction(self._db):
            self._db.executemany(_ADD_USAGE, used)

    def usage(self, key: str | None = None, since: str = "") -> Sequence[Used]:
        """Usage by key, day and model: of one key or all, from a day on."""
        rows = self._db.execute(
            "SELECT * FROM usage WHERE day >= ? AND (? IS NULL OR key = ?) ORDER BY 1, 2, 3",
            (since, key, key),
        )
        return [Used(*row) for row in rows]

    def tokens_of_day(self, key: str, day: str) -> int:
        """The tokens that a key used on a day."""
        row = self._db.execute(
            "SELECT sum(prompt + generated) FROM usage WHERE key = ? AND day = ?", (key, day)
        ).fetchone()
        return int(row[0] or 0)

    def _note_change(self) -> None:
        self._db.execute("UPDATE changes SET n = n + 1")


def new_secret() -> str:
    """A new key: 256 random bits, in a form that programs that look for secrets know by its
    beginning."""
    return f"sk-weft-{secrets.token_urlsafe(32)}"


def digest_of(secret: str | bytes) -> bytes:
    """The hash of a secret, which is kept in its place. A plain hash is enough, because secrets are
    random and long."""
    return sha256(secret.encode() if isinstance(secret, str) else secret).digest()


def today(now: float | None = None) -> str:
    """The day in UTC, as 2026-01-31."""
    return time.strftime("%Y-%m-%d", time.gmtime(now))
