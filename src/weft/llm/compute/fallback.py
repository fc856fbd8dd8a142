"""Going on without a device that failed: the same context on other devices, and what was in its
cache computed anew from the tokens."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.backends.registry import require_known
from weft.errors import DeviceError, OutOfMemoryError
from weft.execute import Progress
from weft.llm.cache.cells import Cells, Kept
from weft.llm.compute.graphs import Graphs
from weft.llm.model import Model
from weft.llm.planning.options import PlanArguments, context_options
from weft.llm.planning.plan import ContextPlan
from weft.llm.planning.prepare import given_plan, prepare

__all__ = [
    "Held",
    "Loaded",
    "decode_anew",
    "load",
    "load_without_failed",
    "on_fallback",
    "remember",
]

_PLACEMENT = ("n_gpu_layers", "place", "plan", "fit", "memory", "policy", "profile", "fallback")
"""What said where things go; it was meant for the devices that are given up."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """A context's plan with its memory and programs."""

    plan: ContextPlan
    graphs: Graphs
    options: PlanArguments
    """Those that it was made with: those given, or those of the fallback."""
    fell_back: str = ""
    """What failed and which devices go on; empty: nothing has."""


def load(
    model: Model, n_ctx: int | None, options: PlanArguments, progress: Progress | None
) -> Loaded:
    """Plans and loads a context, on the fallback where a device fails to be opened or loaded. A
    plan that needs more memory than there is stays an error, and so does a fallback that nobody
    knows."""
    for device in options.get("fallback") or ():
        if isinstance(device, str):
            require_known(device)
    try:
        plan = prepare(model, n_ctx=n_ctx, **options)
    except OutOfMemoryError:
        raise
    except DeviceError as error:
        return load_without_failed(model, n_ctx, options, error, progress)
    try:
        plan.cache.allocate()
        return Loaded(plan, Graphs(plan, progress), options)
    except DeviceError as error:
        return load_without_failed(model, n_ctx, options, error, progress)


def load_without_failed(
    model: Model,
    n_ctx: int | None,
    options: PlanArguments,
    error: DeviceError,
    progress: Progress | None = None,
) -> Loaded:
    """The context on the devices of the fallback, with the same sizes, placed as by default. Warns
    with what failed; raises `error` itself where there is no fallback."""
    other = on_fallback(options)
    if other is None:
        raise error
    # a plan file may have said how large everything is
    sizes = asdict(context_options(model, n_ctx, options, given_plan(options)))
    n_ctx = sizes.pop("n_ctx")
    names = ", ".join(d if isinstance(d, str) else d.name for d in other["devices"] or ())
    why = f"going on with {names}: {error}"
    warnings.warn(why, RuntimeWarning, stacklevel=4)
    made = load(model, n_ctx, cast("PlanArguments", {**other, **sizes}), progress)
    return Loaded(made.plan, made.graphs, made.options, why)


def on_fallback(options: Mapping[str, Any]) -> PlanArguments | None:
    """The options with the devices of the fallback instead; None where there is none."""
    devices = options.get("fallback")
    if not devices:
        return None
    kept = {name: value for name, value in options.items() if name not in _PLACEMENT}
    return cast("PlanArguments", kept | {"devices": devices})


# ---- what was in the cache -----------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Held:
    """A copy of the table of a cache: which tokens it holds, without keys and values."""

    pos: NDArray[np.int32]
    members: NDArray[np.bool_]
    tokens: NDArray[np.int32]
    serial: NDArray[np.int64]
    mixed: NDArray[np.bool_]

    def cells(self) -> Cells:
        """The table."""
        n_seq, size = self.members.shape
        found, used = Cells(size, n_seq), np.flatnonzero(self.pos >= 0)
        rows = self.pos[used], self.members[:, used], self.tokens[used], self.serial[used]
        found.put_back(Kept(used, *rows))
        found.mixed[:] = self.mixed
        return found


def remember(cache: Cells) -> Held:
    """What a cache holds; whole copies, as this is done before every call."""
    tables = cache.pos.copy(), cache.members.copy(), cache.tokens.copy(), cache.serial.copy()
    return Held(*tables, cache.mixed.copy())


class _Decodes(Protocol):
    n_batch: int

    def decode(
        self,
        tokens: ArrayLike,
        positions: ArrayLike | None = ...,
        *,
        seqs: list[list[int]] | None = ...,
        outputs: ArrayLike = ...,
    ) -> NDArray[np.float32]: ...


def decode_anew(context: _Decodes, cache: Held) -> list[int]:
    """Computes the sequences of `cache` in an empty context, each as the beginning of a text and
    what they share once. Returns those that cannot be had from their tokens: of rows, of positions
    that were moved, or put together from parts of others. Raises as `decode`."""
    held = cache.cells()
    texts = {seq: held.cells_of(seq) for seq in range(held.n_seq_max) if held.members[seq].any()}
    lost = [seq for seq, cells in texts.items() if not _is_text(held, seq, held.tokens[cells])]
    left = np.ones(held.size, np.bool_)
    order: list[int] = []
    for seq, cells in texts.items():
        if seq not in lost:
            order += cells[left[cells]].tolist()
            left[cells] = False
    for start in range(0, len(order), context.n_batch):
        part = order[start : start + context.n_batch]
        seqs = [[seq for seq in np.flatnonzero(held.members[:, c]).tolist() if seq not in lost]
                for c in part]  # fmt: skip
        context.decode(
            held.tokens[part], held.pos[part], seqs=seqs, outputs=np.zeros(len(part), np.bool_)
        )
    return lost


def _is_text(held: Cells, seq: int, tokens: NDArray[np.int32]) -> bool:
    whole = held.common_prefix(seq, tokens.astype(np.int64)) == len(tokens)
    return whole and bool((tokens >= 0).all())
