"""Time to open a GGUF file: weft's reader beside the PyPI `gguf` package's, in one process.

    python benchmarks/gguf_open.py [model.gguf ...]

Without arguments it opens the golden vocabularies (`../shared/vectors/models/vocab`). Both readers
are timed to the same points: the file is open, and its tokens are a Python list.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gguf import GGUFReader

from weft.frontends.gguf import open_gguf

TOKENS = "tokenizer.ggml.tokens"
REPEATS = 7


def timed(call: Callable[[], Any]) -> tuple[float, Any]:
    gc.collect()
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def drop_from_page_cache(path: Path) -> None:
    """Ask the system to forget the file's pages, so that the next open reads the disk."""
    if hasattr(os, "posix_fadvise"):
        fd = os.open(path, os.O_RDONLY)
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(fd)


def weft_times(path: Path) -> tuple[float, float, float]:
    """Seconds to open with a cold page cache, with a warm one (median), and to list the tokens."""
    drop_from_page_cache(path)
    cold, file = timed(lambda: open_gguf(path))
    file.close()
    warm, tokens = [], []
    for _ in range(REPEATS):
        seconds, file = timed(lambda: open_gguf(path))
        warm.append(seconds)
        tokens.append(timed(lambda file=file: file.get_str_list(TOKENS, []))[0])
        file.close()
    return cold, statistics.median(warm), statistics.median(tokens)


def pypi_times(path: Path) -> tuple[float, float]:
    """Seconds to open (once, the page cache warm), and to list the tokens."""
    opened, reader = timed(lambda: GGUFReader(path))
    field = reader.fields.get(TOKENS)
    return opened, timed(lambda: field.contents() if field is not None else [])[0]


def main() -> None:
    root = Path(__file__).resolve().parents[1]
    folders = [b / "shared/vectors/models/vocab" for b in (root.parent, root.parent.parent)]
    vocabularies = next((v for f in folders if (v := sorted(f.glob("*.gguf")))), [])
    paths = [Path(a) for a in sys.argv[1:]] or vocabularies
    if not paths:
        sys.exit("give a .gguf file: ../shared/vectors is absent")
    print(
        f"{platform.machine()}, {os.cpu_count()} CPUs, Python {platform.python_version()}, ", end=""
    )
    print(f"gguf {importlib.metadata.version('gguf')}; milliseconds")
    head = ("file", "MB", "weft cold", "weft open", "+tokens", "gguf open", "+tokens", "open ratio")
    print(f"{head[0]:32}" + "".join(f"{h:>11}" for h in head[1:]))
    for path in paths:
        cold, opened, tokens = weft_times(path)
        their_open, their_tokens = pypi_times(path)
        row = [cold, opened, tokens, their_open, their_tokens]
        print(
            f"{path.name:32}{path.stat().st_size / 1e6:11.2f}"
            + "".join(f"{1e3 * s:11.2f}" for s in row)
            + f"{their_open / opened:10.0f}x"
        )


if __name__ == "__main__":
    main()
