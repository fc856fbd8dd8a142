"""Continues after a device failed: builds the same context on other devices and computes its cache
again from the tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import ArrayLike, NDArray

from weft.backends.registry import device_list, require_known
from weft.errors import DeviceError, OutOfMemoryError, warn
from weft.execute import Progress
from weft.llm.cache.cells import Cells
from weft.llm.compute.graphs import Graphs
from weft.llm.model import Model
from weft.llm.planning.context_options import context_options
from weft.llm.planning.options import PlanArguments
from weft.llm.planning.plan import ContextPlan
from weft.llm.planning.prepare import given_plan, prepare
from weft.records import dataclass

_MOVED = ("n_gpu_layers", "place", "plan", "fit", "memory", "policy", "profile",
          "op_offload")  # fmt: skip
"""Options that place weights and caches; they do not apply once a machine is left out."""
_PLACEMENT = (*_MOVED, "fallback", "machines", "machine_key")
"""Options that place weights and caches; they do not apply to the devices of the fallback."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """The plan of a context with its memory and programs."""

    plan: ContextPlan
    graphs: Graphs
    options: PlanArguments
    """The options that the plan was made with: the options of the caller, or of the
    fallback."""
    fell_back: str = ""
    """What failed and which devices go on; empty if nothing failed."""
    serial: int = 0
    """`MachineGroup.serial` of the machines that the model was loaded on."""


def load(
    model: Model,
    n_ctx: int | None,
    options: PlanArguments,
    progress: Progress | None,
    *,
    repack_later: bool = False,
) -> Loaded:
    """Plans and loads a context; `repack_later` is passed to `Graphs`.

    If a device fails to open or to load, the fallback is used. A plan that needs too much memory
    remains an OutOfMemoryError, and an unknown device in the fallback is an error at once."""
    fallback = options.get("fallback")
    for device in device_list(fallback) if fallback else ():
        if isinstance(device, str):
            require_known(device)
    options, serial = _with_group(model, options)
    try:
        plan = prepare(model, n_ctx=n_ctx, **options)
    except OutOfMemoryError:
        raise
    except DeviceError as error:
        return load_without_failed(model, n_ctx, options, error, progress, serial)
    try:
        plan.cache.allocate()
        graphs = Graphs(plan, progress, repack_later=repack_later)
        return Loaded(plan, graphs, options, serial=serial)
    except DeviceError as error:
        return load_without_failed(model, n_ctx, options, error, progress, serial)


def _with_group(model: Model, options: PlanArguments) -> tuple[PlanArguments, int]:
    """The options with the machines connected, and the serial number of these."""
    if not options.get("machines"):
        return options, 0
    from weft.backends.remote.group import machine_group

    folder = str(model.file.path.parent)
    group = machine_group(options["machines"], options.get("machine_key"), [folder])
    return cast("PlanArguments", {**options, "machines": group}), group.serial


def load_without_failed(
    model: Model,
    n_ctx: int | None,
    options: PlanArguments,
    error: DeviceError,
    progress: Progress | None = None,
    serial: int = 0,
    *,
    loading: bool = True,
) -> Loaded:
    """Loads the context without what failed: on machines that are back or left, else on the devices
    of the fallback, with the same sizes.

    The placement is the default one, unless every machine is back. Warns with a text that says what
    failed. Raises `error` itself if there is nothing to go on with."""
    if options.get("machines"):
        return _load_on_machines(model, n_ctx, options, error, progress, serial, loading)
    other = on_fallback(options)
    if other is None:
        raise error
    # the sizes may come from a plan file, which is not used again
    sizes = asdict(context_options(model, n_ctx, options, given_plan(options)))
    n_ctx = sizes.pop("n_ctx")
    if sizes["expert_budget"] is None:
        del sizes["expert_policy"]  # what a budget that was not given would hold
    names = ", ".join(d if isinstance(d, str) else d.name for d in other["devices"] or ())
    why = f"going on with {names}: {error}"
    warn(why, RuntimeWarning)
    loaded = load(model, n_ctx, cast("PlanArguments", {**other, **sizes}), progress)
    return Loaded(loaded.plan, loaded.graphs, loaded.options, why)


def _load_on_machines(
    model: Model,
    n_ctx: int | None,
    options: PlanArguments,
    error: DeviceError,
    progress: Progress | None,
    serial: int,
    loading: bool,
) -> Loaded:
    options, _ = _with_group(model, options)
    group: Any = options["machines"]
    before = len(group.machines)
    said = group.recover(serial, error, loading=loading)
    warn(f"{error}: {said}", RuntimeWarning)
    other = options
    if len(group.machines) < before:
        other = cast("PlanArguments", {k: v for k, v in options.items() if k not in _MOVED})
    return load(model, n_ctx, other, progress)


def on_fallback(options: Mapping[str, Any]) -> PlanArguments | None:
    """The options for the devices of the fallback; None if there is no fallback."""
    devices = options.get("fallback")
    if not devices:
        return None
    others = {name: value for name, value in options.items() if name not in _PLACEMENT}
    return cast("PlanArguments", others | {"devices": device_list(devices)})


# ---- the contents of the cache -------------------------------------------------------------------


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


def decode_anew(context: _Decodes, held: Cells) -> list[int]:
    """Computes the sequences of `held`, the copy of a table of cells, again in an empty context,
    shared tokens only once.

    Returns the sequences that cannot be computed from their tokens, because they were made of rows,
    their positions were changed, or they were assembled from parts of others. Raises the errors of
    `decode`."""
    texts = {seq: held.cells_of(seq) for seq in range(held.n_seq_max) if held.members[seq].any()}
    lost = [seq for seq, cells in texts.items() if not _is_text(held, seq, held.tokens[cells])]
    is_due = np.ones(held.size, np.bool_)
    order: list[int] = []
    for seq, cells in texts.items():
        if seq not in lost:
            order += cells[is_due[cells]].tolist()
            is_due[cells] = False
    for start in range(0, len(order), context.n_batch):
        part = order[start : start + context.n_batch]
        seqs = [[seq for seq in np.flatnonzero(held.members[:, c]).tolist() if seq not in lost]
                for c in part]  # fmt: skip
        context.decode(
            held.tokens[part], held.pos[part], seqs=seqs, outputs=np.zeros(len(part), np.bool_)
        )
    return lost


def _is_text(held: Cells, seq: int, tokens: NDArray[np.int32]) -> bool:
    """True if the tokens of a sequence are known and were decoded in order from its start."""
    whole = held.common_prefix(seq, tokens.astype(np.int64)) == len(tokens)
    return whole and bool((tokens >= 0).all())
