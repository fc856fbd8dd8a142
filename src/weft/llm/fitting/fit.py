"""All of `weft quantize --fit`: measures, chooses, and tries the choice against the named mixes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import field, replace
from hashlib import sha256
from itertools import islice
from pathlib import Path
from time import perf_counter

import numpy as np

from weft.errors import ContextError
from weft.frontends.gguf import GGUFFile
from weft.frontends.gguf.imatrix_file import Importance
from weft.frontends.gguf.mixes import Choices
from weft.llm.cache.cache_types import CacheTypes
from weft.llm.fitting.baseline import Held, Text
from weft.llm.fitting.budget import (
    Budget,
    CacheCost,
    Choice,
    Fitting,
    cache_costs,
    named_mixes,
    require_least,
)
from weft.llm.fitting.choices import TYPES, Group, groups_of
from weft.llm.fitting.knapsack import require_solver
from weft.llm.fitting.measured import (
    Kept,
    Manner,
    Sensitivities,
    digest_of,
    kept_folder,
    measure,
    measure_caches,
    n_cache_probes,
    n_probes,
    retyped,
    usual_pairs,
)
from weft.llm.fitting.sizes import Sizes
from weft.llm.model import Model
from weft.llm.quality.divergence import why_of_no_use
from weft.records import dataclass
from weft.schedule import Profile
from weft.tables import size_text

_MOST_WORK = 2e13
"""Maximum number of products of weights and tokens for which every group is measured in every type:
some ten minutes of a processor that does 3e10 products a second."""
_MOST_PROBES = 2000
_MUCH = 0.25
"""Share of the budget above which a cache is a large part of it."""
_N_CURVE = 17
_N_MIXES = 4
"""Number of named mixes that are measured: the ones of least predicted divergence within the
budget."""

Progress = Callable[[int, int, str], None]
Announce = Callable[[int, float], None]


@dataclass(frozen=True, slots=True)
class FitOptions:
    """The options of `fit`."""

    budget: Budget
    n_ctx: int
    manner: Manner | None = None
    """The manner of measuring; None: `each` where that is little work, else `scaled`."""
    types: Sequence[str] = TYPES
    choices: Choices | None = None
    importance: Importance | None = None
    cache: CacheTypes | None = None
    """The types of the cache; None: f16, or others where the cache is a large part of the
    budget."""
    speeds: Profile | None = None
    n_mixes: int = _N_MIXES
    keep: bool = True
    """True to keep measurements in the user's cache folder."""
    name: str = ""
    """The name of the model in messages; empty: the name of its file."""


@dataclass(frozen=True, slots=True)
class Tried:
    """A choice whose divergence was measured as a whole."""

    choice: Choice
    kl: float
    kl_error: float
    kl_99: float
    same_top: float

    @property
    def is_of_use(self) -> bool:
        """Whether the model says about what the original does (`divergence.why_of_no_use`)."""
        return why_of_no_use(self.kl, self.same_top) is None


@dataclass(slots=True)
class Fit:
    """The result."""

    file: GGUFFile
    groups: Sequence[Group]
    options: FitOptions
    text: Text
    manner: Manner
    fitting: Fitting
    sensitivities: Sensitivities
    solved: Choice
    """The solver's choice."""
    tried: list[Tried]
    """The solver's choice and named mixes, the best first among those within the budget."""
    mixes: list[Choice]
    """All named mixes that weft can write."""
    curve: list[Choice] = field(default_factory=list)
    """The solver's choices for other sizes."""
    least_of_use: Tried | None = None
    """The smallest of these that is of use, where the best choice within the budget is not."""

    @property
    def best(self) -> Tried:
        """The choice to write."""
        return self.tried[0]

    @property
    def warning(self) -> str | None:
        """A sentence where the best choice is of no use, with the least budget that is; else
        None."""
        best = self.best
        why = why_of_no_use(best.kl, best.same_top)
        if why is None:
            return None
        text = f"{best.choice.name} is of no use: {why}; "
        if self.least_of_use is None:
            return text + "give a larger budget"
        least = self.least_of_use.choice
        return text + (
            f"the least of {len(self.curve)} sizes that was measured to be of use takes about "
            f"{size_text(least.whole.nbytes)} of memory (--fit) and a file of "
            f"{size_text(least.file)} (--fit-file)"
        )


