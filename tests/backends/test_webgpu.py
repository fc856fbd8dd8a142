"""Kernels in WGSL: the exam of backends, and models beside OpenCL's kernels and the cpu's."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

import weft
from tests.backend_suite import BackendSuite
from tests.backends.webgpu_device import webgpu
from weft import graph as g
from weft.backends import Backend, make_backend
from weft.backends.cases import Case
from weft.errors import OutOfMemoryError
from weft.llm import Context, Model

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"


class TestWebGPU(BackendSuite):
    """Of ops that read formats, a format of each kind."""

    FORMATS: ClassVar = ("f32", "f16", "q8_0", "q4_K", "")

    @classmethod
    def wants(cls, case: Case) -> bool:
        some = ("f16", "") if case.op == "FLASH_ATTN_EXT" else cls.FORMATS
        return case.format in some

    @classmethod
    def make(cls) -> Backend:
        return webgpu()


@pytest.mark.part("devices")
class TestWebGPUFormats(TestWebGPU):
    """The other formats."""

    @classmethod
    def wants(cls, case: Case) -> bool:
        return not super().wants(case)


@pytest.mark.part("devices")
class TestWebGPUWithTiles(BackendSuite):
    """Group sizes as on a GPU, and weights in planes."""

    @classmethod
    def wants(cls, case: Case) -> bool:
        ops = ("MUL_MAT", "MUL_MAT_ID", "FLASH_ATTN_EXT", "SOFT_MAX", "RMS_NORM")
        return case.op in ops and case.variant.split(" ")[0] in ("f32", "f16", "q4_K", "mask", "")

    @classmethod
    def make(cls) -> Backend:
        return webgpu(
            limits={"tile": 32, "lanes": 8, "rows": 2, "columns": 4, "wide": False}, planes=True
        )


def test_bytes_that_are_no_words() -> None:
    """Writes and copies may begin and end within a word; what is beside them stays."""
    memory = webgpu().memory_type.allocate(64)
    want = np.zeros(64, np.uint8)
    rng = np.random.default_rng(3)
    for start, n in ((1, 5), (8, 3), (13, 1), (17, 30), (62, 2)):
        data = rng.integers(1, 256, n, np.uint8)
        memory.write(start, data)
        want[start : start + n] = data
    assert memory.copy_from(33, memory, 2, 7)
    want[33:40] = want[2:9]
    np.testing.assert_array_equal(memory.read(0, 64), want)
    np.testing.assert_array_equal(memory.read(5, 9), want[5:14])


def test_its_other_name() -> None:
    webgpu()
    assert make_backend("gpu").name == "webgpu"


def test_without_integers_of_64_bits() -> None:
    """Such integers are refused unless they are indices."""
    device = webgpu()
    device.has_wide = False
    x, i = weft.input("x", (4, 8), "i64"), weft.input("i", (3,), "i32")
    rows, f = weft.input("r", (4, 8), "f32"), weft.input("n", (4, 8), "i32")
    assert device.supports_op(g.get_rows(rows, i)) and device.supports_op(g.reshape(x, 8, 4))
    for node in (g.convert(x, "f32"), g.convert(f, "i64")):
        assert "integers of 64 bits" in device.supports_op(node).why


def test_memory_has_an_end() -> None:
    backend = webgpu(memory=1 << 20)
    assert backend.memory_limit() == 1 << 20
    with pytest.raises(OutOfMemoryError, match="place fewer layers"):
        backend.memory_type.allocate(2 << 20)
    largest = webgpu().memory_type.max_size
    assert largest is not None
    with pytest.raises(OutOfMemoryError, match="makes blocks of at most"):
        webgpu(memory=1 << 50).memory_type.allocate(largest + 1)


@pytest.mark.parametrize("n_gpu_layers", [0, 1, 99])
def test_a_model(n_gpu_layers: int) -> None:
    """The logits of the demo are the cpu's with activations as they are."""
    device = webgpu()
    model, tokens = Model.open(DEMO), [1, 5, 9, 300, 7, 7, 20]
    options = {"activations": "f32", "n_threads": 1}
    want = Context(model, 32, **options).decode(tokens, outputs="all")
    context = Context(model, 32, devices=[device, "cpu"], n_gpu_layers=n_gpu_layers, **options)
    np.testing.assert_allclose(context.decode(tokens, outputs="all"), want, atol=2e-3, rtol=2e-3)
    np.testing.assert_allclose(
        context.decode([8], outputs="all")[0],
        Context(model, 32, **options).decode([*tokens, 8])[0], atol=2e-3, rtol=2e-3,
    )  # fmt: skip
