"""Prompts of several ubatches on two devices: the same rows, overlap, memory, faults."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.backends.opencl_device import opencl
from tests.cli.in_process import weft as command
from tests.execute.stub_devices import Device
from tests.llm.tiny import write_wide_model
from weft.backends.opencl import OpenCLBackend
from weft.execute import Pipeline, Profile, Trace
from weft.execute.profile_table import advice
from weft.llm import Context, Model, SamplingParams, Tokenizer
from weft.llm.engine import Delta, Engine, Request

TOKENS = np.random.default_rng(3).integers(3, 270, 250)
RTOL, ATOL = 1e-4, 2e-5
CLOCKS = 1e-4
"""Seconds by which the clocks of device and host may differ, far above what is seen."""


@pytest.fixture(scope="module")
def device() -> OpenCLBackend:
    return opencl()


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """4 layers, 512 wide."""
    return Model.open(write_wide_model(tmp_path_factory.mktemp("wide") / "m.gguf"))


def context(model: Model, *devices: Any, **options: Any) -> Context:
    """Keys and values in float32, so that no rounding on a border is seen in the logits."""
    settings: dict[str, Any] = {
        "type_k": "f32", "type_v": "f32", "n_ubatch": 64, "activations": "f32", "n_threads": 1
    }  # fmt: skip
    if devices:
        settings |= {"devices": [*devices, "cpu"], "n_gpu_layers": 2}
    return Context(model, 300, **(settings | options))


@pytest.mark.parametrize("n_copies", [2, 3])
@pytest.mark.parametrize("outputs", ["last", "all"])
def test_rows_are_those_of_ubatches_one_by_one(
    wide: Model, device: OpenCLBackend, outputs: Any, n_copies: int
) -> None:
    want = context(wide, device)
    ctx = context(wide, device, n_copies=n_copies)
    host = context(wide)
    assert ctx.plan.n_copies == n_copies and want.plan.n_copies == 1
    # 3 ubatches of 64 and one of 58; then a full one alone; then tokens one by one
    for n in (250, 32, 1, 1):
        rows = [c.decode(TOKENS[:n], outputs=outputs) for c in (ctx, want, host)]
        np.testing.assert_array_equal(rows[0], rows[1])
        np.testing.assert_allclose(rows[0], rows[2], rtol=RTOL, atol=ATOL)
    ctx.clear()
    host.clear()
    rows = [c.decode(TOKENS[:140], outputs="last") for c in (ctx, host)]  # the rest is small
    np.testing.assert_allclose(*rows, rtol=RTOL, atol=ATOL)


@pytest.mark.parametrize("options", [
    {"place": {"blk.[12].*": "opencl"}}, {"n_gpu_layers": 2, "offload_kv": False},
    {"n_gpu_layers": 5}, {"n_gpu_layers": 0}, {"n_gpu_layers": 3, "flash": False},
])  # fmt: skip
def test_other_placements(wide: Model, device: OpenCLBackend, options: dict[str, Any]) -> None:
    """Layers in the middle, the cache on the other side, everything on one of them."""
    options = {"n_gpu_layers": None} | options
    want = context(wide, device, **options)
    ctx = context(wide, device, n_copies=2, **options)
    for outputs in ("last", "all"):
        rows = [c.decode(TOKENS, outputs=outputs) for c in (ctx, want)]
        np.testing.assert_array_equal(*rows)
        ctx.clear()
        want.clear()


def test_calls_that_could_overlap(wide: Model, device: OpenCLBackend) -> None:
    """The advice of a profile counts the ubatches of a call; single tokens are never of one."""
    for n_copies in (1, 2):
        ctx = context(wide, device, n_copies=n_copies)
        ctx.decode(TOKENS[:192])
        ctx.clear()
        calls = []
        for n in (192, 64, 1):
            with ctx.profile() as profile:
                ctx.decode(TOKENS[:n])
            assert profile.calls is not None
            calls.append([n for runs in profile.calls.values() for n in runs])
        assert calls == [[3], [1], []]
        assert advice(profile).endswith("as single tokens depend on each other")
    assert profile.busiest and profile.waits


def busy(profile: Profile, name: str) -> list[tuple[float, float]]:
    """The intervals in which a device worked on steps, from the trace."""
    assert isinstance(profile.trace, Trace)
    events = profile.trace.as_json()["traceEvents"]
    matching = [e for e in events if e["ph"] == "X" and e["cat"] == name]
    return sorted((e["ts"], e["ts"] + e["dur"]) for e in matching)


def both(a: list[tuple[float, float]], b: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The time in which intervals of both overlap, beyond what the clocks may differ by."""
    meet = [(max(x[0], y[0]), min(x[1], y[1])) for x in a for y in b]
    return [(begin, end) for begin, end in meet if begin + 1e6 * CLOCKS < end]


