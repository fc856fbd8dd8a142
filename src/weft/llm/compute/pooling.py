"""From the rows of a text's tokens to its embedding, or to the scores of the model's classifier."""

from __future__ import annotations

from collections.abc import Sequence
from typing import get_args

import numpy as np
from numpy.typing import NDArray

from weft.compiler import lower_plan, plan_graph
from weft.errors import ContextError
from weft.execute import Session
from weft.llm.config import ModelConfig, Pooling
from weft.llm.planning.plan import ContextPlan


def require_pooling(pooling: str, config: ModelConfig) -> None:
    """Raises ContextError for an unknown pooling, and for one that the model lacks layers for."""
    if pooling not in get_args(Pooling):
        raise ContextError(
            f"pooling is {pooling!r}; it must be one of {', '.join(get_args(Pooling))}"
        )
    if pooling == "rank" and not config.n_scores:
        raise ContextError(
            'pooling "rank" is of models with a classifier, and this one has none; use "mean", '
            '"cls" or "last", or open a reranker'
        )


class BehindPooling:
    """Pools texts, and computes the layers behind the pooling in graphs of their own, each compiled
    when it is first used."""

    def __init__(self, plan: ContextPlan) -> None:
        """`plan` has the weights and their devices."""
        self._plan = plan
        self._sessions: dict[bool, Session] = {}

    def __call__(
        self, texts: Sequence[NDArray[np.float32]], pooling: Pooling
    ) -> list[NDArray[np.float32]]:
        """The embedding of each of `texts`, or with "rank" its scores, given the rows of its tokens
        [n_tokens, n_embd]. With "none" it is a row for each token."""
        config, scores = self._plan.model.config, pooling == "rank"
        how = config.score_pooling if scores else pooling
        parts = [_pooled(rows, how) for rows in texts]
        if not scores and not config.dense:
            return parts
        out = self._run(np.concatenate([np.atleast_2d(part) for part in parts]), scores)
        ends = np.cumsum([len(np.atleast_2d(part)) for part in parts])
        split = np.split(out, ends[:-1])
        return split if how == "none" else [rows[0] for rows in split]

    def _run(self, rows: NDArray[np.float32], scores: bool) -> NDArray[np.float32]:
        session = self._sessions.get(scores)
        most = self._plan.options.n_ubatch
        if session is None:
            graph = self._plan.model.build_behind(most, scores=scores)
            plan = plan_graph(
                graph, self._plan.backends, rewrites=self._plan.rewrites,
                op_offload=self._plan.op_offload,
            )  # fmt: skip
            session = self._sessions[scores] = Session(lower_plan(plan))
        parts = [rows[i : i + most] for i in range(0, len(rows), most)]
        return np.concatenate([session.run({"rows": part})["pooled"] for part in parts])


def _pooled(rows: NDArray[np.float32], pooling: Pooling) -> NDArray[np.float32]:
    """The mean [n_embd] of rows [n_tokens, n_embd], the first or the last, or all of them."""
    if pooling == "mean":
        return np.asarray(rows.mean(axis=0, dtype=np.float64), np.float32)
    if pooling == "none":
        return rows
    return np.asarray(rows[-1 if pooling == "last" else 0])
