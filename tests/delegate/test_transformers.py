"""Models of `transformers` and CNNs, whole: one delegate, nothing outside, equal to eager."""

import warnings

import pytest
import torch

import weft
from tests.delegate.zoo import ZOO, Generator, tiny_qwen3
from weft_executorch import Options

pytest.importorskip("transformers")
pytestmark = [pytest.mark.xdist_group("executorch"), pytest.mark.filterwarnings("ignore")]


def listed(result):
    return list(result) if isinstance(result, tuple | list) else [result]


def close(got, want):
    """Equal within 1e-4 of the largest number of each result."""
    assert len(got) == len(want)
    for g, w in zip(got, want, strict=True):
        torch.testing.assert_close(g, w, rtol=1e-4, atol=1e-4 * float(w.abs().max()))


programs = pytest.mark.part("programs")


@pytest.mark.parametrize(
    "name", [name if name == "llama" else pytest.param(name, marks=programs) for name in ZOO]
)
def test_a_whole_model(name, tmp_path):
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    from weft_executorch import WeftPartitioner

    torch.manual_seed(0)
    module, inputs = ZOO[name]()
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        want = listed(module(*inputs))
        exported = torch.export.export(module, inputs, strict=False)
        close(listed(weft.from_torch(exported)(*inputs)), want)
        partitioner = WeftPartitioner()
        edge = to_edge_transform_and_lower(exported, partitioner=[partitioner])
        file = tmp_path / "model.pte"
        file.write_bytes(edge.to_executorch().buffer)
    only_one_call(edge.exported_program(), partitioner)
    close(Runtime.get().load_program(file).load_method("forward").execute(list(inputs)), want)


def only_one_call(program, partitioner):
    """The graph has one delegate call, and no op beside it."""
    calls = [n for n in program.graph.nodes if n.op == "call_function"]
    names = [n.name for n in calls if not n.name.startswith("getitem")]
    assert names == ["executorch_call_delegate"], partitioner.report()


def eager(model, prompt, n):
    """Greedy tokens, each from the whole text, without a cache."""
    tokens = list(prompt)
    for _ in range(n):
        logits = model(input_ids=torch.tensor([tokens]), use_cache=False).logits
        tokens.append(int(logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@programs
def test_qwen3_prefill_and_decode_in_one_file(lower, tmp_path):
    from executorch.runtime import Runtime

    model = tiny_qwen3(use_cache=True)
    prompt, n = [5, 17, 80, 3, 44, 9], 12
    with torch.no_grad():
        want = eager(model, prompt, n)
        assert len(set(want)) > 3
    module = Generator(model, room=24).eval()
    first = (torch.tensor([prompt]), torch.arange(len(prompt)))
    later = (torch.tensor([[1]]), torch.tensor([len(prompt)]))
    modules, inputs = {"prefill": module, "decode": module}, {"prefill": first, "decode": later}
    lowered = lower(modules, inputs, Options(share_state=True))
    for name in modules:
        only_one_call(lowered.edge.exported_program(name), lowered.partitioner)
    weights = 4 * sum(p.numel() for p in model.parameters())
    assert weights < len(lowered.pte) < 1.5 * weights

    file = tmp_path / "model.pte"
    file.write_bytes(lowered.pte)
    program = Runtime.get().load_program(file)
    prefill, decode = program.load_method("prefill"), program.load_method("decode")
    for _ in range(2):  # a second text in the same cache
        logits = prefill.execute(list(first))[0]
        got = [int(logits[0, -1].argmax())]
        for at in range(len(prompt), len(prompt) + n - 1):
            logits = decode.execute([torch.tensor([got[-1:]]), torch.tensor([at])])[0]
            got.append(int(logits[0, -1].argmax()))
        assert got == want
