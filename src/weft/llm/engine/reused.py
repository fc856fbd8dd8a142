"""How much of a prompt is taken over from earlier texts, and why not more."""

from __future__ import annotations

from weft.llm.compute.context import Context
from weft.llm.engine.request import Request

__all__ = ["why_not_reused"]


def why_not_reused(request: Request, context: Context, n: int, same: int) -> str:
    """Says why only `n` tokens of a prompt are taken over; empty if those are all that it has in
    common with a text that is kept. `same` is the number of tokens that it has in common."""
    if not request.reuse:
        return "cache_prompt is False"
    if request.prompt_logprobs is not None:
        return "log-probabilities of the prompt are wanted, so all of it is computed"
    if n and n >= same:
        return ""
    config = context.model.config
    if config.n_encoder or not config.causal:
        return "each token sees those behind it, so the prompt is computed as a whole"
    if not same:
        others = (
            " and was computed with the same adapters and control vectors"
            if context.cache.scales
            else ""
        )
        return f"no text that is kept begins like it{others}"
    what = "recurrent states" if context.cache.states is not None else "small sliding windows"
    at = f"the last one before that is at token {n}" if n else "there is none before that"
    return (
        f"it begins with {same} token{'s' if same > 1 else ''} of a text that is kept, but {what} "
        f"go back to checkpoints only, and {at}"
    )
