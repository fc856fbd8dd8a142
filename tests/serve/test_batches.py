"""`/v1/files` and `/v1/batches` with the openai client; cancelling, restarts, owners."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import BadRequestError, NotFoundError, OpenAI
from openai.types import Batch

from tests.serve import server as process
from tests.serve.in_process import DEMO, SAMPLE, Server
from tests.serve.test_keys import add, used
from tests.waiting import eventually

ENDPOINT = "/v1/completions"


def requests(n: int, **body: Any) -> bytes:
    rows = [
        {"custom_id": f"r{i}", "method": "POST", "url": ENDPOINT,
         "body": {"prompt": f"What is {i} + 1?", "max_tokens": 4, "temperature": 0} | body}
        for i in range(n)
    ]  # fmt: skip
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def start(client: OpenAI, data: bytes, **more: Any) -> Batch:
    file = client.files.create(file=("in.jsonl", data), purpose="batch")
    return client.batches.create(
        input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h", **more
    )


def until(client: OpenAI, batch: Batch, *states: str) -> Batch:
    """The batch, once it is in one of these states."""

    def found() -> Batch | None:
        now = client.batches.retrieve(batch.id)
        return now if now.status in states else None

    return eventually(found)


def n_completed(client: OpenAI, batch: Batch) -> int:
    counts = client.batches.retrieve(batch.id).request_counts
    return counts.completed if counts is not None else 0


def rows_of(client: OpenAI, file_id: str | None) -> list[dict[str, Any]]:
    assert file_id is not None
    return [json.loads(row) for row in client.files.content(file_id).text.splitlines()]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("files")
    options = ("--files-dir", folder / "own", "--max-file", 100_000, "--files-dir-size", 400_000)
    with Server(DEMO, "-np", 4, "--max-body", 5000, *options) as running:
        yield running


def test_a_batch(server: Server) -> None:
    client = server.client
    data = requests(20) + b"nonsense\n" + requests(1, temperature=9).replace(b"r0", b"hot")
    batch = start(client, data, metadata={"for": "a test"})
    assert batch.status == "validating" and batch.object == "batch"
    batch = until(client, batch, "completed")
    assert batch.request_counts is not None
    assert batch.request_counts.model_dump() == {"total": 22, "completed": 20, "failed": 2}
    assert batch.metadata == {"for": "a test"}
    assert batch.created_at <= (batch.in_progress_at or 0) <= (batch.completed_at or 0)
    answers = rows_of(client, batch.output_file_id)
    assert sorted(row["custom_id"] for row in answers) == sorted(f"r{i}" for i in range(20))
    assert all(r["response"]["body"]["usage"]["completion_tokens"] == 4 for r in answers)
    wrong, hot = sorted(rows_of(client, batch.error_file_id), key=lambda r: str(r["custom_id"]))
    assert wrong["error"]["code"] == "invalid_line"
    assert hot["custom_id"] == "hot" and hot["response"]["status_code"] == 400
    assert next(b.id for b in client.batches.list(limit=5)) == batch.id


def test_answers_are_those_of_requests(server: Server) -> None:
    client = server.client
    batch = until(client, start(client, requests(1)), "completed")
    (row,) = rows_of(client, batch.output_file_id)
    body = json.loads(requests(1))["body"]
    status, _, asked = server.call("POST", ENDPOINT, body)
    assert status == 200
    assert row["response"]["body"]["choices"] == asked["choices"]
    assert row["response"]["request_id"].startswith("req_")


def test_lines_for_the_responses_api(server: Server) -> None:
    client = server.client
    body = {"model": "x", "input": "a", "max_output_tokens": 2, "temperature": 0}
    line = {"custom_id": "a", "method": "POST", "url": "/v1/responses", "body": body}
    file = client.files.create(file=("in.jsonl", json.dumps(line).encode()), purpose="batch")
    batch = client.batches.create(
        input_file_id=file.id, endpoint="/v1/responses", completion_window="24h"
    )
    (row,) = rows_of(client, until(client, batch, "completed").output_file_id)
    assert row["response"]["body"]["object"] == "response"
    assert row["response"]["body"]["output"][0]["content"][0]["text"]


def test_files(server: Server) -> None:
    client = server.client
    made = [client.files.create(file=(f"ü{i}.jsonl", b"a" * (i + 1)), purpose="batch")
            for i in range(3)]  # fmt: skip
    assert [(f.filename, f.bytes, f.purpose, f.status) for f in made[:1]] == [
        ("ü0.jsonl", 1, "batch", "processed")
    ]
    first = client.files.list(limit=2)
    assert [f.id for f in first.data] == [made[2].id, made[1].id] and first.has_more
    assert made[0].id in [f.id for f in client.files.list(limit=2)]
    assert client.files.content(made[2].id).read() == b"aaa"
    assert client.files.retrieve(made[1].id) == made[1]
    assert client.files.delete(made[0].id).deleted
    for call in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(NotFoundError, match="there is no file"):
            call(made[0].id)
    with pytest.raises(BadRequestError, match="purpose is 'vision'; it must be batch"):
        client.files.create(file=("a", b"a"), purpose="vision")
    with pytest.raises(BadRequestError, match="file is empty"):
        client.files.create(file=("a", b""), purpose="batch")


@pytest.mark.parametrize(
    ("data", "kind", "message"),
    [
        (b"{}", "application/json", "the body is no form with a file"),
        (b"--x\r\nnonsense", "multipart/form-data; boundary=x", "file is missing"),
        (b"nonsense", "multipart/form-data; boundary=x", "the form cannot be read"),
        (b"", "multipart/form-data", "the form cannot be read"),
    ],
)
def test_wrong_forms(server: Server, data: bytes, kind: str, message: str) -> None:
    status, _, body = server.call("POST", "/v1/files", data, **{"Content-Type": kind})
    assert status == 400 and message in body["error"]["message"], body


def test_sizes(server: Server) -> None:
    client = server.client
    with pytest.raises(Exception, match="more than 165536 bytes"):
        client.files.create(file=("a", b"a" * 170_000), purpose="batch")
    for file in client.files.list():  # those of other tests
        client.files.delete(file.id)
    kept = []
    with pytest.raises(Exception, match="the files would have more than 400000 bytes"):
        for _ in range(5):
            kept.append(client.files.create(file=("a", b"a" * 99_000), purpose="batch"))
    assert len(kept) >= 3
    for file in kept:
        client.files.delete(file.id)


def test_wrong_batches(server: Server) -> None:
    client = server.client
    with pytest.raises(BadRequestError, match="is no file of purpose batch"):
        client.batches.create(input_file_id="file-x", endpoint=ENDPOINT, completion_window="24h")
    file = client.files.create(file=("a", b"\n\n"), purpose="batch")
    batch = client.batches.create(input_file_id=file.id, endpoint=ENDPOINT, completion_window="24h")
    failed = until(client, batch, "failed")
    assert failed.errors is not None and failed.errors.data is not None
    assert failed.errors.data[0].message == "the file has no requests"
    status, _, body = server.call("POST", "/v1/batches", {"input_file_id": file.id})
    assert status == 400 and "endpoint" in body["error"]["message"]
    with pytest.raises(NotFoundError):
        client.batches.retrieve("batch_x")


def test_cancelling_keeps_what_is_done(server: Server) -> None:
    client = server.client
    batch = start(client, requests(500, max_tokens=64, ignore_eos=True))
    behind = start(client, requests(1))
    eventually(lambda: n_completed(client, batch) >= 5)
    assert client.batches.retrieve(batch.id).status == "in_progress"
    with pytest.raises(Exception, match=f"is being read by {batch.id}"):
        client.files.delete(batch.input_file_id)
    # a request goes first
    assert server.call("POST", ENDPOINT, {"prompt": "a", "max_tokens": 2})[0] == 200
    assert client.batches.cancel(batch.id).status in ("cancelling", "cancelled")
    batch = until(client, batch, "cancelled")
    assert batch.request_counts is not None
    assert 5 <= batch.request_counts.completed < 500
    assert len(rows_of(client, batch.output_file_id)) == batch.request_counts.completed
    until(client, behind, "completed")
    with pytest.raises(Exception, match="is cancelled already"):
        client.batches.cancel(batch.id)


def test_a_server_that_keeps_no_files_names_the_flag() -> None:
    with Server(DEMO) as running:
        for method, path in (("GET", "/v1/files"), ("GET", "/v1/batches"), ("POST", "/v1/files")):
            status, _, body = running.call(method, path, {} if method == "POST" else None)
            assert status == 400 and "--files-dir DIR" in body["error"]["message"]


def test_batches_survive_kills_and_belong_to_keys(tmp_path: Path) -> None:
    """SIGKILL in the middle: after a restart the batch ends, with a row for each line."""
    keys, folder = tmp_path / "keys.db", tmp_path / "files"
    ann, bob = add(keys, "ann"), add(keys, "bob")
    options = ("--files-dir", folder, "--keys", keys, "-np", 4, "--batch-parallel", 2)
    n = 120
    server = process.Server(DEMO, *options, sent_key=ann)
    with server:
        batch = start(server.client, requests(n, max_tokens=24, ignore_eos=True))
        journal = folder / f"{batch.id}.rows"
        while not journal.exists() or journal.read_bytes().count(b"\n") < 20:
            time.sleep(0.005)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
    rows = [row for row in journal.read_bytes().splitlines(keepends=True) if row.endswith(b"\n")]
    with Server(DEMO, *options, sent_key=ann) as again:
        batch = until(again.client, batch, "completed")
        answers = rows_of(again.client, batch.output_file_id)
        assert sorted(r["custom_id"] for r in answers) == sorted(f"r{i}" for i in range(n))
        assert answers[: len(rows)] == [json.loads(row) for row in rows]
        with OpenAI(base_url=f"{again.url}/v1", api_key=bob, max_retries=0) as other:
            assert list(other.files.list()) == list(other.batches.list()) == []
            for file_id in (batch.input_file_id, batch.output_file_id):
                with pytest.raises(NotFoundError):
                    other.files.content(str(file_id))
            with pytest.raises(NotFoundError):
                other.batches.cancel(batch.id)
    (row,) = used(keys, "ann")
    assert len(answers) <= row["requests"] <= n + 2 and row["generated"] >= 24 * n


def test_lines_go_to_the_models_that_they_name(tmp_path: Path) -> None:
    models, keys = tmp_path / "models", tmp_path / "keys.db"
    models.mkdir()
    for file in (DEMO, SAMPLE):
        (models / file.name).symlink_to(file)
    ann = add(keys, "ann")
    names = ["weft-demo", "llama3", "nope"]
    data = b"".join(
        requests(1, model=name, max_tokens=3, ignore_eos=True).replace(b"r0", name.encode())
        for name in names
    )
    options = ("--files-dir", tmp_path / "files", "--keys", keys)
    with Server(models, *options, sent_key=ann, several=True) as server:
        batch = until(server.client, start(server.client, data), "completed")
        answers = rows_of(server.client, batch.output_file_id)
        (wrong,) = rows_of(server.client, batch.error_file_id)
    assert {r["custom_id"]: r["response"]["body"]["model"] for r in answers} == {
        name: name for name in names[:2]
    }
    assert wrong["response"]["body"]["error"]["code"] == "model_not_found"
    assert [(row["model"], row["generated"]) for row in used(keys, "ann")] == [
        ("llama3", 3), ("weft-demo", 3),
    ]  # fmt: skip
