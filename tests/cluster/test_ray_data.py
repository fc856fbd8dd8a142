"""`weft.ray.map_batches`: rows of a dataset, with an actor and the program killed in the midst; and
files that nodes lack."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.ray_nodes import Nodes
from tests.serve.server import DEMO, ROOT
from weft import LLM

pytest.importorskip("ray")
pytestmark = [pytest.mark.part("cluster"), pytest.mark.xdist_group("ray")]

ACTOR = "ray::MapWorker"
N = 400


def begun(nodes: Nodes, kept: Path, out: Path) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-m",
        "tests.cluster.ray_data_rows",
        nodes.address,
        DEMO,
        kept,
        out,
        N,
    ]
    return subprocess.Popen(
        [str(part) for part in command], cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.PIPE,
        text=True,
    )  # fmt: skip


def wait_for_kept(process: subprocess.Popen[str], kept: Path, least: int) -> None:
    while sum(path.read_bytes().count(b"\n") for path in kept.glob("*.rows")) < least:
        assert process.poll() is None, process.communicate()
        time.sleep(0.01)


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in path.read_text().splitlines()]


def test_rows_come_once_whatever_is_killed(ray_cluster: Nodes, tmp_path: Path) -> None:
    kept, out = tmp_path / "kept", tmp_path / "out.jsonl"
    first = begun(ray_cluster, kept, out)
    wait_for_kept(first, kept, 60)
    first.kill()
    first.communicate()
    assert ray_cluster.wait_for_end(ACTOR) == []
    mark = "taken from the folder"
    n_marked = 0
    for path in kept.glob("*.rows"):  # answers that show that they were not computed again
        whole = [row[:17] for row in path.read_text().splitlines(keepends=True) if row[-1] == "\n"]
        n_marked += len(whole)
        path.write_text("".join(f'{key}["{mark}"]\n' for key in whole))
    second = begun(ray_cluster, kept, out)
    wait_for_kept(second, kept, n_marked + 60)
    ray_cluster.kill(ACTOR)
    _, errors = second.communicate(timeout=300)
    assert second.returncode == 0, errors
    rows = rows_of(out)
    assert sorted(row["id"] for row in rows) == list(range(N))
    assert sum(row["answer"] == mark for row in rows) == n_marked >= 60
    failed = [row for row in rows if row["answer_error"]]
    assert [row["id"] for row in failed] == [3] and failed[0]["answer"] is None
    assert "neither messages nor a prompt" in failed[0]["answer_error"]
    computed = next(row for row in rows if row["answer"] != mark and not row["answer_error"])
    with LLM(DEMO, n_ctx=256) as llm:
        alone = llm.generate(computed["prompt"], max_tokens=16, temperature=0, ignore_eos=True)
    assert computed["answer"] == alone


def test_each_node_fetches_a_file_once(ray_cluster: Nodes, tmp_path: Path) -> None:
    command = [
        *(sys.executable, "-m", "tests.cluster.fetching"),
        *(ray_cluster.address, DEMO, tmp_path),
    ]
    out = subprocess.run(
        [str(part) for part in command], cwd=ROOT, capture_output=True, text=True, timeout=300
    )
    assert out.returncode == 0, out.stderr
    found = json.loads(out.stdout)
    assert len({node for node, _, _ in found}) == 3 and len(found) == 6
    for node in {node for node, _, _ in found}:
        assert sum(n_read for where, _, n_read in found if where == node) == 1
    assert all(Path(path).read_bytes() == DEMO.read_bytes() for _, path, _ in found)
