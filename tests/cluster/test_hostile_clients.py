"""Clients that send what they should not: the worker says no, and serves others as before."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

import weft
from tests.cluster.worker_processes import WorkerProcess
from weft import graph as g
from weft.backends import make_backend
from weft.backends.remote.encode import decoded, encoded
from weft.cluster.lent import worker_facts
from weft.compiler import compile
from weft.links import Link, connect


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WorkerProcess]:
    with WorkerProcess(tmp_path_factory.mktemp("cache"), memory=64 << 20) as process:
        yield process


class Client:
    """Sends frames as they are given."""

    def __init__(self, worker: WorkerProcess, hello: Any = "client") -> None:
        self.link: Link = connect(("127.0.0.1", worker.port), facts=worker_facts())
        self.link.send({"hello": hello})
        self.first, _ = self.link.receive(10)
        self.n = 0

    def ask(self, *commands: Any, arrays: Any = ()) -> dict[str, Any]:
        self.n += 1
        frame = {"n": self.n, "c": list(commands), "a": 2, "clear": 1}
        self.link.send(frame, *arrays)
        header, _ = self.link.receive(10)
        return header

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.link.close()


def works(worker: WorkerProcess) -> None:
    """The worker computes for an honest client."""
    device = make_backend(f"remote:{worker.address}/cpu")
    x = weft.input("x", (4, 8))
    program = compile(weft.Graph(g.sqr(x).as_output("y")), [device, make_backend("cpu")],
                      assign={})  # fmt: skip
    block = device.buffer_type.allocate(64)
    block.write(0, np.arange(64, dtype=np.uint8))
    assert block.read(0, 64)[63] == 63
    assert program.outputs


def small_program() -> dict[str, Any]:
    """The data of a program of two steps over one symbol."""
    x = weft.input("x", (weft.Sym("rows", 1, 8), 16))
    program = compile(weft.Graph(g.add(g.scale(x, 2.0), x).as_output("y")), [make_backend("cpu")])
    return encoded(program, 0)[0]


BAD = [
    ["alloc", 1, 0, -1],
    ["alloc", 1, 0, 1 << 61],
    ["alloc", 1, 99, 8],
    ["alloc", "x", 0, 8],
    ["alloc", 1, 0, 1 << 30],
    ["read", 1, 0, 8],
    ["write", 1, 0],
    ["nonsense"],
    ["copy", 1, 0, 2, 0, 8],
    ["map", 1, 0, "../../etc/passwd", 10, 0, 4],
    ["map", 1, 0, "0" * 64, 10, 8, 4],
    ["stored", 1, 0, "../x", 8],
    ["store", 1, "../x", 8, 0],
    ["load", 1, 0, 2, "planes", 0, [1] * 4],
    ["run", 7],
    ["run", 7, {}],
    ["run", 7, 0],
    ["run", 7, "1", 8],
    ["lower", 1, 0, {}, []],
    ["lower", 1, 0, [], []],
    ["drop"],
    ["free"],
    ["inlet", 1, "short", "x"],
    ["outlet", "0" * 32, "127.0.0.1", 1, "x"],
    ["send", "0" * 32, 1, 1, 0, 8],
    ["take", 1, 1, 1, 0, 8],
    ["free", []],
    ["drop", {}],
    ["has", "x"],
]


def test_bad_commands(worker: WorkerProcess) -> None:
    """Each is refused with a sentence, or does nothing; the session goes on."""
    with Client(worker) as client:
        for command in BAD:
            header = client.ask(command)
            ok = header.get("r") in (False, None) and "e" not in header
            assert ok or len(header["e"][1]) > 5, command
        assert "e" not in client.ask(["alloc", 5, 0, 64])
        for command in (
            ["read", 5, 60, 8],
            ["read", 5, -1, 8],
            ["read", 5, 0, 1 << 40],
            ["copy", 5, 60, 5, 0, 8],
            ["copy", 5, 0, 5, 60, 8],
            ["alloc", 5, 0, 64],
            ["load", 6, 0, 5, "interleaved", 0, [16, 2, 1, 1]],
        ):
            assert "e" in client.ask(command), command
        assert "e" in client.ask(["write", 5, 60], arrays=[bytes(8)])
        assert client.ask(["read", 5, 0, 64])["n"] == client.n
    works(worker)


@pytest.mark.parametrize("frame", [
    {}, {"n": "x", "c": []}, {"n": 1}, {"n": 1, "c": {}}, {"n": 1, "c": [1]}, {"n": 1, "c": [[]]},
    {"n": -1, "c": []}, {"n": 1, "c": [], "a": 7},
])  # fmt: skip
def test_frames_that_are_none_end_the_link(worker: WorkerProcess, frame: Any) -> None:
    with Client(worker) as client:
        client.link.send(frame)
        with pytest.raises(weft.DeviceError):
            while True:
                client.link.receive(10)
    works(worker)


@pytest.mark.parametrize("hello", ["stream", "nobody", 7, None])
def test_hellos(worker: WorkerProcess, hello: Any) -> None:
    """Who is no client, and knows no stream's secret, gets nothing."""
    try:
        with Client(worker, hello) as client:
            assert "devices" not in client.first
    except weft.DeviceError:
        pass
    works(worker)


