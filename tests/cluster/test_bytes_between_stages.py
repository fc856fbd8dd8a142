"""What crosses between machines for a token: one hidden state per border, and on the wire the
plan's bytes with the stated overhead of frames, no more."""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.worker_threads import WorkerThread
from tests.waiting import eventually
from weft.execute.values import tensor_bytes
from weft.graph.size import evaluate
from weft.links import Link
from weft.links.stream import Incoming
from weft.llm import Context, Model
from weft.program import Program

DEMO = Path(__file__).resolve().parents[2] / "examples/weft-demo.gguf"
PREFIX, TAG, PIECE = 12, 16, 256 << 10


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    """The demo over two workers that are threads of this process."""
    workers = [WorkerThread(tmp_path / f"{i}", [DEMO.parent]) for i in (0, 1)]
    with workers[0], workers[1]:
        machines = [worker.address for worker in workers]
        yield Context(Model.open(DEMO), 128, n_ubatch=16, machines=machines, n_threads=1)


def crossing(program: Program, values: dict[str, int]) -> list[tuple[str, str, str, int]]:
    """(tensor, from, to, bytes) of the copies of a run; from is empty for this machine."""
    made = {step.dst: split.device for split in program.splits for step in split.steps}
    rows = []
    for split in program.splits:
        for copy in split.copies:
            t = program.tensors[copy.src]
            ne, nb = ([evaluate(n, values) for n in sizes] for sizes in (t.ne, t.nb))
            source = made.get(copy.src, "")
            rows.append((t.name, source, split.device, tensor_bytes(t.dtype, ne, nb)))
    return rows


def framed(header: int, arrays: list[int]) -> int:
    """The bytes of a frame on the wire: a sealed prefix, a sealed table of sizes and the header,
    and arrays in sealed pieces."""
    pieces = [n for n in (8 * len(arrays) + header, *arrays) if n]
    return PREFIX + TAG + sum(n + TAG * -(-n // PIECE) for n in pieces)


def test_the_wire_has_the_bytes_of_the_plan(
    context: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    context.decode([5, 6, 7])
    context.decode([8])
    program = context.regimes[0].program
    devices = [split.device for split in program.splits]
    assert len(devices) == 3 and devices[0] == "cpu"
    n_kv = context.cache.n_seen + 1
    values = {name: 1 for name in program.symbols} | {"n_kv": n_kv}
    copies = crossing(program, values)
    between = [row for row in copies if row[1:3] == (devices[1], devices[2])]
    assert [nbytes for *_, nbytes in between] == [4 * context.model.config.n_embd]

    sent: list[int] = []
    frames: list[int] = []
    real, real_frame = Link.send, Link._frame

    def send(self: Link, header: dict[str, Any], *arrays: Any) -> None:
        sent.extend(memoryview(a).nbytes for a in arrays)
        real(self, header, *arrays)

    def frame(self: Link, kind: int, text: bytes, views: list[memoryview]) -> None:
        before = self.bytes_sent
        real_frame(self, kind, text, views)
        frames.append(self.bytes_sent - before - framed(len(text), [v.nbytes for v in views]))

    monkeypatch.setattr(Link, "send", send)
    monkeypatch.setattr(Link, "_frame", frame)
    row = context.decode([9])
    monkeypatch.undo()
    assert sum(sent) == sum(nbytes for *_, nbytes in copies) + row.nbytes
    assert frames and set(frames) == {0}


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """How often links of this process do some things, from now on."""
    found: Counter[str] = Counter()

    def count(owner: type, method: str, name: Callable[..., str]) -> None:
        real = getattr(owner, method)

        def counted(self: object, *given: Any) -> Any:
            found[name(*given)] += 1
            return real(self, *given)

        monkeypatch.setattr(owner, method, counted)

    count(Link, "_frame", lambda kind, *_: f"frames of kind {kind}")
    count(Link, "_idle", lambda: "ticks")
    count(Link, "receive_into", lambda *_: "calls")
    count(Incoming, "_more", lambda until: "reads")
    return found


def test_an_idle_pair_only_asks_whether_the_other_is_there(
    counts: Counter[str], context: Context
) -> None:
    """At rest, both sides of the links of a loaded model send heartbeats, and wake up a few times
    for each: no thread asks again and again whether there is something to do."""
    context.decode([5])
    assert context.machines is not None
    links = [machine.link for machine in context.machines.machines]
    eventually(lambda: all(link.pings for link in links))
    gc.collect()  # contexts of earlier tests in this process free memory of their workers by calls
    counts.clear()
    before = [link.pings for link in links]
    eventually(lambda: all(link.pings >= n + 2 for link, n in zip(links, before, strict=True)))
    heartbeats = counts["frames of kind 1"]
    assert not any(counts[f"frames of kind {kind}"] for kind in (0, 3))
    for name in ("ticks", "reads", "calls"):
        assert counts[name] <= 10 * heartbeats, counts
