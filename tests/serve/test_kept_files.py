"""What a start makes of the folder of `--files-dir`: what a server began goes, all else stays."""

from __future__ import annotations

import asyncio
import io
import logging
import stat
from pathlib import Path
from uuid import uuid4

import pytest
from starlette.types import Receive, Scope, Send

from weft.serve.batches.runner import BatchRunner, Room
from weft.serve.batches.store import ClientFile, FileStore
from weft.serve.metrics import HttpMetrics


def known(store: FileStore, content: bytes = b"row\n") -> str:
    """Keeps a file, as an upload does."""
    file_id = f"file-{uuid4().hex}"
    store.begin(file_id)
    size = store.save(io.BytesIO(content), file_id)
    store.add_file(ClientFile(file_id, "", "in.jsonl", "batch", size, 0))
    return file_id


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir() if path.name.startswith("file-")}


def test_files_of_others_stay(tmp_path: Path) -> None:
    theirs = [
        "file-report.txt", "file-", "file-1.part", f"file-{'a' * 32}.txt", f"file-{'A' * 32}",
        f"file-{'b' * 32}", f"file-{'c' * 32}.part",
    ]  # fmt: skip
    for name in theirs:
        (tmp_path / name).write_text("mine")
    (tmp_path / "file-x").mkdir()
    (tmp_path / f"file-{'d' * 32}").mkdir()
    (tmp_path / f"file-{'e' * 32}").symlink_to(tmp_path / "file-report.txt")
    before = names(tmp_path)
    for _ in range(2):
        store = FileStore(tmp_path)
        store.close()
    assert names(tmp_path) == before
    assert all((tmp_path / name).read_text() == "mine" for name in theirs)


def test_what_a_killed_server_began_is_removed(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    kept = known(store)
    whole, part = (f"file-{uuid4().hex}" for _ in range(2))
    store.begin(whole, part)
    store.save(io.BytesIO(b"x"), whole)  # written, and not known when the server was killed
    (tmp_path / f"{part}.part").write_bytes(b"half")
    store.close()
    store = FileStore(tmp_path)
    assert names(tmp_path) == {kept}
    store.close()


def test_a_lost_database_loses_no_upload(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FileStore(tmp_path)
    files = {known(store), known(store)}
    store.close()
    for path in tmp_path.glob("files.db*"):
        path.unlink()
    monkeypatch.setattr(logging.getLogger("weft.serve"), "propagate", True)
    with caplog.at_level("WARNING", "weft.serve"):
        store = FileStore(tmp_path)
    assert names(tmp_path) == files
    assert "has 2 files that files.db does not know" in caplog.text
    store.close()


def test_an_upload_that_fails_leaves_nothing(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    file_id = f"file-{uuid4().hex}"
    store.begin(file_id)
    with pytest.raises(AttributeError):
        store.save(None, file_id)  # type: ignore[arg-type]
    store.forget(file_id)
    assert names(tmp_path) == set()
    store.close()


def test_files_are_for_their_owner(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir(mode=0o755)
    store = FileStore(folder)
    file_id = known(store)
    assert stat.S_IMODE((folder / file_id).stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "lock").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "files.db").stat().st_mode) == 0o600
    store.close()


def test_a_batch_that_ends_the_server_is_given_up(tmp_path: Path) -> None:
    for n in range(1, 4):  # killed each time over the same lines
        store = FileStore(tmp_path)
        assert store.attempt("batch_1", 7) == n
        store.close()
    store = FileStore(tmp_path)
    assert store.attempt("batch_1", 8) == 1  # there was a further row
    store.attempt_over("batch_1")
    assert store.attempt("batch_1", 8) == 1  # it was told to stop
    store.close()


def test_damaged_rows_end_their_batch_alone(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    asked = {"endpoint": "/v1/completions", "completion_window": "24h"}
    batches = [store.add_batch("", asked | {"input_file_id": known(store)}, None) for _ in range(2)]
    store.journal(batches[0].id).write_text("no row\n" * 3)
    runner = BatchRunner(store, None, most_bytes=1 << 20)

    async def answered(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"{}"})

    async def run() -> None:
        runner.start(answered, Room(1, 1, HttpMetrics(), lambda: 0), 1)
        while store.next_batch() is not None:
            await asyncio.sleep(0.01)
        await runner.stop()

    asyncio.run(asyncio.wait_for(run(), 60))
    ends = [store.batch(batch.id, None) for batch in batches]
    assert [end.status for end in ends if end is not None] == ["failed", "completed"]
    assert ends[0] is not None and "damaged" in str(ends[0].errors)
    assert (tmp_path / f"{batches[0].id}.rows.damaged").read_text() == "no row\n" * 3
    store.close()
