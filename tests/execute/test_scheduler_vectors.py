"""The recorded call sequences, through the scheduler itself: what it counts and reserves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.vectors.sched import GraphCase, StubBufferType, load_cases, make_backends
from weft.execute import Scheduler


class _NoMemory:
    """Memory that is only a number; nothing is computed here."""

    def __init__(self, nbytes: int) -> None:
        self.nbytes = nbytes

    def host(self) -> None:
        return None


class _Counting:
    """Gives buffer types an `allocate`, and counts its calls."""

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    def of(self, buffer_type: StubBufferType) -> Any:
        def allocate(nbytes: int) -> _NoMemory:
            self.calls[buffer_type.name] = self.calls.get(buffer_type.name, 0) + (nbytes > 0)
            return _NoMemory(nbytes)

        return allocate


def _steps(case: dict[str, Any]) -> list[dict[str, Any]]:
    """The calls of a case; one with a single graph is an `alloc` of it."""
    if "steps" in case:
        return [s | {"spec": case["graphs"][s["graph"]] if "graph" in s else {}}
                for s in case["steps"]]  # fmt: skip
    return [{"call": "alloc", "expect": case["expect"], "spec": case}]


def _check(case: dict[str, Any]) -> str:
    """What differs from the record, in words; empty: nothing."""
    buffer_types, backends = make_backends(case)
    counting = _Counting()
    for buffer_type in buffer_types:
        buffer_type.allocate = counting.of(buffer_type)  # type: ignore[attr-defined]
    scheduler = Scheduler(backends, case["n_copies"], case["op_offload"], memory="ggml")
    for number, step in enumerate(_steps(case)):
        if step["call"] == "reset":
            scheduler.reset()
            continue
        if step["call"] == "sync":
            scheduler.synchronize()
            continue
        if step["call"] == "split":
            return ""  # not a verb here; what follows depends on it
        instance = GraphCase(step["spec"], buffer_types)
        for backend in backends:
            backend.deps = instance.deps
        scheduler.reset()
        for tensor, backend in instance.assigned.items():
            scheduler.set_tensor_backend(tensor, backend)
        reallocs = scheduler.reallocs
        asked = dict(counting.calls)
        sizes = getattr(scheduler, step["call"])(instance.graph)
        expect = step["expect"]
        got = {
            "cur_copy": scheduler.cur_copy,
            "n_splits": scheduler.n_splits,
            "splits": [s.backend for s in scheduler.schedule.splits],
            "realloc": scheduler.reallocs > reallocs,
            "sizes": sizes,
            "buffers": [scheduler.buffer_size(i) for i in range(len(backends))],
            "buffer_allocs": [
                counting.calls.get(t.name, 0) - asked.get(t.name, 0) for t in buffer_types
            ],
        }
        want = dict(expect)
        want["splits"] = [s["backend_id"] for s in expect["splits"]]
        want["buffers"] = [b["size"] for b in expect["buffers"]]
        for key, value in got.items():
            if key in want and (key != "realloc" or step["call"] == "alloc"):
                if value != want[key]:
                    return f"step {number}, {key}: {value}, the reference has {want[key]}"
    return ""


def test_recorded_sequences(vectors: Path) -> None:
    """Every recorded case whose graphs `Scheduler` can be given."""
    wrong = []
    n = 0
    for case in load_cases(vectors / "sched" / "cases.jsonl.gz"):
        n += 1
        difference = _check(case)
        if difference:
            wrong.append(f"{case['id']}: {difference}")
    assert n > 300
    assert not wrong, "\n".join(wrong)


def test_vectors_are_there() -> None:
    """The reader itself, on a case made here."""
    tensors = [
        {"name": "x", "type": "f32", "op": "NONE", "ne": [8, 1, 1, 1], "nb": [4, 32, 32, 32],
         "flags": ["input"]},
        {"name": "y", "type": "f32", "op": "SQR", "ne": [8, 1, 1, 1], "nb": [4, 32, 32, 32],
         "src": [0]},
    ]  # fmt: skip
    case = {
        "id": "made here", "n_copies": 1, "op_offload": True,
        "bufts": [{"name": "m", "alignment": 32, "max_size": None, "is_host": True}],
        "backends": [{"name": "cpu", "dev_type": "CPU", "buft": 0, "supports_bufts": [0],
                      "supports_op": [{"ops": ["*"], "allow": True}], "offload_op": []}],
        "tensors": tensors, "outputs": [1],
    }  # fmt: skip
    split = {"backend_id": 0, "i_start": 0, "i_end": 1, "inputs": []}
    # the input is in place before, and SQR takes its memory over
    expect = {"n_splits": 1, "splits": [split], "buffers": [{"size": 32}], "realloc": True,
              "cur_copy": 0}  # fmt: skip
    assert _check(case | {"expect": expect}) == ""
    with pytest.raises(AssertionError):
        assert _check(case | {"expect": expect | {"n_splits": 2}}) == ""