def test_devices_work_at_the_same_time(wide: Model, device: OpenCLBackend) -> None:
    """Kernels of one ubatch run while the cpu is at the next; with one copy they never do."""
    for n_copies in (1, 2):
        ctx = context(wide, device, n_copies=n_copies)
        ctx.decode(TOKENS[:192])
        # two copies are able to: on a machine with other work to do, not in every run
        for _ in range(5):
            ctx.clear()
            with ctx.profile() as profile:
                ctx.decode(TOKENS[:192])
            kernels, host = busy(profile, device.name), busy(profile, "cpu")
            if both(kernels, host):
                break
        assert kernels and host and profile.runs == 3
        assert bool(both(kernels, host)) == (n_copies == 2)
        assert (profile.overlap > CLOCKS) == (n_copies == 2)
        # the spans lie within the runs
        runs = busy(profile, "run")
        assert min(kernels + host)[0] > runs[0][0] - 1e6 * CLOCKS
        assert max(end for _, end in kernels) < runs[-1][1] + 1e6 * CLOCKS
        flops = {line.device: 0.0 for line in profile.lines}
        for line in profile.lines:
            flops[line.device] += line.flops
        assert flops[device.name] > 0 and flops["cpu"] > 0


def test_what_only_rows_need_is_left_out(wide: Model, device: OpenCLBackend) -> None:
    """The output's split runs for the last ubatch alone."""
    ctx = context(wide, device, n_copies=2)
    with ctx.profile() as profile:
        ctx.decode(TOKENS[:192])
    steps = [line for line in profile.lines if line.device == "cpu" and line.op == "MUL_MAT"]
    calls = {line.name: line.calls for line in steps}
    assert calls["output.weight"] == 1 and calls["blk.0.attn_q.weight"] == 3


def test_a_text_is_the_same(wide: Model, device: OpenCLBackend) -> None:
    """`LLM` gives a prompt in steps of several ubatches."""
    options: dict[str, Any] = {
        "n_ctx": 300, "n_ubatch": 40, "activations": "f32", "n_threads": 1,
        "devices": [device, "cpu"], "n_gpu_layers": 2,
    }  # fmt: skip
    texts = []
    for n_copies in (1, 2):
        llm = weft.LLM(wide.file.path, n_copies=n_copies, **options)
        assert llm.context.n_step == (40 if n_copies == 1 else 300)
        texts.append(llm.generate("the abc " * 40, max_tokens=8, temperature=0))
    assert texts[0] == texts[1]


def test_states_of_recurrent_models(vectors: Path, device: OpenCLBackend) -> None:
    """Ubatch after ubatch writes the state that the next one reads, layer by layer."""
    for arch in ("mamba2", "lfm2"):
        model = Model.open(vectors / "models" / "archs" / f"{arch}.gguf")
        tokens = np.random.default_rng(5).integers(3, model.config.n_vocab, 100)
        options: dict[str, Any] = {"n_gpu_layers": 2, "n_ubatch": 16, "n_seq_max": 2}
        made, want = (context(model, device, n_copies=n, **options) for n in (2, 1))
        assert made.plan.n_copies == 2
        for n, seq in ((90, 0), (40, 1), (10, 0)):
            rows = [c.decode(tokens[:n], seqs=[[seq]] * n, outputs="all",
                             positions=c.cache.pos_max(seq) + 1 + np.arange(n))
                    for c in (made, want)]  # fmt: skip
            np.testing.assert_array_equal(*rows, err_msg=arch)


def test_texts_of_a_server(wide: Model, device: OpenCLBackend, monkeypatch: Any) -> None:
    """Prompts are computed several ubatches at a time; texts are the same."""
    steps: list[int] = []
    real = Context.decode

    def decode(self: Context, batch: Any) -> Any:
        steps.append(len(batch.tokens))
        return real(self, batch)

    monkeypatch.setattr(Context, "decode", decode)
    results = []
    for n_copies in (1, 2):
        ctx = context(wide, device, n_copies=n_copies, n_seq_max=2, n_outputs=2, n_ubatch=40)
        engine = Engine(ctx, Tokenizer.from_gguf(wide.file))
        steps.clear()
        try:
            request = Request(tuple(TOKENS[:200].tolist()), max_tokens=5, ignore_eos=True,
                              sampling=SamplingParams(temperature=0))  # fmt: skip
            results.append(
                "".join(e.text for e in engine.generate(request) if isinstance(e, Delta))
            )
        finally:
            engine.close()
        assert max(steps) == (40 if n_copies == 1 else 200)
    assert results[0] == results[1] != ""


