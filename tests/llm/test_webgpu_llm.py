"""Models partly on a WebGPU device: the cpu's tokens wherever things are, beside other devices, and
what a session takes is given back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.backends.opencl_device import opencl
from tests.backends.webgpu_device import webgpu
from tests.llm.tiny import write_wide_model
from tests.shares import share
from weft.backends import make_backend
from weft.backends.webgpu import WebGPUBackend
from weft.llm import Context, Model

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"
PROMPT = "Once upon a time"
"""Its continuation differs where only one side rounds activations to 8 bits."""
TOKENS = np.array([1, 262, 263, 264, 265, 266, 267])
RTOL, ATOL = 1e-4, 2e-5
"""float32 sums in another order."""
LONG = pytest.mark.part("devices")
LAYERS = range(7)
CACHES = ("f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")


@pytest.fixture(scope="module")
def device() -> WebGPUBackend:
    """Activations as they are, so that differences are sums in another order."""
    return webgpu(activations="f32")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """4 layers, 512 wide."""
    return Model.open(write_wide_model(tmp_path_factory.mktemp("wide") / "m.gguf"))


def context(model: Model, **options: Any) -> Context:
    """Keys and values in float32, so that no rounding on a border is seen in the logits."""
    settings: dict[str, Any] = {"type_k": "f32", "type_v": "f32"}
    return Context(model, 48, activations="f32", n_threads=1, **(settings | options))


def text(model: Path, **options: Any) -> str:
    """Greedy text of the demo."""
    with weft.LLM(model, n_ctx=64, n_threads=1, **options) as llm:
        return llm.generate(PROMPT, max_tokens=24, temperature=0)


@pytest.fixture(scope="module")
def by_default() -> WebGPUBackend:
    return webgpu()


@pytest.fixture(scope="module")
def texts() -> dict[str, str]:
    """The cpu's text by default, and with activations as they are."""
    return {"native": text(DEMO), "f32": text(DEMO, activations="f32")}


def test_layer_counts_are_those_of_the_demo() -> None:
    assert Model.open(DEMO).config.n_layer + 1 == max(LAYERS)


@pytest.mark.parametrize("n", share("devices", LAYERS, (3, 6)))
def test_every_layer_count(by_default: WebGPUBackend, texts: dict[str, str], n: int) -> None:
    """The demo's text is the cpu's, whatever number of layers is on the device: both round
    activations to the same bytes."""
    assert text(DEMO, devices=[by_default, "cpu"], n_gpu_layers=n) == texts["native"]


@pytest.mark.parametrize("n", share("devices", LAYERS, ()))
def test_every_layer_count_of_floats(device: WebGPUBackend, texts: dict[str, str], n: int) -> None:
    """So it is where neither rounds activations."""
    options = {"devices": [device, "cpu"], "n_gpu_layers": n, "activations": "f32"}
    assert text(DEMO, **options) == texts["f32"]


def rows(ctx: Context) -> np.ndarray:
    """Logits of a prompt and of two tokens behind it, a row for each token."""
    found = [ctx.decode(TOKENS, outputs="all"), *(ctx.decode([t], outputs="all") for t in (5, 9))]
    return np.concatenate(found)


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=LONG) for n in range(1, 6))])
def test_three_devices_at_random(wide: Model, device: WebGPUBackend, seed: int) -> None:
    """Weights on webgpu, opencl or the cpu, tensor by tensor: copies go by way of the host."""
    rng = np.random.default_rng(seed)
    devices: list[Any] = [device, opencl(), "cpu"]
    names = [n for n in wide.weights if n != "token_embd.weight"]
    place = {name: ("webgpu", "opencl", "cpu")[rng.integers(3)] for name in names}
    got = rows(context(wide, devices=devices, place=place))
    np.testing.assert_allclose(got, rows(context(wide)), rtol=RTOL, atol=ATOL)


@LONG
def test_ubatches_in_flight_over_two_devices(wide: Model, device: WebGPUBackend) -> None:
    """Two copies of what crosses devices: the rows of ubatches one by one."""
    tokens = np.random.default_rng(3).integers(3, 270, 40)
    layers = {"blk.[01].*": "webgpu", "blk.[23].*": "opencl"}
    options: dict[str, Any] = {"devices": [device, opencl(), "cpu"], "place": layers, "n_ubatch": 8}
    one, two = (context(wide, **options, n_copies=n) for n in (1, 2))
    got = [c.decode(tokens, outputs="all") for c in (one, two, context(wide))]
    np.testing.assert_array_equal(got[0], got[1])
    np.testing.assert_allclose(got[0], got[2], rtol=RTOL, atol=ATOL)


def test_one_gpu_opened_twice(wide: Model, device: WebGPUBackend) -> None:
    """Two objects are two devices, each with memory of its own; two names of one device are not."""
    other = make_backend("webgpu:0", activations="f32")
    place = {"blk.[01].*": "gpu", "blk.[23].*": "gpu:0"}
    ctx = context(wide, devices=[device, other, "cpu"], place=place)
    np.testing.assert_allclose(rows(ctx), rows(context(wide)), rtol=RTOL, atol=ATOL)
    with pytest.raises(weft.ScheduleError, match="webgpu and webgpu:0 are the same device"):
        context(wide, devices=["gpu", "gpu:0", "cpu"])
    with pytest.raises(weft.OutOfMemoryError, match="not enough WebGPU0 memory"):
        context(wide, devices=["gpu", "cpu"], memory={"gpu": 1})


@pytest.mark.parametrize(
    ("type_k", "type_v"),
    [("q8_0", "q4_0"), *(pytest.param(t, t, marks=LONG) for t in CACHES)],
)  # fmt: skip
def test_types_of_the_cache(wide: Model, device: WebGPUBackend, type_k: str, type_v: str) -> None:
    """Blocks are rounded as on the cpu, but for values on a border."""
    cache = {"type_k": type_k, "type_v": type_v}
    got, want = rows(context(wide, devices=[device, "cpu"], **cache)), rows(context(wide, **cache))
    assert np.square(got - want).sum() <= 1e-4 * np.square(want).sum()


def test_states_go_from_device_to_device(wide: Model, device: WebGPUBackend) -> None:
    """A state that the device saved is read by the cpu, and the other way round."""
    there, here = context(wide, devices=[device, "cpu"]), context(wide)
    for saver, reader in ((there, here), (here, there)):
        saver.clear()
        saver.decode(TOKENS)
        reader.load_state(saver.save_state())
        got, want = reader.decode([5]), saver.decode([5])
        np.testing.assert_allclose(got, want, rtol=RTOL, atol=ATOL)
