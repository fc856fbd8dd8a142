"""What `weft.from_torch` takes, how its result may be called, and what it says about neither."""

import functools
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

import weft  # noqa: E402
from weft.errors import ProgramError  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

X = torch.arange(8.0).reshape(2, 4) / 8


def linear() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3).eval()


def scaled_product(a: Any, b: Any, scale: float = 2.0) -> Any:
    return (a @ b) * scale


def test_one_tensor_needs_no_tuple() -> None:
    m = linear()
    torch.testing.assert_close(weft.from_torch(m, X)(X), m(X))
    n = torch.export.Dim("n", max=9)
    for shapes in ({0: n}, ({0: n},), {"input": {0: n}}):
        f = weft.from_torch(m, X, dynamic_shapes=shapes)
        torch.testing.assert_close(f(X[:1].repeat(7, 1)), m(X[:1].repeat(7, 1)))


def test_arguments_may_be_given_by_keyword() -> None:
    m = linear()
    programs = [
        weft.from_torch(m, X),
        weft.from_torch(m, {"input": X}),
        weft.from_torch(m, input=X),
        weft.from_torch(m, example_kwargs={"input": X}),
        weft.from_torch(torch.export.export(m, (X,))),
    ]
    for f in programs:
        torch.testing.assert_close(f(X), m(X))
        torch.testing.assert_close(f(input=X), m(X))


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "function": scaled_product,
    "lambda": lambda a, b: a @ b,
    "partial": functools.partial(scaled_product, scale=3.0),
    "builtin": torch.matmul,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_is_a_program(name: str) -> None:
    function = FUNCTIONS[name]
    torch.testing.assert_close(weft.from_torch(function, (X, X.T))(X, X.T), function(X, X.T))


def test_arguments_of_a_function_have_its_names() -> None:
    n = torch.export.Dim("n", max=9)
    f = weft.from_torch(scaled_product, (X, X.T), dynamic_shapes={"a": {0: n}, "b": None})
    torch.testing.assert_close(f(b=X.T, a=X.repeat(3, 1)), scaled_product(X.repeat(3, 1), X.T))
    with pytest.raises(ProgramError, match=r"arguments a, b: b missing"):
        f(X)
    with pytest.raises(ProgramError, match=r"c not among its example inputs"):
        f(X, X.T, c=X)
    with pytest.raises(ProgramError, match=r"argument a is given twice"):
        f(X, X.T, a=X)


def test_weights_that_a_function_reads_stay_where_they_are() -> None:
    m = linear()
    for function in (m.forward, lambda x: m(x)):
        f = weft.from_torch(function, X)
        torch.testing.assert_close(f(X), m(X))
        data = [t.buffer.data.ctypes.data for t in f.graph.leaves if t.buffer is not None]
        assert m.weight.data_ptr() in data


def test_what_is_no_program_is_refused_in_words() -> None:
    with pytest.raises(ProgramError, match=r"got str; torch.export.load"):
        weft.from_torch("model.pt2", X)
    with pytest.raises(ProgramError, match=r"NumPy array; pass torch.from_numpy"):
        weft.from_torch(linear(), (np.zeros((2, 4), np.float32),))
    with pytest.raises(ProgramError, match=r"tensor or a tuple of arguments, got int"):
        weft.from_torch(linear(), 3)
    with pytest.raises(ProgramError, match=r"pass the module it was made of"):
        weft.from_torch(torch.jit.trace(linear(), X), X)


def test_another_batch_size_says_how_to_declare_it() -> None:
    f = weft.from_torch(linear(), X)
    with pytest.raises(ProgramError, match=r"dynamic_shapes=\{'input': \{0: torch.export.Dim"):
        f(torch.randn(3, 4))


def test_nobody_is_warned_of_what_they_did_not_write() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        weft.from_torch(linear(), X)(X)


def llama() -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


