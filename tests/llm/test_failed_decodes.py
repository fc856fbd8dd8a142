"""A decode that fails or is interrupted anywhere leaves the cache as it was: an exception is raised
at every line of Python that a decode runs in the context's own modules."""

from __future__ import annotations

import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import weft.llm.compute.context
from tests.llm.llama_models import RELATIVES as WINDOWS
from tests.llm.made_models import configure, keys_of, made_up
from tests.llm.other_models import OTHERS
from tests.llm.tiny import write_model
from weft.llm.compute.context import Context
from weft.llm.model import Model

FOLDER = str(Path(weft.llm.compute.context.__file__).parent)
TOKENS = [1, 260, 261, 7, 8, 9, 10, 11]


class Fault:
    """Raises KeyboardInterrupt at the n-th line that runs in `weft.llm`, outside of what takes a
    change back."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.line = ""

    def __call__(self, frame: FrameType, event: str, arg: object) -> Any:
        name = frame.f_code.co_name
        if not frame.f_code.co_filename.startswith(FOLDER) or name == "undo":
            return None
        if event == "line":
            self.left -= 1
            if self.left == 0:
                self.line = f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
                raise KeyboardInterrupt
        return self


def snapshot(context: Context) -> list[Any]:
    cache = context.cache
    used = cache.pos >= 0
    state = [cache.pos.copy(), cache.members.copy(), cache.tokens[used], cache.mixed.copy()]
    state += [np.array([cache.n_used, cache.n_seen]), cache.find_free(1)]
    if cache.window is not None:
        seen = np.flatnonzero(cache.window.seen())
        state += [seen, cache.window.pos[seen], cache.window.members[:, seen]]
    if cache.states is not None:
        state.append(cache.states.slot.copy())
    return state


def same(a: list[Any], b: list[Any]) -> bool:
    return all((x == y).all() for x, y in zip(a, b, strict=True))


@pytest.fixture(params=["llama", "mamba2", "gemma2"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    if request.param == "llama":
        return Model.open(write_model(tmp_path / "m.gguf"))
    arch, changes = (OTHERS | WINDOWS)[request.param]
    data = keys_of(arch, changes)
    if arch == "gemma2":
        data["gemma2.attention.sliding_window"] = 3
    return Model.open(write_model(tmp_path / "m.gguf", data, made_up(configure(tmp_path, data))))


@pytest.mark.parametrize("n", [1, 4])
def test_every_line(model: Model, n: int) -> None:
    def make() -> Context:
        return Context(
            model, 16, n_ubatch=3, n_seq_max=2, devices=["reference"], type_k="f32", type_v="f32",
            swa_full=False,
        )  # fmt: skip

    words = [t % model.config.n_vocab for t in TOKENS]
    # two sequences with a beginning in common, or a token of one
    batch: dict[str, Any] = {
        "tokens": words[4:] * 2,
        "positions": [4, 5, 6, 7] * 2,
        "seqs": [[0]] * 4 + [[1]] * 4,
        "outputs": "all",
    }
    if n == 1:
        batch = {"tokens": words[4:5], "positions": [4], "seqs": [[1]]}
    context = make()
    context.decode(words[:4], seqs=[[0, 1]] * 4)
    before = snapshot(context)
    wrong, lines = [], set()
    for at in range(1, 2000):
        fault = Fault(at)
        old = sys.gettrace()
        sys.settrace(fault)
        try:
            context.decode(**batch)
        except KeyboardInterrupt:
            sys.settrace(old)
        else:
            sys.settrace(old)
            break
        lines.add(fault.line)
        if not same(before, snapshot(context)):
            wrong.append(fault.line)
            context = make()
            context.decode(words[:4], seqs=[[0, 1]] * 4)
    assert not wrong
    assert len(lines) > (60 if n > 1 else 30)  # the trace has seen the work
    want = make()
    want.decode(words[:4], seqs=[[0, 1]] * 4)
    context.seq_rm(-1)
    context.decode(words[:4], seqs=[[0, 1]] * 4)
    np.testing.assert_allclose(context.decode(**batch), want.decode(**batch), atol=1e-5)
