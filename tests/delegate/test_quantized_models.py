"""Quantized models through the delegate: PT2E, torchao's `quantize_`, and formats by compile spec.

Weights are the same numbers as in eager PyTorch with scales rounded to float16 (2^-11 of each), so
with exact activations results agree to 1e-3 of the largest. Eager rounds activations to 8 bits for
each token and weft for each 32 numbers, so with rounded ones they agree to 3e-2 of the largest."""

import warnings
from functools import cache

import numpy as np
import pytest
import torch
from torch import nn

import weft
from tests.delegate.zoo import tiny_llama
from weft.dtype import DTYPES
from weft.errors import WeftError
from weft.quants import decode, encode
from weft_executorch import Options

pytestmark = [pytest.mark.xdist_group("executorch"), pytest.mark.filterwarnings("ignore")]


@cache
def ao():
    """The quantization of torchao, imported by the first test that needs it."""
    with warnings.catch_warnings():  # theirs, not ours
        warnings.simplefilter("ignore")
        return pytest.importorskip("torchao.quantization")


@pytest.fixture(autouse=True)
def needs_torchao():
    ao()


def groups():
    from torchao.quantization.granularity import PerGroup

    return torch.int4, PerGroup(32)


F32_BYTES = 4 * (128 * 256 + 256 * 64)
OVERHEAD = 12 * 1024
"""Of a file with two layers: the program around the weights, biases, scales of rows."""


def mlp():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(128, 256), nn.GELU(), nn.Linear(256, 64)).eval()


def x():
    torch.manual_seed(4)
    return torch.randn(2, 3, 128)


def near(got, want, tolerance):
    torch.testing.assert_close(got, want, rtol=0, atol=tolerance * float(want.abs().max()))


def check(lower, module, inputs, n_bytes, *, rounded):
    """One delegate that is all of the graph and about `n_bytes` large; equal to the module, which
    rounds activations or not, as weft then does without being told. By `from_torch`, too."""
    with torch.no_grad():
        want = module(inputs)
    tolerance = 3e-2 if rounded else 1e-3
    near(weft.from_torch(module, (inputs,))(inputs), want, tolerance)
    lowered = lower(module, (inputs,))
    assert lowered.left() == [], lowered.partitioner.report()
    assert lowered.delegates() == 1
    assert n_bytes < len(lowered.pte) < n_bytes + OVERHEAD
    near(lowered.method().execute([inputs])[0], want, tolerance)


def pt2e(module, inputs, quantizer):
    from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e

    with torch.no_grad():
        exported = torch.export.export(module, inputs, strict=False).module()
        prepared = prepare_pt2e(exported, quantizer)
        prepared(*inputs)
        return convert_pt2e(prepared)


# a block of 32 numbers and a scale of 2 bytes: 8.5 and 4.5 bits a weight
Q8_BYTES, Q4_BYTES = F32_BYTES * 34 // 128, F32_BYTES * 18 // 128


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize(("bits", "n_bytes"), [(8, Q8_BYTES), (4, Q4_BYTES)])
def test_pt2e(lower, bits, n_bytes, dynamic):
    from weft_executorch import WeftQuantizer

    module = pt2e(mlp(), (x(),), WeftQuantizer(bits, dynamic=dynamic))
    kinds = {str(n.target) for n in module.graph.nodes}
    assert ("torchao.choose_qparams_affine" in kinds) == dynamic
    check(lower, module, x(), n_bytes, rounded=dynamic)


def test_the_quantizer_takes_what_fits():
    from weft_executorch import WeftQuantizer

    module = nn.Sequential(nn.Linear(128, 40), nn.Linear(40, 64), nn.Linear(64, 64)).eval()
    skipped = lambda node: tuple(node.args[1].meta["val"].shape) == (64, 64)  # noqa: E731
    converted = pt2e(module, (x(),), WeftQuantizer(skip=skipped))
    weights = [n for n in converted.graph.nodes if n.target is torch.ops.torchao.dequantize_affine]
    assert len(weights) == 2  # the activations and the weight of the first layer only


