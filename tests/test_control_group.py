"""Limits of control groups, in files as the kernel has them, of both versions."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.cli.in_process import weft
from weft import control_group
from weft.backends.cpu import ThreadOptions, threads
from weft.cli import devices
from weft.control_group import memory_limit, processor_limit
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


@pytest.mark.parametrize(
    ("files", "limit"),
    [
        ({}, None),
        ({f"{_GROUPS}/memory.max": "max\n"}, None),
        ({f"{_GROUPS}/memory.max": "4000\n"}, 4000),
        ({f"{_GROUPS}/memory/memory.limit_in_bytes": "9223372036854771712\n"}, None),
        ({"proc/self/cgroup": "0::/a.slice/b.service\n", f"{_GROUPS}/a.slice/memory.max": "3000\n",
          f"{_GROUPS}/a.slice/b.service/memory.max": "8000\n"}, 3000),
    ],
)  # fmt: skip
def test_limit_of_memory(tmp_path: Path, files: dict[str, str], limit: int | None) -> None:
    assert memory_limit(_write(tmp_path, files)) == limit


@pytest.mark.parametrize(
    ("processors", "memory", "said"),
    [
        (1, 3 << 30, "1 processor, 3.00 GiB of memory"),
        (2, None, "2 processors"), (None, 5 << 20, "5.00 MiB of memory"), (None, None, ""),
    ],
)  # fmt: skip
def test_weft_devices_has_the_limits(
    processors: int | None, memory: int | None, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "processor_limit", lambda: processors)
    monkeypatch.setattr(devices, "memory_limit", lambda: memory)
    monkeypatch.setattr(devices, "known_backends", lambda: [])
    line = f"limits of the control group (of a container or a service): {said}"
    lines = weft("devices").stdout.splitlines()
    assert (line in lines) == bool(said) and (said or not any("control group" in x for x in lines))
    found = json.loads(weft("devices", "--json").stdout)["cpu"]["control_group"]
    assert found == {"processors": processors, "memory": memory}
