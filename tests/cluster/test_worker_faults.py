"""Workers that are killed, stopped, cut off or partitioned while a text is written: it goes on with
the same tokens. Real processes; the network breaks in a proxy."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.waiting import eventually
from tests.worker_processes import Proxy, WorkerProcess, runs, workers
from weft.backends.remote import group
from weft.errors import DeviceError

pytestmark = [pytest.mark.usefixtures("soon"), pytest.mark.xdist_group("workers")]

MODEL = "examples/weft-demo.gguf"
PROMPT = "What is 17 + 25?"
N = 60


@pytest.fixture(scope="module")
def expected() -> str:
    """The text on one machine."""
    with weft.LLM(MODEL) as llm:
        return llm.generate(PROMPT, max_tokens=N, temperature=0)


def text_with(llm: weft.LLM, after: int, fault: Callable[[], object]) -> str:
    """A text that `fault` happens to after some pieces."""
    pieces = []
    for piece in llm.generate(PROMPT, max_tokens=N, temperature=0, stream=True):
        pieces.append(piece)
        if len(pieces) == after:
            fault()
    return "".join(pieces)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("victim", [pytest.param(0, marks=pytest.mark.part("faults")), 1])
def test_a_killed_worker_is_started_again(
    two: list[WorkerProcess], expected: str, victim: int
) -> None:
    with weft.LLM(MODEL, machines=[w.address for w in two]) as llm:
        before = two[victim].serving()
        with pytest.warns(RuntimeWarning, match=f"{two[victim].address} is back"):
            text = text_with(llm, 10, lambda: two[victim].signal(signal.SIGKILL))
        assert text == expected
        assert two[victim].serving() != before
        assert llm.generate(PROMPT, max_tokens=N, temperature=0) == expected


@pytest.mark.part("faults")
def test_a_stopped_worker_is_left_out(
    expected: str, tmp_path: Path, two: list[WorkerProcess]
) -> None:
    with workers(1, tmp_path, "--no-restart") as (third,):
        with weft.LLM(MODEL, machines=[two[0].address, third.address]) as llm:
            with pytest.warns(RuntimeWarning, match=f"going on without {third.address}"):
                text = text_with(llm, 10, lambda: third.signal(signal.SIGSTOP))
            assert text == expected
        third.process.send_signal(signal.SIGCONT)


def test_all_workers_gone(expected: str, tmp_path: Path) -> None:
    with workers(1, tmp_path, "--no-restart") as (only,):
        with weft.LLM(MODEL, machines=only.address) as llm:
            with pytest.warns(RuntimeWarning, match="going on without 127.0.0.1"):
                assert text_with(llm, 5, only.end) == expected


@pytest.mark.parametrize(
    "how",
    [
        "cut",
        *(pytest.param(how, marks=pytest.mark.part("faults")) for how in ("partition", "changed")),
    ],
)
def test_the_network_breaks(two: list[WorkerProcess], expected: str, how: str) -> None:
    proxy = Proxy(two[1].address)

    def fault() -> None:
        if how == "cut":
            proxy.cut()
        elif how == "changed":
            proxy.change = lambda data: bytes([data[0] ^ 1]) + data[1:]
            threading.Timer(0.5, setattr, (proxy, "change", None)).start()
        else:
            proxy.drops = True

            def heal() -> None:
                proxy.cut()
                proxy.drops = False

            threading.Timer(4.5, heal).start()  # the workers are lost by then

    try:
        with weft.LLM(MODEL, machines=[two[0].address, proxy.address]) as llm:
            with pytest.warns(RuntimeWarning, match=f"{proxy.address} is back"):
                assert text_with(llm, 10, fault) == expected
    finally:
        proxy.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.part("faults")
def test_kills_again_and_again(two: list[WorkerProcess], expected: str) -> None:
    with weft.LLM(MODEL, machines=[w.address for w in two]) as llm:
        for i in range(3):
            with pytest.warns(RuntimeWarning, match="is back"):
                text = text_with(llm, 3 + 7 * i, lambda: two[i % 2].signal(signal.SIGKILL))  # noqa: B023
            assert text == expected


@pytest.mark.part("faults")
def test_no_process_outlives_its_supervisor(tmp_path: Path) -> None:
    with workers(1, tmp_path) as (worker,):
        child = worker.serving()
        worker.process.kill()
        eventually(lambda: not runs(child))


@pytest.mark.part("faults")
def test_a_slow_link_is_named(
    two: list[WorkerProcess], expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group, "WATCH_S", 0.2)
    proxy = Proxy(two[1].address)
    said: list[str] = []
    monkeypatch.setattr(group.warnings, "warn", lambda text, *_, **__: said.append(text))
    try:
        with weft.LLM(MODEL, machines=[two[0].address, proxy.address]) as llm:
            machines = llm.context._options["machines"]
            assert isinstance(machines, group.MachineGroup)
            eventually(lambda: len(machines.speeds()) == 2)
            proxy.delay = 0.05
            eventually(lambda: llm.generate(PROMPT, max_tokens=5, temperature=0) and said)
            assert said[0].startswith(f"the link to {proxy.address} is slow: ")
            proxy.delay = 0.0
            assert llm.generate(PROMPT, max_tokens=N, temperature=0) == expected
    finally:
        proxy.close()


def test_errors_without_a_loss_come_to_an_end(two: list[WorkerProcess]) -> None:
    addresses = [worker.address for worker in two]
    machines = group.machine_group(addresses)
    assert group.machine_group(",".join(addresses)) is machines
    error = DeviceError("a kernel failed")
    with pytest.raises(DeviceError, match="a kernel failed"):
        machines.recover(machines.serial, error, loading=True)
    for _ in range(3):
        assert "all machines are there" in machines.recover(machines.serial, error)
    assert "another context" in machines.recover(machines.serial - 1, error)
    with pytest.raises(DeviceError, match="a kernel failed"):
        machines.recover(machines.serial, error)


@pytest.mark.usefixtures("patient")
@pytest.mark.part("faults")
def test_embeddings_and_scores_go_on_after_a_fault(two: list[WorkerProcess]) -> None:
    with weft.LLM(MODEL) as llm:
        expected = llm.embed([PROMPT])
    with weft.LLM(MODEL, machines=[w.address for w in two]) as llm:
        assert np.array_equal(llm.embed([PROMPT]), expected)
        two[0].signal(signal.SIGKILL)
        with pytest.warns(RuntimeWarning, match="is back"):
            assert np.array_equal(llm.embed([PROMPT]), expected)
        with pytest.warns(RuntimeWarning, match="another context has connected again"):
            llm.generate(PROMPT, max_tokens=4, temperature=0)
