"""Limits of control groups, in files as the kernel has them, of both versions."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft import control_group
from weft.backends.cpu import ThreadOptions, threads
from weft.control_group import processor_limit
from weft.free_memory import available_bytes


def _write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


_GROUPS = "sys/fs/cgroup"


@pytest.mark.parametrize(
    ("files", "processors"),
    [
        ({}, None),
        # in a container with a view of its own group alone
        ({"proc/self/cgroup": "0::/\n", f"{_GROUPS}/cpu.max": "max 100000\n"}, None),
        ({"proc/self/cgroup": "0::/\n", f"{_GROUPS}/cpu.max": "150000 100000\n"}, 2),
        ({f"{_GROUPS}/cpu/cpu.cfs_quota_us": "50000\n",
          f"{_GROUPS}/cpu/cpu.cfs_period_us": "100000\n"}, 1),
        # of the process's group and the one around it, the smaller limit holds
        ({"proc/self/cgroup": "0::/a.slice/b.service\n",
          f"{_GROUPS}/a.slice/cpu.max": "300000 100000\n",
          f"{_GROUPS}/a.slice/b.service/cpu.max": "800000 100000\n"}, 3),
        ({"proc/self/cgroup": "3:cpu,cpuacct:/x\n1:name=systemd:/y\n0::/y\n",
          f"{_GROUPS}/cpu,cpuacct/x/cpu.cfs_quota_us": "400000\n",
          f"{_GROUPS}/cpu,cpuacct/x/cpu.cfs_period_us": "100000\n"}, 4),
        # version 1 without a limit
        ({f"{_GROUPS}/cpu/cpu.cfs_quota_us": "-1\n",
          f"{_GROUPS}/cpu/cpu.cfs_period_us": "100000\n"}, None),
    ],
)  # fmt: skip
def test_processors(tmp_path: Path, files: dict[str, str], processors: int | None) -> None:
    assert processor_limit(_write(tmp_path, files)) == processors


def test_processors_that_the_system_gives_to_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 3, 5}, raising=False)
    for limit, expected in ((None, 3), (2, 2), (8, 3)):
        monkeypatch.setattr(control_group, "processor_limit", lambda limit=limit: limit)
        assert control_group.usable_processors() == expected


def test_no_more_threads_than_the_group_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads._native, "usable_cores", lambda: 64)
    for limit, expected in ((None, 64), (3, 3), (100, 64)):
        monkeypatch.setattr(threads, "processor_limit", lambda limit=limit: limit)
        assert ThreadOptions().resolved() == (expected, expected)
    assert ThreadOptions(n_threads=5).resolved() == (5, 5)


@pytest.mark.parametrize(
    ("row", "folder", "limit", "use"),
    [
        ("0::/a.slice/b.service", "a.slice", "memory.max", "memory.current"),
        ("8:memory:/b", "memory/b", "memory.limit_in_bytes", "memory.usage_in_bytes"),
    ],
)
def test_memory_of_a_service(tmp_path: Path, row: str, folder: str, limit: str, use: str) -> None:
    group = f"{_GROUPS}/{folder}"
    files = {"proc/meminfo": "MemAvailable: 4 kB\n", "proc/self/cgroup": row + "\n",
             f"{group}/{limit}": "3000\n", f"{group}/{use}": "2500\n"}  # fmt: skip
    assert available_bytes(_write(tmp_path, files)) == 500
