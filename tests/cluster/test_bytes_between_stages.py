"""What crosses between machines for a token: one hidden state per border, and on the wire the
plan's bytes with the stated overhead of frames, no more."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weft.backends import make_backend
from weft.cluster.worker import serve_devices, worker_facts
from weft.execute.values import tensor_bytes
from weft.graph.size import evaluate
from weft.links import Link, Listener
from weft.llm import Context, Model
from weft.program import Program

DEMO = Path(__file__).resolve().parents[2] / "examples/weft-demo.gguf"
PREFIX, TAG, PIECE = 12, 16, 256 << 10


@pytest.fixture
def context(tmp_path: Path) -> Iterator[Context]:
    """The demo over two workers that are threads of this process."""
    listeners = []
    for i in range(2):
        listener = Listener("127.0.0.1", 0, facts=worker_facts())
        listeners.append(listener)
        devices = [make_backend("cpu", n_threads=1)]
        threading.Thread(
            target=serve_devices,
            args=(listener, devices, [DEMO.parent], tmp_path / str(i)),
            daemon=True,
        ).start()
    machines = [f"127.0.0.1:{listener.address.port}" for listener in listeners]
    yield Context(Model.open(DEMO), 128, n_ubatch=16, machines=machines, n_threads=1)
    for listener in listeners:
        listener.close()


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


def test_an_idle_pair_uses_no_processor(context: Context) -> None:
    """Both sides of the links of a loaded model, at rest: well under a core's tenth."""
    context.decode([5])
    time.sleep(0.5)
    before, began = time.process_time(), time.monotonic()
    time.sleep(4.0)
    assert time.process_time() - before < 0.1 * (time.monotonic() - began)
