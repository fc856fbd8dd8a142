"""Lines of files of requests: what is wrong is said, and nothing else is lost."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from weft.batch.lines import count_lines, read_lines
from weft.serve.endpoints import BATCHABLE

BODY: dict[str, Any] = {"prompt": "a"}
GOOD = {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": BODY}


def first_problem(data: bytes) -> tuple[str, str]:
    (line,) = read_lines(io.BytesIO(data), BATCHABLE)
    assert line.problem is not None
    return line.problem


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"custom_id": None}, "line 1: custom_id is missing"),
        ({"custom_id": 3}, "custom_id is missing; it is a text"),
        ({"custom_id": "x" * 1025}, "more than 1024 characters"),
        ({"method": "GET"}, 'method must be "POST"'),
        ({"url": "/v1/nothing"}, "url must be /v1/chat/completions or"),
        ({"url": ["/v1/completions"]}, "url must be"),
        ({"body": "a"}, "body is missing"),
        ({"body": {"stream": True}}, "stream is not possible in a batch"),
    ],
)
def test_wrong_fields(change: dict[str, Any], message: str) -> None:
    assert message in first_problem(json.dumps(GOOD | change).encode())[1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"{", "it is not JSON"),
        (b"[1]", "it is no JSON object"),
        (b"\xff\xfe{}", "it is not JSON"),
        (b"[" * 100_000, "it is JSON nested too deeply"),
        (b'{"a": ' + b"1" * 5000 + b"}", "it is not JSON"),
    ],
)
def test_wrong_json(data: bytes, message: str) -> None:
    assert message in first_problem(data)[1]


def test_a_line_that_is_too_long_is_skipped_as_a_whole() -> None:
    row = json.dumps(GOOD).encode()
    lines = list(read_lines(io.BytesIO(b"x" * 5000 + b"\n" + row), BATCHABLE, most_bytes=1000))
    assert [line.number for line in lines] == [1, 2]
    assert lines[0].problem is not None and "more than 1000 bytes" in lines[0].problem.message
    assert lines[1].problem is None and lines[1].body == BODY


def test_a_line_of_exactly_the_limit_is_read() -> None:
    row = json.dumps(GOOD).encode()
    for end in (b"", b"\n"):
        (line,) = read_lines(io.BytesIO(row + end), BATCHABLE, most_bytes=len(row))
        assert line.problem is None


def test_empty_lines_count_as_lines_alone() -> None:
    row = json.dumps(GOOD).encode()
    data = b"\xef\xbb\xbf" + row + b"\r\n\r\n\n" + row.replace(b'"a"', b'"b"', 1)
    lines = list(read_lines(io.BytesIO(data), BATCHABLE))
    assert [(line.number, line.custom_id) for line in lines] == [(1, "a"), (4, "b")]
    assert count_lines(io.BytesIO(data)) == 2


def test_a_custom_id_comes_once() -> None:
    row = json.dumps(GOOD).encode() + b"\n"
    one, two = read_lines(io.BytesIO(row * 2), BATCHABLE)
    assert one.problem is None
    assert two.problem == ("duplicate_custom_id", "line 2: an earlier line has the custom_id 'a'")
