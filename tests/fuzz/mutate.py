"""Ways to damage bytes, text and JSON values. All take their chances from the `Random` they get."""

from __future__ import annotations

import copy
import json
import random
import struct
from typing import Any

__all__ = ["as_json", "mutate_bytes", "mutate_json", "mutate_text"]

WORDS = (0, 1, 2, 3, 7, 8, 31, 32, 127, 128, 255, 256, 65535, 65536, 1 << 20, (1 << 31) - 1,
         1 << 31, (1 << 32) - 1, 1 << 40, (1 << 62), (1 << 63) - 1, 1 << 63)  # fmt: skip


def mutate_bytes(
    data: bytearray, rng: random.Random, spans: list[tuple[int, int]] | None = None
) -> None:
    """Changes a few places of one span (default: anywhere), without changing the length."""
    begin, end = rng.choice(spans or [(0, len(data))])
    for _ in range(rng.choice((1, 1, 1, 2, 4, 16))):
        at = rng.randrange(begin, end)
        kind = rng.randrange(5)
        if kind == 0:
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            data[at] = rng.randrange(256)
        elif kind == 2:
            width = rng.choice((1, 2, 4, 8))
            at -= at % width
            word = struct.pack("<Q", rng.choice(WORDS))[:width]
            data[at : min(at + width, end)] = word[: max(0, min(width, end - at))]
        elif kind == 3:
            length = rng.randrange(1, 64)
            source = rng.randrange(begin, end)
            piece = data[source : min(source + length, end)][: end - at]
            data[at : at + len(piece)] = piece
        else:
            length = min(rng.randrange(1, 64), end - at)
            data[at : at + length] = bytes(length)


NUMBERS = ("0", "-1", "1", "2", "31", "32", "255", "4294967296", "9223372036854775807",
           "9223372036854775808", "-9223372036854775809", "1e999", "1e-45", "nan",
           "9" * 400)  # fmt: skip


def mutate_text(text: str, rng: random.Random, pieces: tuple[str, ...] = ()) -> str:
    """Changes a few places: characters, numbers, lines, and what `pieces` has of the language."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        text = _CHANGES[rng.randrange(len(_CHANGES))](text, rng, pieces)
    return text


def _cut(text: str, rng: random.Random, _: tuple[str, ...]) -> str:
    at = rng.randrange(len(text) + 1)
    return text[:at] + text[at + rng.choice((1, 1, 2, 8, 64)) :]


def _insert(text: str, rng: random.Random, pieces: tuple[str, ...]) -> str:
    at = rng.randrange(len(text) + 1)
    odd = ("\0", "\n", " ", '"', "\\", "é", "\u2028", "😀", "%", "[", "]", "(", ")", "{", "}", ",")
    return text[:at] + rng.choice((*odd, *pieces, *pieces)) * rng.choice((1, 1, 1, 3)) + text[at:]


def _number(text: str, rng: random.Random, _: tuple[str, ...]) -> str:
    digits = [i for i, c in enumerate(text) if c.isdigit()]
    if not digits:
        return text
    at = rng.choice(digits)
    end = at
    while end < len(text) and text[end].isdigit():
        end += 1
    return text[:at] + rng.choice(NUMBERS) + text[end:]


def _lines(text: str, rng: random.Random, _: tuple[str, ...]) -> str:
    lines = text.split("\n")
    a, b = rng.randrange(len(lines)), rng.randrange(len(lines))
    kind = rng.randrange(4)
    if kind == 0:
        del lines[a]
    elif kind == 1:
        lines.insert(b, lines[a])
    elif kind == 2:
        lines[a], lines[b] = lines[b], lines[a]
    else:
        words = (lines[a].split(" "), lines[b].split(" "))
        words[0][rng.randrange(len(words[0]))] = rng.choice(words[1])
        lines[a] = " ".join(words[0])
    return "\n".join(lines)


_CHANGES = (_cut, _insert, _number, _lines)


def mutate_json(value: Any, rng: random.Random, words: tuple[str, ...] = ()) -> Any:
    """A copy with a few values changed, left out or added; `words`: names worth adding."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        places = _places(value)
        if not places:
            return _odd(rng)
        box, key = rng.choice(places)
        kind = rng.randrange(6)
        if kind == 0:
            del box[key]
        elif kind == 1:
            other, name = rng.choice(places)
            box[key] = copy.deepcopy(other[name]) if name in _keys(other) else None
        elif kind == 2 and isinstance(box, dict) and words:
            box[rng.choice(words)] = _odd(rng)
        elif kind == 3:
            times = rng.choice((0, 1, 2, 300))
            times = min(times, 2) if len(places) > 250 else times  # or it becomes gigabytes
            box[key] = [copy.deepcopy(box[key])] * times
        else:
            box[key] = _odd(rng)
    return value


def _keys(box: Any) -> Any:
    return box if isinstance(box, dict) else range(len(box))


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every (container, key) of a value."""
    spots: list[tuple[Any, Any]] = []
    waiting = [value]
    while waiting and len(spots) < 10_000:
        box = waiting.pop()
        if isinstance(box, dict | list):
            spots += [(box, key) for key in _keys(box)]
            waiting += [box[key] for key in _keys(box)]
    return spots


def _odd(rng: random.Random) -> Any:
    return rng.choice((
        None, True, False, 0, 1, -1, 2, 31, 1 << 31, (1 << 63) - 1, 1 << 63, -(1 << 63) - 1,
        10**400, 0.0, -0.0, 0.5, 1e308, -1e-320, float("inf"), float("nan"),
        "", "a", "\0", "\ud800", "😀" * 40, "a" * 5000, "{{", "<|im_start|>", "[[[[", "%s%n",
        [], {}, [[]], {"": None}, {"type": "object"}, [None] * 40, DEEP,
    ))  # fmt: skip


DEEP = "\1deep"
"""Stands for lists in lists, which Python does not write as JSON itself."""


def as_json(value: Any) -> str:
    """A mutated value as JSON."""
    return json.dumps(value).replace(json.dumps(DEEP), "[" * 3000 + "]" * 3000)
