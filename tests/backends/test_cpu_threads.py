"""Thread options: checked, and put where they say."""

from __future__ import annotations

import os
from typing import Any

import pytest

from weft import ThreadOptions, _native
from weft.backends.cpu import CpuBackend
from weft.backends.cpu.threads import cpus_of_mask, cpus_of_range, place
from weft.errors import DeviceError

USABLE = range(8)
NODES = ([0, 1, 2, 3], [4, 5, 6, 7])


def placed(n: int, caller: int = 0, **options: Any) -> list[list[int]]:
    return place(ThreadOptions(**options), n, USABLE, NODES, caller)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_threads": 0}, "n_threads must be 1..1024, got 0"),
        ({"n_threads_batch": 2000}, "n_threads_batch must be"),
        ({"cpus": ()}, "cpus must be"),
        ({"cpus": (-1,)}, "cpus must be"),
        ({"priority": "top"}, "priority must be one of normal"),
        ({"poll": 101}, "poll must be 0..100"),
        ({"numa": "mirror"}, "numa must be one of distribute"),
        ({"numa": "isolate", "cpus": (0,)}, "leave out cpus"),
    ],
)
def test_options_out_of_range(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DeviceError, match=message):
        ThreadOptions(**options)


def test_without_options_threads_run_anywhere() -> None:
    assert placed(4) == []
    assert placed(4, numa="numactl") == []


def test_a_mask_holds_for_every_thread() -> None:
    assert placed(3, cpus=(2, 5)) == [[2, 5]] * 3


def test_strict_gives_each_thread_a_processor() -> None:
    assert placed(3, cpus=(2, 5), strict=True) == [[2], [5], [2]]
    assert placed(2, strict=True) == [[0], [1]]


def test_a_number_of_threads_has_an_option_of_its_own() -> None:
    for number in (0, 2):
        with pytest.raises(DeviceError, match=f"ThreadOptions, got {number}; n_threads takes"):
            CpuBackend(threads=number)  # type: ignore[arg-type]


def test_numa_distributes_and_isolates() -> None:
    assert placed(3, numa="distribute") == [NODES[0], NODES[1], NODES[0]]
    assert placed(4, numa="distribute", strict=True) == [[0], [4], [1], [5]]
    assert placed(2, caller=6, numa="isolate") == [NODES[1]] * 2
    assert place(ThreadOptions(numa="isolate"), 2, USABLE, [list(USABLE)], 0) == []


def test_processors_that_the_process_may_not_use_are_refused() -> None:
    with pytest.raises(DeviceError, match=r"processors \[9\] are not among"):
        placed(2, cpus=(1, 9))


def test_masks_and_ranges() -> None:
    assert cpus_of_mask("0x15") == (0, 2, 4)
    assert cpus_of_mask("3") == (0, 1)
    assert cpus_of_range("4-7") == (4, 5, 6, 7)
    for text in ("0", "zz", "-3", ""):
        with pytest.raises(DeviceError, match="hexadecimal"):
            cpus_of_mask(text)
    for text in ("3", "a-b", "7-4", "0-99999"):
        with pytest.raises(DeviceError, match="range"):
            cpus_of_range(text)


def test_the_default_is_the_cores_of_the_process() -> None:
    usable = set(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None
    if usable is not None:
        assert set(_native.usable_cpus()) == usable
    assert 1 <= _native.usable_cores() <= _native.usable_processors()
    assert ThreadOptions(n_threads=3).resolved() == (3, 3)
    assert ThreadOptions(n_threads=3, n_threads_batch=5).resolved() == (3, 5)


def test_a_backend_takes_counts_and_options() -> None:
    backend = CpuBackend(n_threads=1, threads=ThreadOptions(n_threads=3, n_threads_batch=2))
    assert (backend.n_threads, backend.n_threads_batch, backend.pool.size) == (1, 2, 2)
    with pytest.raises(DeviceError, match="n_threads must be"):
        CpuBackend(n_threads=0)


def test_one_memory_node_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.backends.cpu.threads.memory_nodes", lambda usable: {0: [0]})
    with pytest.warns(RuntimeWarning, match="numa=distribute has no effect"):
        CpuBackend(n_threads=1, threads=ThreadOptions(numa="distribute"))


def test_what_the_system_refuses_is_a_warning() -> None:
    """Whether it refuses is up to the system; a crash or silence is not."""
    pool = _native.ThreadPool(2, 50, 3)
    assert all("priority" in said for said in pool.warnings)
    pool = _native.ThreadPool(2, 50, 0, [[8190], [8191]])
    assert len(pool.warnings) == 1
    assert "bound" in pool.warnings[0]


@pytest.mark.parametrize("arguments", [(0,), (1, -1), (1, 101), (1, 50, 4)])
def test_the_pool_checks_its_arguments(arguments: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="must be"):
        _native.ThreadPool(*arguments)
