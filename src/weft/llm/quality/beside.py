"""Tensors of a run beside tensors of another program: which is the first that differs?

log = read_tensor_log("eval.log")
print(compare_tensors(llm.context, log, llm.tokenize("The capital of France is")))
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import field
from fnmatch import fnmatchcase
from itertools import takewhile
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.execute import WatchedTensor
from weft.graph.ops.activations import GluOp, UnaryOp
from weft.llm.compute.context import Context
from weft.llm.model import Model
from weft.llm.models.names import own_name
from weft.llm.quality.tensor_log import LoggedTensor, TensorLog
from weft.records import dataclass

TOLERANCES = {"f32": 0.004, "f16": 0.005, "bf16": 0.01}
"""The distance of two tensors that agree, by the type of the model's matrices. The distance is the
root mean square of differences over the root mean square of the values there."""
OTHER_TOLERANCE = 0.015
"""The same for block types, whose products round activations, in each program in its own way."""
GROWTH = 5.0
"""A distance may also be the largest one before the first difference times this: layers make
differences larger."""

_ROUNDED = 6e-5
"""The difference that four printed decimals allow."""
_MOVES = ("RESHAPE", "VIEW", "CONT", "CPY")
"""Ops that change no value: a tensor made by one is compared with the tensor of its name."""
_OVER_CACHE = ("kq", "v_cont", "cache_")
"""Tensors as long as the part of the cache that is read, which programs choose as they like."""


@dataclass(frozen=True, slots=True)
class TensorPair:
    """A tensor here and there."""

    name: str
    """The name there."""
    op: str
    ne: tuple[int, ...]
    run: int
    """The number of the ubatch."""
    difference: float
    """The largest difference of printed values; NaN where one of them alone is not a number."""
    place: tuple[int, ...]
    """Where that is, innermost first."""
    ours: float
    theirs: float
    our_sum: float
    their_sum: float | None
    distance: float
    """The root mean square of differences over the root mean square of the values there."""
    bound: float
    """The largest distance of tensors that agree."""
    differs: bool
    sources: tuple[str, ...] = ()
    """Names of what it is made of."""


@dataclass(slots=True)
class TensorComparison:
    """Tensors of a run here beside tensors of another program."""

    pairs: list[TensorPair] = field(default_factory=list)
    """In the order there."""
    other_sizes: list[str] = field(default_factory=list)
    """Tensors that have other sizes here, with both."""
    only_theirs: list[str] = field(default_factory=list)
    """Names of tensors that are only there."""
    notes: list[str] = field(default_factory=list)
    """Differences of the inputs, and what else a reader has to know."""
    inputs_differ: bool = False
    there: str = "the log"
    """The other program."""
    about: str = ""
    """Lines about what was compared, and how large a distance may be."""

    @property
    def first(self) -> TensorPair | None:
        """The first tensor that differs."""
        return next((pair for pair in self.pairs if pair.differs), None)

    @property
    def differs(self) -> bool:
        """Whether tensors, their sizes or the inputs differ, or nothing could be compared."""
        return bool(self.first or self.other_sizes or self.inputs_differ or not self.pairs)

    def __str__(self) -> str:
        return f"{self.table()}\n{self.summary()}"

    def summary(self) -> str:
        """The first difference with its figures, and what could not be compared."""
        first, n = self.first, sum(pair.differs for pair in self.pairs)
        lines = [*self.notes, self.about]
        if first is not None:
            name, *figures = _told(first)
            lines += [f"first tensor that differs: {name}", *figures, *self._sources(first)]
            lines.append(f"{n} of {len(self.pairs)} tensors differ")
        elif self.pairs:
            worst = max(self.pairs, key=lambda pair: pair.distance)
            name, *figures = _told(worst)
            lines += [f"all {len(self.pairs)} tensors agree; the most distant: {name}", *figures]
        else:
            lines.append("no tensor has the same name and sizes here")
        if self.other_sizes:
            lines.append(f"other sizes: {_listed(self.other_sizes)}")
        if self.only_theirs:
            lines.append(f"only in {self.there}: {_listed(self.only_theirs)}")
        return "\n".join(lines)

    def table(self) -> str:
        """A line for each tensor: name, op and sizes, the largest difference, the distance and its
        bound."""
        rows = [
            (
                pair.name, pair.op, _braced(pair.ne), f"{pair.difference:.4g}",
                f"{pair.distance:.3%}", f"{pair.bound:.3%}", "differs" if pair.differs else "",
            )
            for pair in self.pairs
        ]  # fmt: skip
        rows.insert(0, ("tensor", "op", "sizes", "difference", "distance", "bound", ""))
        widths = [max(len(row[i]) for row in rows) for i in range(7)]
        lines = ("  ".join(x.ljust(n) for x, n in zip(row, widths, strict=True)) for row in rows)
        return "\n".join(line.rstrip() for line in lines)

    def _sources(self, pair: TensorPair) -> Iterable[str]:
        """A line about the tensors that `pair` is made of."""
        before = self.pairs[: self.pairs.index(pair)]
        for name in pair.sources:
            own = [other for other in before if other.name == name and other.run == pair.run]
            if own:
                yield f"  reads {name}, which {_verdict(own[-1])} (distance {own[-1].distance:.2%})"
            elif name.endswith((".weight", ".bias", ".scale")) or "inp_" in name:
                yield f"  reads {name}"
            else:
                yield f"  reads {name}, which is not compared"
        if pair.bound == 0.0:
            yield "  it has whole numbers; a choice, as of experts, changes where scores are close"


def _verdict(pair: TensorPair) -> str:
    return "differs" if pair.differs else "agrees"


def _told(pair: TensorPair) -> list[str]:
    """Lines about a pair, the first one with its name."""
    run = f" of ubatch {pair.run}" if pair.run else ""
    at = _braced(pair.place[: len(_short(pair.ne))], short=False)
    lines = [
        f"{pair.name} ({pair.op} {_braced(pair.ne)}){run}",
        f"  distance {pair.distance:.2%} of at most {pair.bound:.2%}",
        f"  max |difference| {pair.difference:.4g} at {at}: {pair.ours:.6g} here, "
        f"{pair.theirs:.6g} there",
    ]
    if pair.their_sum is not None:
        lines.append(f"  sum {pair.our_sum:.6g} here, {pair.their_sum:.6g} there")
    return lines


def _braced(sizes: Sequence[int], *, short: bool = True) -> str:
    """Sizes as ggml's logs have them, `{64, 4}`."""
    return "{" + ", ".join(map(str, _short(sizes) if short else sizes)) + "}"


