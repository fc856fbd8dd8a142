"""Several models: their memory, their end, and clients that leave."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.serve import server as process
from tests.serve.folders import OPTIONS, complete, models_in
from tests.serve.in_process import Server


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models_in(tmp_path_factory.mktemp("models"))


def test_unloading_frees_memory(folder: Path) -> None:
    """The cache of 32,768 cells takes tens of MiB each time."""
    if not Path("/proc/self/status").exists():
        pytest.skip("the system does not say how much memory a process takes")

    def resident(server: process.Server) -> int:
        text = Path(f"/proc/{server.process.pid}/status").read_text()
        return int(text.split("VmRSS:")[1].split()[0]) << 10

    with process.Server.many(folder, "-t", 1, "-np", 2, "-c", 32768) as server:
        after = []
        for _ in range(12):
            for model in ("one", "two"):
                assert complete(server, model, "a " * 100)[0] == 200
            for model in ("one", "two"):
                assert server.call("POST", "/models/unload", {"model": model})[0] == 200
            after.append(resident(server))
        needed = server.call("GET", "/v1/models/one")[2]["planned_bytes"]
        assert needed > 40 << 20
        assert after[-1] - after[0] < needed / 2
        assert after[-1] - after[2] < 9 << 20  # half a MiB for each load


def test_a_signal_ends_all_models(folder: Path) -> None:
    """Streams of two models end whole, within the time that they have."""
    body: dict[str, Any] = {"prompt": "a", "max_tokens": 150, "stream": True}
    with process.Server.many(folder, *OPTIONS) as server:
        options = {"extra_body": {"ignore_eos": True}, **body}
        streams = [server.client.completions.create(model=m, **options) for m in ("one", "three")]
        for stream in streams:
            next(stream)
        server.process.send_signal(signal.SIGTERM)
        for stream in streams:
            with stream:
                *_, last = stream
            assert last.choices[0].finish_reason == "length"
    assert server.process.returncode in (-15, 143)  # as a single model does


def test_a_client_that_leaves_waits_no_longer(folder: Path) -> None:
    """With room for one model, which writes, another is asked for and given up."""
    body: dict[str, Any] = {"model": "one", "prompt": "a", "max_tokens": 230, "ignore_eos": True}
    with Server.many(folder, *OPTIONS, "--models-max", 1) as server:
        writes, leaves = server.connect(), server.connect()
        kind = {"Content-Type": "application/json"}
        writes.request("POST", "/v1/completions", json.dumps(body | {"stream": True}), kind)
        answer = writes.getresponse()
        answer.readline()
        leaves.request("POST", "/v1/completions", json.dumps(body | {"model": "three"}), kind)
        leaves.close()
        assert answer.read().endswith(b"data: [DONE]\n\n")
        writes.close()
        assert complete(server, "one", "a")[0] == 200
        metrics = server.metrics()
        assert metrics["models_waiting"] == 0 and metrics["models_loaded"] == 1
