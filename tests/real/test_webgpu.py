"""SmolLM2-135M-Instruct partly on a WebGPU device: the cpu's tokens with activations in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.backends.webgpu_device import webgpu
from tests.real.models import opened

pytestmark = [pytest.mark.xdist_group("real"), pytest.mark.part("devices")]

PROMPT = "The capital of France is"


@pytest.mark.parametrize("n", [15, 31])
def test_layers_on_the_device(smollm: Path, n: int) -> None:
    """Half of the layers, and all with the output. Devices keep activations in float32, the cpu
    does when it is asked to; with its 8 bits it writes another text."""
    device, texts = webgpu(), []
    for more in ({}, {"devices": [device, "cpu"], "n_gpu_layers": n}):
        options: dict[str, Any] = {"activations": "f32", **more}
        with opened(smollm, 64, **options) as llm:
            texts.append(str(llm.generate(PROMPT, max_tokens=8, temperature=0)))
    assert texts[0] == texts[1]
