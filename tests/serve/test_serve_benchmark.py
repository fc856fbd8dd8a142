"""`benchmarks/serve.py` leaves no server behind when it is ended."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0

pytestmark = [
    pytest.mark.part("faults"),
    pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc"),
]


def status(pid: int) -> tuple[str, int] | None:
    """The state of a process (T: stopped) and its parent; None: it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] == "Z" else (fields[0], int(fields[1]))


def children(parent: int) -> list[int]:
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())
    return [pid for pid in pids if (found := status(pid)) and found[1] == parent]


def test_sigterm_ends_the_servers() -> None:
    """One that is stopped while another starts, and the one that starts."""
    peer = f"slow={shlex.quote(sys.executable)} -c 'import time; time.sleep({SECONDS})'"
    command = [sys.executable, "benchmarks/serve.py", "--streams", "1", "--peer", peer]
    benchmark = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL)
    servers: list[int] = []
    try:
        assert eventually(lambda: len(children(benchmark.pid)) == 2)
        servers = children(benchmark.pid)
        assert "T" in [found[0] for pid in servers if (found := status(pid))]
        benchmark.send_signal(signal.SIGTERM)
        assert benchmark.wait(SECONDS) == 143
        assert [status(pid) for pid in servers] == [None, None]
    finally:
        benchmark.kill()
        for pid in servers:
            if status(pid):
                os.kill(pid, signal.SIGKILL)
