"""The best types for a budget: sensitivities, sizes and the solver put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Unpack

from weft.dtype import DType
from weft.errors import OutOfMemoryError, UnsupportedOpError
from weft.frontends.gguf import GGUFFile
from weft.frontends.gguf.mixes import MIXES, Choices
from weft.frontends.gguf.quantize import types_of
from weft.llm.cache.cache_types import CacheTypes
from weft.llm.fitting.choices import Group
from weft.llm.fitting.knapsack import Option, solve
from weft.llm.fitting.measured import Sensitivities
from weft.llm.fitting.sizes import Sizes, Whole
from weft.llm.planning.options import PlanArguments
from weft.records import dataclass
from weft.tables import size_text

_TRIES = 8


@dataclass(frozen=True, slots=True)
class Budget:
    """The limits of a choice; None: no limit."""

    memory: int | None = None
    """Maximum number of bytes of a whole context."""
    file: int | None = None
    """Maximum number of bytes of the tensors in the file."""
    seconds: float | None = None
    """Maximum predicted number of seconds for a generated token."""

    def holds(self, whole: Whole, file: int) -> bool:
        """Whether a choice is within the budget."""
        return not (
            (self.memory is not None and whole.nbytes > self.memory)
            or (self.file is not None and file > self.file)
            or (self.seconds is not None and whole.seconds > self.seconds)
        )


@dataclass(frozen=True, slots=True)
class CacheCost:
    """A pair of cache types: divergence, and bytes and seconds beyond what the first pair takes."""

    pair: CacheTypes
    kl: float
    nbytes: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Choice:
    """A type for each tensor of the groups."""

    name: str
    """`fit`, or the name of a mix."""
    types: Mapping[str, DType]
    """Name of a group -> type."""
    kl: float
    """Sum of the divergences that each group and the cache cause alone, in nats."""
    whole: Whole
    file: int
    """Bytes of all tensors in the file."""
    cache: CacheTypes
    is_best: bool = True
    """False if the solver ran out of time."""


def file_bytes(file: GGUFFile, types: Mapping[str, DType]) -> int:
    """The bytes of all tensors of a file with tensors of these types, by name."""
    total = 0
    for t in file.tensors.values():
        dtype = types.get(t.name, t.dtype)
        same = dtype is t.dtype
        total += t.nbytes if same else dtype.row_bytes(t.ne[0]) * (t.n_elements // t.ne[0])
    return total


class Fitting:
    """Chooses among the types of groups, and the types of the cache."""

    def __init__(
        self,
        file: GGUFFile,
        groups: Sequence[Group],
        sizes: Sizes,
        sensitivities: Sensitivities,
        caches: Sequence[CacheCost],
    ) -> None:
        """`caches` has at least one pair; the first is the pair in the plans of `sizes`."""
        self.file, self.groups, self.sizes = file, groups, sizes
        self.sensitivities, self.caches = sensitivities, caches
        changed = {n for group in groups for n in group.tensors}
        others = (t.nbytes for t in file.tensors.values() if t.name not in changed)
        self._other_file_bytes = sum(others)

    def best(self, budget: Budget, sensitivities: Sensitivities | None = None) -> Choice | None:
        """The choice of least divergence within the budget; None: there is none."""
        costs = self.sensitivities if sensitivities is None else sensitivities
        memory, file, seconds = budget.memory, budget.file, budget.seconds
        for _ in range(_TRIES):
            found = self._solved(Budget(memory, file, seconds), costs)
            if found is None or budget.holds(found.whole, found.file):
                return found
            # what is the same for all choices is so but for little: allow for the difference
            if memory is not None and budget.memory is not None:
                memory -= max(0, found.whole.nbytes - budget.memory)
            if seconds is not None and budget.seconds is not None:
                seconds -= max(0.0, found.whole.seconds - budget.seconds) * 1.001
        return None

    def planned(self, choice: Choice) -> Choice:
        """The choice with the sizes of a plan."""
        return self.choice(choice.name, choice.types, choice.cache)

    def curve(self, n: int, cache: CacheTypes) -> list[Choice]:
        """The best choices for `n` sizes, from the least to the size with the types of the file."""
        costs = [c for c in self.caches if c.pair == cache]
        alone = Fitting(self.file, self.groups, self.sizes, self.sensitivities, costs)
        least = sum(min(self.sizes.nbytes(g, d) for d in g.types) for g in self.groups)
        most = sum(self.sizes.nbytes(g, g.types[0]) for g in self.groups)
        other = self.sizes.fixed_bytes + costs[0].nbytes
        found: list[Choice] = []
        for i in range(n):
            memory = other + least + (most - least) * i // max(n - 1, 1)
            choice = alone._solved(Budget(memory=memory), self.sensitivities, planned=False)
            if choice is not None and (not found or choice.types != found[-1].types):
                found.append(choice)
        return found

    def choice(
        self, name: str, types: Mapping[str, DType], cache: CacheTypes, *, planned: bool = True
    ) -> Choice:
        """The choice of a fixed type for each group. Without `planned` its sizes are sums of parts,
        which are right but for small buffers."""
        by_tensor = self.by_tensor(types)
        cost = next(c for c in self.caches if c.pair == cache)
        kl = cost.kl + sum(self.sensitivities[g.name][types[g.name].name] for g in self.groups)
        if planned:
            whole = self.sizes.whole(by_tensor, **cache._asdict())
        else:
            whole = self.sizes.estimated(types, cost.nbytes, cost.seconds)
        return Choice(name, types, kl, whole, file_bytes(self.file, by_tensor), cache)

    def least(self) -> Choice:
        """The choice that takes the least memory."""
        cache = min(self.caches, key=lambda c: c.nbytes)
        return self.choice("least", self._least(self.sizes.nbytes), cache.pair)

    def fastest(self) -> Choice:
        """The choice of the highest predicted speed."""
        cache = min(self.caches, key=lambda c: c.seconds)
        return self.choice("fastest", self._least(self.sizes.seconds), cache.pair)

    def _least(self, size: Callable[[Group, DType], float]) -> dict[str, DType]:
        """The type of least size for each group."""
        found: dict[str, DType] = {}
        for group in self.groups:
            sizes = {dtype: size(group, dtype) for dtype in group.types}
            found[group.name] = min(sizes, key=sizes.__getitem__)
        return found

    def by_tensor(self, types: Mapping[str, DType]) -> dict[str, DType]:
        """Types by tensor, from types by group."""
        return {name: types[g.name] for g in self.groups for name in g.tensors}

    def _solved(
        self, budget: Budget, costs: Sensitivities, *, planned: bool = True
    ) -> Choice | None:
        sizes = self.sizes
        limits: list[float] = []
        if budget.memory is not None:
            limits.append(budget.memory - sizes.fixed_bytes)
        if budget.file is not None:
            limits.append(budget.file - self._other_file_bytes)
        if budget.seconds is not None:
            limits.append(budget.seconds - sizes.fixed_seconds)

        def taken(memory: float, file: float, seconds: float) -> tuple[float, ...]:
            pairs = ((budget.memory, memory), (budget.file, file), (budget.seconds, seconds))
            return tuple(n for limit, n in pairs if limit is not None)

        def option(group: Group, dtype: DType) -> Option:
            in_file = file_bytes_of(self.file, group, dtype)
            here = sizes.nbytes(group, dtype), in_file, sizes.seconds(group, dtype)
            return Option(costs[group.name][dtype.name], taken(*here))

        options = [[option(g, dtype) for dtype in g.types] for g in self.groups]
        options.append([Option(c.kl, taken(c.nbytes, 0, c.seconds)) for c in self.caches])
        found = solve(options, limits, 1e-6 if planned else 1e-3)
        if found is None:
            return None
        picks = dict(zip(self.groups, found.chosen, strict=False))
        types = {g.name: g.types[i] for g, i in picks.items()}
        cache = self.caches[found.chosen[-1]].pair
        chosen = self.choice("fit", types, cache, planned=planned)
        return chosen if found.is_best else replace(chosen, is_best=False)


def file_bytes_of(file: GGUFFile, group: Group, dtype: DType) -> int:
    """Bytes of a group's tensors in the file, in a type."""
    tensors = (file.tensors[name] for name in group.tensors)
    return sum(
        t.nbytes if dtype is t.dtype else dtype.row_bytes(t.ne[0]) * (t.n_elements // t.ne[0])
        for t in tensors
    )


def named_mixes(fitting: Fitting, choices: Choices | None, cache: CacheTypes) -> list[Choice]:
    """The mixes of llama-quantize whose types the groups may have, with estimated sizes; one of
    those whose types are the same."""
    found: dict[tuple[tuple[str, str], ...], Choice] = {}
    names = {n for group in fitting.groups for n in group.tensors}
    for mix in MIXES.values():
        try:
            types = types_of(fitting.file, mix.name, choices)
        except UnsupportedOpError:
            continue
        if any(types[g.tensors[0]] is not types[n] for g in fitting.groups for n in g.tensors):
            continue  # differs within a group
        if any(types[g.tensors[0]] not in g.types for g in fitting.groups):
            continue
        key = tuple((n, types[n].name) for n in sorted(names))
        if key not in found:
            chosen = {g.name: types[g.tensors[0]] for g in fitting.groups}
            found[key] = fitting.choice(mix.name, chosen, cache, planned=False)
    return list(found.values())


def require_least(fitting: Fitting, budget: Budget, n_ctx: int) -> None:
    """Raises OutOfMemoryError, with the least size or the highest speed that there is, where no
    choice can be within the budget."""
    least = fitting.least()
    if budget.memory is not None and least.whole.nbytes > budget.memory:
        whole = least.whole
        rest = whole.nbytes - whole.weights - whole.cache
        raise OutOfMemoryError(
            f"no types fit into {size_text(budget.memory)}: with a context of {n_ctx} tokens, the "
            f"smallest take {size_text(whole.nbytes)} (weights {size_text(whole.weights)}, cache "
            f"{size_text(whole.cache)} as {least.cache}, compute {size_text(rest)}); make "
            "`n_ctx` smaller, or --fit larger"
        )
    if budget.file is not None and least.file > budget.file:
        raise OutOfMemoryError(
            f"no types make a file of {size_text(budget.file)}: the smallest make one of "
            f"{size_text(least.file)}; make --fit-file larger"
        )
    if budget.seconds is not None:
        fastest = fitting.fastest()
        if fastest.whole.seconds > budget.seconds:
            raise OutOfMemoryError(
                f"no types reach {1 / budget.seconds:.4g} tokens/s: {1 / fastest.whole.seconds:.4g}"
                " are predicted for the fastest; make --speed or -c smaller"
            )


def cache_costs(
    fitting_sizes: Sizes,
    types: Mapping[str, DType],
    kl: Mapping[CacheTypes, float],
    **options: Unpack[PlanArguments],
) -> list[CacheCost]:
    """The costs of pairs of cache types, the first of which the plans of `fitting_sizes` have."""
    costs: list[CacheCost] = []
    first: Whole | None = None
    for pair, cost in kl.items():
        merged: Any = {**options, **pair._asdict()}
        whole = fitting_sizes.whole(types, **merged)
        if first is None:
            first = whole
        costs.append(
            CacheCost(pair, cost, whole.nbytes - first.nbytes, whole.seconds - first.seconds)
        )
    return costs
