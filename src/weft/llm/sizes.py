"""The sizes of an `LLM`'s context that its caller has left open."""

from __future__ import annotations

from weft.llm.compute.embed import MOST, sequences_for
from weft.llm.config import ModelConfig
from weft.llm.drafting.build import DraftModels
from weft.llm.model import Model
from weft.llm.planning.draft_options import DraftOptions, rows_needed
from weft.llm.planning.options import PlanArguments

__all__ = ["DEFAULT_N_CTX", "text_options", "usual_sizes"]

DEFAULT_N_CTX = 4096
"""Default number of cells of the cache; fewer if the model was trained for less."""


def usual_sizes(
    config: ModelConfig, n_ctx: int | None, options: PlanArguments
) -> tuple[int | None, PlanArguments]:
    """`n_ctx` (None: a plan has it) and `options` as every context of the model needs them."""
    if n_ctx is None and options.get("plan") is None:
        n_ctx = min(config.n_ctx_train, DEFAULT_N_CTX)
    if options.get("n_ubatch") is None and (not config.causal or config.n_encoder):
        options = {**options, "n_ubatch": n_ctx}  # every token sees the whole text
    return n_ctx, options


def text_options(
    model: Model,
    n_ctx: int | None,
    options: PlanArguments,
    drafting: DraftOptions | None,
    drafts: DraftModels,
) -> PlanArguments:
    """The options of the context that writes texts, with rows for `drafting` and memory for the
    models that draft; of a model that writes none, with sequences for embeddings."""
    own = options.copy()
    planned = options.get("plan") is not None
    if not model.writes:
        if not planned:
            own.setdefault("n_seq_max", sequences_for(model.config, MOST))
        return own
    n_seqs = options.get("n_seq_max") or 1
    if not planned:
        own.setdefault("n_outputs", rows_needed(n_seqs, drafting))
    if drafting is not None and n_ctx is not None:
        own["beside"] = drafts.plans(n_ctx, n_seqs, drafting)
        own["states"] = drafting.layers
    return own
