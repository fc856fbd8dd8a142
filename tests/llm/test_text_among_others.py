"""A text alone and among others: the same logits to the last bit, whoever comes and goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tests.llm.tiny import metadata, weights, write_model
from weft.backends.base import Support
from weft.backends.cpu.backend import CpuBackend
from weft.graph.tensor import Tensor
from weft.llm import LLM, Batch, Context, Model
from weft.llm.sampling import TokenLogprobs

DEMO = Path(__file__).parents[2] / "examples/weft-demo.gguf"
N_SEQ = 5
LONGEST = 330
# a failure is long however it is shrunk
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)


class NoProducts(CpuBackend):
    """Leaves them to the reference, which adds up each column in one order."""

    def supports_op(self, node: Tensor) -> Support:
        if node.op.name.startswith("MUL_MAT"):
            return Support(False, "this device has no products")
        return super().supports_op(node)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    meta = metadata(**{"llama.context_length": 4096, "llama.block_count": 1})
    return Model.open(write_model(tmp_path_factory.mktemp("m") / "m.gguf", meta, weights(meta)))


def context(model: Model, n_ctx: int, n_seq_max: int, n_ubatch: int, n_threads: int) -> Context:
    devices = [NoProducts(n_threads=n_threads), "reference"]
    ctx = Context(model, n_ctx, n_seq_max=n_seq_max, n_ubatch=n_ubatch, devices=devices)
    steps = [step.op.name for split in ctx.program.splits if split.device != "reference"
             for step in split.steps]  # fmt: skip
    assert "FLASH_ATTN_EXT" in steps
    return ctx


@pytest.fixture(scope="module")
def texts(model: Model) -> list[tuple[NDArray[np.int64], NDArray[np.float32]]]:
    """Tokens, some with beginnings in common, and their logits when each is alone."""
    rng = np.random.default_rng(0)
    results = []
    alone = context(model, LONGEST, 1, LONGEST, 1)
    for n in (330, 130, 64, 20, 100, 270):
        tokens = rng.integers(0, model.config.n_vocab, n)
        if n in (100, 270):
            tokens[:37] = results[0][0][:37]
        results.append((tokens, alone.decode(tokens, outputs="all")))
        alone.clear()
    return results


@settings(phases=PHASES)
@given(
    seed=st.integers(0, 1 << 30),
    n_ubatch=st.sampled_from([7, 64, 512]),
    n_threads=st.sampled_from([1, 3]),
    roomy=st.booleans(),
)
def test_alone_and_in_a_crowd(
    model: Model,
    texts: list[tuple[NDArray[np.int64], NDArray[np.float32]]],
    seed: int,
    n_ubatch: int,
    n_threads: int,
    roomy: bool,
) -> None:
    rng = np.random.default_rng(seed)
    # without room, sequences move as others leave; those that share cells cannot
    crowd = context(model, 4096 if roomy else 700, N_SEQ, n_ubatch, n_threads)
    going: dict[int, list[int]] = {}  # sequence -> number of its text, tokens that it has
    for _ in range(40):
        seq = int(rng.integers(N_SEQ))
        if seq not in going:
            text, n = int(rng.integers(len(texts))), 0
            tokens = texts[text][0]
            if roomy:
                for other, (number, has) in going.items():
                    known = texts[number][0][:has]
                    same = min(len(known), len(tokens) - 1)
                    while same and not (known[:same] == tokens[:same]).all():
                        same -= 1
                    if same > n:
                        crowd.seq_rm(seq)
                        crowd.seq_cp(other, seq, 0, same)
                        n = same
            going[seq] = [text, n]
        elif going[seq][1] == len(texts[going[seq][0]][0]) or rng.random() < 0.1:
            crowd.seq_rm(seq)
            del going[seq]
        elif rng.random() < 0.2:
            going[seq][1] //= 2
            crowd.seq_rm(seq, going[seq][1])
        batch: list[tuple[int, int, int]] | NDArray[np.int64] = []
        for s, (text, n) in going.items():
            more = int(rng.choice([0, 1, 1, 3, 40, 150]))
            batch += [(text, i, s) for i in range(n, min(n + more, len(texts[text][0])))]
        if not batch:
            continue
        batch = rng.permutation(np.array(batch))
        if crowd.cache.n_used + len(batch) > crowd.n_ctx - 16 * N_SEQ:
            continue
        got = crowd.decode(
            Batch(
                np.array([texts[t][0][i] for t, i, _ in batch]),
                batch[:, 1],
                [[int(s)] for s in batch[:, 2]],
                "all",
            )
        )
        expected = np.array([texts[t][1][i] for t, i, _ in batch])
        np.testing.assert_array_equal(got, expected)
        for _, i, s in batch.tolist():
            going[s][1] = max(going[s][1], i + 1)


def test_texts_that_have_ended_give_way_to_the_order_of_cells() -> None:
    """There would be cells enough, but not in order: what they add up to is another last bit."""

    def text(llm: LLM) -> list[TokenLogprobs]:
        llm.generate([5, 6, 7], max_tokens=180, temperature=0, ignore_eos=True, logprobs=1)
        return llm.stats.logprobs

    options: Any = {"n_ctx": 256, "n_seq_max": 4, "drafting": None}
    with LLM(DEMO, **options) as llm:
        alone = text(llm)
    with LLM(DEMO, **options) as llm:
        for token in (20, 40, 60):
            llm.generate([token, token + 1], max_tokens=19, temperature=0, ignore_eos=True)
        assert llm.context.cache.n_used + 3 + 179 < llm.context.n_ctx
        assert text(llm) == alone
