"""Rounds of a driver: each has a seed of its own, a limit of time and one of memory."""

from __future__ import annotations

import faulthandler
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

__all__ = ["Round", "Unclean", "rounds"]

Round = Callable[[random.Random], str]
"""Tries one input and returns what became of it, in a word; raises where that is not clean."""

SECONDS = 5.0
"""Of the process, that a round may take; ten times as many where a sanitizer slows it down."""

HANG = 120.0
"""After this long without an end, waiting or busy, the process is ended with its stacks shown."""

GROWTH = 1 << 30
"""Bytes that rounds may add to the process, together."""


class Unclean(Exception):
    """An input did what none may do; says how to try it again."""


def rounds(
    one: Round, seed: int, seconds: float, *, most: int | None = None, last: Path | None = None
) -> Counter[str]:
    """Runs `one` for `seconds`, or `most` times, and counts outcomes. `last`: the file that holds
    the seed of the round at hand, for those that end the process.

    Raises Unclean with the seed of a round that raised, took too long or too much memory."""
    rng = random.Random(seed)
    counts: Counter[str] = Counter()
    end = time.monotonic() + seconds
    before = _peak()
    while (time.monotonic() < end) if most is None else (counts.total() < most):
        number = rng.getrandbits(48)
        if last is not None:
            last.write_text(f"{number:#x}")
        counts[again(one, number)] += 1
        grown = _peak() - before
        if grown > GROWTH and not _sanitized():
            raise Unclean(f"round {number:#x}: the process has grown by {grown:,} bytes")
    return counts


def again(one: Round, number: int) -> str:
    """The round with this seed."""
    faulthandler.dump_traceback_later(HANG, exit=True)
    start = time.process_time()
    try:
        outcome = one(random.Random(number))
    except Exception as error:
        raise Unclean(f"round {number:#x}: {type(error).__name__}: {error}"[:2000]) from error
    finally:
        faulthandler.cancel_dump_traceback_later()
    took = time.process_time() - start
    if took > SECONDS * (10 if _sanitized() else 1):
        raise Unclean(f"round {number:#x} took {took:.1f} s")
    return outcome


def _sanitized() -> bool:
    return "WEFT_FUZZ_NATIVE" in os.environ


def _peak() -> int:
    """Bytes that the process had at most."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
