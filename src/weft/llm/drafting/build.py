"""Makes the drafters that `DraftOptions` ask for, and plans the memory of a model that drafts."""

from __future__ import annotations

import warnings
from typing import Any

from weft.errors import ContextError
from weft.execute import Progress
from weft.frontends.gguf import GGUFFile
from weft.llm.compute.context import Context
from weft.llm.drafting.drafting import Drafter, Drafting, why_no_drafts
from weft.llm.drafting.next_tokens import NextTokens
from weft.llm.drafting.ngram import NgramDrafter
from weft.llm.drafting.second_model import SecondModel
from weft.llm.model import Model
from weft.llm.planning.draft_options import DraftOptions
from weft.llm.planning.plan import ContextPlan
from weft.llm.planning.prepare import prepare
from weft.records import dataclass

__all__ = ["DraftModels", "contexts_of", "make_drafting", "open_drafts"]

PADDED = 256
"""Maximum difference of the sizes of the vocabularies, in tokens: some files are padded."""


@dataclass(frozen=True, slots=True)
class DraftModels:
    """The models that draft for another one."""

    second: Model | None = None
    """A model of its own."""
    layer: Model | None = None
    """A layer of the same file."""

    def plans(self, n_ctx: int, n_seqs: int, options: DraftOptions) -> list[ContextPlan]:
        """The plans of their contexts, for `n_seqs` texts that share `n_ctx` cells."""
        plans = []
        if self.second is not None:
            plans.append(prepare(self.second, **_second(self.second, n_ctx, n_seqs, options)))
        if self.layer is not None:
            plans.append(prepare(self.layer, **_layer(n_ctx, n_seqs)))
        return plans


def open_drafts(model: Model, options: DraftOptions | None) -> DraftModels:
    """Opens the models of `options` that draft for `model`.

    Raises ContextError for one that cannot draft, and the errors of `Model`."""
    if options is None or not model.writes:
        return DraftModels()
    second = None
    if options.model is not None:
        second = Model.open(options.model)
        if not second.writes or second.config.n_encoder or not second.config.causal:
            raise ContextError(f"{second.file.path} cannot draft: it does not continue texts")
        _require_same_tokens(model.file, second.file)
    return DraftModels(second, model.next_layer() if options.layers else None)


def make_drafting(
    context: Context,
    options: DraftOptions | None,
    models: DraftModels = DraftModels(),  # noqa: B008, it is frozen
    progress: Progress | None = None,
) -> Drafting | None:
    """The drafters of `options` for the texts of a context; None: there are none. `models` are
    those that `open_drafts` gave, which are loaded; `progress` is that of `Context`.

    Where drafts could not be checked, no model is loaded for them, which is a warning."""
    if options is None:
        return None
    drafters: list[Drafter] = [NgramDrafter()] if options.ngram else []
    n = context.cache.n_seq_max
    why = why_no_drafts(context) if models.second or models.layer else ""
    if models.layer is not None and not context.plan.options.states:
        why = why or "layers that draft need a context with states=True, made without a plan file"
    if why:
        warnings.warn(f"no model drafts: {why}", stacklevel=3)
    else:
        # the same threads, which take turns
        shared: dict[str, Any] = {
            "devices": context.plan.backends, "machines": context.machines, "progress": progress,
        }  # fmt: skip
        if models.second is not None:
            arguments = shared | _second(models.second, context.n_ctx, n, options)
            second = Context(models.second, **arguments)
            drafters.append(SecondModel(second, n, options.p_min))
        if models.layer is not None:
            layer = Context(models.layer, **shared, **_layer(context.n_ctx, n))
            drafters.append(NextTokens(layer, n, options.p_min))
    if not drafters:
        return None
    n_vocab = context.model.config.n_vocab
    return Drafting(drafters, n_vocab, most=options.most, least=max(options.least, 1))


def contexts_of(drafting: Drafting) -> dict[str, Context]:
    """The contexts of models that draft, by what they are."""
    models = (d for d in drafting.drafters if isinstance(d, SecondModel | NextTokens))
    return {d.name: d.context for d in models}


def _layer(n_ctx: int, n_seqs: int) -> dict[str, Any]:
    return {"n_ctx": n_ctx, "n_seq_max": n_seqs, "n_outputs": 1, "states": True}


def _second(draft: Model, n_ctx: int, n_seqs: int, options: DraftOptions) -> dict[str, Any]:
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