def _short(ne: Sequence[int]) -> Sequence[int]:
    """Sizes without trailing ones, at least two."""
    n = max((d + 1 for d in range(len(ne)) if ne[d] != 1), default=1)
    return ne[: max(n, 2)]


def _listed(names: Sequence[str], most: int = 12) -> str:
    """Names, in which `*` stands for the number of layers."""
    whole = list(dict.fromkeys(re.sub(r"-\d+", "-*", name) for name in names))
    more = f" and {len(whole) - most} more" if len(whole) > most else ""
    return ", ".join(whole[:most]) + more


def tolerance_of(model: Model) -> tuple[str, float]:
    """The type of the model's matrices that bounds least, and the distance that it allows."""
    types = {w.dtype.name for w in model.weights.values() if w.ne[1] != 1} or {"f32"}
    bounds = {name: TOLERANCES.get(name, OTHER_TOLERANCE) for name in types}
    worst = max(bounds, key=lambda name: (bounds[name], name))
    return worst, bounds[worst]


@dataclass(slots=True, eq=False)
class _Seen:
    """A tensor here, with the values that logged tensors of its name need."""

    name: str
    op: str
    sources: frozenset[str]
    ne: tuple[int, ...]
    values: dict[int, _Values] = field(default_factory=dict)
    """By the number of the logged tensor in its run; none where the sizes are others."""


@dataclass(slots=True)
class _Values:
    values: NDArray[np.float64]
    kept: NDArray[np.bool_]
    """Which of the printed values there these are for."""
    sum: float
    """NaN where the tensor there has other columns besides."""


