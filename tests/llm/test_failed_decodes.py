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
from weft.llm.cache.kv_cache import KVCache
from weft.llm.compute.batch import Ubatch
from weft.llm.compute.context import Context
from weft.llm.compute.rollback import Change
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
    return snapshot_of(context.cache)


def snapshot_of(cache: KVCache) -> list[Any]:
    used = cache.pos >= 0
    state = [cache.pos.copy(), cache.members.copy(), cache.tokens[used], cache.mixed.copy()]
    state += [np.array([cache.n_used, cache.n_seen]), cache.find_free(1)]
    if cache.window is not None:
        seen = np.flatnonzero(cache.window.seen())
        state += [seen, cache.window.pos[seen], cache.window.members[:, seen]]
    for blocks in cache.blocks.values():
        state += [blocks.pos.copy(), blocks.members.copy(), blocks.mixed.copy()]
    if cache.states is not None:
        state.append(cache.states.slot.copy())
    return state


def same(a: list[Any], b: list[Any]) -> bool:
    return all((x == y).all() for x, y in zip(a, b, strict=True))


@pytest.fixture(params=["llama", "mamba2", "gemma2", "deepseek4"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Model:
    if request.param == "llama":
        return Model.open(write_model(tmp_path / "m.gguf"))
    arch, changes = (OTHERS | WINDOWS)[request.param]
    data = keys_of(arch, changes)
    if arch == "deepseek4":  # one layer with every kind of cache
        small = {"block_count": 1, "hash_layer_count": 0, "hyper_connection.sinkhorn_iterations": 1,
                 "attention.compress_ratios": np.array([4], np.int32)}  # fmt: skip
        data |= {f"{arch}.{key}": value for key, value in small.items()}
    if arch == "gemma2":
        data["gemma2.attention.sliding_window"] = 3
    return Model.open(write_model(tmp_path / "m.gguf", data, made_up(configure(tmp_path, data))))


def ubatch(positions: list[int], seqs: list[set[int]]) -> Ubatch:
    n = len(positions)
    members = np.array([[s in of for of in seqs] for s in range(3)])
    return Ubatch(
        np.arange(n, dtype=np.int32), np.array(positions, np.int32),
        np.array([min(of) for of in seqs], np.int32), members, np.zeros(n, np.bool_),
        np.zeros(n, np.intp), np.zeros(n, np.int32),
    )  # fmt: skip


@pytest.mark.parametrize("n_ubatches", [0, 1, 2, 3])
def test_ubatches_are_taken_back(tmp_path: Path, n_ubatches: int) -> None:
    """Those of the call alone: not what was there, nor what others did since."""
    arch, changes = WINDOWS["gemma2"]
    data = keys_of(arch, changes) | {"gemma2.attention.sliding_window": 3}
    cache = KVCache(configure(tmp_path, data), 24, n_seq_max=3, window_size=15)
    Change(cache, 4).occupy(ubatch([0, 1, 2, 3], [{0, 1}] * 4))
    Change(cache, 2).occupy(ubatch([0, 1], [{2}] * 2))
    before = snapshot_of(cache)
    change = Change(cache, 3 * n_ubatches)
    for i in range(n_ubatches):
        start = 4 + 3 * i
        change.occupy(ubatch([start, start + 1, start + 2], [{0}, {0}, {0, 1}]))
        assert cache.n_used == 6 + 3 * (i + 1) and cache.mixed[1] == (i > 0)
    change.undo()
    assert same(before, snapshot_of(cache))
    # a call of others comes between
    change = Change(cache, 3 * n_ubatches)
    for i in range(n_ubatches):
        change.occupy(ubatch([4 + 3 * i + j for j in range(3)], [{0}] * 3))
    other = Change(cache, 1)
    (cell,) = other.occupy(ubatch([2], [{2}])).cells.tolist()
    change.undo()
    assert cache.n_used == 7 and cache.members[2, cell] and cache.pos[cell] == 2
    assert cache.pos_max(0) == cache.pos_max(1) == 3
    other.undo()
    assert same(before[:6], snapshot_of(cache)[:6])


@pytest.mark.parametrize("n", [1, 4])
def test_every_line(model: Model, n: int) -> None:
    # the reference takes long for many small ops
    device = "cpu" if model.config.hyper is not None else "reference"

    def make() -> Context:
        return Context(
            model, 16, n_ubatch=3, n_seq_max=2, devices=[device], type_k="f32", type_v="f32",
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
