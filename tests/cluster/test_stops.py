"""`abort` and Ctrl-C end what workers do at once: the split under way between two pieces of work,
and what waits behind it before it begins."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.cluster.worker_threads import WorkerThread, group_of
from weft import graph as g
from weft.backends.remote import Machine, RemoteBackend
from weft.backends.remote.group import MachineGroup
from weft.cluster import run_times
from weft.errors import AbortedError
from weft.llm import Context, Model

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"
STEPS = 400


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MachineGroup]:
    """Two workers in this process, with a thread each."""
    folder = tmp_path_factory.mktemp("workers")
    with group_of([WorkerThread(folder / f"{i}", [DEMO.parent]) for i in (0, 1)]) as found:
        yield found


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Set when a worker has begun a run that is recorded."""
    event, run = threading.Event(), run_times.RunTimes.run

    def first(self: run_times.RunTimes, *given: Any) -> None:
        event.set()
        run(self, *given)

    monkeypatch.setattr(run_times.RunTimes, "run", first)
    return event


@pytest.fixture(scope="module")
def device(group: MachineGroup) -> RemoteBackend:
    return group.devices()[0]


@pytest.fixture(scope="module")
def long(device: RemoteBackend) -> weft.Session:
    """Minutes of matmuls at the largest size."""
    n = 1024
    x = weft.input("x", (weft.Sym("rows", 1, 1 << 11), n))
    w = weft.constant(np.eye(n, dtype=np.float32), "w")
    for _ in range(STEPS):
        x = g.mul_mat(w, x)
    return weft.Session(weft.compile(weft.Graph(x.as_output("y")), [device, "cpu"], offload=True))


def later(event: threading.Event, what: Callable[[], object]) -> threading.Thread:
    """Does something in a thread once the event is set."""

    def wait() -> None:
        assert event.wait(60)
        what()

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def steps_done(machine: Machine) -> int:
    """The steps of the recorded runs that were done, or begun."""
    machine.synchronize()
    assert machine.recording is not None
    return sum(int((machine.recording.spans(run)[:, 1] > 0).sum()) for run in range(1, 100))


def ctrl_c() -> None:
    """What the terminal does."""
    os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.parametrize("how", [AbortedError, KeyboardInterrupt])
def test_the_split_under_way_ends(
    device: RemoteBackend, long: weft.Session, begun: threading.Event, how: type[BaseException]
) -> None:
    machine = device.machine
    machine.record(True)
    thread = later(begun, long.abort if how is AbortedError else ctrl_c)
    try:
        with pytest.raises(how):
            long.run({"x": np.ones((1 << 11, 1024), np.float32)})
        assert steps_done(machine) < STEPS // 4
    finally:
        thread.join()
        machine.record(False)
    x = np.random.default_rng(0).standard_normal((2, 1024)).astype(np.float32)
    np.testing.assert_allclose(long.run({"x": x})["y"], x, rtol=1e-5)


def test_what_was_enqueued_before_is_done(device: RemoteBackend, long: weft.Session) -> None:
    """Three runs that a call left behind are done; two of the next call, which is stopped, not."""
    count = weft.state("count", (4,))
    new = count + weft.constant(np.ones(4, np.float32), "one")
    graph = weft.Graph(g.cpy(new, count).as_output("y"))
    counts = weft.Session(weft.compile(graph, [device, "cpu"], offload=True))
    counts.run({})
    long.clear_abort()
    long.begin()
    long.execute({"rows": 1 << 11})
    for _ in range(3):
        counts.execute({})
    device.machine.flush()
    counts.begin()
    for _ in range(2):
        counts.execute({})
    device.machine.flush()
    counts.abort()
    with pytest.raises(AbortedError):
        counts.execute({})
    long.drop()
    np.testing.assert_array_equal(counts.state("count").read(), np.full(4, 4, np.float32))
    counts.execute({})
    np.testing.assert_array_equal(counts.state("count").read(), np.full(4, 5, np.float32))


@pytest.mark.parametrize("how", [AbortedError, KeyboardInterrupt])
@pytest.mark.parametrize("n_ubatch", [1024, 128])
def test_a_prompt_is_stopped_in_all_stages(
    group: MachineGroup, begun: threading.Event, how: type[BaseException], n_ubatch: int
) -> None:
    """In one ubatch, and in ubatches that follow one another: workers do a part of the steps, the
    cache is as it was, and the context goes on."""
    sizes: Mapping[str, Any] = {"n_ctx": 1024, "n_ubatch": n_ubatch, "n_outputs": 1}
    model = Model.open(DEMO)
    there = Context(model, machines=group, **sizes)
    here = Context(model, devices=["cpu"], **sizes)
    for context in (here, there):
        context.decode([1, 2, 3])
    machines = group.machines
    prompt = [5 + i % 100 for i in range(1000)]
    steps = []
    for stops in (False, True):
        for machine in machines:
            machine.record(True)
        begun.clear()
        thread = later(begun, (there.abort if how is AbortedError else ctrl_c) if stops else bool)
        try:
            if stops:
                with pytest.raises(how):
                    there.decode(prompt)
                assert there.cache.n_used == 3
            else:
                there.decode(prompt)
                there.seq_rm(0, 3, -1)
            steps.append([steps_done(machine) for machine in machines])
        finally:
            thread.join()
            for machine in machines:
                machine.record(False)
    assert sum(steps[1]) < sum(steps[0])
    assert steps[1][1] < steps[0][1]
    np.testing.assert_array_equal(here.decode([4]), there.decode([4]))