class _Watch:
    """A callback that keeps of each tensor the elements which a run of the log has."""

    def __init__(self, logged: Sequence[LoggedTensor]) -> None:
        self.wanted: dict[str, list[tuple[int, LoggedTensor]]] = {}
        for number, tensor in enumerate(logged):
            self.wanted.setdefault(own_name(tensor.name), []).append((number, tensor))
        self.seen: list[_Seen] = []

    def __call__(self, tensor: WatchedTensor, ask: bool) -> bool:
        if ask:
            return tensor.name in self.wanted
        array = tensor.numbers()
        ne = (*reversed(array.shape), 1, 1, 1, 1)[:4]
        seen = _Seen(tensor.name, tensor.op, _bare(tensor.sources), ne)
        for number, logged in self.wanted[tensor.name]:
            values = _values(array.reshape(-1), ne, logged)
            if values is not None:
                seen.values[number] = values
        self.seen.append(seen)
        return True


def _bare(names: Iterable[str]) -> frozenset[str]:
    """Names here of tensors, without what views add to them."""
    return frozenset(own_name(name).partition(" (")[0] for name in names)


def _values(flat: NDArray[Any], ne: tuple[int, ...], logged: LoggedTensor) -> _Values | None:
    """The values here for the printed ones of a logged tensor; None where sizes are others.

    One of the two may be of the last token alone, whose logits are wanted."""
    places, kept, one = logged.places, np.ones(len(logged.places), bool), False
    if math.prod(logged.ne) != flat.size:
        apart = [d for d in range(1, 4) if ne[d] != logged.ne[d]]
        if ne[0] != logged.ne[0] or len(apart) != 1 or 1 not in (ne[apart[0]], logged.ne[apart[0]]):
            return None
        d, one = apart[0], True
        kept = places[:, d] == logged.ne[d] - 1
        places = places.copy()
        places[:, d] = ne[d] - 1
    sizes = ne if one else logged.ne
    steps = np.array([1, sizes[0], sizes[0] * sizes[1], math.prod(sizes[:3])], np.int64)
    values = flat[(places @ steps)[kept]].astype(np.float64)
    total = math.nan if one else float(np.sum(flat, dtype=np.float64))
    return _Values(values, kept, total)


def compare_tensors(
    context: Context,
    log: TensorLog,
    tokens: Sequence[int],
    glob: str = "*",
    *,
    there: str = "the log",
    least: float = 0.0,
) -> TensorComparison:
    """Computes the prompt in the ubatches of the log, and compares the tensors that match `glob`,
    by their names here or there.

    Where the log lists its tokens, these are computed; `tokens` are the prompt's here. `there` is
    what the log is of, `least` a distance that it allows. The cache is cleared before and after;
    the context's `eval_callback` is not called meanwhile, and is there again afterwards. Raises
    ContextError if the log is of another number of tokens."""
    model = context.model
    type_, bound = tolerance_of(model)
    bound = max(bound, least)
    result = TensorComparison(there=there)
    theirs = log.tokens if log.tokens is not None else list(tokens)
    if theirs != list(tokens):
        result.inputs_differ = True
        result.notes.append(_tokens_differ(list(tokens), theirs))
    largest = max(theirs, default=0)
    if largest >= model.config.n_vocab:
        raise ContextError(
            f"{there} has the token {largest}, but {model.file.path.name} has tokens 0 to "
            f"{model.config.n_vocab - 1}; give the same model"
        )
    runs = _runs_of(log, len(theirs))
    widest = max(n for _, n in runs)
    if widest > context.n_ubatch:
        raise ContextError(
            f"{there} has a ubatch of {widest} tokens, but a ubatch here has at most "
            f"{context.n_ubatch}; give -b and -ub {widest} or more"
        )
    if not any(_is_wanted(t.name, glob) for run, _ in runs for t in run):
        names = dict.fromkeys(t.name for run, _ in runs for t in run if _is_wanted(t.name, "*"))
        raise ContextError(f"{glob!r} matches no tensor of the log; it has {_listed(list(names))}")
    if log.cut:
        result.notes.append(f"the log ends in the middle of {log.cut}")
    start, callback = 0, context.eval_callback
    context.clear()  # positions begin at 0, as in the log
    try:
        for number, (run, n) in enumerate(runs):
            logged = [t for t in run if _is_wanted(t.name, glob)]
            watch = _Watch(logged)
            context.set_eval_callback(watch)
            context.decode(theirs[start : start + n])
            start += n
            _compare(result, watch, logged, number, bound)
    finally:
        context.set_eval_callback(callback)
        context.clear()
    result.about = (
        f"{len(result.pairs)} tensors compared, {len(theirs)} tokens, matrices of type {type_}\n"
        "distance: root mean square of differences / root mean square of values there;\n"
        f"  at most {bound:.1%}, or {GROWTH:g} times the largest before"
    )
    return result


