"""Makes the drafters that `DraftOptions` ask for, and plans the memory of a model that drafts."""

from __future__ import annotations

import warnings
from typing import Any

from weft.errors import ContextError
from weft.execute import Progress
from weft.frontends.gguf import GGUFFile
from weft.llm.compute.context import Context
from weft.llm.drafting.drafter import Drafter
from weft.llm.drafting.drafting import Drafting
from weft.llm.drafting.ngram import NgramDrafter
from weft.llm.drafting.options import DraftOptions
from weft.llm.drafting.second_model import SecondModel
from weft.llm.drafting.where import why_no_drafts
from weft.llm.model import Model
from weft.llm.planning.plan import ContextPlan
from weft.llm.planning.prepare import prepare

__all__ = ["contexts_of", "make_drafting", "open_draft", "plan_draft"]

PADDED = 256
"""By how many tokens the vocabularies may differ in size: some files are padded."""
_PLACES = ("devices", "n_gpu_layers", "place", "plan", "fit", "policy")


def open_draft(model: Model, options: DraftOptions | None) -> Model | None:
    """Opens the model that drafts for `model`; None: `options` name none.

    Raises ContextError if it cannot draft, and the errors of `Model`."""
    if options is None or options.model is None:
        return None
    draft = Model.open(options.model)
    if not draft.writes or draft.config.n_encoder or not draft.config.causal:
        raise ContextError(f"{draft.file.path} cannot draft: it does not continue texts")
    _require_same_tokens(model.file, draft.file)
    return draft


def plan_draft(draft: Model, n_ctx: int, n_seqs: int, options: DraftOptions) -> ContextPlan:
    """The plan of the context of a model that drafts `n_seqs` texts, which share `n_ctx` cells."""
    arguments = _arguments(draft, n_ctx, n_seqs, options)
    return prepare(draft, **arguments)


def make_drafting(
    context: Context,
    options: DraftOptions | None,
    draft: Model | None = None,
    progress: Progress | None = None,
) -> Drafting | None:
    """The drafters of `options` for the texts of a context; None: there are none. `draft` is the
    model that `open_draft` gave, which is loaded; `progress` is that of `Context`.

    Where drafts could not be checked, a model that drafts is not loaded, which is a warning."""
    if options is None:
        return None
    drafters: list[Drafter] = [NgramDrafter()] if options.ngram else []
    if draft is not None:
        why = why_no_drafts(context)
        if why:
            warnings.warn(f"{draft.file.path.name} does not draft: {why}", stacklevel=3)
        else:
            drafters.append(_second_model(context, options, draft, progress))
    if not drafters:
        return None
    n_vocab = context.model.config.n_vocab
    return Drafting(drafters, n_vocab, most=options.most, least=max(options.least, 1))


def contexts_of(drafting: Drafting) -> dict[str, Context]:
    """The contexts of models that draft, by what they are."""
    return {d.name: d.context for d in drafting.drafters if isinstance(d, SecondModel)}


def _second_model(
    context: Context, options: DraftOptions, draft: Model, progress: Progress | None
) -> SecondModel:
    n = context.cache.n_seq_max
    arguments = _arguments(draft, context.n_ctx, n, options)
    if not any(name in arguments for name in _PLACES):
        arguments["devices"] = context.plan.backends  # the same threads, which take turns
    return SecondModel(Context(draft, progress=progress, **arguments), n, options.p_min)


def _arguments(draft: Model, n_ctx: int, n_seqs: int, options: DraftOptions) -> dict[str, Any]:
    twice = draft.config.recurrent is not None  # see `OwnCache`
    sizes = {"n_ctx": n_ctx, "n_seq_max": 2 * n_seqs if twice else n_seqs, "n_outputs": 1}
    return {**sizes, **options.model_options}


def _require_same_tokens(target: GGUFFile, draft: GGUFFile) -> None:
    """Raises ContextError, which names both files, unless the ids of both have the same texts."""
    key = "tokenizer.ggml.tokens"
    own, other = (f.metadata.get_bytes_list(key, []) for f in (target, draft))
    n, start = min(len(own), len(other)), f"{draft.path} cannot draft for {target.path}: "
    advice = "; a model that drafts has the same vocabulary"
    if max(len(own), len(other)) > n + PADDED or not n:
        raise ContextError(f"{start}it has {len(other)} tokens, not {len(own)}{advice}")
    if own[:n] != other[:n]:
        id_ = next(i for i in range(n) if own[i] != other[i])
        texts = (t[id_].decode(errors="replace") for t in (other, own))
        raise ContextError("{}token {} is {!r}, not {!r}{}".format(start, id_, *texts, advice))
