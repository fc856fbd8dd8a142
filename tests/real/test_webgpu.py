"""SmolLM2-135M-Instruct partly on a WebGPU device: the cpu's tokens, with bytes and with floats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.backends.webgpu_device import webgpu
from tests.real.models import opened

pytestmark = [pytest.mark.xdist_group("real"), pytest.mark.part("devices")]

PROMPT = "The capital of France is"


@pytest.mark.parametrize("n", [0, 1, 15, 31])
def test_layers_on_the_device(smollm: Path, n: int) -> None:
    """No layer, the output, half of the layers, and all, by default: both round activations to the
    same 8 bits."""
    assert _text(smollm, 24, devices=[webgpu(), "cpu"], n_gpu_layers=n) == _text(smollm, 24)


@pytest.mark.parametrize("n", [15, 31])
def test_layers_with_floats(smollm: Path, n: int) -> None:
    """Activations in float32, on both."""
    options: dict[str, Any] = {"activations": "f32"}
    devices = [webgpu(**options), "cpu"]
    got = _text(smollm, 8, devices=devices, n_gpu_layers=n, **options)
    assert got == _text(smollm, 8, **options)


def _text(model: Path, n_tokens: int, **options: Any) -> str:
    with opened(model, 64, **options) as llm:
        return str(llm.generate(PROMPT, max_tokens=n_tokens, temperature=0))
