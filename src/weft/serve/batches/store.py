"""The folder of files and batches. What they are is in `files.db` there, whose transactions outlive
the process; the content of a file is a file of its own, named by its id, which is whole before the
database knows it."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, fields
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, BinaryIO
from uuid import uuid4

from weft.batch.journal import is_answered
from weft.database import open_database, transaction
from weft.errors import FormatError
from weft.file_lock import try_lock
from weft.files import private
from weft.serve.log import logger

APPLICATION = 0x77656669  # "wefi"
MIGRATIONS = (
    """CREATE TABLE files (
        id TEXT PRIMARY KEY, owner TEXT NOT NULL, filename TEXT NOT NULL, purpose TEXT NOT NULL,
        bytes INTEGER NOT NULL, created_at INTEGER NOT NULL
    );
CREATE TABLE batches (
        id TEXT PRIMARY KEY, owner TEXT NOT NULL, endpoint TEXT NOT NULL,
        completion_window TEXT NOT NULL, input_file_id TEXT NOT NULL, status TEXT NOT NULL,
        metadata TEXT, errors TEXT, output_file_id TEXT, error_file_id TEXT,
        created_at INTEGER NOT NULL, in_progress_at INTEGER, finalizing_at INTEGER,
        completed_at INTEGER, failed_at INTEGER, cancelling_at INTEGER, cancelled_at INTEGER,
        total INTEGER NOT NULL, completed INTEGER NOT NULL, failed INTEGER NOT NULL
    );
CREATE INDEX batches_by_status ON batches (status, created_at)""",
    # ids of files whose content is being written, or was when a server ended
    """CREATE TABLE begun (id TEXT PRIMARY KEY);
