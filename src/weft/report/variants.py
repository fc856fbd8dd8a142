"""The data with which the page shows other contexts, ubatches, sequences and cache types.

Within a *class* of sizes the placement, and so the structure of the memory, is the same, and only
the sizes of tensors differ, for which there are formulas. Plans are made at both ends of each list
of sizes, and between two that differ, until the classes are known; then one for each class with
each pair of cache types. The page offers only what these plans cover. Where a plan was made, the
page has its places and shows them; elsewhere it adds up formulas, which gives the lower bound of
compute memory. Graphs that are not too large are also planned at further sizes of each list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from itertools import product
from typing import Any, TypeVar

from weft.errors import WeftError
from weft.llm.cache.cache_types import CacheTypes
from weft.llm.cache.cells import window_size
from weft.llm.cache.prefix_options import PrefixOptions
from weft.llm.models.step import together_sizes
from weft.llm.planning.explain import memory_rows
from weft.llm.planning.plan import ContextPlan, RegimePlan
from weft.report.formulas import Formulas, NotCarried, Ranges
from weft.report.scratch import Scratch
from weft.report.structure import packing, structure
from weft.schedule.collector import collector_paused

CACHE_TYPES = ("f16", "f32", "bf16", "q8_0", "q4_0")
"""The cache types that the page offers, besides the types of the plan."""

LARGE, VERY_LARGE = 300, 1500
"""Nodes of a graph above which only some pairs of cache types are offered, as each takes a plan:
those with the plan's keys, with the plan's values, and equal ones; then equal ones only. Small
graphs are planned at every size of a list, large ones at every power of two, very large ones where
classes ask for it."""

T = TypeVar("T")


def slider_data(
    plan: ContextPlan,
    *,
    kept: PrefixOptions | None = None,
    rows_for: Callable[[int], int] | None = None,
) -> dict[str, Any]:
    """The data of the sliders.

    `rows_for` gives the rows of logits that a number of sequences needs; None: as many as the plan
    has, and one number of sequences. Returns `{"why": sentence}` where there are none: where the
    placement itself depends on the sizes, or a formula does not carry."""
    if plan.again is None:
        return {"why": "the placement depends on the sizes (--fit, --policy cost or a plan file)"}
    try:
        with collector_paused():
            return _Explorer(plan, kept, rows_for).data()
    except NotCarried as error:
        return {"why": str(error)}


class _Explorer:
    def __init__(
        self, plan: ContextPlan, kept: PrefixOptions | None, rows_for: Callable[[int], int] | None
    ) -> None:
        assert plan.again is not None
        self.plan, self.kept, self.again = plan, kept, plan.again
        self.rows_for = rows_for
        self.formulas, self.scratch = Formulas(), Scratch()
        self.structures: dict[str, int] = {}
        self.packings: list[dict[str, Any]] = []
        """By structure: places, by the largest values of the symbols joined by commas."""
        self.variants: dict[str, int] = {}
        self.plans: dict[int, ContextPlan] = {}
        """A plan of each variant, whose nodes the scratch is asked of."""
        self.known: dict[tuple[Any, ...], int] = {}
        o, config = plan.options, plan.model.config
        self.base: dict[str, Any] = {
            "ctx": o.n_ctx, "ub": o.n_ubatch, "seqs": o.n_seq_max, "k": o.types[0], "v": o.types[1],
        }  # fmt: skip
        most = max(config.n_ctx_train, o.n_ctx)
        steps = sorted({n for b in range(6, 32) for n in (1 << b, 3 << (b - 1)) if n <= most})
        self.ctx = sorted({*steps, o.n_ctx, most})
        self.ub = sorted({*(1 << b for b in range(5, 13) if 1 << b <= most), o.n_ubatch})
        self.seqs = sorted({1, 2, 4, 8, 16, 32, o.n_seq_max} if rows_for else {o.n_seq_max})

    def data(self) -> dict[str, Any]:
        """See `slider_data`."""
        self.ctx = self._range(self.ctx, "ctx")
        ubs = self._classes(self.ub, "ub")
        seqs = self._classes(self.seqs, "seqs")
        self._plan_more()
        at: dict[str, int] = {}
        for pair in self._pairs():
            for (i, ub), (j, n), small in product(enumerate(ubs), enumerate(seqs), (False, True)):
                number = self._variant_of(ub, n, pair, small)
                if number is not None:
                    at[f"{i},{j},{pair[0]},{pair[1]},{int(small)}"] = number
        variants = [json.loads(text) for text in self.variants]
        for number, variant in enumerate(variants):
            self._add_scratch(variant, self.plans[number])
        return {
            "ctx": self.ctx,
            "ub": self.ub,
            "seqs": self.seqs,
            "base": self.base,
            "classes": {"ub": [[c[0], c[-1]] for c in ubs], "seqs": [[c[0], c[-1]] for c in seqs]},
            "rows": [self._rows_for(n) for n in self.seqs],
            "window": 0 if self.plan.options.swa_full else self._window,
            "at": at,
            "variants": variants,
            "structures": [
                {**json.loads(text), "packings": packings}
                for text, packings in zip(self.structures, self.packings, strict=True)
            ],
            "formulas": self.formulas.texts,
        }

    def _rows_for(self, n_seqs: int) -> int:
        """The most rows of logits; at most as many as a ubatch has tokens."""
        return self._own_rows if self.rows_for is None else self.rows_for(n_seqs)

    @cached_property
    def _own_rows(self) -> int:
        """The rows that the plan's arguments ask for, which a small ubatch hides."""
        o = self._planned(self.base | {"ub": self.ub[-1]}).options
        return 1 << 31 if o.n_outputs == o.n_ubatch else o.n_outputs

    def _planned(self, at: dict[str, Any]) -> ContextPlan:
        types = CacheTypes(at["k"], at["v"])._asdict()
        rows = {} if self.rows_for is None else {"n_outputs": self.rows_for(at["seqs"])}
        sizes: Any = {"n_ubatch": at["ub"], "n_seq_max": at["seqs"], **types, **rows}
        return self.again(at["ctx"], sizes)

    @property
    def _window(self) -> int:
        config = self.plan.model.config
        return config.window if config.window and config.causal else 0

    def _range(self, values: Sequence[int], axis: str) -> list[int]:
        """The values around the plan's own with the same variant, as far as windows of layers do
        not make another."""
        if not self.plan.options.swa_full and self._window:
            return [v for v in values if self._try(**{axis: v}) is not None]
        own = self.base[axis]
        return next(c for c in self._classes(values, axis) if own in c)

    def _classes(self, values: Sequence[int], axis: str) -> list[list[int]]:
        """The values in runs that have the same variant."""
        kinds = _spread(values, lambda v: self._try(**{axis: v}))
        classes: list[list[int]] = []
        for value, before, kind in zip(values, [None, *kinds], kinds, strict=False):
            if kind is None:
                continue
            if classes and kind == before:
                classes[-1].append(value)
            else:
                classes.append([value])
        return classes

    def _plan_more(self) -> None:
        """Makes further plans with one size that differs from the plan's own."""
        nodes = len(self.plan.plan.schedule.graph.nodes)
        if nodes > VERY_LARGE:
            return
        for axis, values in (("ctx", self.ctx), ("ub", self.ub), ("seqs", self.seqs)):
            for value in values:
                if nodes <= LARGE or value.bit_count() == 1:
                    self._try(**{axis: value})

    def _pairs(self) -> list[tuple[str, str]]:
        k, v = self.base["k"], self.base["v"]
        if not any(leaf.max_bytes for leaf in (*self.plan.cache.k, *self.plan.cache.v)):
            return [(k, v)]
        names = dict.fromkeys((k, *CACHE_TYPES)), dict.fromkeys((v, *CACHE_TYPES))
        pairs = list(product(*names))
        nodes = len(self.plan.plan.schedule.graph.nodes)
        if nodes > VERY_LARGE:
            return [p for p in pairs if p == (k, v) or p[0] == p[1]]
        if nodes > LARGE:
            return [p for p in pairs if p[0] == k or p[1] == v or p[0] == p[1]]
        return pairs

    def _variant_of(
        self, ubs: Sequence[int], seqs: Sequence[int], pair: tuple[str, str], small: bool
    ) -> int | None:
        """The variant of a class, with layers that have a small window or without; None: it has
        none."""
        ub = self.base["ub"] if self.base["ub"] in ubs else ubs[-1]
        n = self.base["seqs"] if self.base["seqs"] in seqs else seqs[-1]
        sizes = {"ub": ub, "seqs": n, "k": pair[0], "v": pair[1]}
        config = self.plan.model.config
        windowed = {
            c: not self.plan.options.swa_full and window_size(config, c, n, min(ub, c)) > 0
            for c in self.ctx
            if c >= ub
        }
        fitting = [c for c, is_small in windowed.items() if is_small is small]
        if not fitting:
            return None
        own = self.base["ctx"]
        number = self._try(**sizes, ctx=own if own in fitting else fitting[-1])
        limited = any(b.buffer_type.max_size is not None for b in self.plan.backends)
        if limited and not all(
            self._try(**sizes, ctx=c) == number for c in (fitting[0], fitting[-1])
        ):
            return None
        return number

    def _try(self, **changed: Any) -> int | None:
        """The number of the variant with some sizes changed; None: such a context is refused."""
        sizes = self.base | changed
        key = tuple(sizes.values())
        if key not in self.known:
            try:
                plan = self._planned(sizes)
            except WeftError:
                self.known[key] = -1
            else:
                self.known[key] = self._number(plan)
        number = self.known[key]
        return None if number < 0 else number

    def _number(self, plan: ContextPlan) -> int:
        text = json.dumps(self._variant(plan))
        number = self.variants.setdefault(text, len(self.variants))
        self.plans.setdefault(number, plan)
        return number

    def _variant(self, plan: ContextPlan) -> dict[str, Any]:
        regimes = [*reversed(plan.regimes), *([plan.together] if plan.together else [])]
        return {
            "types": list(plan.options.types),
            "regimes": [self._regime(plan, regime) for regime in regimes],
            "rows": self._rows(plan),
            "cache": _cache(plan),
            "copies": plan.n_copies - 1,
        }

    def _regime(self, plan: ContextPlan, regime: RegimePlan) -> dict[str, Any]:
        together = regime is plan.together
        largest = regime.max_tokens == plan.options.n_ubatch and not together
        rule = "together" if together and plan.model.config.recurrent else "ub"
        described = {
            "tokens": rule if together or largest else regime.max_tokens,
            "symbols": [[s.name, s.min] for s in regime.plan.schedule.graph.symbols.values()],
        }
        o = plan.options
        ranges = symbol_ranges(
            described, o.n_ctx, o.n_ubatch, o.n_seq_max, o.n_outputs,
            0 if plan.cache.window is None else plan.cache.window.size,
        )  # fmt: skip
        for s in regime.plan.schedule.graph.symbols.values():
            if ranges.get(s.name) != (s.min, s.max):
                raise NotCarried(f"the page does not know the bounds of {s.name}")
        ends = [(sizes[0], sizes[-1]) for sizes in (self.ctx, self.ub, self.seqs)]
        at = [ranges, *self._places(described, plan, product(ends[0], ends[1], ends[2]))]
        text = json.dumps(structure(regime.plan.schedule, self.formulas, at))
        number = self.structures.setdefault(text, len(self.structures))
        if number == len(self.packings):
            self.packings.append({})
        key = ",".join(str(most) for _, most in ranges.values())
        if key not in self.packings[number]:
            self.packings[number][key] = packing(regime.plan.schedule)
        return {"structure": number, **described}

    def _places(
        self,
        described: dict[str, Any],
        plan: ContextPlan,
        positions: Iterable[tuple[int, int, int]],
    ) -> list[Ranges]:
        """The bounds of a graph's symbols at contexts, ubatches and numbers of sequences."""
        return [
            symbol_ranges(described, c, ub, n, self._rows_for(n), self._cells(c, ub, n, plan))
            for c, ub, n in positions
            if ub <= c
        ]

    def _rows(self, plan: ContextPlan) -> list[dict[str, Any]]:
        """The rows of memory, without the bytes that the page computes."""
        rows = memory_rows(plan, 0, self.kept)
        names = [row["memory"] for row in rows if row["buffer"] == "compute"]
        if len(set(names)) != len(names):
            raise NotCarried("two memories have one name")
        for row in rows:
            if row["buffer"] in ("cache", "compute", "copies", "scratch"):
                row["bytes"] = None
                row.pop("lower_bound", None)
            elif row["buffer"] == "prefixes":
                row["about"] = "at most, as texts leave the cache"
        return rows

    def _add_scratch(self, variant: dict[str, Any], plan: ContextPlan) -> None:
        regimes = [*reversed(plan.regimes), *([plan.together] if plan.together else [])]
        tokens = sorted({min(ub, c) for ub in self.ub for c in self.ctx})
        for described, regime in zip(variant["regimes"], regimes, strict=True):
            places = self._places(described, plan, product(self.ctx, tokens, self.seqs))
            described["scratch"] = self.scratch.tables(regime.plan.schedule, places)

    def _cells(self, ctx: int, ub: int, seqs: int, plan: ContextPlan) -> int:
        if plan.cache.window is None:
            return 0
        return min(self._window * seqs + ub, ctx)


