"""Thread options as a user types them."""

from __future__ import annotations

import pytest

from weft import ThreadOptions
from weft.backends import make_backend
from weft.backends.base import UsesThreads
from weft.cli.plan_lines import threads_text
from weft.cli.thread_options import ThreadFlags
from weft.errors import DeviceError


def test_options_become_thread_options() -> None:
    options = ThreadFlags(
        n_threads=3, n_threads_batch=5, cpu_mask="0x9", cpu_range="4-5", cpu_strict=True, prio="2",
        poll=7,
    ).thread_options()  # fmt: skip
    assert (options.n_threads, options.n_threads_batch) == (3, 5)
    assert options.cpus == (0, 3, 4, 5)
    assert (options.strict, options.priority, options.poll, options.numa) == (True, "high", 7, None)
    assert ThreadFlags(prio="realtime", numa="isolate").thread_options().numa == "isolate"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prio": "4"}, "--prio is one of normal"),
        ({"cpu_mask": "0xz"}, "hexadecimal"),
        ({"cpu_range": "3"}, "range"),
        ({"poll": 200}, "poll must be 0..100"),
        ({"n_threads": 0}, "n_threads must be"),
        ({"cpu_mask": "1", "numa": "distribute"}, "leave out cpus"),
    ],
)
def test_mistakes_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        ThreadFlags(**options).thread_options()


@pytest.mark.parametrize(
    ("n", "several", "text"),
    [(1, None, "1 thread"), (4, None, "4 threads"), (1, 2, "1/2 threads")],
)
def test_placements_count_threads(n: int, several: int | None, text: str) -> None:
    device = make_backend("cpu", threads=ThreadOptions(n_threads=n, n_threads_batch=several))
    assert isinstance(device, UsesThreads)
    assert threads_text(device) == text
