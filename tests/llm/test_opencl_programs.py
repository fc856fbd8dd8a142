"""Recurrent models and PyTorch programs on an OpenCL device: their ops are not left to the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import weft
from tests.backends.opencl_device import opencl
from tests.llm.made_models import TOKENS, configure, keys_of, made_up
from tests.llm.other_models import OTHERS
from tests.llm.tiny import write_model
from weft.llm import Context, Model
from weft.program import Program

STATES = {
    "mamba": {"SSM_CONV", "SSM_SCAN"},
    "mamba2": {"SSM_CONV", "SSM_SCAN"},
    "lfm2": {"SSM_CONV"},
}


def ops_on(program: Program, device: str) -> set[str]:
    """Names of the ops that a device runs."""
    return {
        step.op.name for split in program.splits if split.device == device for step in split.steps
    }


@pytest.mark.parametrize("name", STATES)
def test_states_live_on_the_device(name: str, tmp_path: Path) -> None:
    """A prompt, then token after token: the same logits as on the cpu, and no state op there."""
    arch, changes = OTHERS[name]
    meta = keys_of(arch, changes)
    path = write_model(tmp_path / "m.gguf", meta, made_up(configure(tmp_path, meta)))
    model = Model.open(path)

    def make(**options: object) -> Context:
        return Context(
            model, 32, activations="f32", n_threads=1, type_k="f32", type_v="f32", **options
        )  # type: ignore[arg-type]

    want, got = make(), make(devices=[opencl(), "cpu"], n_gpu_layers=99)
    a, b = (c.decode(TOKENS, outputs="all") for c in (want, got))
    np.testing.assert_allclose(b, a, rtol=1e-4, atol=2e-5)
    for _ in range(4):
        a, b = (c.decode([int(a[-1].argmax())]) for c in (want, got))
        np.testing.assert_allclose(b, a, rtol=1e-4, atol=2e-5)
    program = got._graphs.session.program
    assert STATES[name] <= ops_on(program, "opencl")
    assert not STATES[name] & ops_on(program, "cpu")


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
def test_a_program_of_pytorch() -> None:
    """Convolution, pooling, resampling, indexing, sums: nothing needs the host."""
    torch = pytest.importorskip("torch")
    functional = torch.nn.functional

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Conv2d(3, 8, 3, padding=1)
            self.norm = torch.nn.BatchNorm2d(8)
            self.depthwise = torch.nn.Conv2d(8, 8, 3, stride=2, padding=1, groups=8)
            self.up = torch.nn.ConvTranspose2d(8, 6, 2, stride=2)
            self.last = torch.nn.Linear(6, 5)

        def forward(self, x, i):  # type: ignore[no-untyped-def]
            y = functional.mish(self.norm(self.first(x)))
            y = functional.max_pool2d(y, 2)
            y = functional.hardswish(self.depthwise(y))
            y = functional.interpolate(self.up(y), scale_factor=2.0, mode="bilinear")
            y = torch.where(y > 0, y, torch.expm1(y)).clamp(max=3.0)
            rows = functional.adaptive_avg_pool2d(y, (2, 3)).flatten(2).transpose(1, 2)
            z = self.last(rows).log_softmax(-1)
            return z[:, i].cumsum(1), z.argmax(-1), z.amax((1, 2))

    torch.manual_seed(0)
    net = Net().eval()
    x, i = torch.randn(2, 3, 16, 24), torch.tensor([5, 0, 3])
    with torch.no_grad():
        want = net(x, i)
    program = torch.export.export(net, (x, i))
    device = opencl()
    device.kind = "CPU"  # as the only one: what it refused would be an error
    converted = weft.from_torch(program, devices=(device,))
    for a, b in zip(converted(x, i), want, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    assert converted._session is not None
    assert {"CONV_ND", "POOL_ND", "INTERPOLATE", "INDEX"} <= ops_on(
        converted._session.program, "opencl"
    )