def manner_for(groups: Sequence[Group], file: GGUFFile, n_tokens: int) -> Manner:
    """The manner of measuring by default: `each` up to `_MOST_WORK`, else `scaled`."""
    n_weights = sum(t.n_elements for t in file.tensors.values())
    n = n_probes(groups, "each")
    return "each" if n <= _MOST_PROBES and n * n_weights * n_tokens <= _MOST_WORK else "scaled"


def fit(
    file: GGUFFile,
    options: FitOptions,
    text_of: Callable[[Model], Text],
    progress: Progress | None = None,
    announce: Announce | None = None,
) -> Fit:
    """Finds the best types for the tensors of `file` within a budget; `Fit.warning` says where the
    best is of no use.

    `text_of` is called with the model for the text that is measured on, after the budget is known
    to be possible. `progress` is called with (done, all, what), `announce` with the number of texts
    that are to be computed and the seconds that the first one took. Ctrl-C loses what one probe
    takes: what was measured is kept, and another run goes on from there.

    Raises OutOfMemoryError, with the least there is, for an impossible budget; UnsupportedOpError
    without SciPy or for a model without matrices; FormatError for values that are not finite;
    ContextError for a model that gives no logits."""
    model = Model(file)
    if model.config.n_encoder or not model.continues:
        raise ContextError(
            f"{options.name or file.path.name} writes no text token by token, so that no "
            "divergence can be measured; quantize it to a named type"
        )
    require_solver()
    groups = groups_of(file, options.choices, options.types, importance=options.importance)
    pairs = [options.cache] if options.cache else usual_pairs(model.config)
    sizes = Sizes(file, groups, options.n_ctx, options.speeds, **pairs[0]._asdict())
    unknown = dict.fromkeys(pairs, 0.0)
    costs = cache_costs(sizes, {}, unknown)
    plain: Sensitivities = {g.name: dict.fromkeys((t.name for t in g.types), 0.0) for g in groups}
    require_least(Fitting(file, groups, sizes, plain, costs), options.budget, options.n_ctx)
    if not _is_much(Fitting(file, groups, sizes, plain, costs[:1]), options.budget):
        pairs, costs = pairs[:1], costs[:1]

    text = text_of(model)
    manner = options.manner or manner_for(groups, file, text.chunks.size)
    kept = Kept(_kept_path(file, text, options.importance) if options.keep else None)
    start = perf_counter()
    held = Held(model, text, repack=False)
    if announce is not None:
        n = n_probes(groups, manner, kept) + n_cache_probes(pairs, kept)
        announce(n + 1 + options.n_mixes, perf_counter() - start)
    found = measure(file, groups, manner, held, kept, options.importance, progress)
    kl = measure_caches(held, pairs, kept, progress)
    costs = [CacheCost(c.pair, kl[c.pair], c.nbytes, c.seconds) for c in costs]
    fitting = Fitting(file, groups, sizes, found, costs)
    solved = _solved(fitting, options)
    weighted = replace(options.choices or Choices(), imatrix=options.importance is not None)
    mixes = named_mixes(fitting, weighted, solved.cache)
    tried = _tried(held, fitting, solved, mixes, options, kept, progress)
    curve = fitting.curve(_N_CURVE, solved.cache)
    of_use = _least_of_use(held, fitting, curve, tried[0], options.importance, kept, progress)
    return Fit(
        file, groups, options, text, manner, fitting, found, solved, tried, mixes, curve, of_use
    )  # fmt: skip


