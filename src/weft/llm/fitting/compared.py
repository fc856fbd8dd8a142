"""Models side by side on a text: size, perplexity, divergence from the first, and memory."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Unpack

from weft.errors import ContextError
from weft.frontends.gguf import GGUFFile
from weft.llm.cache.cache_types import CacheTypes
from weft.llm.fitting.baseline import Held, Text
from weft.llm.fitting.sizes import Whole, plan_to_run, whole_of
from weft.llm.model import Model
from weft.llm.planning.options import PlanArguments
from weft.llm.quality.divergence import KLDivergence, why_of_no_use
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.records import dataclass
from weft.schedule import Profile

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Compared:
    """A model, or a pair of cache types, against the first."""

    name: str
    file: int
    """Number of bytes of the weights in the file."""
    bits: float
    figures: KLDivergence
    whole: Whole
    """The planned memory and time of a context."""

    @property
    def why_of_no_use(self) -> str | None:
        """Why this is of no use in place of the first (`divergence.why_of_no_use`); None: it is of
        use."""
        return why_of_no_use(self.figures.kl.value, self.figures.same_top.value)


def compare_models(
    models: Sequence[Model],
    text: Text,
    n_ctx: int,
    progress: Callable[[str], Progress] | None = None,
    **options: Unpack[PlanArguments],
) -> Iterator[Compared]:
    """Yields a row for each model, the first of which is the base of all. `progress` gives a
    function for the chunks of the model that it is called with; `n_ctx` is the context whose memory
    is planned.

    Raises ContextError for models of different vocabularies before anything is computed."""
    first = models[0]
    for other in models[1:]:
        require_same_vocabulary(first, other)
    held: Held | None = None
    for model in models:
        watch = None if progress is None else progress(model.file.path.name)
        if held is None:
            held = Held(model, text, watch, **options)
            figures = held.figures
        else:
            figures = held.score(model, watch)
        yield _row(model.file.path.name, model, figures, n_ctx, options)


def compare_caches(
    model: Model,
    pairs: Sequence[CacheTypes],
    text: Text,
    n_ctx: int,
    progress: Callable[[str], Progress] | None = None,
    **options: Unpack[PlanArguments],
) -> Iterator[tuple[CacheTypes, Compared]]:
    """Yields a row for each pair of cache types, against a cache of f32."""

    def with_types(pair: CacheTypes) -> Any:
        return {**options, **pair._asdict()}

    base = with_types(CacheTypes("f32", "f32"))
    held = Held(model, text, None if progress is None else progress("f32/f32"), **base)
    for pair in pairs:
        own = with_types(pair)
        watch = None if progress is None else progress(str(pair))
        yield pair, _row(str(pair), model, held.score(model, watch, **own), n_ctx, own)


def memory_of(model: Model, n_ctx: int, profile: Profile | None, options: PlanArguments) -> Whole:
    """The planned memory and time of a context of a model, whether or not it fits."""
    merged: PlanArguments = {**options}
    if profile is not None:
        merged["profile"] = profile
    return whole_of(plan_to_run(model, n_ctx, merged), profile)


def _row(
    name: str, model: Model, figures: KLDivergence, n_ctx: int, options: PlanArguments
) -> Compared:
    size, weights = _sizes(model.file)
    whole = memory_of(model, n_ctx, None, options)
    return Compared(name, size, size * 8 / max(weights, 1), figures, whole)


def _sizes(file: GGUFFile) -> tuple[int, int]:
    tensors = file.tensors.values()
    return sum(t.nbytes for t in tensors), sum(t.n_elements for t in tensors)


def require_same_vocabulary(a: Model, b: Model) -> None:
    """Raises ContextError, with what differs, for models that do not have the same tokens."""
    names = a.file.path.name, b.file.path.name
    if names[0] == names[1]:
        names = str(a.file.path), str(b.file.path)
    sizes = a.config.n_vocab, b.config.n_vocab
    if sizes[0] != sizes[1]:
        raise ContextError(
            f"{names[0]} has a vocabulary of {sizes[0]} tokens, {names[1]} of {sizes[1]}; only "
            "models of one vocabulary can be compared token by token"
        )
    one, other = (Tokenizer.from_gguf(m.file).vocab.tokens for m in (a, b))
    for id_, (x, y) in enumerate(zip(one, other, strict=False)):
        if x != y:
            raise ContextError(
                f"token {id_} is {_shown(x)} for {names[0]}, but {_shown(y)} for {names[1]}; only "
                "models of one vocabulary can be compared token by token"
            )


def _shown(token: bytes) -> str:
    return repr(token[:40].decode("utf-8", "replace"))
