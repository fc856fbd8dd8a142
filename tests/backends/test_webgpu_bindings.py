"""Devices that give kernels a part of a buffer: weights and results in pieces, windows of buffers,
and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.backends.webgpu_device import limited, webgpu
from weft import graph as g
from weft import quants
from weft.backends import Backend
from weft.backends.kernels.launch import View
from weft.backends.kernels.windows import windowed
from weft.backends.webgpu import WebGPUBackend
from weft.dtype import find_dtype
from weft.errors import DeviceError
from weft.llm import Context, Model

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"
BINDING = 64 << 10
"""Bytes of a buffer that a kernel has at once on the limited device."""
GROUPS = {"tile": 16, "lanes": 8, "rows": 2, "columns": 4, "wide": False}


def products(device: Backend, dtype: str, rows: int, ids: list[int]) -> dict[str, Any]:
    """Products of weights, 256 elements a row, with 70 columns and a bias, and without; and rows
    of the weights by index."""
    rng = np.random.default_rng(7)
    weights = quants.to_storage(rng.normal(size=(rows, 256)).astype(np.float32), dtype)
    w = g.constant(weights, "w", dtype)
    bias = g.constant(rng.normal(size=rows).astype(np.float32), "bias")
    x = weft.input("x", (70, 256))
    results = {
        "biased": g.mul_mat(w, x, bias),
        "product": g.mul_mat(w, x),
        "rows": g.get_rows(w, weft.input("ids", (len(ids),), "i32")),
    }
    graph = weft.Graph(*(t.as_output(name) for name, t in results.items()))
    feed = {"x": rng.normal(size=(70, 256)).astype(np.float32), "ids": np.array(ids, np.int32)}
    pins = dict.fromkeys(results.values(), device)
    program = weft.compile(graph, [device, "cpu"], policy="plan", assign=pins)
    return weft.Session(program).run(feed)


def floats() -> WebGPUBackend:
    """A device that multiplies floats, whether weights are in pieces or not."""
    return webgpu(activations="f32", planes=False)


def on_device(context: Context) -> int:
    """The bytes of weights on the device, in blocks and in planes."""
    need = context.plan.needs()[0]
    return need.weights + sum(need.repacked.values())


@pytest.mark.parametrize("dtype", ["f16", "q4_0", "q4_K"])
def test_weights_larger_than_a_binding(monkeypatch: pytest.MonkeyPatch, dtype: str) -> None:
    """Products and rows by index in pieces equal those at once to the bit. The weights of each
    format are at least two pieces, the result is four; they are not repacked."""
    rows, ids = 701, [700, 0, 333, 333, 127, 128]
    want = products(webgpu(), dtype, rows, ids)
    limited(monkeypatch, max_storage_buffer_binding_size=BINDING)
    device = webgpu(planes=True, activations="f32")
    got = products(device, dtype, rows, ids)
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)
    with pytest.raises(DeviceError, match=r"GET_ROWS.*index 701 is outside 0\.\.700"):
        products(device, dtype, rows, [1, 701])


def test_experts_larger_than_a_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each launch computes the slots whose experts its part of the weights has."""
    rng = np.random.default_rng(8)
    weights = quants.to_storage(rng.normal(size=(9, 96, 256)).astype(np.float32), "q4_0")
    x, ids = weft.input("x", (5, 1, 256)), weft.input("ids", (5, 4), "i32")
    y = g.mul_mat_id(g.constant(weights, "experts", "q4_0"), x, ids).as_output("y")
    feed = {
        "x": rng.normal(size=(5, 1, 256)).astype(np.float32),
        "ids": np.array([[0, 8, 3, 4], [5, 6, 7, 8], [1, 2, 2, 1], [8, 0, 8, 0], [4, 3, 6, 5]]),
    }

    def computed(device: Backend, ids: Any) -> Any:
        program = weft.compile(weft.Graph(y), [device, "cpu"], policy="plan", assign={y: device})
        return weft.Session(program).run(feed | {"ids": ids.astype(np.int32)})["y"]

    want = computed(webgpu(), feed["ids"])
    limited(monkeypatch, max_storage_buffer_binding_size=BINDING)
    device = webgpu(planes=True, activations="f32")
    np.testing.assert_array_equal(computed(device, feed["ids"]), want)
    with pytest.raises(DeviceError, match=r"MUL_MAT_ID.*index 9 is outside 0\.\.8"):
        computed(device, feed["ids"] + 1)


