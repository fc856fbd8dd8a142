"""Profiles of runs: sizes are right, times add up, traces are well-formed. No speed is asserted."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import weft.graph as g
from weft import Session, Sym, compile, quants
from weft.backends import make_backend
from weft.backends.cpu import Peaks
from weft.errors import FormatError, ProgramError
from weft.execute import profile_trace
from weft.execute.profile import Line, Profile
from weft.execute.profile_table import heading, op_rows, plain, tensor_rows
from weft.graph import Graph
from weft.tables import any_layer

PEAKS = Peaks(2, "avx2", read=10e9, int8=400e9, f32=100e9, bf16=None)


def weight(name: str, rows: int, columns: int, dtype: str = "q8_0") -> g.Tensor:
    values = np.random.default_rng(rows).standard_normal((rows, columns)).astype(np.float32)
    return g.constant(quants.encode(values, dtype), name, dtype)


def network(n_threads: int = 2) -> Session:
    """Two layers over n tokens: products, a norm between."""
    n = Sym("n", 1, 16)
    x = g.input("x", (n, 256))
    y = g.mul_mat(weight("blk.0.w", 512, 256), x)
    y = g.mul_mat(weight("blk.1.w", 256, 512), g.rms_norm(y, 1e-5))
    cpu = make_backend("cpu", n_threads=n_threads)
    return Session(compile(Graph(y.as_output("y")), [cpu]))


def run(session: Session, tokens: int) -> np.ndarray:
    x = np.random.default_rng(tokens).standard_normal((tokens, 256)).astype(np.float32)
    return session.run({"x": x})["y"]


def test_sizes_follow_the_symbols_and_times_add_up() -> None:
    session = network()
    with session.profile() as profile:
        for tokens in (3, 5):
            run(session, tokens)
    by_op = {(line.op, line.type): line for line in profile.by_op()}
    products = by_op["MUL_MAT", "q8_0"]
    assert (products.steps, products.calls, products.roof) == (2, 4, "int8")
    assert products.flops == 2 * 512 * 256 * (3 + 5) * 2
    weights = 2 * 512 * 256 * 34 / 32
    activations = (256 + 512) * (3 + 5) * 34 / 32
    results = 4 * (256 + 512) * (3 + 5)
    assert products.nbytes == 2 * weights + activations + results
    assert {"RMS_NORM", "QUANTIZE"} <= {op for op, _ in by_op}
    assert profile.runs == 2 and profile.threads == 2
    total = sum(line.seconds for line in profile.lines)
    assert 0 < total <= profile.seconds and profile.outside == pytest.approx(
        profile.seconds - total
    )
    assert 0 <= profile.waiting < 1
    assert sum(line.busy for line in profile.lines) <= 2 * total * (1 + 1e-9)


def test_recording_changes_no_result_and_ends() -> None:
    session = network()
    want = run(session, 4)
    with session.profile() as profile:
        np.testing.assert_array_equal(run(session, 4), want)
    np.testing.assert_array_equal(run(session, 4), want)
    assert profile.runs == 1
    with pytest.raises(ProgramError), session.profile():
        session.execute({"n": 99})
    assert not session.executables[0]._executor.spans  # type: ignore[attr-defined]


def test_layers_are_added_up_by_tensor() -> None:
    session = network()
    with session.profile() as profile:
        run(session, 2)
    names = [line.name for line in profile.by_tensor()]
    assert names.count("blk.*.w") == 1
    line_of_w = next(line for line in profile.by_tensor() if line.name == "blk.*.w")
    assert line_of_w.steps == 2


@pytest.mark.parametrize(
    ("name", "want"),
    [("blk.13.attn_q2.weight", "blk.*.attn_q2.weight"), ("kq-3 (view)", "kq-* (view)"),
     ("cache_k_l12", "cache_k_l*"), ("logits", "logits")],
)  # fmt: skip
def test_numbers_of_layers(name: str, want: str) -> None:
    assert any_layer(name) == want


def test_several_sessions_record_into_one_profile() -> None:
    first, second = network(1), network(2)
    both = Profile(name="both")
    for session in (first, second):
        with session.profile(both):
            run(session, 1)
    assert both.runs == 2 and both.threads == 2
    assert next(x for x in both.by_op() if x.op == "MUL_MAT").steps == 4


def test_trace(tmp_path: Path) -> None:
    session = network()
    with session.profile() as profile:
        run(session, 16)
    file = tmp_path / "trace.json"
    profile.save_trace(file)
    document = json.loads(file.read_text())
    slices = [e for e in document["traceEvents"] if e["ph"] == "X"]
    rows = {e["tid"]: e["args"]["name"] for e in document["traceEvents"] if e["ph"] == "M"}
    assert rows[0] == "thread 0" and "runs" in rows.values()
    assert all(e["ts"] >= 0 and e["dur"] >= 0 for e in slices)
    steps = [e for e in slices if e["cat"] == "cpu"]
    assert {"MUL_MAT blk.0.w", "MUL_MAT blk.1.w"} <= {e["name"] for e in steps}
    whole = next(e for e in slices if e["cat"] == "run")
    for e in steps:
        assert whole["ts"] <= e["ts"] and e["ts"] + e["dur"] <= whole["ts"] + whole["dur"]
    for thread in (0, 1):
        mine = sorted((e for e in slices if e["tid"] == thread), key=lambda e: e["ts"])
        for a, b in pairwise(mine):
            assert a["ts"] + a["dur"] <= b["ts"] + 1e-3, "slices of a thread overlap"
    with pytest.raises(FormatError, match="cannot write"):
        profile.save_trace(tmp_path / "no" / "folder.json")
    with pytest.raises(ProgramError, match="keeps no trace"):
        Profile(trace=False).save_trace(file)


def test_a_trace_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profile_trace, "_MOST", 3)
    trace = profile_trace.Trace()
    for i in range(5):
        trace.slice("x", "cpu", 0, i, i + 1)
    document = trace.as_json()
    assert sum(e["ph"] == "X" for e in document["traceEvents"]) == 3
    assert document["otherData"] == {"dropped slices": 2}


def test_other_devices_get_a_line_a_split() -> None:
    for op, name in (("MUL_MAT", "w"), ("split", "w .. y")):
        y = g.mul_mat(g.constant(np.ones((32, 64), np.float32), "w"), g.input("x", (8, 64)))
        output = y if op == "MUL_MAT" else g.sqr(y)
        session = Session(compile(Graph(output.as_output("y")), ["reference"]))
        with session.profile() as profile:
            session.run({"x": np.ones((8, 64), np.float32)})
        (line,) = [x for x in profile.lines if x.op != "copies"]
        assert (line.op, line.name, line.device, line.calls) == (op, name, "reference", 1)
        assert line.flops == 2 * 64 * 32 * 8 + (32 * 8 if op == "split" else 0)


def test_copies_between_devices_are_counted() -> None:
    x = g.input("x", (8, 64))
    y = g.sqr(x)
    z = g.mul_mat(g.constant(np.ones((64, 64), np.float32), "w"), y)
    graph = Graph(z.as_output("z"))
    program = compile(graph, ["reference", "cpu"], policy="plan", assign={y: 0, z: 1})
    session = Session(program)
    with session.profile() as profile:
        session.run({"x": np.ones((8, 64), np.float32)})
    copies = [line for line in profile.lines if line.op == "copies"]
    assert sum(line.nbytes for line in copies) == session.copied_bytes > 0


def test_roofline() -> None:
    line = Line("MUL_MAT", "q8_0", "cpu", roof="int8", seconds=0.5, nbytes=1e9, flops=1e9, calls=1)
    assert line.least_seconds(PEAKS) == (pytest.approx(0.1), "memory")
    line.flops = 80e9
    assert line.least_seconds(PEAKS) == (pytest.approx(0.2), "compute")
    line.roof = "bf16"  # not on this machine: float32 is what is left
    assert line.least_seconds(PEAKS)[0] == pytest.approx(0.8)
    assert (line.bandwidth, line.rate, line.intensity) == (2e9, 160e9, 80)


def test_table() -> None:
    session = network()
    with session.profile() as profile:
        run(session, 16)
    profile.__dict__["peaks"] = PEAKS
    for line in profile.lines:
        line.seconds = {"MUL_MAT": 0.05, "RMS_NORM": 0.0001}.get(line.op, 0.0003)
    profile.seconds = 0.11
    first, second, third = heading(profile)
    assert first.startswith("1 run, 110.0 ms each, 2 threads") and "in all 0.0 GB/s" in second
    assert third == "peaks with 2 threads (avx2): read 10.0 GB/s; int8 400, f32 100 GOP/s"
    rows = op_rows(profile)
    assert rows[1][:3] == ["MUL_MAT", "q8_0", "2"] and rows[1][3:5] == ["100.0", "90.9%"]
    assert rows[1][-2:] == ["memory", "0%"]
    assert [row[0] for row in rows[2:]] == ["QUANTIZE", "1 more op", "outside of steps"] or len(
        rows
    )
    assert len({len(row) for row in rows}) == 1
    assert tensor_rows(profile, 1)[1][0] == "blk.*.w"
    text = str(profile)
    assert text.splitlines()[3:] == plain(rows)
    data = json.loads(json.dumps(profile.as_json()))
    assert data["ops"][0]["op"] == "MUL_MAT" and len(data["steps"]) == len(profile.lines)
