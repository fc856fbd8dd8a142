"""Reads the lines of a file of requests. A line that is wrong becomes a `Line` with a problem.

A line is `{"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": {...}}`.
Source of the format: https://platform.openai.com/docs/guides/batch
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any, BinaryIO, NamedTuple

LONGEST_LINE = 16 << 20
"""Maximum bytes of a line; a longer one is refused without being held in memory."""
LONGEST_ID = 1024
"""Maximum number of characters of a `custom_id`."""
_PIECE = 1 << 20


class Problem(NamedTuple):
    """Why a line cannot be answered."""

    code: str
    message: str


class Line(NamedTuple):
    """A line of a file of requests, or what is wrong with it."""

    number: int
    """The number of the line in the file, from 1; empty lines count."""
    digest: int
    """64 bits of a hash of the line, by which a later run recognizes it."""
    custom_id: str | None
    """The name that the client gave to the line, or None."""
    url: str
    body: dict[str, Any]
    problem: Problem | None = None

    @property
    def id(self) -> str:
        """The id of the row that answers this line."""
        return f"batch_req_{self.number}_{self.digest:016x}"


def read_lines(
    file: BinaryIO, urls: tuple[str, ...], most_bytes: int = LONGEST_LINE
) -> Iterator[Line]:
    """Yields the lines of a binary file in order, without the empty ones.

    `urls` are the endpoints that may be asked. A line with the `custom_id` of an earlier one has a
    problem; for this 8 bytes of a hash of every id are kept in a set (about 70 MB for a million
    lines). Raises OSError if the file cannot be read."""
    seen: set[int] = set()
    number = 0
    while data := file.readline(most_bytes + 1):
        number += 1
        digest = _hash(data.rstrip(b"\r\n"))
        if len(data) > most_bytes and not data.endswith(b"\n"):
            _skip(file)
            too_long = Problem("invalid_line", f"line {number} has more than {most_bytes} bytes")
            yield Line(number, digest, None, "", {}, too_long)
            continue
        if not data.strip():
            continue
        line = _parsed(number, digest, data, urls)
        if line.custom_id is not None:
            key = _hash(line.custom_id.encode("utf-8", "surrogatepass"))
            if key in seen:
                twice = f"line {number}: an earlier line has the custom_id {line.custom_id[:80]!r}"
                line = line._replace(problem=Problem("duplicate_custom_id", twice))
            seen.add(key)
        yield line


def count_lines(file: BinaryIO) -> int:
    """The number of lines that `read_lines` yields from the present place of a file on."""
    n, counted = 0, False
    while piece := file.readline(_PIECE):
        if not counted and piece.strip():
            n, counted = n + 1, True
        if piece.endswith(b"\n"):
            counted = False
    return n


def _skip(file: BinaryIO) -> None:
    """Reads to the end of a line, whatever its length."""
    while (rest := file.readline(_PIECE)) and not rest.endswith(b"\n"):
        pass


def _hash(data: bytes) -> int:
    return int.from_bytes(blake2b(data, digest_size=8).digest()) or 1


def _parsed(number: int, digest: int, data: bytes, urls: tuple[str, ...]) -> Line:
    bad = Line(number, digest, None, "", {})
    try:
        value = json.loads(data.decode("utf-8-sig" if number == 1 else "utf-8"))
    except RecursionError:
        return _with_problem(bad, "it is JSON nested too deeply")
    except ValueError as error:
        return _with_problem(bad, f"it is not JSON ({error})")
    if not isinstance(value, dict):
        return _with_problem(bad, "it is no JSON object")
    custom_id, url, body = (value.get(name) for name in ("custom_id", "url", "body"))
    if not isinstance(custom_id, str) or not custom_id:
        return _with_problem(bad, "custom_id is missing; it is a text, another one for each line")
    if len(custom_id) > LONGEST_ID:
        return _with_problem(bad, f"custom_id has more than {LONGEST_ID} characters")
    line = bad._replace(custom_id=custom_id)
    if value.get("method") != "POST":
        return _with_problem(line, 'method must be "POST"')
    if not isinstance(url, str) or url not in urls:
        return _with_problem(line, f"url must be {' or '.join(urls)}", "invalid_url")
    if not isinstance(body, dict):
        return _with_problem(line, "body is missing; it is the request, a JSON object")
    if body.get("stream"):
        return _with_problem(line, "stream is not possible in a batch; leave it out")
    return line._replace(url=url, body=body)


def _with_problem(line: Line, what: str, code: str = "invalid_line") -> Line:
    return line._replace(problem=Problem(code, f"line {line.number}: {what}"))