CREATE TABLE attempts (id TEXT PRIMARY KEY, n_rows INTEGER NOT NULL, n INTEGER NOT NULL)""",
)
ENDED = ("completed", "failed", "cancelled")
"""The states that a batch does not leave."""
_PARTIAL = ".part"
_OWN_NAME = re.compile(r"file-[0-9a-f]{32}(\.part)?")
_OPEN = "status NOT IN ('completed', 'failed', 'cancelled')"


@dataclass(frozen=True, slots=True)
class ClientFile:
    """A file of a client, or one with the rows of a batch."""

    id: str
    owner: str
    filename: str
    purpose: str
    bytes: int
    created_at: int

    def as_json(self) -> dict[str, Any]:
        """The object of the API."""
        return {
            "id": self.id, "object": "file", "bytes": self.bytes, "created_at": self.created_at,
            "filename": self.filename, "purpose": self.purpose, "status": "processed",
        }  # fmt: skip


@dataclass(frozen=True, slots=True)
class Batch:
    """A batch; the fields have the names of the API."""

    id: str
    owner: str
    endpoint: str
    completion_window: str
    input_file_id: str
    status: str
    metadata: str | None
    errors: str | None
    output_file_id: str | None
    error_file_id: str | None
    created_at: int
    in_progress_at: int | None
    finalizing_at: int | None
    completed_at: int | None
    failed_at: int | None
    cancelling_at: int | None
    cancelled_at: int | None
    total: int
    completed: int
    failed: int

    def as_json(self, counts: tuple[int, int] | None = None) -> dict[str, Any]:
        """The object of the API; `counts` are newer numbers of completed and failed lines."""
        completed, failed = counts or (self.completed, self.failed)
        shown = {f.name: getattr(self, f.name) for f in fields(self)}
        for name in ("owner", "total", "completed", "failed"):
            del shown[name]
        for name in ("metadata", "errors"):
            shown[name] = None if shown[name] is None else json.loads(shown[name])
        return shown | {
            "object": "batch", "expires_at": None, "expired_at": None,
            "request_counts": {"total": self.total, "completed": completed, "failed": failed},
        }  # fmt: skip


class FileStore:
    """Files and batches. For one process, and one thread at a time, except `save` and
    `save_rows`."""

    def __init__(self, folder: Path) -> None:
        """Makes the folder for its owner alone, if there is none. Raises FormatError if it cannot
        be used, or another server uses it."""
        self.folder = folder
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = open(folder / "lock", "ab", opener=private)
        except OSError as error:
            raise FormatError(f"--files-dir {folder}: {error.strerror or error}") from None
        try:
            if not try_lock(self._lock):
                raise FormatError(f"--files-dir {folder}: another server uses it; name another one")
            self._db = open_database(folder / "files.db", "files", APPLICATION, MIGRATIONS)
            self._sweep()
        except BaseException:
            self._lock.close()
            raise

    def close(self) -> None:
        """Closes the database and lets others use the folder."""
        self._db.close()
        self._lock.close()

    # ---- files ----

    def path(self, file_id: str) -> Path:
        """The path of the content of a file."""
        return self.folder / file_id

    def journal(self, batch_id: str) -> Path:
        """The path of the rows of a batch that runs."""
        return self.folder / f"{batch_id}.rows"

    def set_aside(self, batch_id: str) -> None:
        """Gives rows that cannot be read another name."""
        path = self.journal(batch_id)
        os.replace(path, path.with_name(f"{path.name}.damaged"))

    def save(self, content: IO[bytes], file_id: str) -> int:
        """Writes the content of a file, whole or not at all; returns its bytes."""
        return self._save(lambda out: shutil.copyfileobj(content, out, 1 << 20), file_id)

    def save_rows(self, batch_id: str) -> tuple[int, int]:
        """Writes the rows of a batch with answers to one file and those with errors to another, of
        `ids_of`; returns their bytes."""
        output, errors = self.ids_of(batch_id)
        sizes = []
        for file_id, answered in ((output, True), (errors, False)):

            def copy(out: BinaryIO, answered: bool = answered) -> None:
                with self.journal(batch_id).open("rb") as rows:
                    for row in rows:
                        if is_answered(json.loads(row)) == answered:
                            out.write(row)

            sizes.append(self._save(copy, file_id))
        return sizes[0], sizes[1]

    @staticmethod
    def ids_of(batch_id: str) -> tuple[str, str]:
        """The ids of the files of answers and of errors: the same ones when it is done again."""
        first, second = (
            f"file-{blake2b(f'{batch_id}/{kind}'.encode(), digest_size=16).hexdigest()}"
            for kind in ("answers", "errors")
        )
        return first, second

    def begin(self, *file_ids: str) -> None:
        """Notes that the content of files will be saved: if the server ends before they are known,
        the next one removes it."""
        with transaction(self._db):
            for file_id in file_ids:
                self._db.execute("INSERT OR IGNORE INTO begun VALUES (?)", (file_id,))

    def forget(self, file_id: str) -> None:
        """Removes the content of a file that does not become known."""
        self.path(file_id).unlink(missing_ok=True)
        with transaction(self._db):
            self._db.execute("DELETE FROM begun WHERE id = ?", (file_id,))

    def add_file(self, file: ClientFile) -> None:
        """Makes a file known whose content was saved."""
        with transaction(self._db):
            self._insert("files", file)
            self._db.execute("DELETE FROM begun WHERE id = ?", (file.id,))

    def file(self, file_id: str, owner: str) -> ClientFile | None:
        """A file of an owner, by its id."""
        row = self._db.execute(
            "SELECT * FROM files WHERE id = ? AND owner = ?", (file_id, owner)
        ).fetchone()
        return None if row is None else ClientFile(*row)

    def files(
        self, owner: str, purpose: str | None, after: str | None, limit: int, newest: bool
    ) -> Sequence[ClientFile]:
        """Files of an owner by time, from the one behind the id `after` on."""
        rows = self._page("files", owner, after, limit, newest, purpose)
        return [ClientFile(*row) for row in rows]

    def delete_file(self, file_id: str) -> None:
        """Removes a file."""
        with transaction(self._db):
            self._db.execute("DELETE FROM files WHERE id = ?", (file_id,))
        self.path(file_id).unlink(missing_ok=True)

    def reader_of(self, file_id: str) -> str | None:
        """The id of a batch that has not ended and needs a file."""
        row = self._db.execute(
            f"SELECT id FROM batches WHERE input_file_id = ? AND {_OPEN}", (file_id,)
        ).fetchone()
        return None if row is None else str(row[0])

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
        return int(self._db.execute("SELECT coalesce(sum(bytes), 0) FROM files").fetchone()[0])

    # ---- batches ----

    def add_batch(self, owner: str, body: dict[str, Any], metadata: Any) -> Batch:
        """Makes a batch that waits for its turn."""
        empty: dict[str, Any] = dict.fromkeys(f.name for f in fields(Batch))
        given = {name: body[name] for name in ("endpoint", "completion_window", "input_file_id")}
        counts = {"total": 0, "completed": 0, "failed": 0}
        batch = Batch(**empty | given | counts | {
            "id": f"batch_{uuid4().hex}", "owner": owner, "status": "validating",
            "metadata": None if metadata is None else json.dumps(metadata),
            "created_at": int(time.time()),
        })  # fmt: skip
        with transaction(self._db):
            self._insert("batches", batch)
        return batch

    def batch(self, batch_id: str, owner: str | None) -> Batch | None:
        """A batch of an owner (None: whoever owns it), by its id."""
        row = self._db.execute(
            "SELECT * FROM batches WHERE id = ? AND (? IS NULL OR owner = ?)",
            (batch_id, owner, owner),
        ).fetchone()
        return None if row is None else Batch(*row)

    def batches(self, owner: str, after: str | None, limit: int) -> Sequence[Batch]:
        """Batches of an owner, the newest first, from the one behind the id `after` on."""
        return [Batch(*row) for row in self._page("batches", owner, after, limit, True)]

    def next_batch(self) -> Batch | None:
        """The oldest batch that has not ended."""
        row = self._db.execute(
            f"SELECT * FROM batches WHERE {_OPEN} ORDER BY created_at, rowid LIMIT 1"
        ).fetchone()
        return None if row is None else Batch(*row)

    def n_open(self, owner: str) -> int:
        """The number of batches of an owner that have not ended."""
        row = self._db.execute(
            f"SELECT count(*) FROM batches WHERE owner = ? AND {_OPEN}", (owner,)
        ).fetchone()
        return int(row[0])

    def change(self, batch_id: str, **values: Any) -> None:
        """Changes fields of a batch."""
        with transaction(self._db):
            self._change(batch_id, values)

    def end(self, batch: Batch, results: Sequence[ClientFile], **values: Any) -> None:
        """Ends a batch and makes its files known, both or neither."""
        with transaction(self._db):
            for file in results:
                self._db.execute("DELETE FROM files WHERE id = ?", (file.id,))
                self._insert("files", file)
            for file_id in self.ids_of(batch.id):
                self._db.execute("DELETE FROM begun WHERE id = ?", (file_id,))
            self._change(batch.id, values)
        self.journal(batch.id).unlink(missing_ok=True)

    def attempt(self, batch_id: str, n_rows: int) -> int:
        """Notes that a batch with `n_rows` rows is begun; returns how often it was begun with as
        many, without `attempt_over` in between: each time the server ended over it."""
        with transaction(self._db):
            row = self._db.execute(
                "SELECT n FROM attempts WHERE id = ? AND n_rows = ?", (batch_id, n_rows)
            ).fetchone()
            n = 1 if row is None else int(row[0]) + 1
            values = (batch_id, n_rows, n)
            self._db.execute("INSERT OR REPLACE INTO attempts VALUES (?, ?, ?)", values)
        return n

    def attempt_over(self, batch_id: str) -> None:
        """Notes that a batch has stopped, and the server goes on."""
        with transaction(self._db):
            self._db.execute("DELETE FROM attempts WHERE id = ?", (batch_id,))

    def _sweep(self) -> None:
        """Removes what a server that was killed left: content that it began and did not make known.

        A file that this folder's database does not say a server began is somebody's, or what is
        left of a database that was lost; it stays."""
        known = {row[0] for row in self._db.execute("SELECT id FROM files")}
        begun = {row[0] for row in self._db.execute("SELECT id FROM begun")}
        for file_id in begun - known:
            for path in (self.path(file_id), self._partial(file_id)):
                with suppress(OSError):
                    path.unlink(missing_ok=True)
        with transaction(self._db):
            self._db.execute("DELETE FROM begun")
        unknown = [
            path.name
            for path in self.folder.iterdir()
            if _OWN_NAME.fullmatch(path.name) and path.name not in known
        ]
        if unknown:
            logger.warning(
                "--files-dir %s has %d files that files.db does not know, such as %s; they stay",
                self.folder, len(unknown), min(unknown),
            )  # fmt: skip

    def _change(self, batch_id: str, values: dict[str, Any]) -> None:
        names = ", ".join(f"{name} = ?" for name in values)
        self._db.execute(f"UPDATE batches SET {names} WHERE id = ?", (*values.values(), batch_id))

    def _insert(self, table: str, row: ClientFile | Batch) -> None:
        values = [getattr(row, f.name) for f in fields(row)]
        marks = ", ".join("?" * len(values))
        self._db.execute(f"INSERT INTO {table} VALUES ({marks})", values)

    def _page(
        self, table: str, owner: str, after: str | None, limit: int, newest: bool,
        purpose: str | None = None,
    ) -> Sequence[Any]:  # fmt: skip
        order, than = ("DESC", "<") if newest else ("ASC", ">")
        where, values = "owner = ?", [owner]
        if after is not None:
            where += f" AND rowid {than} (SELECT rowid FROM {table} WHERE id = ?)"
            values.append(after)
        if purpose is not None:
            where += " AND purpose = ?"
            values.append(purpose)
        query = f"SELECT * FROM {table} WHERE {where} ORDER BY rowid {order} LIMIT {int(limit)}"
        return self._db.execute(query, values).fetchall()

    def _partial(self, file_id: str) -> Path:
        return self.path(f"{file_id}{_PARTIAL}")

    def _save(self, write: Any, file_id: str) -> int:
        partial = self._partial(file_id)
        partial.unlink(missing_ok=True)  # of a server that was killed over the same rows
        try:
            with open(partial, "xb", opener=private) as out:
                write(out)
                out.flush()
                os.fsync(out.fileno())
                size = out.tell()
            os.replace(partial, self.path(file_id))
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
        return size
