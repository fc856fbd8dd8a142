"""Tensors of a run beside tensors of another program: which is the first that differs?

log = read_tensor_log("eval.log")
print(compare_tensors(llm.context, log, llm.tokenize("The capital of France is")))
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fnmatch import fnmatchcase
from itertools import takewhile

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.compute.context import Context
from weft.llm.model import Model
from weft.llm.models.names import own_name
from weft.llm.quality.tensor_log import LoggedTensor, TensorLog
from weft.llm.quality.tensor_matches import Values, Watch, kind_of, matched
from weft.llm.quality.tensor_pairs import TensorComparison, TensorPair, braced, listed

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
_OVER_CACHE = ("kq", "v_cont", "cache_")
"""Tensors as long as the part of the cache that is read, which programs choose as they like."""


def tolerance_of(model: Model) -> tuple[str, float]:
    """The type of the model's matrices that bounds least, and the distance that it allows."""
    types = {w.dtype.name for w in model.weights.values() if w.ne[1] != 1} or {"f32"}
    bounds = {name: TOLERANCES.get(name, OTHER_TOLERANCE) for name in types}
    worst = max(bounds, key=lambda name: (bounds[name], name))
    return worst, bounds[worst]


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
    _require_comparable(context, runs, glob, there)
    if log.cut:
        result.notes.append(f"the log ends in the middle of {log.cut}")
    start, callback = 0, context.eval_callback
    context.clear()  # positions begin at 0, as in the log
    try:
        for number, (run, n) in enumerate(runs):
            logged = [t for t in run if _is_wanted(t.name, glob)]
            watch = Watch(logged)
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


def _require_comparable(
    context: Context, runs: Sequence[tuple[list[LoggedTensor], int]], glob: str, there: str
) -> None:
    """Raises ContextError for ubatches that the context does not compute at once, and for a `glob`
    that matches no tensor."""
    widest = max(n for _, n in runs)
    if widest > context.n_ubatch:
        raise ContextError(
            f"{there} has a ubatch of {widest} tokens, but a ubatch here has at most "
            f"{context.n_ubatch}; give -b and -ub {widest} or more"
        )
    if not any(_is_wanted(t.name, glob) for run, _ in runs for t in run):
        names = dict.fromkeys(t.name for run, _ in runs for t in run if _is_wanted(t.name, "*"))
        raise ContextError(f"{glob!r} matches no tensor of the log; it has {listed(list(names))}")


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
    result: TensorComparison, watch: Watch, logged: Sequence[LoggedTensor], run: int, bound: float
) -> None:
    matches = matched(watch.seen, logged)
    sizes = {(seen.name, seen.op): seen.ne for seen in watch.seen}
    for number, tensor in enumerate(logged):
        own, seen = own_name(tensor.name), matches.get(number)
        if seen is not None:
            sound = takewhile(lambda p: not p.differs, result.pairs)
            before = max((p.distance for p in sound), default=0.0)
            pair = _pair(tensor, seen.values[number], run, bound, GROWTH * before)
            result.pairs.append(pair)
        elif (own, kind_of(tensor.op)) not in sizes or any(number in s.values for s in watch.seen):
            result.only_theirs.append(tensor.name)
        elif not own.startswith(_OVER_CACHE):
            here = braced(sizes[own, kind_of(tensor.op)])
            result.other_sizes.append(f"{tensor.name} {here} here, {braced(tensor.ne)} there")


def _pair(tensor: LoggedTensor, seen: Values, run: int, bound: float, grown: float) -> TensorPair:
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