def test_a_model_of_transformers_as_it_comes() -> None:
    model, ids = llama(), torch.arange(8).reshape(1, 8)
    want = model(ids).logits
    torch.testing.assert_close(weft.from_torch(model, ids)(ids).logits, want)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    torch.testing.assert_close(weft.from_torch(model, inputs)(**inputs).logits, want)
    assert model.config.use_cache
    with pytest.raises(ProgramError, match=r"example_kwargs=\{'use_cache': False\}"):
        weft.from_torch(model, ids, example_kwargs={"use_cache": True})


def test_a_result_of_another_class_keeps_the_words_of_pytorch() -> None:
    odd = type("Odd", (), {"__module__": "mine.cache_utils"})
    with pytest.raises(RuntimeError, match=r"mine\.cache_utils\.Odd") as found:
        weft.from_torch(lambda x: (x, odd()), (X,))
    assert type(found.value) is RuntimeError


def test_calls_of_many_sizes_in_any_order() -> None:
    n = torch.export.Dim("n", max=64)
    f = weft.from_torch(lambda x: (x * 2, x.sum(0)), (X,), dynamic_shapes=({0: n},))
    kept = []
    for rows in [*range(1, 41), 5, 40, 5, 1]:
        x = torch.randn(rows, 4)
        kept.append((f(x), x))
    for (twice, total), x in kept:  # results are memory of their own
        torch.testing.assert_close(twice, x * 2)
        torch.testing.assert_close(total, x.sum(0))


def test_a_call_is_checked_like_the_first() -> None:
    f = weft.from_torch(scaled_product, (X, X.T), example_kwargs={"scale": 2.0})
    want = scaled_product(X, X.T)
    wrong: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
        ((X[:1], X.T), {"scale": 2.0}, r"argument a has shape \(1, 4\)"),
        ((X.double(), X.T), {"scale": 2.0}, r"argument a is torch.float64"),
        ((X.to("meta"), X.T), {"scale": 2.0}, r"argument a is on meta"),
        ((X.to_sparse(), X.T), {"scale": 2.0}, r"argument a is torch.sparse_coo; pass"),
        ((X.numpy(), X.T), {"scale": 2.0}, r"argument a must be a tensor, got ndarray"),
        (((X,), X.T), {"scale": 2.0}, r"arguments do not nest"),
        ((X, X.T), {"scale": 3.0}, r"argument scale is 3.0; the program was exported for 2.0"),
        ((X, X.T), {"scale": X}, r"argument scale"),
        ((X, X.T), {"sale": 2.0}, r"scale missing; sale not among"),
        ((X,), {"scale": 2.0}, r"b missing"),
    ]
    for args, kwargs, words in [*wrong, *wrong]:
        torch.testing.assert_close(f(X, X.T, scale=2.0), want)
        with pytest.raises(ProgramError, match=words):
            f(*args, **kwargs)
        torch.testing.assert_close(f(b=X.T, scale=2.0, a=X), want)


class Marked(torch.Tensor):  # type: ignore[misc]
    """A tensor of another class."""


def test_tensors_may_lie_in_any_way_after_a_first_call() -> None:
    f = weft.from_torch(lambda a, b: (2 * a + b, a > b), (X, X))
    wide = torch.randn(4, 6)
    lying = {
        "in order": torch.randn(2, 4),
        "turned": wide[:, :2].T,
        "every other": torch.randn(4, 4)[::2],
        "repeated": torch.randn(1, 4).expand(2, 4),
        "a later part": torch.randn(5, 4)[2:4],
        "negated": torch.imag(torch.conj(torch.randn(2, 4, dtype=torch.complex64))),
        "with a gradient": torch.randn(2, 4, requires_grad=True),
        "a parameter": torch.nn.Parameter(torch.randn(2, 4)),
        "of another class": torch.randn(2, 4).as_subclass(Marked),
        "zeros without memory": torch._efficientzerotensor((2, 4)),
    }
    for name, a in lying.items():
        for b in (X, a):
            f(X, X + 1)
            for got, want in zip(f(a, b), (2 * a + b, a > b), strict=True):
                assert torch.equal(torch.as_tensor(got), torch.as_tensor(want)), name
        with pytest.raises(ProgramError, match="argument b has shape"):
            f(a, X[:1])


