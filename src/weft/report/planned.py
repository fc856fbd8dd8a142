"""A plan as plain data for the page."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any, Protocol, TypeAlias

from weft.dtype import find_dtype
from weft.graph.size import upper
from weft.llm.cache.cache_types import CACHE_TYPES
from weft.llm.cache.prefix_options import PrefixOptions
from weft.llm.planning.explain import memory_rows, placement_lines
from weft.llm.planning.overview import overview
from weft.llm.planning.plan import ContextPlan, RegimePlan
from weft.report.cache import cache_data
from weft.report.tables import regime_data
from weft.report.variants import slider_data
from weft.tables import count_text
from weft.version import __version__

FORMAT = "weft-report-1"
"""The format of the data; it changes when keys do."""


class HasContextPlan(Protocol):
    """A `Context`."""

    @property
    def plan(self) -> ContextPlan:
        """The plan of the context."""


class HasContext(Protocol):
    """An `LLM`."""

    @property
    def context(self) -> HasContextPlan:
        """The context."""


HasPlan: TypeAlias = ContextPlan | HasContextPlan | HasContext


def plan_of(subject: HasPlan) -> ContextPlan:
    """The plan of a `Context` or `LLM`; a plan itself."""
    if isinstance(subject, ContextPlan):
        return subject
    context: Any = getattr(subject, "context", subject)
    plan: ContextPlan = context.plan
    return plan


def plan_data(
    subject: HasPlan,
    *,
    kept: PrefixOptions | None = None,
    beside: Sequence[ContextPlan] = (),
    rows_for: Callable[[int], int] | None = None,
    sliders: bool = True,
) -> dict[str, Any]:
    """The data of a plan's report.

    `kept` says what is kept of texts beside the cache, `beside` are plans of models that draft.
    With `sliders` the page shows other sizes (`weft.report.variants`); `rows_for` gives
    the rows of logits that a number of sequences needs (None: their number is fixed).
    Keys are `format`, `kind` ("plan"), `title`, `weft` (the version), `model`, `options`,
    `overview` (see `weft.llm.planning.overview`), `devices`, `memory` (rows of `weft explain
    --json`), `text` (lines of the summary), `regimes` (the graphs, the largest batches first),
    `caches`, `beside`, `sliders`, and `cache`, the updates of a watched cache (`cache_data`)."""
    plan = plan_of(subject)
    config = plan.model.config
    scratch = plan.scratch_bytes()
    memory = memory_rows(plan, scratch, kept)
    regimes = [*reversed(plan.regimes), *([plan.together] if plan.together else [])]
    return {
        "format": FORMAT,
        "kind": "plan",
        "title": plan.model.file.path.name,
        "weft": __version__,
        "model": {
            "architecture": config.arch,
            "file": plan.model.file.path.name,
            "layers": config.n_layer,
            "context": config.n_ctx_train,
        },
        "options": asdict(plan.options),
        "devices": [
            {"name": b.name, "kind": b.kind, "memory": b.buffer_type.name} for b in plan.backends
        ],
        "n_gpu_layers": plan.homes.n_gpu_layers,
        "kept": dict(plan.homes.kept),
        "caches": _caches(plan),
        "types": {name: _type(name) for name in CACHE_TYPES},
        "predicted": None if plan.predicted is None else plan.predicted.to_json(),
        "memory": memory,
        "overview": overview(plan, memory, plan.regimes[-1]).to_json(),
        "beside": [
            {
                "file": other.model.file.path.name,
                "memory": memory_rows(other, other.scratch_bytes()),
            }
            for other in beside
        ],
        "text": placement_lines(plan, nodes=False),
        "regimes": [_regime(plan, regime) for regime in regimes],
        "sliders": slider_data(plan, kept=kept, rows_for=rows_for) if sliders else None,
        "cache": cache_data(getattr(subject, "context", subject)),
    }


def _caches(plan: ContextPlan) -> dict[str, dict[str, Any]]:
    """The sizes that the bytes of each leaf of the cache follow from: keys (`k`) and values (`v`)
    have rows of `width` numbers for the cells of the context, or for the cells of windows
    (`small`); recurrent states have slots."""
    leaves: dict[str, dict[str, Any]] = {}
    slots = 2 * plan.options.n_seq_max + 1
    for il in range(plan.model.config.n_layer):
        small = plan.cache.is_small(il)
        for leaf in plan.cache.leaves(il):
            if leaf is plan.cache.k[il] or leaf is plan.cache.v[il]:
                kind = "k" if leaf is plan.cache.k[il] else "v"
                leaves[leaf.name] = {"of": kind, "width": upper(leaf.ne[0]), "small": small}
            else:
                leaves[leaf.name] = {"of": "states", "slot": leaf.max_bytes // slots}
    return leaves


def _type(name: str) -> list[int]:
    dtype = find_dtype(name)
    return [dtype.block, dtype.bytes]


def _regime(plan: ContextPlan, regime: RegimePlan) -> dict[str, Any]:
    together = regime is plan.together
    smaller = [r.max_tokens for r in plan.regimes if r.max_tokens < regime.max_tokens]
    first = max(smaller, default=0) + 1
    if together:
        label = "several texts at once" if plan.model.config.recurrent else "prompts (encoder)"
    elif first == regime.max_tokens:
        label = f"batches of {count_text(first, 'token')}"
    else:
        label = f"batches of {first} to {regime.max_tokens} tokens"
    return {
        "label": label,
        "max_tokens": regime.max_tokens,
        "together": together,
        **regime_data(regime.plan),
    }
