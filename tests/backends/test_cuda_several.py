"""A model over several CUDA devices: wherever its layers are, the same answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.fake_cuda.load import Fake, with_fake
from tests.cuda_shim import compiler
from weft.backends import make_backend
from weft.frontends.gguf import open_gguf
from weft.llm import Context, Model

DEMO = Path(__file__).parents[2] / "examples" / "weft-demo.gguf"
PROMPT = [1, 45, 77, 130, 200, 31, 18, 9, 10, 11, 12, 13]


def logits(model: Model, devices: list[Any], place: dict[str, str], **options: Any) -> Any:
    """Of a prompt and of single tokens."""
    context = Context(model, 64, devices=[*devices, "cpu"], place=place, **options)
    rows = [context.decode(PROMPT, outputs="all"), *(context.decode([t]) for t in (5, 6, 7))]
    return context, np.concatenate(rows)


def placed(model: Model, names: list[str], seed: int) -> dict[str, str]:
    """Each layer on a device by chance, the output too."""
    rng = np.random.default_rng(seed)
    layers = [f"blk.{i}.*" for i in range(model.config.n_layer)] + ["output*"]
    return {layer: str(rng.choice(names)) for layer in layers}


@pytest.mark.skipif(compiler() is None, reason="needs g++, which compiles the kernels")
def test_random_placements() -> None:
    """Over two shims and the cpu, against one shim and the cpu: the same bits, and copies that need
    no host. A kernel that reads the other device's memory is an error."""
    model = Model(open_gguf(DEMO))
    devices = [make_backend("cuda:shim0"), make_backend("cuda:shim1")]
    crossed = 0
    for seed in range(3):
        place = placed(model, ["cuda:shim0", "cuda:shim1", "cpu"], seed)
        one = {layer: name.replace("1", "0") for layer, name in place.items()}
        _, want = logits(model, devices[:1], one)
        context, got = logits(model, devices, place)
        np.testing.assert_array_equal(got, want)
        crossed += len({b.name for b in context.program.devices}) == 3
    assert crossed


@pytest.mark.part("devices")
@with_fake()
def test_ubatches_over_two_gpus(fake: Fake) -> None:
    """Several ubatches of a prompt under way, in whatever order the streams run."""
    model = Model(open_gguf(DEMO))
    devices = [make_backend("cuda:0"), make_backend("cuda:1")]
    place = {f"blk.{model.config.n_layer - 1}.*": "cuda:1", "blk.*": "cuda:0"}
    options: dict[str, Any] = {"n_ubatch": 4}
    want = None
    for seed, n_copies in ((1, 1), (2, 2), (3, 3)):
        fake.set(seed=seed, late=seed % 2)
        context, got = logits(model, devices, place, n_copies=n_copies, **options)
        assert context.plan.n_copies == n_copies
        trace = {" ".join(line.split()[:2]) for line in fake.trace()}
        assert {"0.0 graph", "1.0 graph"} < trace
        assert ("1.1 peer" in trace) == (n_copies > 1), trace
        want = got if want is None else want
        np.testing.assert_array_equal(got, want)