def test_types_of_every_size_after_a_first_call() -> None:
    for dtype in (torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.uint8):
        f = weft.from_torch(lambda x: (x.flip(0), 5), (X.to(dtype),))
        for x in (X.to(dtype), (9 * X).to(dtype), (9 * X).to(dtype).T.contiguous().T):
            got, five = f(x)
            assert got.dtype == dtype and torch.equal(got, x.flip(0)) and five == 5


def test_results_belong_to_the_caller() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float64, torch.bool, torch.uint8):
        x = (9 * X).to(dtype)
        f = weft.from_torch(lambda x: (x.flip(0), x, x.T, x[0, 0]), (x,))
        for _ in range(3):
            for got, want in zip(f(x), (x.flip(0), x, x.T, x[0, 0]), strict=True):
                assert torch.equal(got, want)
                got.zero_()
                assert got.resize_(50).shape == (50,)  # its memory may grow


def test_a_fixed_number_stays_what_it_was() -> None:
    f = weft.from_torch(lambda x, m: x * m, (X, 2))
    torch.testing.assert_close(f(X, 2), X * 2)
    for other in ("2", None, 3, X):
        with pytest.raises(ProgramError, match="argument m is"):
            f(X, other)


def test_results_and_arguments_keep_their_own_memory() -> None:
    f = weft.from_torch(lambda x: x + 1, X)
    first = f(X)
    second = f(X * 0)
    torch.testing.assert_close(first, X + 1)
    second.zero_()
    torch.testing.assert_close(f(X), X + 1)
    trained = X.clone().requires_grad_()
    assert not f(trained).requires_grad
    with torch.inference_mode():
        g = weft.from_torch(lambda x: x + 1, X)
        torch.testing.assert_close(g(X), X + 1)
    torch.testing.assert_close(g(X.T.clone().T), X + 1)


def test_views_that_negate_are_arguments() -> None:
    f = weft.from_torch(lambda x: x + 1, X)
    for x in (torch.complex(X, X).conj().imag, X):
        torch.testing.assert_close(f(x), x + 1)


def test_calls_go_on_in_new_memory() -> None:
    f = weft.from_torch(lambda x: x + 1, X)
    torch.testing.assert_close(f(X), X + 1)
    f.session.reset()
    torch.testing.assert_close(f(X * 3), X * 3 + 1)


@pytest.mark.parametrize("held", ["argument", "keyword", "buffer"])
def test_the_same_example_may_stand_in_two_places(held: str) -> None:
    class Sum(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("kept", X if held == "buffer" else 3 * X)

        def forward(self, a: Any, b: Any) -> Any:
            return 2 * a + b + 5 * self.kept

    m = Sum().eval()
    if held == "keyword":
        f = weft.from_torch(m, X, example_kwargs={"b": X})
    else:
        f = weft.from_torch(m, (X, X if held == "argument" else 4 * X))
    torch.testing.assert_close(f(X + 1, X - 2), m(X + 1, X - 2))


def test_threads_may_convert_at_once() -> None:
    modules = [torch.nn.Linear(4, n).eval() for n in range(1, 5)]
    with ThreadPoolExecutor(len(modules)) as pool:
        results = list(pool.map(lambda m: weft.from_torch(m, X)(X), modules))
    for m, y in zip(modules, results, strict=True):
        torch.testing.assert_close(y, m(X))


@pytest.mark.parametrize("same", ["dropout", "type_as"])
def test_what_is_written_into_the_same_tensor_reaches_the_input(same: str) -> None:
    def through(x: Any) -> Any:
        if same == "type_as":
            return x.type_as(X)
        return torch.nn.functional.dropout(x, 0.5, training=False)

    def program(x: Any) -> Any:
        y = through(x)
        y.add_(1)
        return through(y)

    f = weft.from_torch(program, X.clone())
    ours, theirs = X.clone(), X.clone()
    torch.testing.assert_close(f(ours), program(theirs))
    torch.testing.assert_close(ours, theirs)