def test_the_command_of_the_docs(wide: Model, tmp_path: Path) -> None:
    """`weft bench --n-copies 2 --profile --trace`: rows of the device and of the cpu's threads."""
    opencl()
    trace = tmp_path / "out.json"
    process = command(
        "bench", wide.file.path, "-p", "192", "-n", "0", "-r", "1", "-ub", "64", "--devices",
        "opencl,cpu", "-ngl", "2", "--n-copies", "2", "--profile", "--trace", trace,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    assert "devices worked at the same time for" in process.stdout
    events = json.loads(trace.read_text())["traceEvents"]
    rows = {e["args"]["name"] for e in events if e["ph"] == "M"}
    assert {"thread 0", "opencl kernels", "opencl copies", "host", "host copies", "runs"} <= rows
    plan = command(
        "explain", wide.file.path, "--devices", "opencl,cpu", "-ngl", "2", "--n-copies", "2",
        "--brief",
    )  # fmt: skip
    assert plan.returncode == 0 and "ubatches that run beside the first" in plan.stdout


def test_memory_and_arguments(wide: Model, device: OpenCLBackend) -> None:
    one, two = (context(wide, device, n_copies=n) for n in (1, 2))
    needs = [{need.memory: need for need in c.plan.needs()} for c in (one, two)]
    for name, need in needs[0].items():
        other = needs[1][name]
        assert need.copies == 0 < other.copies <= other.compute == need.compute
        assert other.total == need.total + other.copies
    assert two.memory.compute > one.memory.compute
    assert any(row["buffer"] == "copies" for row in two.plan.memory_rows())
    assert context(wide, n_copies=2).plan.n_copies == 1  # nothing to overlap on one device
    with pytest.raises(weft.ContextError, match="n_copies is 0"):
        context(wide, device, n_copies=0)


def test_abort_and_interrupt(
    wide: Model, device: OpenCLBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that was stopped leaves the cache as it was, and the next one is right."""
    want = context(wide, device)
    want.decode(TOKENS[:40])
    expected = want.decode(TOKENS)
    ctx = context(wide, device, n_copies=2)
    ctx.decode(TOKENS[:40])
    real = Pipeline.start

    def stopped(how: Any, at: int) -> Iterator[None]:
        n = 0

        def start(self: Pipeline, *args: Any) -> Any:
            nonlocal n
            n += 1
            if n == at:
                how()
            return real(self, *args)

        monkeypatch.setattr(Pipeline, "start", start)
        yield
        monkeypatch.undo()

    def from_a_thread() -> None:
        other = threading.Thread(target=ctx.abort)
        other.start()
        other.join()

    def interrupt() -> None:
        raise KeyboardInterrupt

    for how, error in ((from_a_thread, weft.AbortedError), (interrupt, KeyboardInterrupt)):
        for at in (1, 3):
            for _ in stopped(how, at):
                with pytest.raises(error):
                    ctx.decode(TOKENS)
            assert ctx.cache.n_used == 40
    ctx.abort()  # between calls: nothing to stop
    np.testing.assert_array_equal(ctx.decode(TOKENS), expected)


def test_a_device_that_fails(wide: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    import pyopencl as cl

    device = opencl()
    ctx = context(wide, device, n_copies=2)
    expected = ctx.decode(TOKENS)
    ctx.clear()
    real, left = device.driver.launch, [60]

    def launch(*args: Any) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise cl.RuntimeError("clEnqueueNDRangeKernel failed: OUT_OF_RESOURCES")
        return real(*args)

    monkeypatch.setattr(device.driver, "launch", launch)
    with pytest.raises(weft.DeviceError, match=r"split \d on opencl .*OUT_OF_RESOURCES"):
        ctx.decode(TOKENS)
    monkeypatch.undo()
    np.testing.assert_array_equal(ctx.decode(TOKENS), expected)


def test_devices_without_a_queue_of_their_own(wide: Model) -> None:
    """They get a thread each."""
    gpu = Device("gpu")
    want = context(wide, Device("gpu")).decode(TOKENS[:200])
    ctx = context(wide, gpu, n_copies=2)
    np.testing.assert_array_equal(ctx.decode(TOKENS[:200]), want)
    assert gpu.threads == {"weft-gpu"}
