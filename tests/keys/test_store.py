"""The file of keys: what it holds, how it grows, and who may open it."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from tests.cli.in_process import weft
from weft.database import open_database
from weft.errors import ContextError, FormatError
from weft.keys import Key, KeyRing, KeyStore, LimitError, Limits, UsageWriter, Used
from weft.keys.store import digest_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "keys.db"


@pytest.fixture
def store(file: Path) -> Iterator[KeyStore]:
    store = KeyStore(file)
    yield store
    store.close()


def test_a_secret_is_nowhere_in_the_file(file: Path, store: KeyStore) -> None:
    secret = store.add("ann")
    assert len(secret) > 40 and secret.startswith("sk-weft-")
    store.close()
    data = b"".join(path.read_bytes() for path in file.parent.iterdir())
    assert b"ann" in data and secret[13:].encode() not in data
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


@pytest.mark.skipif(not hasattr(os, "fchown"), reason="files have no owner by number here")
def test_what_root_makes_belongs_to_the_owner_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`weft keys add` of root beside a server that runs as another user."""
    given: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "fchown", lambda file, user, group: given.append((user, group)))
    folder = tmp_path.stat()
    for user, owners in ((1234, []), (0, [(folder.st_uid, folder.st_gid)])):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        for _ in range(2):  # a file that is there keeps its owner
            KeyStore(tmp_path / f"of-{user}.db").close()
        assert given == owners


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a/b", "ü\n"])
def test_names(store: KeyStore, name: str) -> None:
    with pytest.raises(ContextError, match="is no name"):
        store.add(name)


def test_a_name_is_given_once(store: KeyStore) -> None:
    store.add("ann")
    store.revoke("ann")
    with pytest.raises(ContextError, match="there is a key ann already"):
        store.add("ann")
    with pytest.raises(ContextError, match="there is no key bob"):
        store.revoke("bob")
    with pytest.raises(ContextError, match="--limit-rpm 0: it is 1 or more"):
        store.add("bob", limit_rpm=0)


def test_files_of_something_else(tmp_path: Path, file: Path) -> None:
    text = tmp_path / "text"
    text.write_text("this is no database, but a text of some length" * 50)
    with pytest.raises(FormatError, match="not a database"):
        KeyStore(text)
    other = sqlite3.connect(file)
    other.execute("CREATE TABLE mine (a)")
    other.commit()
    other.close()
    before = file.read_bytes()
    with pytest.raises(FormatError, match="a database of something else"):
        KeyStore(file)
    assert file.read_bytes() == before
    with pytest.raises(FormatError, match=r"keys .*: unable to open"):
        KeyStore(tmp_path)


def test_migrations_are_done_once_and_in_order(file: Path) -> None:
    first = "CREATE TABLE a (x);\nINSERT INTO a VALUES (1)"
    open_database(file, "things", 7, [first]).close()
    db = open_database(file, "things", 7, [first, "ALTER TABLE a ADD COLUMN y DEFAULT 2"])
    assert db.execute("SELECT * FROM a").fetchall() == [(1, 2)]
    db.close()
    with pytest.raises(FormatError, match="has schema 2, and this weft knows 1"):
        open_database(file, "things", 7, [first])


def test_a_migration_that_fails_changes_nothing(file: Path) -> None:
    first = "CREATE TABLE a (x)"
    open_database(file, "things", 7, [first]).close()
    with pytest.raises(FormatError, match="no such table: b"):
        open_database(file, "things", 7, [first, "DROP TABLE a;\nDROP TABLE b"])
    db = open_database(file, "things", 7, [first])
    assert db.execute("SELECT * FROM a").fetchall() == []
    db.close()


def test_a_ring_finds_keys_of_all_kinds(tmp_path: Path, store: KeyStore) -> None:
    listed = tmp_path / "keys.txt"
    listed.write_text("one\n# two\n  three  \n")
    secret = store.add("ann")
    ring = KeyRing("typed", listed, store)
    found = [ring.find(s.encode()) for s in (secret, "typed", "one", "three", "two", "", "# two")]
    assert [key and key.name for key in found] == [
        "ann", "api-key", "file:1", "file:3", None, None, None,
    ]  # fmt: skip
    listed.write_text("four\n")
    assert ring.find(b"four") is None
    ring.reload()
    assert ring.find(b"four") is not None and ring.find(b"one") is None
    listed.write_text("a key with spaces\n")
    with pytest.raises(FormatError, match="line 1 is no key"):
        ring.reload()
    assert ring.find(b"four") is not None
    listed.write_text("#\n")
    with pytest.raises(FormatError, match="has no key"):
        ring.reload()


def test_expired_keys_say_so() -> None:
    assert Key("a", b"", expires=1).why_refused == "this key has expired; ask for another one"
    assert Key("a", b"", expires=1 << 40).why_refused == ""


def test_a_minute_slides() -> None:
    times = iter((0.0, 30.0, 45.0, 60.0, 61.0))
    limits, key = Limits(None, lambda: next(times)), Key("a", digest_of("a"), limit_rpm=2)
    for _ in range(2):
        with limits.request(key):
            pass
    with pytest.raises(LimitError) as refused, limits.request(key):
        pass
    assert (refused.value.name, refused.value.seconds) == ("limit_rpm", 15)
    with limits.request(key):  # the first one is a minute ago
        pass
    with pytest.raises(LimitError), limits.request(key):
        pass


def test_usage_adds_up_and_survives_a_full_disk(
    file: Path, store: KeyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    own = KeyStore(file)
    writer = UsageWriter(own, told.append)
    row = Used("ann", "2026-01-31", "m", 1, 10, 4, 3)
    futures = [writer.add(row) for _ in range(50)]
    for future in futures:
        future.result(10)

    def full(rows: object) -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with monkeypatch.context() as patch:
        patch.setattr(own, "use", full)
        writer.add(row).result(10)
    assert told == ["usage of keys could not be written: database or disk is full; it is tried "
                    "again"]  # fmt: skip
    cancelled: Future[None] = writer.add(row)
    cancelled.cancel()
    writer.close()
    assert store.usage() == [Used("ann", "2026-01-31", "m", 52, 520, 208, 156)]
    assert store.tokens_of_day("ann", "2026-01-31") == 520 + 156
    assert store.usage("bob") == store.usage(since="2026-02-01") == []


def test_the_command(file: Path) -> None:
    assert "say which file has the keys" in weft("keys", "list").stderr
    assert "there is no file" in weft("keys", "list", "--keys", file).stderr
    assert "takes the NAME" in weft("keys", "add", "--keys", file).stderr
    assert "is none of add, list" in weft("keys", "remove", "a", "--keys", file).stderr
    added = weft("keys", "add", "ann", "--keys", file, "--limit-rpm", "5", "--expires", "30d")
    assert added.returncode == 0 and "shown only now" in added.stderr
    assert weft("keys", "add", "ann", "--keys", file).returncode == 1
    for when in ("tomorrow", "2020-01-01", "5m"):
        assert weft("keys", "add", "b", "--keys", file, "--expires", when).returncode == 2
    listed = weft("keys", "list", "--keys", file).stdout.splitlines()
    assert len(listed) == 2 and listed[1].split()[:3] == ["ann", added.stdout[:12] + "...", "valid"]
    assert weft("keys", "revoke", "ann", "--keys", file).returncode == 0
    assert "revoked" in weft("keys", "list", "--keys", file).stdout
    assert "takes no limits" in weft("keys", "list", "--keys", file, "--limit-rpm", "3").stderr