def test_memory_is_bounded(worker: WorkerProcess) -> None:
    """All clients together get what the worker lends; who leaves gives it back."""
    with Client(worker) as one, Client(worker) as two:
        assert "e" not in one.ask(["alloc", 1, 0, 40 << 20])
        for _ in range(4):  # what was not allocated takes nothing
            assert "block 1 exists" in one.ask(["alloc", 1, 0, 20 << 20])["e"][1]
        assert "e" not in one.ask(["alloc", 2, 0, 20 << 20])
        assert "e" not in one.ask(["free", 2])
        refused = two.ask(["alloc", 1, 0, 40 << 20])["e"]
        assert refused[0] == "memory" and str(40 << 20) in refused[1]
        assert "e" not in one.ask(["free", 1])
        assert "e" not in two.ask(["alloc", 1, 0, 40 << 20])
    for _ in range(100):
        with Client(worker) as three:
            if "e" not in three.ask(["alloc", 1, 0, 60 << 20]):
                break
    else:
        pytest.fail("memory of clients that left was not given back")


def test_programs_survive_the_way() -> None:
    """What is decoded is what was encoded."""
    x = weft.input("x", (weft.Sym("rows", 1, 8), 16))
    scaled = g.soft_max(g.clamp(x, float("-inf"), 3.5))
    program = compile(weft.Graph(g.add(scaled, x).as_output("y")), [make_backend("cpu")])
    data, buffers = encoded(program, 0)
    back = decoded(data, program.buffers[0].buffer_type, "cpu")
    assert [b.size for b in back.buffers] == [program.buffers[i].size for i in buffers]
    assert encoded(back, 0)[0] == data
    for old, new in zip(program.splits[0].steps, back.splits[0].steps, strict=True):
        assert (old.op, old.params) == (new.op, new.params)


def test_damaged_programs(worker: WorkerProcess) -> None:
    """A program with any number or list changed is refused, or runs; the worker lives."""
    rng = random.Random(5)
    whole = small_program()
    with Client(worker) as client:
        blocks = list(range(1, len(whole["buffers"]) + 1))
        for number, size in zip(blocks, whole["buffers"], strict=True):
            assert "e" not in client.ask(["alloc", number, 0, size])
        assert "e" not in client.ask(["lower", 100, 0, whole, blocks])
        assert "e" not in client.ask(["run", 100, 1, 8])
        for rows in (0, 9, -1, "x"):
            assert "e" in client.ask(["run", 100, 1, rows])
        refused = 0
        for number in range(101, 500):
            header = client.ask(["lower", number, 0, _damaged(whole, rng), blocks])
            refused += "e" in header
            if "e" not in header:
                client.ask(["run", number, 1, 8])
        assert refused > 200
    works(worker)


def _damaged(data: Any, rng: random.Random) -> Any:
    """A copy with one number, text or list changed."""
    data = _copied(data)
    at: Any = data
    while True:
        keys = list(at) if isinstance(at, dict) else list(range(len(at)))
        if not keys:
            return data
        key = rng.choice(keys)
        if isinstance(at[key], dict | list) and at[key] and rng.random() < 0.9:
            at = at[key]
            continue
        at[key] = rng.choice(
            [-1, 0, 1, 7, 1 << 31, 1 << 62, 1 << 80, -(1 << 62), "x", None, [], {}, 0.5, [[1, 0]],
             [[1, 0, 0, 0]], [[1, ["div", [[1, 0]], 0]]], True]
        )  # fmt: skip
        return data


def _copied(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _copied(v) for k, v in value.items()}
    return [_copied(v) for v in value] if isinstance(value, list) else value


def test_a_client_that_sends_without_waiting(worker: WorkerProcess) -> None:
    """While a command waits, so many frames are kept, and no more: then the link ends."""
    with Client(worker) as client:
        client.ask(["alloc", 1, 0, 64])
        client.ask(["inlet", 1, "0" * 32, "a worker that never comes"])
        client.link.send({"n": 50, "c": [["take", 1, 1, 1, 0, 8]]})
        with pytest.raises(weft.DeviceError):
            for n in range(100, 100_000):
                client.link.send({"n": n, "c": [["nothing"]]})
    works(worker)


def test_arrays_are_bounded(worker: WorkerProcess) -> None:
    """More bytes than any honest frame has end the link before there is memory for them."""
    with Client(worker) as client:
        client.ask(["alloc", 1, 0, 64])
        with pytest.raises(weft.DeviceError):
            for _ in range(3):
                client.link.send({"n": 9, "c": [["write", 1, 0]]}, bytes(65 << 20))
                client.link.receive(10)
    works(worker)
