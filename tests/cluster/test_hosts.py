"""Workers on hosts of their own, in network namespaces: packets are late, lost or cut off, and
texts have the same tokens. Skipped where such hosts cannot be made."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import weft
from tests.host_network import Host, Network, Wire
from tests.worker_processes import WorkerProcess
from weft.links.keys import write_key

pytestmark = pytest.mark.part("cluster")

MODEL = "examples/weft-demo.gguf"
PROMPT = "What is 17 + 25?"
N = 40

DRIVER = """
import json, sys, time, warnings
import weft
from weft.backends.remote import group
from weft.links import speed
from weft.links.keys import read_key

model, machines, key, n = sys.argv[1:5]
group.WATCH_S = 0.1
speed._SECONDS_MORE = 0.05  # a busy machine is late by less, whatever its links do
said = []
warnings.showwarning = lambda text, *_: said.append(str(text))
for line in sys.stdin:
    wish = json.loads(line)
    said.clear()
    with weft.LLM(model, machines=machines.split(","), machine_key=read_key(key)) as llm:
        machines_there = llm.context._options["machines"]
        while len(machines_there.speeds()) < len(machines_there.machines):
            time.sleep(0.01)
        first = {name: of.rtt for name, of in machines_there.speeds().items()}
        pieces = []
        for piece in llm.generate(wish["prompt"], max_tokens=int(n), temperature=0, stream=True):
            pieces.append(piece)
            if len(pieces) == 8:
                print(json.dumps(first), flush=True)
                sys.stdin.readline()
        ends = time.monotonic() + 60
        until = wish["until"]
        while until and time.monotonic() < ends and not any(until in text for text in said):
            llm.generate(wish["prompt"], max_tokens=2, temperature=0)
    print(json.dumps({"text": "".join(pieces), "said": said}), flush=True)
"""


class Driver:
    """A process on a host that writes texts over workers."""

    def __init__(self, host: Host, workers: list[WorkerProcess], key: Path) -> None:
        machines = ",".join(worker.address for worker in workers)
        self.process = host.popen(
            [sys.executable, "-c", DRIVER, MODEL, machines, str(key), str(N)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"WEFT_MACHINE_TIMEOUT": "2"},
        )

    def _line(self, line: str) -> str:
        assert self.process.stdin is not None and self.process.stdout is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()
        return self.process.stdout.readline().strip()

    def begin(self, until: str = "") -> dict[str, float]:
        """Begins a text, and waits until it is being written. The end of it also waits until
        something was said that has `until` in it. Returns the seconds of a round trip to each
        worker, as they were at first."""
        first: dict[str, float] = json.loads(
            self._line(json.dumps({"prompt": PROMPT, "until": until}))
        )
        return first

    def end(self) -> tuple[str, list[str]]:
        """Goes on to the end: the text, and what was said."""
        answer: dict[str, Any] = json.loads(self._line(""))
        return answer["text"], answer["said"]

    def close(self) -> None:
        """Ends it."""
        self.process.kill()
        self.process.communicate()


@pytest.fixture(scope="module")
def network() -> Iterator[Network]:
    """Three hosts."""
    try:
        made = Network(3)
    except (OSError, FileNotFoundError) as error:
        pytest.skip(f"hosts in network namespaces take root and /dev/net/tun: {error}")
    yield made
    made.close()


@pytest.fixture(scope="module")
def key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of the key of all."""
    path = tmp_path_factory.mktemp("hosts") / "key"
    write_key(path)
    return path


@pytest.fixture(scope="module")
def workers(network: Network, key: Path) -> Iterator[list[WorkerProcess]]:
    """A worker on the second and on the third host."""
    made: list[WorkerProcess] = []
    try:
        for i, host in enumerate(network.hosts[1:]):
            options = ("--machine-key-file", str(key), "--model-dir", "examples")
            cache = key.parent / f"cache{i}"
            made.append(WorkerProcess(cache, *options, host=host.address, popen=host.popen))
        yield made
    finally:
        for worker in made:
            worker.end()


@pytest.fixture(scope="module")
def running(network: Network, workers: list[WorkerProcess], key: Path) -> Iterator[Driver]:
    """A program on the first host."""
    made = Driver(network.hosts[0], workers, key)
    yield made
    made.close()


@pytest.fixture
def driver(network: Network, running: Driver) -> Iterator[Driver]:
    """The same, on a network that is whole before and after."""
    yield running
    network.everywhere()


@pytest.fixture(scope="module")
def expected() -> str:
    """The text on one machine."""
    with weft.LLM(MODEL) as llm:
        return llm.generate(PROMPT, max_tokens=N, temperature=0)


def test_late_and_lost_packets_change_no_text(
    network: Network, driver: Driver, expected: str
) -> None:
    network.everywhere(Wire(delay=0.001, loss=0.01))
    before = network.passed, network.lost
    driver.begin()
    text, _ = driver.end()
    assert text == expected
    assert network.passed - before[0] > 2 * N
    assert network.lost > before[1]


def test_a_link_that_becomes_slow_is_named(
    network: Network, workers: list[WorkerProcess], key: Path, expected: str
) -> None:
    here, _, far = network.hosts
    slow = f"the link to {far.address} is slow: "
    fresh = Driver(here, workers, key)  # it meets the links as they are now
    try:
        rtt = fresh.begin(until=slow)[far.address]
        network.between(here, far, Wire(delay=max(0.04, 4 * rtt)))
        text, said = fresh.end()
    finally:
        fresh.close()
        network.everywhere()
    assert text == expected
    assert next(line for line in said if "is slow" in line).startswith(slow)
    assert not any(f"the link to {network.hosts[1].address}" in line for line in said)


def test_workers_that_lose_each_other_go_on_through_this_machine(
    network: Network, driver: Driver, workers: list[WorkerProcess], expected: str
) -> None:
    _, one, other = network.hosts
    driver.begin()
    network.between(one, other, Wire(is_cut=True))
    text, said = driver.end()
    assert text == expected
    first, second = (worker.address for worker in workers)
    assert f"no bytes from {first}" in said[0] and "all machines are there" in said[0]
    assert said[1].startswith(f"{first} does not reach {second}, though this machine reaches both")


def test_workers_that_never_reached_each_other(
    network: Network, workers: list[WorkerProcess], key: Path, expected: str
) -> None:
    here, one, other = network.hosts
    network.between(one, other, Wire(is_cut=True))
    fresh = Driver(here, workers, key)
    try:
        fresh.begin()
        text, said = fresh.end()
    finally:
        fresh.close()
        network.everywhere()
    assert text == expected
    first, second = (worker.address for worker in workers)
    assert len(said) == 1 and said[0].startswith(f"{first} does not reach {second}")


def test_a_host_that_vanishes_is_left_out(
    network: Network, driver: Driver, workers: list[WorkerProcess], expected: str
) -> None:
    here, one, other = network.hosts
    driver.begin()
    for host in (here, one):
        network.between(host, other, Wire(is_cut=True))
    text, said = driver.end()
    assert text == expected
    assert f"going on without {other.address}" in said[0]
