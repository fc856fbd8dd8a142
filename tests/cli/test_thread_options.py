"""Thread options as a user types them."""

from __future__ import annotations

import pytest

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
