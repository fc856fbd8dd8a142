"""Frames of a client with changed commands: a worker answers each with a result or an error, and
frees everything when the client is gone."""

from __future__ import annotations

import copy
import random
import tempfile
from collections import deque
from functools import cache
from pathlib import Path
from typing import Any

import weft
from tests.fuzz.plans import places
from weft import graph as g
from weft.backends import make_backend
from weft.backends.remote.encode import encoded
from weft.cluster.lent import Lender
from weft.cluster.session import ClientSession
from weft.compiler import compile
from weft.errors import LinkError
from weft.links import Limits

VALUES = [None, True, 0, 1, -1, 5, 2**31, 2**62, 2**80, 0.5, "", "x", "0" * 64, "inf", [], {}, [[]],
          [[1, 0]], [[1, ["div", [[1, 0]], 0]]], [[1, ["mod", 7, [[1, 0]]]]], ["copy"]]  # fmt: skip


class Script:
    """A link whose other side says what is given, and then is gone."""

    peer = "a client"

    def __init__(self, frames: list[tuple[dict[str, Any], list[bytes]]]) -> None:
        self.limits = Limits()
        self._frames = deque(frames)
        self.answers: list[dict[str, Any]] = []

    def use_limits(self, limits: Limits) -> None:
        self.limits = limits

    def receive(self, timeout: float | None = None) -> tuple[dict[str, Any], list[Any]]:
        if not self._frames:
            raise LinkError("it is gone")
        return self._frames.popleft()

    def send(self, header: dict[str, Any], *arrays: Any) -> None:
        self.answers.append(header)

    def close(self, reason: str = "") -> None:
        self._frames.clear()


@cache
def lender() -> Lender:
    """A worker that lends 16 MiB and a cpu."""
    cache = tempfile.mkdtemp(prefix="weft-fuzz-")
    return Lender([make_backend("cpu", n_threads=1)], [], Path(cache), memory=16 << 20)


@cache
def good() -> list[list[Any]]:
    """Commands that allocate, write, lower, run, ask and read."""
    x = weft.input("x", (weft.Sym("rows", 1, 8), 16))
    w = weft.input("w", (32, 16))
    y = g.soft_max(g.mul_mat(w, g.clamp(x, float("-inf"), 3.0)))
    program = compile(weft.Graph(y.as_output("y")), [make_backend("cpu")])
    data, _ = encoded(program, 0)
    blocks = list(range(1, len(data["buffers"]) + 1))
    commands: list[list[Any]] = [
        ["alloc", number, 0, size] for number, size in zip(blocks, data["buffers"], strict=True)
    ]
    tensor = [0, [16, 4, 1, 1], [4, 64, 256, 256]]
    return [
        *commands,
        ["write", 1, 0],
        ["lower", 50, 0, data, blocks],
        ["run", 50, 1, 8],
        ["read", 1, 0, 16],
        ["alloc", 60, 0, 4096, True],
        ["load", 61, 0, 60, "interleaved", 0, [32, 32, 1, 1]],
        ["copy", 1, 0, 60, 0, 64],
        ["left", 0],
        ["has", 10],
        ["map", 70, 0, "0" * 64, 9, 0, 4, False],
        ["stored", 71, 0, "1" * 64, 8, False],
        ["ask", 0, "interleaved_types"],
        ["ask", 0, "refusal", 2, tensor, [tensor, tensor], [], 0],
        ["free", 60],
        ["drop", 50],
        ["inlet", 80, "s" * 32, "m2"],
        ["nothing"],
    ]


def run(seed: int, n: int) -> None:
    """Gives a worker `n` lists of commands."""
    rng = random.Random(seed)
    for _ in range(n):
        commands = copy.deepcopy(good())
        for _ in range(rng.randrange(0, 4)):
            part, key = rng.choice(places(commands))
            if rng.random() < 0.2:
                del part[key]
            else:
                part[key] = copy.deepcopy(rng.choice(VALUES))
        frames: list[tuple[dict[str, Any], list[bytes]]] = []
        for number, command in enumerate(commands):
            arrays = [bytes(range(16))] if isinstance(command, list) and "write" in command else []
            frames.append(({"n": number, "c": [command], "a": 2, "clear": 1}, arrays))
        link: Any = Script(frames)
        ClientSession(lender(), link).serve()
        for answer in link.answers:
            assert "n" in answer and ("e" not in answer or answer["e"][1])
        assert lender().used == 0 and not lender().inlets
