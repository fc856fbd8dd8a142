"""The choice of `weft quantize --fit` as a file, to read and to use again.

JSON, `"format": "weft-fit-1"`: the model, the budget, the text, the figures, and `tensors`, each
with `name`, `type`, `before`, `bytes`, the divergence `kl` that its group causes alone in this type
(nats), `kl_of` in all its types, and `why`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from weft.dtype import DTYPES, DType
from weft.errors import FormatError
from weft.files import read_json
from weft.frontends.gguf import GGUFFile
from weft.frontends.gguf.mixes import is_quantized
from weft.llm.cache.cache_types import CacheTypes
from weft.llm.fitting.budget import Choice, file_bytes_of
from weft.llm.fitting.choices import Group
from weft.llm.fitting.fit import Fit, Tried
from weft.tables import size_text
from weft.version import __version__

FORMAT = "weft-fit-1"


def fit_data(fit: Fit) -> dict[str, Any]:
    """The data of the file, and of the report."""
    options, best = fit.options, fit.best
    weights = sum(t.n_elements for t in fit.file.tensors.values())
    budget = options.budget
    return {
        "format": FORMAT,
        "kind": "fit",
        "weft": __version__,
        "title": f"{fit.file.path.name} for {_budget_text(fit)}",
        "model": {"file": fit.file.path.name, "architecture": fit.file.architecture},
        "budget": {
            "memory": budget.memory,
            "file": budget.file,
            "tokens_per_second": 1 / budget.seconds if budget.seconds else None,
        },
        "n_ctx": options.n_ctx,
        **best.choice.cache._asdict(),
        "text": {"tokens": fit.text.chunks.size, "chunk": fit.text.n_ctx},
        "manner": fit.manner,
        "chosen": _row(best.choice, weights, best),
        "of_use": best.is_of_use,
        "warning": fit.warning,
        "least_of_use": None
        if (least := fit.least_of_use) is None
        else _row(least.choice, weights, least),
        "tried": [_row(t.choice, weights, t) for t in fit.tried],
        "mixes": [_row(m, weights) for m in fit.mixes],
        "curve": [_row(c, weights) for c in fit.curve],
        "caches": [{**c.pair._asdict(), "kl": c.kl, "bytes": c.nbytes} for c in fit.fitting.caches],
        "tensors": [row for group in fit.groups for row in _tensors(fit, group)],
    }


def _budget_text(fit: Fit) -> str:
    budget = fit.options.budget
    parts = []
    if budget.memory is not None:
        parts.append(f"{size_text(budget.memory)} of memory")
    if budget.file is not None:
        parts.append(f"a file of {size_text(budget.file)}")
    if budget.seconds is not None:
        parts.append(f"{1 / budget.seconds:.4g} tokens/s")
    return f"{' and '.join(parts)}, {fit.options.n_ctx} tokens of context"


def _row(choice: Choice, weights: int, tried: Tried | None = None) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": choice.name,
        "bytes": choice.whole.nbytes,
        "weights": choice.whole.weights,
        "cache": choice.whole.cache,
        "file": choice.file,
        "bits": choice.file * 8 / max(weights, 1),
        "kl_sum": choice.kl,
        "tokens_per_second": choice.whole.tokens_per_second,
        "certain": choice.is_best,
    }
    if tried is not None:
        row |= {
            "kl": tried.kl, "kl_error": tried.kl_error, "kl_99": tried.kl_99,
            "same_top": tried.same_top,
        }  # fmt: skip
    return row


def _tensors(fit: Fit, group: Group) -> list[dict[str, Any]]:
    costs = fit.sensitivities[group.name]
    dtype = fit.best.choice.types[group.name]
    why = _why(fit, group, dtype)
    return [
        {
            "name": name,
            "type": dtype.name,
            "before": fit.file.tensors[name].dtype.name,
            "bytes": file_bytes_of(fit.file, _alone(group, name), dtype),
            "group": group.name,
            "kl": costs.get(dtype.name),
            "kl_of": costs,
            "why": why,
        }
        for name in group.tensors
    ]


def _alone(group: Group, name: str) -> Group:
    return Group(name, (name,), group.types, group.before)


def _why(fit: Fit, group: Group, dtype: DType) -> str:
    """The savings and costs of the next smaller and larger types."""
    if len(group.types) == 1:
        return "it has no other type to choose from, or was given one"
    costs = fit.sensitivities[group.name]
    if dtype.name not in costs:
        return f"the mix {fit.best.choice.name} has it"

    def size(other: DType) -> int:
        return file_bytes_of(fit.file, group, other)

    def than(other: DType) -> str:
        nbytes, kl = size(other) - size(dtype), costs[other.name] - costs[dtype.name]
        more = "more" if nbytes > 0 else "less"
        return f"{other.name} takes {size_text(abs(nbytes))} {more} for {kl:+.2g} nats"

    # only those that no other beats in both
    steps = [
        d
        for d in group.types
        if not any(size(o) <= size(d) and costs[o.name] < costs[d.name] for o in group.types)
    ]
    smaller = [d for d in steps if size(d) < size(dtype)]
    larger = [d for d in steps if size(d) > size(dtype)]
    parts = [than(max(smaller, key=size))] if smaller else []
    parts += [than(min(larger, key=size))] if larger else []
    lead = "by the mix; " if fit.best.choice.name != "fit" else ""
    return lead + ("; ".join(parts) or "no other type is better in size or divergence")


def types_in_plan(path: str | os.PathLike[str], file: GGUFFile) -> tuple[dict[str, DType], str]:
    """The types of a plan file for the tensors of `file`, by name, and its cache types as options.

    Raises FormatError for a file that is not such a plan, or is the plan of another model."""
    data = read_json(path, "plan")
    where = f"plan {path}"
    if not isinstance(data, Mapping) or data.get("format") != FORMAT:
        raise FormatError(
            f"{where}: format is not {FORMAT!r}; give a file that weft quantize --fit saved"
        )
    types = read_plan_types(data, file, where)
    cache = ""
    pair = CacheTypes(*map(data.get, CacheTypes._fields))  # type: ignore[arg-type]
    if all(isinstance(name, str) for name in pair) and pair != CacheTypes():
        cache = pair.flags
    return types, cache


def read_plan_types(data: Mapping[str, Any], file: GGUFFile, where: str) -> dict[str, DType]:
    """The types in the data of a plan, checked against the tensors of `file`."""
    rows = data.get("tensors")
    if not isinstance(rows, list):
        raise FormatError(f"{where}: 'tensors' must be a list")
    types: dict[str, DType] = {}
    for row in rows:
        name, kind = (row.get("name"), row.get("type")) if isinstance(row, Mapping) else (0, 0)
        if not isinstance(name, str) or not isinstance(kind, str):
            raise FormatError(f"{where}: an entry of 'tensors' has no name or no type")
        t = file.tensors.get(name)
        if t is None:
            raise FormatError(
                f"{where}: {file.path.name} has no tensor {name!r}; the plan is of another model "
                f"({_file_of(data)})"
            )
        dtype = DTYPES.get(kind)
        if dtype is None or kind.startswith(("i8", "i16", "i32", "i64", "q8_1", "q8_K")):
            raise FormatError(f"{where}: {name} has type {kind!r}, which is not a type of weights")
        if dtype is not t.dtype and not is_quantized(t, file.architecture):
            raise FormatError(f"{where}: {name} cannot have another type than {t.dtype.name}")
        if t.ne[0] % dtype.block:
            raise FormatError(
                f"{where}: {name} has rows of {t.ne[0]} values, which are not whole blocks of "
                f"{dtype.name} ({dtype.block}); the plan is of another model ({_file_of(data)})"
            )
        types[name] = dtype
    if not types:
        raise FormatError(f"{where}: it names no tensors")
    return types


def _file_of(data: Mapping[str, Any]) -> str:
    model = data.get("model")
    return str(model.get("file", "?")) if isinstance(model, Mapping) else "?"