def test_results_larger_than_a_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that fit stay in planes, where bytes of activations meet them, and the columns are
    cut."""
    options = {"limits": GROUPS, "planes": True, "activations": "native"}
    want = products(webgpu(**options), "q4_0", 300, [1])
    limited(monkeypatch, max_storage_buffer_binding_size=BINDING)
    device = webgpu(**options)
    assert device.activations == "native"
    got = products(device, "q4_0", 300, [1])
    for name in want:
        np.testing.assert_array_equal(got[name], want[name], err_msg=name)


def test_a_model_larger_than_a_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers of weights and of activations are reached by windows, some weights are in pieces; the
    logits of the demo are the same to the bit, all of them computed there."""
    model, tokens = Model.open(DEMO), [1, 5, 9, 300, 7, 7, 20]

    def logits() -> list[Any]:
        options = {"activations": "f32", "n_gpu_layers": 99, "n_threads": 1, "n_ubatch": 16}
        context = Context(model, 64, devices=[floats(), "cpu"], **options)
        assert on_device(context) > 1 << 20
        for regime in context.plan.regimes:
            assert len(regime.plan.schedule.splits) == 2  # the rows of tokens are on the cpu
        return [context.decode(tokens, outputs="all"), context.decode([8])]

    want = logits()
    limited(monkeypatch, max_storage_buffer_binding_size=48 << 10)
    for got, each in zip(logits(), want, strict=True):
        np.testing.assert_array_equal(got, each)


def test_a_plan_says_what_is_larger_than_a_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ubatches of 64 tokens of 128 floats, which norms do not cut, have 32 KiB: such ops, with
    their weights, stay on the cpu, and products are on the device in pieces."""
    limited(monkeypatch, max_storage_buffer_binding_size=24 << 10)
    model, tokens = Model.open(DEMO), [1, 5, 9, 300, 7, 7, 20]
    options = {"activations": "f32", "n_threads": 1}
    context = Context(model, 64, devices=[floats(), "cpu"], n_gpu_layers=99, **options)
    kept = context.plan.homes.kept
    why = kept["blk.0.attn_norm.weight"]
    assert "MUL on webgpu: its kernel has 32768 bytes" in why and "at most 24320" in why
    assert "blk.0.ffn_gate.weight" not in kept
    assert on_device(context) > 1 << 20
    want = Context(model, 64, **options).decode(tokens, outputs="all")
    np.testing.assert_allclose(context.decode(tokens, outputs="all"), want, atol=2e-3, rtol=2e-3)


def test_tensors_that_stay_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor larger than a binding that is not cut is refused with both sizes, and its node runs
    on the next device."""
    limited(monkeypatch, max_storage_buffer_binding_size=BINDING)
    device = floats()
    n = BINDING // 4
    fits, large = (g.sqrt(weft.input("x", (k,))) for k in (n - 64, n))
    assert device.supports_op(fits)
    why = device.supports_op(large).why
    assert f"{4 * n} bytes of a buffer at once" in why and f"at most {4 * n - 256}" in why
    batches = g.mul_mat(weft.input("w", (4, 80, 64)), weft.input("x", (4, 1, 64)))
    assert "81920 bytes" in device.supports_op(batches).why
    x = np.arange(n, dtype=np.float32)
    program = weft.compile(weft.Graph(large.as_output("y")), [device, "cpu"])
    np.testing.assert_array_equal(weft.Session(program).run({"x": x})["y"], np.sqrt(x))


def test_windows() -> None:
    """A window holds its tensor, begins where devices allow it, and is no larger than a binding;
    a tensor that none holds is refused."""
    buffer, f32 = object(), find_dtype("f32")
    for at, n in ((0, 16), (4000, 160), (7936, 960), (65_000, 100), (66_300, 8)):
        view = View(f32, (n, 1, 1, 1), (4, 4 * n, 4 * n, 4 * n), at, buffer, "x")
        moved = windowed(view, 66_336, 4096)
        window = moved.buffer
        assert window.offset % 256 == 0 and window.offset + moved.at == at
        assert window.nbytes <= 4096 and moved.at + 4 * n <= window.nbytes
        assert window.offset + window.nbytes <= 66_336
        assert windowed(view, 4096, 4096) is view
    large = View(f32, (1000, 1, 1, 1), (4, 4000, 4000, 4000), 255, buffer, "x")
    with pytest.raises(DeviceError, match="x has 4000 bytes, and kernels have at most 3840"):
        windowed(large, 66_336, 4096)