def _is_wanted(name: str, glob: str) -> bool:
    """Whether a tensor of the log is one to compare: its name matches and is not a number's, and
    it is not a view, which has the values of another."""
    own = own_name(name)
    if name.startswith(("node_", "leaf_")) or " (" in name or not name:
        return False
    return fnmatchcase(name, glob) or fnmatchcase(own, glob)


def _tokens_differ(ours: list[int], theirs: list[int]) -> str:
    """A sentence about prompts whose tokens are not the same."""
    if theirs[1:] == ours or ours[1:] == theirs:
        who, first = ("here", ours[0]) if ours[1:] == theirs else ("in the log", theirs[0])
        why = f"only the prompt {who} begins with the special token {first}"
    else:
        n = min(len(ours), len(theirs))
        at = next((i for i in range(n) if ours[i] != theirs[i]), n)
        why = f"the first that differs is at position {at}"
    return (
        f"the prompts differ: {len(ours)} tokens here, {len(theirs)} in the log; {why}. The log's "
        "tokens are computed"
    )


def _runs_of(log: TensorLog, n_tokens: int) -> list[tuple[list[LoggedTensor], int]]:
    """The last runs of the log that together have the tokens of the prompt, with the number of
    each; runs before them warm up."""
    sizes = [log.n_tokens(i) for i in range(len(log.runs))]
    for start in reversed(range(len(sizes))):
        if sum(sizes[start:]) == n_tokens:
            return list(zip(log.runs[start:], sizes[start:], strict=True))
    said = " + ".join(map(str, sizes[:8]))
    raise ContextError(
        f"the log's tensors are of {said} tokens, the prompt has {n_tokens}: their sizes differ; "
        "give the prompt of the log (a first special token counts)"
    )


def _compare(
    result: TensorComparison, watch: _Watch, logged: Sequence[LoggedTensor], run: int, bound: float
) -> None:
    matches = _matches(watch.seen, logged)
    sizes = {(seen.name, seen.op): seen.ne for seen in watch.seen}
    for number, tensor in enumerate(logged):
        own, seen = own_name(tensor.name), matches.get(number)
        if seen is not None:
            sound = takewhile(lambda p: not p.differs, result.pairs)
            before = max((p.distance for p in sound), default=0.0)
            pair = _pair(tensor, seen.values[number], run, bound, GROWTH * before)
            result.pairs.append(pair)
        elif (own, _kind(tensor.op)) not in sizes or any(number in s.values for s in watch.seen):
            result.only_theirs.append(tensor.name)
        elif not own.startswith(_OVER_CACHE):
            here = _braced(sizes[own, _kind(tensor.op)])
            result.other_sizes.append(f"{tensor.name} {here} here, {_braced(tensor.ne)} there")