def symbol_ranges(
    regime: dict[str, Any], ctx: int, ub: int, seqs: int, rows: int, cells: int
) -> Ranges:
    """The bounds of a graph's symbols with sizes of a context; layers with a window have `cells`
    cells."""
    together = together_sizes(ub, seqs) if regime["tokens"] == "together" else None
    n = ub if isinstance(regime["tokens"], str) else regime["tokens"]
    if together is not None:
        n = together.n_seqs * together.n_each
    most = {
        "n_tokens": n,
        "n_kv": ctx,
        "n_outputs": min(n, rows, ub),
        "n_kv_window": cells,
        "n_seqs": together.n_seqs if together else 1,
        "n_seq_tokens": together.n_each if together else 1,
    }
    return {name: (least, most[name]) for name, least in regime["symbols"] if name in most}


def _cache(plan: ContextPlan) -> dict[str, list[int]]:
    """By memory: bytes of the cache for each cell, for each cell of windows, and for each slot of
    recurrent states, of which there are two for each sequence, and one."""
    sizes: dict[str, list[int]] = {}
    cells, window = plan.cache.size, plan.cache.window
    slots = 2 * plan.options.n_seq_max + 1
    for il in range(plan.model.config.n_layer):
        for leaf in plan.cache.leaves(il):
            if not leaf.max_bytes or leaf.buffer is None:
                continue
            where = leaf.buffer.type or plan.backends[-1].buffer_type
            row = sizes.setdefault(where.name, [0, 0, 0])
            size = leaf.max_bytes if where.is_host else where.alloc_size(leaf)
            if size != leaf.max_bytes:
                raise NotCarried(f"a memory gives {leaf.name} more bytes than it has")
            small = plan.cache.is_small(il) and window is not None
            n = window.size if small and window is not None else cells
            kind = 1 if small else 0
            if leaf not in (plan.cache.k[il], plan.cache.v[il]):
                kind, n = 2, slots
            if size % n:
                raise NotCarried(f"the bytes of {leaf.name} are not a multiple of its rows")
            row[kind] += size // n
    return sizes


def _spread(values: Sequence[T], kind: Callable[[T], int | None]) -> list[int | None]:
    """`kind` of each value; between two values of one kind all are taken to be of it."""
    kinds: dict[int, int | None] = {}

    def fill(first: int, last: int) -> None:
        for i in (first, last):
            if i not in kinds:
                kinds[i] = kind(values[i])
        if kinds[first] == kinds[last]:
            kinds.update(dict.fromkeys(range(first, last + 1), kinds[first]))
        elif last - first > 1:
            middle = (first + last) // 2
            fill(first, middle)
            fill(middle, last)

    fill(0, len(values) - 1)
    return [kinds[i] for i in range(len(values))]