def _solved(fitting: Fitting, options: FitOptions) -> Choice:
    """The solver's choice. Raises OutOfMemoryError and ContextError where there is none."""
    solved = fitting.best(options.budget)
    if solved is not None:
        return solved
    least = fitting.least()
    if options.budget.holds(least.whole, least.file):
        return replace(least, name="fit")  # so little room that nothing else is certain
    require_least(fitting, options.budget, options.n_ctx)
    raise ContextError(
        "no types are within all of these limits at once; make --fit or -c larger, or --speed "
        "smaller"
    )


def _is_much(fitting: Fitting, budget: Budget) -> bool:
    """Whether the cache takes much of the budget, so that its types are chosen, too."""
    if budget.memory is None:
        return budget.seconds is not None and fitting.best(budget) is None
    least = fitting.least()
    return least.whole.cache > _MUCH * budget.memory or not budget.holds(least.whole, least.file)


def _kept_path(file: GGUFFile, text: Text, importance: Importance | None) -> Path:
    weights = sha256()
    for tensor, values in sorted((importance.weights if importance else {}).items()):
        weights.update(tensor.encode() + np.ascontiguousarray(values).tobytes())
    about = text.chunks.tobytes(), text.chunks.shape, text.bos, weights.hexdigest()
    name = digest_of(file, *about)
    return kept_folder() / f"{name}.jsonl"


def _tried(
    held: Held,
    fitting: Fitting,
    solved: Choice,
    mixes: Sequence[Choice],
    options: FitOptions,
    kept: Kept,
    progress: Progress | None,
) -> list[Tried]:
    """Measures the solver's choice and the most likely mixes as a whole, the best first."""
    likely = [m for m in mixes if options.budget.holds(m.whole, m.file)]
    likely.sort(key=lambda m: (m.kl, m.whole.nbytes))
    planned = map(fitting.planned, likely)
    inside = (m for m in planned if options.budget.holds(m.whole, m.file))
    candidates = [solved, *islice(inside, options.n_mixes)]
    tried = []
    for done, choice in enumerate(candidates):
        if progress is not None:
            progress(done, len(candidates), choice.name)
        tried.append(measured_whole(held, fitting, choice, kept, options.importance))
    return sorted(tried, key=lambda t: t.kl)


def _least_of_use(
    held: Held,
    fitting: Fitting,
    curve: Sequence[Choice],
    best: Tried,
    importance: Importance | None,
    kept: Kept,
    progress: Progress | None,
) -> Tried | None:
    """Where `best` is of no use, measures some of the larger choices of `curve`, which are in
    ascending order of size, and finds the first that is; else None."""
    if best.is_of_use:
        return None
    choices = [c for c in curve if c.whole.nbytes > best.choice.whole.nbytes]
    low, high, found = 0, len(choices), None
    while low < high:
        middle = (low + high) // 2
        if progress is not None:
            progress(0, (high - low).bit_length(), "the least size that is of use")
        tried = measured_whole(held, fitting, fitting.planned(choices[middle]), kept, importance)
        if tried.is_of_use:
            high, found = middle, tried
        else:
            low = middle + 1
    return found


def measured_whole(
    held: Held, fitting: Fitting, choice: Choice, kept: Kept, importance: Importance | None = None
) -> Tried:
    """Measures a choice as a whole, with its cache."""
    rows = sorted((g, dtype.name) for g, dtype in choice.types.items())
    key = sha256(repr((rows, choice.cache.stored)).encode()).hexdigest()[:32]
    names = ("kl", "kl_error", "kl_99", "same_top")
    known = [kept.get(f"whole {key} {name}") for name in names]
    values = [n for n in known if n is not None]
    if len(values) < len(names):
        other = Model(retyped(fitting.file, fitting.by_tensor(choice.types), importance))
        figures = held.score(other, **choice.cache._asdict())
        spread = figures.kl_spread
        values = [
            max(0.0, figures.kl.value),
            figures.kl.error,
            spread.percentiles[99.0] if spread else 0.0,
            figures.same_top.value,
        ]
        for name, value in zip(names, values, strict=True):
            kept.add(f"whole {key} {name}", value)
    return Tried(choice, *values)
