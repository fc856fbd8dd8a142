"""SQLite files with a schema that grows by migrations, and with nothing lost when a process is
killed.

A transaction that has been committed outlives its process and a failure of the machine (write-ahead
log, `synchronous=FULL`). Several processes may use a file at once. Who opens a file of a newer
version of weft is told so, and changes nothing.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from weft.errors import FormatError

BUSY_SECONDS = 10.0
"""Seconds to wait for a process that writes."""


def open_database(
    path: str | os.PathLike[str], what: str, application: int, migrations: Sequence[str]
) -> sqlite3.Connection:
    """Opens or creates a file for its owner alone, and brings its schema up to date.

    `what` names the file in errors, `application` is the number by which it is known as such a file
    (`PRAGMA application_id`). `migrations[i]` leads from version i to i + 1; each is done whole or
    not at all. The connection may be used by any thread, one at a time.

    Raises FormatError if the file cannot be opened, is something else or damaged, or is newer."""
    path = Path(path)
    try:
        _create(path)
        connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
    except OSError as error:
        raise FormatError(f"{what} {path}: {error.strerror or error}") from None
    except sqlite3.Error as error:
        raise FormatError(f"{what} {path}: {error}") from None
    try:
        _prepare(connection, f"{what} {path}", application, migrations)
    except sqlite3.DatabaseError as error:
        connection.close()
        raise FormatError(f"{what} {path}: {error}") from None
    except BaseException:
        connection.close()
        raise
    return connection


def _create(path: Path) -> None:
    """Makes an empty file for its owner alone, unless there is one: closing a file that is in use
    would drop SQLite's locks of this process.

    What root makes belongs to the owner of the folder, whose server has to open it; SQLite gives
    the files beside it the same owner. Raises OSError."""
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileExistsError:
        return
    try:
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            folder = path.parent.stat()
            with suppress(PermissionError):  # root of a container may lack this right
                os.fchown(file, folder.st_uid, folder.st_gid)
    finally:
        os.close(file)


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Writes all that happens in the block, or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
    except BaseException:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")


def _prepare(
    connection: sqlite3.Connection, name: str, application: int, migrations: Sequence[str]
) -> None:
    of, version = _number(connection, "application_id"), _number(connection, "user_version")
    n_tables = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
    if of != application and (of or version or n_tables):
        raise FormatError(f"{name} is a database of something else; give another name")
    if version > len(migrations):
        raise FormatError(
            f"{name} has schema {version}, and this weft knows {len(migrations)}; use a newer weft"
        )
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA foreign_keys=ON")
    if version == len(migrations):
        return
    with transaction(connection):
        version = _number(connection, "user_version")  # another process may have been faster
        for number, script in enumerate(migrations[version:], version + 1):
            for statement in script.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version={number}")
        connection.execute(f"PRAGMA application_id={application}")


def _number(connection: sqlite3.Connection, pragma: str) -> int:
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])
