"""Batches with a handler that is no model: order, back-pressure, and going on."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weft.batch import Answer, Counts, Journal, Line, StoppedError, read_lines, run_batch
from weft.errors import FormatError
from weft.serve.endpoints import BATCHABLE


def requests(n: int) -> bytes:
    row = {"method": "POST", "url": "/v1/completions"}
    return b"".join(
        json.dumps(row | {"custom_id": f"r{i}", "body": {"i": i}}).encode() + b"\n"
        for i in range(n)
    )


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


async def slow_for_even(line: Line) -> Answer:
    for _ in range(1 if line.body["i"] % 2 else 5):
        await asyncio.sleep(0)
    return Answer(200, "req", {"i": line.body["i"]})


def run(path: Path, data: bytes, handle: Any = slow_for_even, **options: Any) -> Counts:
    with Journal(path) as journal:
        lines = read_lines(io.BytesIO(data), BATCHABLE)
        return asyncio.run(run_batch(lines, journal, handle, **{"parallel": 4} | options))


def test_every_line_has_one_row(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    counts = run(out, requests(50) + b"nonsense\n")
    rows = rows_of(out)
    assert (counts.answered, counts.failed, counts.skipped) == (50, 1, 0)
    assert {row["custom_id"] for row in rows} == {f"r{i}" for i in range(50)} | {None}
    assert [row["custom_id"] for row in rows] != [f"r{i}" for i in range(50)] + [None]
    assert all(row["response"]["body"]["i"] == int(row["custom_id"][1:])
               for row in rows if row["custom_id"])  # fmt: skip
    (wrong,) = [row for row in rows if row["custom_id"] is None]
    assert wrong["response"] is None and wrong["error"]["code"] == "invalid_line"


def test_rows_in_the_order_of_the_lines(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(out, requests(200), ordered=True)
    assert [row["custom_id"] for row in rows_of(out)] == [f"r{i}" for i in range(200)]


@pytest.mark.parametrize("ordered", [False, True])
def test_lines_are_read_as_they_are_needed(tmp_path: Path, ordered: bool) -> None:
    """With the first line stuck, a bounded number of others is read."""
    taken: list[int] = []
    stuck = asyncio.Event()

    def lines() -> Iterator[Line]:
        for line in read_lines(io.BytesIO(requests(1000)), BATCHABLE):
            taken.append(line.number)
            yield line

    async def handle(line: Line) -> Answer:
        if line.number == 1 or not ordered:
            await stuck.wait()
        return Answer(200, "req", {})

    async def main() -> None:
        with Journal(tmp_path / "out.jsonl") as journal:
            task = asyncio.create_task(
                run_batch(lines(), journal, handle, parallel=4, ordered=ordered)
            )
            for _ in range(2000):
                await asyncio.sleep(0)
            assert len(taken) <= (4 * 8 + 4 if ordered else 4)
            stuck.set()
            counts = await task
        assert counts.answered == 1000

    asyncio.run(main())


def test_no_room_is_not_an_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.batch.run._FIRST_WAIT", 0.0)
    refused: set[int] = set()

    async def handle(line: Line) -> Answer:
        if line.number not in refused:
            refused.add(line.number)
            return Answer(429, "req", {})
        return Answer(200, "req", {})

    assert run(tmp_path / "out.jsonl", requests(5), handle).answered == 5


def test_a_model_that_stops_loses_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"

    async def stops(line: Line) -> Answer:
        await asyncio.sleep(0)
        return Answer(503 if line.number > 10 else 200, "req", {})

    with pytest.raises(StoppedError, match="start again to go on"):
        run(out, requests(30), stops)
    before = rows_of(out)
    assert 0 < len(before) <= 10
    assert run(out, requests(30)).skipped == len(before)
    after = rows_of(out)
    assert after[: len(before)] == before
    assert sorted(r["custom_id"] for r in after) == sorted(f"r{i}" for i in range(30))


def test_a_torn_row_is_cut_and_computed_again(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(out, requests(10))
    whole = out.read_bytes()
    last = whole.splitlines(keepends=True)[-1]
    for left in (1, len(last) // 2, len(last) - 1):
        out.write_bytes(whole[: len(whole) - len(last) + left])
        assert run(out, requests(10)).skipped == 9
        assert sorted(r["custom_id"] for r in rows_of(out)) == [f"r{i}" for i in range(10)]


def test_other_files_are_left_alone(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    for text in ('{"a": 1}\n', "notes\n", '{"id": "batch_req_0_0000000000000001"}\n'):
        out.write_text(text)
        with pytest.raises(FormatError, match="line 1 is no row of a batch"):
            Journal(out)
        assert out.read_text() == text
    with pytest.raises(FormatError, match="cannot write"):
        Journal(tmp_path)


def test_a_row_twice_is_told(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(out, requests(1))
    out.write_bytes(out.read_bytes() * 2)
    with pytest.raises(FormatError, match="line 2 answers line 1 a second time"):
        Journal(out)


def test_requests_that_changed_are_told(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    run(out, requests(3))
    changed = requests(3).replace(b'"i": 1', b'"i": 7')
    with pytest.raises(FormatError, match="line 2 has changed since"):
        run(out, changed)


def test_two_processes_do_not_write_one_file(tmp_path: Path) -> None:
    with (
        Journal(tmp_path / "out.jsonl"),
        pytest.raises(FormatError, match="another process is writing it"),
    ):
        Journal(tmp_path / "out.jsonl")


def test_a_lone_surrogate_survives(tmp_path: Path) -> None:
    out = tmp_path / "out.jsonl"
    line = b'{"custom_id": "\\ud800", "method": "POST", "url": "/v1/completions", "body": {"i": 0}}'
    run(out, line)
    assert rows_of(out)[0]["custom_id"] == "\ud800"
