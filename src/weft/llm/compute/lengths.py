"""Whether a context has a length that its model can use."""

from __future__ import annotations

import warnings

from weft.errors import ContextError, ErrorWarning
from weft.llm.compute.context import Context

__all__ = ["require_shifts", "warn_of_length"]


def warn_of_length(context: Context) -> None:
    """Warns if texts may become longer than those that the model was trained with."""
    config, longest = context.model.config, context.n_ctx_seq
    several = context.plan.options.n_seq_max > 1 and longest == context.n_ctx
    if longest > config.n_ctx_train and not several:
        error = ContextError(
            f"is {longest}, and {context.model.file.path.name} was trained for "
            f"{config.n_ctx_train} tokens: longer texts may become incoherent",
            argument="n_ctx",
        )
        warnings.warn(ErrorWarning(error), stacklevel=3)


def require_shifts(context: Context, n_keep: int) -> None:
    """Raises ContextError if tokens behind the first `n_keep` cannot give way to new ones."""
    context.require_movable()
    if not -1 <= n_keep < context.n_ctx - 1:
        raise ContextError(
            f"is {n_keep}; it must be 0 to {context.n_ctx - 2}, so that there is something to "
            "drop, or -1 for the prompt",
            argument="n_keep",
        )