def _matches(seen: Sequence[_Seen], logged: Sequence[LoggedTensor]) -> dict[int, _Seen]:
    """The tensor here of each logged one, by its number.

    Names repeat, so that the op and the sources decide; sizes decide before that. Where no source
    has a name in both, as many must be left on both sides."""
    found: dict[int, _Seen] = {}
    taken: set[_Seen] = set()

    def take(number: int, own: _Seen) -> None:
        found[number] = own
        taken.add(own)

    for exact in (True, False):
        left: dict[tuple[str, str], list[int]] = {}
        for number, tensor in enumerate(logged):
            if number in found:
                continue
            key = own_name(tensor.name), _kind(tensor.op)
            sources = _bare(name for name, _ in tensor.sources)
            own = _free(seen, taken, number, key, tensor.ne if exact else None)
            alike = max(own, key=lambda s: len(s.sources & sources), default=None)
            if alike is not None and alike.sources & sources:
                take(number, alike)
            else:
                left.setdefault(key, []).append(number)
        for key, numbers in left.items():
            for number in numbers:
                own = _free(seen, taken, number, key, logged[number].ne if exact else None)
                n_left = sum(
                    1 for n in numbers if n not in found and logged[n].ne == logged[number].ne
                )
                if own and len(own) == n_left:
                    take(number, own[0])
    last = {own_name(tensor.name): number for number, tensor in enumerate(logged)}
    for name, number in last.items():
        if number not in found and logged[number].op in _MOVES:
            own = [s for s in seen if s.name == name and number in s.values and s not in taken]
            if own:
                take(number, own[-1])
    return found


def _free(
    seen: Sequence[_Seen],
    taken: set[_Seen],
    number: int,
    key: tuple[str, str],
    ne: tuple[int, ...] | None,
) -> list[_Seen]:
    """Tensors here that nothing has taken, of this name and op, and of these sizes if given."""
    return [
        s for s in seen
        if (s.name, s.op) == key and s not in taken and number in s.values and ne in (None, s.ne)
    ]  # fmt: skip


def _kind(op: str) -> str:
    """The name here of an op of the log, which has the function of an activation."""
    if op in GluOp.__members__:
        return "GLU"
    return "UNARY" if op in UnaryOp.__members__ else op


def _pair(tensor: LoggedTensor, seen: _Values, run: int, bound: float, grown: float) -> TensorPair:
    """A tensor here and there, which agree up to the distance `bound` and what differences before
    have grown to."""
    theirs, ours, places = tensor.values[seen.kept], seen.values, tensor.places[seen.kept]
    alike = (ours == theirs) | (np.isnan(ours) & np.isnan(theirs))
    with np.errstate(invalid="ignore"):
        apart = np.where(alike, 0.0, np.abs(ours - theirs))
    apart = np.where(np.isnan(apart), np.inf, apart)
    size = _mean_square(theirs[np.isfinite(theirs)])
    if tensor.type.startswith("i"):
        bound = grown = 0.0
    distance = max(0.0, _mean_square(apart) - _ROUNDED) / (size or 1.0)
    n = math.prod(tensor.ne)
    sums = 4 * (bound * size + _ROUNDED) * math.sqrt(n) + grown * size * n
    bound += grown
    differs = distance > bound or _sums_differ(tensor, seen.sum, sums)
    names = tuple(name for name, _ in tensor.sources)
    their_sum = None if math.isnan(seen.sum) else tensor.sum
    place, own, other = (0, 0, 0, 0), math.nan, math.nan
    if apart.size:
        at = int(apart.argmax())
        place, own, other = tuple(places[at].tolist()), float(ours[at]), float(theirs[at])
    return TensorPair(
        tensor.name, tensor.op, tensor.ne, run, float(apart.max(initial=0.0)), place, own, other,
        seen.sum, their_sum, distance, bound, differs, names,
    )  # fmt: skip


def _mean_square(values: NDArray[np.float64]) -> float:
    """The root mean square; 0 of no values."""
    return math.sqrt(float(np.mean(values * values))) if values.size else 0.0


def _sums_differ(tensor: LoggedTensor, ours: float, allowed: float) -> bool:
    """Whether sums differ by more than `allowed` and the rounding of a sum in float32."""
    if tensor.sum is None or not tensor.values.size or not math.isfinite(tensor.sum + ours):
        return False  # printed values tell where numbers are not finite
    n, largest = math.prod(tensor.ne), float(np.nanmax(np.abs(tensor.values)))
    return abs(tensor.sum - ours) > allowed + 1e-6 * n * largest
