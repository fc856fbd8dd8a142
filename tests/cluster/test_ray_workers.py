"""Workers on three nodes of a Ray cluster: same texts, kills, and no actor that is left."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from typing import Any

import pytest

import weft
from tests.ray_nodes import Nodes

pytest.importorskip("ray")
pytestmark = pytest.mark.xdist_group("ray")

MODEL = "examples/weft-demo.gguf"
PROMPT = "What is 17 + 25?"
N = 48
ACTOR = "ray::WorkerActor"

PROGRAM = """
import json, sys, warnings
import weft

said = []
warnings.showwarning = lambda text, *_: said.append(str(text))
n, again = int(sys.argv[2]), int(sys.argv[3])
with weft.LLM(sys.argv[4], machines="ray:" + sys.argv[1]) as llm:
    devices = [d.name for d in llm.context.plan.backends]
    print("ready", flush=True)
    texts = []
    for _ in range(again):
        pieces = []
        for piece in llm.generate(sys.argv[5], max_tokens=n, temperature=0, stream=True):
            pieces.append(piece)
            if len(pieces) == 8:
                print("writing", flush=True)
                sys.stdin.readline()
        texts.append("".join(pieces))
    now = [d.name for d in llm.context.plan.backends]
    print(json.dumps({"texts": texts, "devices": devices, "now": now, "said": said}), flush=True)
"""


@pytest.fixture(scope="module")
def expected() -> str:
    """The text on one machine."""
    with weft.LLM(MODEL) as llm:
        return llm.generate(PROMPT, max_tokens=N, temperature=0)


def program(nodes: Nodes, again: int = 1, **environ: str) -> subprocess.Popen[str]:
    """A process that writes texts on the cluster, and waits for a line in the middle of each."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, nodes.address, str(N), str(again), MODEL, PROMPT],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env=os.environ | environ,
    )
    assert read(process) == "ready"
    return process


def read(process: subprocess.Popen[str]) -> str:
    """The next line of its output."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def go_on(process: subprocess.Popen[str]) -> None:
    """Sends the line that it waits for."""
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def end(process: subprocess.Popen[str]) -> None:
    """Ends it, if it has not ended."""
    process.kill()
    process.communicate()


def test_kills_of_workers_change_no_text(ray_cluster: Nodes, expected: str) -> None:
    process = program(ray_cluster, again=3, WEFT_MACHINE_TIMEOUT="60")
    try:
        for kill in (False, True, True):
            assert read(process) == "writing"
            if kill:
                ray_cluster.kill(ACTOR)
            go_on(process)
        result: dict[str, Any] = json.loads(read(process))
        assert process.wait(120) == 0
    finally:
        end(process)
    assert result["texts"] == [expected] * 3
    assert len(result["devices"]) == 3, "two nodes beside that of the program, and its own cpu"
    assert sum("is back" in text for text in result["said"]) == 2
    assert ray_cluster.wait_for_end(ACTOR) == []


@pytest.mark.part("cluster")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_program(ray_cluster: Nodes, number: int) -> None:
    process = program(ray_cluster)
    try:
        assert read(process) == "writing"
        assert len(ray_cluster.processes(ACTOR)) == 2
        os.kill(process.pid, number)
        process.wait(120)
    finally:
        end(process)
    assert ray_cluster.wait_for_end(ACTOR) == []


def test_run_with_ray_is_run_without(ray_cluster: Nodes, expected: str) -> None:
    command = [sys.executable, "-m", "weft", "run", MODEL, "-p", PROMPT, "-n", str(N), "--temp",
               "0", "--no-tuned"]  # fmt: skip
    alone = subprocess.run(command, capture_output=True, check=True)
    more = subprocess.run([*command, "--ray", ray_cluster.address], capture_output=True, check=True)
    assert more.stdout == alone.stdout
    assert more.stderr.count(b"/cpu: 1 split") == 2
    wrong = subprocess.run([*command, "--ray", "127.0.0.1:1"], capture_output=True, check=False)
    assert wrong.returncode == 1
    assert b"no Ray cluster answers" in wrong.stderr
    assert ray_cluster.wait_for_end(ACTOR) == []
