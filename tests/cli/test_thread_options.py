"""Thread options as a user types them."""

from __future__ import annotations

import pytest

from weft.cli.thread_options import NumaName, thread_options
from weft.errors import DeviceError


def test_options_become_thread_options() -> None:
    options = thread_options(3, 5, "0x9", "4-5", True, "2", 7)
    assert (options.n_threads, options.n_threads_batch) == (3, 5)
    assert options.cpus == (0, 3, 4, 5)
    assert (options.strict, options.priority, options.poll, options.numa) == (True, "high", 7, None)
    assert thread_options(prio="realtime", numa=NumaName.isolate).numa == "isolate"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"prio": "4"}, "--prio is one of normal"),
        ({"cpu_mask": "0xz"}, "hexadecimal"),
        ({"cpu_range": "3"}, "range"),
        ({"poll": 200}, "poll must be 0..100"),
        ({"threads": 0}, "n_threads must be"),
        ({"cpu_mask": "1", "numa": NumaName.distribute}, "leave out cpus"),
    ],
)
def test_mistakes_are_named(options: dict[str, object], message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        thread_options(**options)  # type: ignore[arg-type]
