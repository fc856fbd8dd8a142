"""Tensors of a model, seen by a callback while they are computed."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.llm.tiny import write_model
from weft.errors import AbortedError, ProgramError
from weft.execute import WatchedSession, WatchedTensor
from weft.llm import LLM
from weft.llm.compute.context import Context
from weft.llm.model import Model

TOKENS = [1, *range(259, 274), 7, 8]
DEVICES = pytest.mark.parametrize("devices", [["cpu"], ["reference", "cpu"]])


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf")


@pytest.fixture(scope="module")
def model(file: Path) -> Model:
    return Model.open(file)


class Seen:
    """A callback that keeps what it saw of tensors whose names match."""

    def __init__(self, glob: str, stop_at: str = "") -> None:
        self.glob, self.stop_at = glob, stop_at
        self.asked: list[str] = []
        self.values: list[tuple[str, NDArray[np.float32]]] = []

    def __call__(self, tensor: WatchedTensor, ask: bool) -> bool:
        if ask:
            self.asked.append(tensor.name)
            return fnmatchcase(tensor.name, self.glob)
        values = tensor.numbers()
        assert values.shape == tensor.shape
        self.values.append((tensor.name, values.copy()))
        return tensor.name != self.stop_at

    def names(self) -> list[str]:
        return [name for name, _ in self.values]


def make(model: Model, devices: list[str], **options: object) -> Context:
    return Context(model, 64, devices=devices, **options)  # type: ignore[arg-type]


@DEVICES
def test_wanted_tensors_are_shown_in_order(model: Model, devices: list[str]) -> None:
    seen = Seen("l_out-*")
    context = make(model, devices, eval_callback=seen)
    want = make(model, devices).decode(TOKENS)
    np.testing.assert_array_equal(context.decode(TOKENS), want)
    assert seen.names() == ["l_out-0", "l_out-1"]
    assert len(seen.asked) > 20 and seen.asked.count("l_out-0") == len(context._graphs.all)
    context.decode([5])
    assert seen.names() == ["l_out-0", "l_out-1"] * 2
    assert seen.values[0][1].shape == (len(TOKENS), 16)
    assert seen.values[2][1].shape == (1, 16)


@DEVICES
def test_every_tensor_can_be_watched(model: Model, devices: list[str]) -> None:
    """No tensor is hidden by a fusion, and each has the values that it has without fusions."""
    seen, plain = Seen("*"), Seen("*")
    context = make(model, devices, eval_callback=seen)
    logits = context.decode(TOKENS)
    unfused = make(model, devices, eval_callback=plain, rewrites=[])
    np.testing.assert_allclose(unfused.decode(TOKENS), logits, rtol=1e-4, atol=1e-5)
    assert seen.names() == plain.names()
    assert len(set(seen.names())) > 30
    for (name, a), (_, b) in zip(seen.values, plain.values, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-4, err_msg=name)
    np.testing.assert_array_equal(seen.values[-1][1].reshape(logits.shape), logits)


def test_fusions_that_hide_nothing_wanted_stay(model: Model) -> None:
    plain, watched = make(model, ["cpu"]), make(model, ["cpu"], eval_callback=Seen("nothing"))
    all_seen = make(model, ["cpu"], eval_callback=Seen("*"))

    def steps(context: Context) -> int:
        return sum(len(split.steps) for split in context._graphs.session.program.splits)

    assert steps(plain) == steps(watched) < steps(all_seen)


def test_the_callback_may_stop_the_run(model: Model) -> None:
    context = make(model, ["cpu"])
    want = context.decode(TOKENS)
    context.clear()
    seen = Seen("*_out-*", stop_at="l_out-0")
    context.set_eval_callback(seen)
    with pytest.raises(AbortedError, match="stopped by the callback at l_out-0"):
        context.decode(TOKENS)
    assert seen.names()[-1] == "l_out-0" and "l_out-1" not in seen.names()
    assert context.cache.n_used == 0
    context.set_eval_callback(None)
    np.testing.assert_array_equal(context.decode(TOKENS), want)


def test_a_callback_that_raises_is_heard(model: Model) -> None:
    def broken(tensor: WatchedTensor, ask: bool) -> bool:
        if not ask:
            raise LookupError("mine")
        return tensor.name == "l_out-0"

    context = make(model, ["cpu"], eval_callback=broken)
    with pytest.raises(LookupError, match="mine"):
        context.decode(TOKENS)
    assert context.cache.n_used == 0


def test_without_a_callback_nothing_changes(model: Model) -> None:
    context = make(model, ["cpu"])
    before = context._graphs.session
    context.set_eval_callback(None)
    assert context._graphs.session is before and not isinstance(before, WatchedSession)
    context.set_eval_callback(Seen("l_out-0"))
    context.set_eval_callback(None)
    assert not any(isinstance(r.session, WatchedSession) for r in context._graphs.all)


def test_asked_tensors_cannot_be_read_yet(model: Model) -> None:
    def early(tensor: WatchedTensor, ask: bool) -> bool:
        tensor.read()
        return True

    with pytest.raises(ProgramError, match="is not computed yet"):
        make(model, ["cpu"], eval_callback=early)


def test_overlapping_ubatches_take_turns_while_watched(model: Model) -> None:
    options = {"n_ubatch": 4, "n_copies": 2, "n_gpu_layers": 1}
    want = make(model, ["reference", "cpu"], **options).decode(TOKENS)
    seen = Seen("l_out-1")
    context = make(model, ["reference", "cpu"], eval_callback=seen, **options)
    np.testing.assert_allclose(context.decode(TOKENS), want, rtol=1e-5, atol=1e-6)
    assert len(seen.values) == 5
    context.set_eval_callback(None)
    assert context._graphs.pipelined is not None


def test_a_model_is_watched_through_llm(file: Path) -> None:
    seen = Seen("l_out-1")
    llm = LLM(file, n_ctx=64, eval_callback=seen)
    assert llm.generate("abc", max_tokens=3, temperature=0)
    assert len(seen.values) == 3  # the prompt, whose end gives the first token, and two tokens


def test_dumped_statistics(file: Path, capfd: pytest.CaptureFixture[str]) -> None:
    from weft.cli.dump import statistics

    assert statistics(np.array([1, -2, np.nan, np.inf, 4], np.float32)) == (
        "min -2 max 4 mean 1, 1 NaN, 1 infinite, begins 1 -2 nan inf"
    )
    assert statistics(np.full(2, np.nan)) == "2 NaN, begins nan nan"


def test_the_command_prints_them(file: Path) -> None:
    from tests.cli.in_process import weft as run

    process = run(
        "run", str(file), "-p", "abc", "-n", "2", "--temp", "0", "-q", "--dump-tensors", "l_out-?"
    )
    lines = [line for line in process.stderr.splitlines() if line.startswith("l_out-")]
    assert lines[0].startswith("l_out-0 ADD f32[") and " on cpu: min " in lines[0]
    assert ", 0 NaN, begins " in lines[0] and len(lines) >= 4
    bad = run("run", str(file), "-p", "abc", "--dump-tensors", "none")
    assert bad.returncode == 1 and "--dump-tensors 'none' matches no tensor" in bad.stderr
