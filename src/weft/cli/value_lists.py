"""Parses options with several values: `-t 1,2`, `-t 1 -t 2`, `-p 128-512+128`, `-p 64-1024*2`."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence

from weft.cli.command import SWITCH, usage_error

MOST_VALUES = 1000
"""Maximum number of values of an option."""

_RANGE = re.compile(r"([\w.]+)-([\w.]+)(?:([+*])(\d+))?")
"""The first value, the last one, and the step between values."""

Parser = Callable[[str], int]


def numbers(flag: str, texts: Sequence[str], parse: Parser = int) -> list[int]:
    """The numbers in texts such as `1,2`, `1-4` (1 to 4), `0-8+2` (in steps of 2) and `1-8*2`
    (doubling).

    Raises a usage error that begins with `flag` for any other text, and for more values than
    `MOST_VALUES`."""
    values: list[int] = []
    for text in texts:
        for number in _numbers(flag, text, parse):
            values.append(number)
            if len(values) > MOST_VALUES:
                raise usage_error(f"{flag} {text}: that is more than {MOST_VALUES} values")
    return values


def words(flag: str, texts: Sequence[str]) -> list[str]:
    """The words between commas. Raises a usage error for an empty word and for too many."""
    values = [part.strip() for text in texts for part in text.split(",")]
    if "" in values or len(values) > MOST_VALUES:
        raise usage_error(f"{flag} {','.join(texts)[:80]}: write values with commas between them")
    return values


def switches(flag: str, texts: Sequence[str]) -> list[bool]:
    """The values of switches, which are 1 or 0, or words such as `on`."""
    values = words(flag, texts)
    for word in values:
        if word.lower() not in SWITCH:
            raise usage_error(f"{flag} {word}: write 1 or 0")
    return [SWITCH[word.lower()] for word in values]


def _numbers(flag: str, text: str, parse: Parser) -> Iterator[int]:
    for part in text.split(","):
        try:
            yield from _range(flag, part.strip(), parse)
        except ValueError as error:
            why = "write numbers, as in 1,2 or 1-8*2" if parse is int else str(error)
            raise usage_error(f"{flag} {text}: {why}") from None


def _range(flag: str, part: str, parse: Parser) -> Iterator[int]:
    ends = _RANGE.fullmatch(part)
    if ends is None:
        yield parse(part)
        return
    number, last = parse(ends[1]), parse(ends[2])
    times, step = ends[3] == "*", int(ends[4] or 1)
    if number > last or step < (2 if times else 1) or (times and number == 0):
        raise usage_error(f"{flag} {part}: that range never gets to its end")
    while number <= last:
        yield number
        number = number * step if times else number + step
