"""`weft batch --ray` on three nodes: rows with an actor and the command killed."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ray_nodes import Nodes
from tests.serve.in_process import DEMO
from tests.serve.test_batch_command import line, rows_of

pytest.importorskip("ray")
pytestmark = pytest.mark.xdist_group("ray")

ACTOR = "ray::BatchActor"
N = 400


def begun(nodes: Nodes, source: Path, out: Path, *options: Any) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "weft", "batch", DEMO, source, out, "--ray", nodes.address,
               "-np", "4", *options]  # fmt: skip
    return subprocess.Popen([str(part) for part in command], stderr=subprocess.PIPE, text=True)


def wait_for_rows(process: subprocess.Popen[str], out: Path, least: int) -> None:
    while not out.exists() or out.read_bytes().count(b"\n") < least:
        assert process.poll() is None, process.communicate()[1]
        time.sleep(0.005)


def test_no_row_is_lost_or_written_twice(ray_cluster: Nodes, tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(
        line(f"r{i}", "/v1/completions", prompt=f"What is {i} + 1?", max_tokens=8,
             temperature=0, ignore_eos=True)
        for i in range(N)))  # fmt: skip
    first = begun(ray_cluster, source, out)
    wait_for_rows(first, out, 50)
    ray_cluster.kill(ACTOR)
    wait_for_rows(first, out, 150)
    first.kill()
    first.communicate()
    kept = [row for row in out.read_text().splitlines(keepends=True) if row.endswith("\n")]
    assert 150 <= len(kept) < N
    assert ray_cluster.wait_for_end(ACTOR) == []  # nothing runs on for a command that is gone
    # with one actor, the one that is killed has loaded the model and has rows under way
    second = begun(ray_cluster, source, out, "--replicas", "1")
    wait_for_rows(second, out, len(kept) + 50)
    ray_cluster.kill(ACTOR)
    _, errors = second.communicate(timeout=300)
    assert second.returncode == 0, errors
    assert "3 machines with 3 CPUs" in errors
    assert "1 actors died and were started again" in errors
    assert out.read_text().splitlines(keepends=True)[: len(kept)] == kept
    assert sorted(row["custom_id"] for row in rows_of(out)) == sorted(f"r{i}" for i in range(N))
    assert all(row["response"]["status_code"] == 200 for row in rows_of(out))
    assert ray_cluster.wait_for_end(ACTOR) == []


@pytest.mark.part("cluster")
def test_rows_are_those_of_one_machine_in_order_and_ctrl_c_ends_all(
    ray_cluster: Nodes, tmp_path: Path
) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(
        line(f"r{i}", "/v1/completions", prompt=f"What is {i} + 1?", max_tokens=32, temperature=0,
             ignore_eos=True)
        for i in range(3000)))  # fmt: skip
    process = begun(ray_cluster, source, out, "--ordered", "--replicas", "2")
    wait_for_rows(process, out, 40)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 130 and "goes on from there" in errors, errors
    assert ray_cluster.wait_for_end(ACTOR) == []
    rows = rows_of(out)
    assert [row["custom_id"] for row in rows] == [f"r{i}" for i in range(len(rows))]
    here = tmp_path / "here.jsonl"
    source.write_text("".join(source.read_text().splitlines(keepends=True)[:40]))
    command = [sys.executable, "-m", "weft", "batch", DEMO, source, here, "-q", "-t", "1"]
    subprocess.run([str(part) for part in command], check=True)
    texts = {r["custom_id"]: r["response"]["body"]["choices"][0]["text"] for r in rows_of(here)}
    assert len(texts) == 40
    for row in rows[:40]:
        assert texts[row["custom_id"]] == row["response"]["body"]["choices"][0]["text"]


@pytest.mark.part("cluster")
def test_what_cannot_be_loaded_is_told(ray_cluster: Nodes, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text(line("a", "/v1/completions", prompt="a"))
    process = begun(ray_cluster, source, tmp_path / "out", "--devices", "nothing")
    _, errors = process.communicate(timeout=300)
    assert process.returncode == 1 and "Traceback" not in errors, errors
    assert "the model cannot be loaded on a machine: " in errors and "'nothing'" in errors