@pytest.mark.parametrize("arguments", [{"bits": 3}, {"group": 48}, {"group": -32}])
def test_the_quantizer_refuses(arguments):
    from weft_executorch import WeftQuantizer

    with pytest.raises(WeftError, match=r"bits|multiple of 32"):
        WeftQuantizer(**arguments)


CONFIGS = {
    "8da4w": (lambda: ao().Int8DynamicActivationIntxWeightConfig(*groups()), Q4_BYTES, True),
    "int4 weights": (lambda: ao().IntxWeightOnlyConfig(*groups()), Q4_BYTES, False),
    "8da8w": (lambda: ao().Int8DynamicActivationInt8WeightConfig(), Q8_BYTES, True),
    "int8 weights": (lambda: ao().Int8WeightOnlyConfig(), Q8_BYTES, False),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_torchao(lower, name):
    from weft_executorch import exportable

    config, n_bytes, rounded = CONFIGS[name]
    module = mlp()
    ao().quantize_(module, config())
    with torch.no_grad():
        before = module(x())
    if name == "8da8w":
        exportable(module)
        near(module(x()), before, 3e-2)  # it rounds activations with a zero point
    check(lower, module, x(), n_bytes, rounded=rounded)


def test_int8_weights_are_exportable_as_one_op(lower):
    from weft_executorch import exportable

    module = mlp()
    ao().quantize_(module, ao().Int8WeightOnlyConfig())
    with torch.no_grad():
        want = module(x())
        near(exportable(module)(x()), want, 1e-6)
    check(lower, module, x(), Q8_BYTES, rounded=False)


@pytest.mark.part("programs")
def test_a_llama_with_8da4w(lower):
    pytest.importorskip("transformers")
    module = Logits(tiny_llama(num_hidden_layers=1)).eval()
    ao().quantize_(module, CONFIGS["8da4w"][0]())
    tokens = torch.tensor([[5, 17, 80, 3, 44, 9, 61]])
    lowered = lower(module, (tokens,))
    assert lowered.left() == [], lowered.partitioner.report()
    assert lowered.delegates() == 1
    with torch.no_grad():
        near(lowered.method().execute([tokens])[0], module(tokens), 5e-2)
    linear = sum(m.weight.numel() for m in module.modules() if isinstance(m, nn.Linear))
    assert len(lowered.pte) < linear * 18 // 32 + 4 * 96 * 64 + 4 * OVERHEAD


class Logits(nn.Module):
    """A causal model that gives a tensor."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(input_ids=tokens).logits


@pytest.mark.parametrize("weights", ["f32", "f16", "q8_0", "q4_0", "q4_k", "tq2_0"])
def test_formats_by_compile_spec(lower, weights):
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    torch.manual_seed(5)
    module = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 64)).eval()
    inputs = torch.randn(3, 256)
    specs = {"weights": weights, "activations": "f32"}
    specs = [CompileSpec(key, value.encode()) for key, value in specs.items()]
    lowered = lower(module, (inputs,), compile_specs=specs)
    assert lowered.left() == [] and lowered.delegates() == 1
    got = lowered.method().execute([inputs])[0]
    # rows of 128 are no whole blocks of 256
    names = {"q4_k": ("q4_K", "q4_0"), "tq2_0": ("tq2_0", "q4_0")}.get(weights, (weights,) * 2)
    n_bytes = 0
    for layer, name in zip((module[0], module[2]), names, strict=True):
        raw = encode(layer.weight.detach().numpy(), DTYPES[name])
        n_bytes += raw.nbytes
        values = np.asarray(decode(raw, DTYPES[name])).reshape(layer.weight.shape)
        layer.weight.data = torch.from_numpy(values.astype(np.float32))
    near(got, module(inputs).detach(), 1e-5)
    assert n_bytes < len(lowered.pte) < n_bytes + OVERHEAD


def test_methods_of_other_sizes_share_blocks(lower):
    module, one, many = mlp(), torch.randn(1, 128), torch.randn(64, 128)
    options = Options(weights="q8_0", activations="f32")
    inputs = {"one": (one,), "many": (many,)}
    lowered = lower(dict.fromkeys(inputs, module), inputs, options)
    assert Q8_BYTES < len(lowered.pte) < Q8_BYTES + OVERHEAD
    for name, (x,) in inputs.items():
        near(lowered.method(name).execute([x])[0], module(x).detach(), 2e-2)


@pytest.mark.parametrize("transposed", [False, True])
def test_a_pt2e_quantized_cnn_is_one_delegate(lower, same, transposed):
    from weft_executorch import WeftQuantizer

    torch.manual_seed(6)
    last = nn.ConvTranspose2d(8, 4, 2, 2) if transposed else nn.Conv2d(8, 4, 3, groups=2)
    cnn = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding="same"), nn.BatchNorm2d(8), nn.ReLU(), last,
        nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8),
    ).eval()  # fmt: skip
    images = torch.randn(2, 3, 8, 8)
    quantized = pt2e(cnn, (images,), WeftQuantizer(dynamic=False, convolutions=True))
    weights = [n for n in quantized.graph.nodes if n.target is torch.ops.torchao.dequantize_affine]
    assert len(weights) == 3  # rows of 16 have no blocks
    lowered = lower(quantized, (images,), Options(activations="f32"))
    assert lowered.left() == [], lowered.partitioner.report()
    assert lowered.delegates() == 1
    with torch.no_grad():
        want = quantized(images)
        assert float((want - cnn(images)).abs().max()) > 1e-5  # it did quantize
    near(lowered.method().execute([images])[0], want, 1e-3)


@pytest.mark.parametrize("bits", [4, 8])
def test_a_quantized_embedding_stays_in_blocks(lower, bits):
    torch.manual_seed(7)
    module = nn.Sequential(nn.Embedding(300, 64), nn.Linear(64, 32)).eval()
    kind = torch.int4 if bits == 4 else torch.int8
    config = ao().IntxWeightOnlyConfig(kind, groups()[1])
    ao().quantize_(module, config, lambda m, _: isinstance(m, nn.Embedding))
    tokens = torch.tensor([[0, 299, 17], [3, 3, 150]])
    lowered = lower(module, (tokens,), Options(activations="f32"))
    assert lowered.left() == [], lowered.partitioner.report()
    assert len(lowered.pte) < 300 * 64 * (2 * bits + 1) // 16 + 4 * 64 * 32 + OVERHEAD
    with torch.no_grad():
        near(lowered.method().execute([tokens])[0], module(tokens), 1e-3)


def test_int8_rows_that_are_no_blocks_are_converted_once(lower):
    torch.manual_seed(8)
    module = nn.Sequential(nn.Linear(40, 24), nn.ReLU(), nn.Linear(24, 8)).eval()
    ao().quantize_(module, ao().Int8WeightOnlyConfig())
    inputs = torch.randn(3, 40)
    converted = weft.from_torch(module, (inputs,))
    ops = [t.op.name for t in converted.graph.nodes]
    assert "CPY" not in ops and "CONVERT" not in ops and ops.count("MUL_MAT") == 2, ops
    lowered = lower(module, (inputs,))
    assert lowered.left() == []
    with torch.no_grad():
        near(lowered.method().execute([inputs])[0], module(inputs), 1e-5)


def test_int_mm_is_refused_with_what_helps(lower):
    module = mlp()
    ao().quantize_(module, ao().Int8DynamicActivationInt8WeightConfig())
    with pytest.raises(WeftError, match=r"exportable\(model\)"):
        lower(module, (x(),))


def test_only_what_products_read_as_weights_is_stored_in_a_format():
    from weft import Graph, constant, input
    from weft import graph as g
    from weft_executorch.weights import store_weights

    def matrix(name):
        return constant(np.ones((32, 64), np.float32), name)

    def stored(*results):
        graph = Graph(*(r.as_output(f"y{i}") for i, r in enumerate(results)))
        return store_weights(graph, "q8_0")

    v = input("x", (4, 64))
    assert stored(g.mul_mat(matrix("w"), v)) == {"w": "q8_0"}
    assert stored(g.mul_mat(matrix("w"), matrix("activations"))) == {"w": "q8_0"}
    w = matrix("w")
    assert stored(g.mul_mat(w, v), g.scale(w, 2.0)) == {}
    w = matrix("w")
    assert stored(g.mul_mat(w, v), g.mul_mat(matrix("other"), w)) == {"other": "q8_0"}
