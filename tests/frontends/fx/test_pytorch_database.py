"""A sample of PyTorch's own database of operators; `benchmarks/opinfo.py` takes all of it."""

from itertools import islice
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import weft  # noqa: E402
from tests.frontends.fx.exported import Function  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")

NATIVE = ("addcmul", "clamp", "cumsum", "nn.functional.gelu", "scatter_add", "var_mean")
HOSTED = (
    "bernoulli", "cholesky_solve", "fft.irfftn", "linalg.pinv", "logcumsumexp", "masked.median",
    "native_layer_norm", "polar", "scatter_reduce", "special.zeta", "stft",
    "unique_consecutive",
)  # fmt: skip


@pytest.mark.parametrize(
    "samples", [slice(1), pytest.param(slice(1, 4), marks=pytest.mark.part("programs"))], ids=str
)
@pytest.mark.parametrize("name", NATIVE + HOSTED)
def test_an_operator_is_eager(name: str, samples: slice) -> None:
    from torch.testing._internal.common_methods_invocations import op_db

    op = next(op for op in op_db if op.name == name)
    known = op.sample_inputs("cpu", torch.float32, requires_grad=False)
    for sample in islice(known, samples.start, samples.stop):

        def called(x: Any, sample: Any = sample) -> Any:
            return op.op(x, *sample.args, **sample.kwargs)

        program = torch.export.export(Function(called), (sample.input,))
        f = weft.from_torch(program, host=name in HOSTED)
        torch.manual_seed(42)  # as the database does before each call
        got = f(sample.input)
        torch.testing.assert_close(got, called(sample.input), rtol=1e-3, atol=1e-4, equal_nan=True)
