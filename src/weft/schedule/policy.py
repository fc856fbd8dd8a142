"""`schedule`: the passes in order, one call a line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from weft.backends.base import Backend
from weft.errors import ScheduleError
from weft.graph.graph import Graph
from weft.graph.node import describe
from weft.graph.tensor import Tensor
from weft.options import require_choice
from weft.schedule.assign import Where, Why, assign_as_chosen
from weft.schedule.assign import assign as assign_backends
from weft.schedule.cause import CHOSEN, OF_LAYER, PLANNED, USER
from weft.schedule.collector import collector_paused
from weft.schedule.cost import CostOptions, faster, place_by_cost
from weft.schedule.devices import Devices
from weft.schedule.finalize import final_tensors
from weft.schedule.offload import OpOffloadLike
from weft.schedule.parts import Asked
from weft.schedule.result import Schedule
from weft.schedule.split import add_input_copies, build_plan_lists, collect_keeps, cut

Policy = Literal["ggml", "cost", "plan", "layers"]
"""The way nodes get their devices: reference rules, predicted time, or a plan that names them."""


@collector_paused()
def schedule(
    graph: Graph,
    backends: Sequence[Backend],
    policy: Policy = "ggml",
    *,
    op_offload: OpOffloadLike = True,
    n_copies: int = 1,
    assign: Mapping[Tensor, Backend | int] | None = None,
    cur_copy: int = 0,
    first_backend: int = 0,
    cost: CostOptions | None = None,
) -> Schedule:
    """Places every node of `graph` on one of `backends` (highest priority first, a CPU last).

    Policy `ggml` runs the reference's passes. `assign` fixes the tensors it names (to a backend or
    its index). `op_offload` says which devices take ops whose weights are in host memory, and from
    which batch on (`weft.schedule.offload`): by default each decides by itself.

    Policy `cost` takes the placement whose time, as `cost` predicts it, is the least and never
    above that of `ggml`. Policy `plan` takes the device of every node that does work from `assign`;
    the cause is a plan file, or with `cost` the time that `cost` predicts. Policy `layers` does so,
    too, where layers have devices; the cause is the layer.

    With `n_copies` > 1 every input and every tensor that crosses devices exists that many times;
    `cur_copy` is the copy that this schedule uses. `first_backend` runs the single split of a graph
    that consists of views only.

    The function is pure: it changes neither the graph nor its tensors. Raises ScheduleError where a
    tensor cannot be placed, UnsupportedOpError where no device runs a node."""
    if n_copies < 1 or not 0 <= cur_copy < n_copies:
        raise ScheduleError(f"copy {cur_copy} of {n_copies}: need 0 <= cur_copy < n_copies")
    devices = Devices(backends, op_offload)
    if not 0 <= first_backend < devices.n:
        raise ScheduleError(f"first_backend {first_backend} is not one of {devices.n} devices")
    user = _user_assignments(assign or {}, devices)

    def build(where: Where, why: Why) -> Schedule:
        """The schedule that follows from a placement: splits, copies, the allocated graph."""
        copies = n_copies, cur_copy
        result = Schedule(graph, devices.backends, *copies, where, why, devices.refusals)
        cut(result, devices, first_backend)
        add_input_copies(result)
        result.final = final = final_tensors(graph, result.rewired, result.graph_inputs)
        result.origin = {new: old for old, new in final.items()}
        for split in result.splits:
            own = graph.nodes[split.start : split.end]
            split.nodes = [final.get(node, node) for node in own] if final else own
        result.keep = collect_keeps(result)
        result.asked = Asked(policy, devices.op_offload, user, first_backend)
        build_plan_lists(result)
        return result

    if policy == "ggml":
        return build(*assign_backends(graph, devices, user, not devices.op_offload.is_off))
    if policy in ("plan", "layers"):
        cause = OF_LAYER if policy == "layers" else PLANNED if cost is None else CHOSEN
        return build(*assign_as_chosen(graph, devices, user, cause))
    require_choice("policy", policy, ("ggml", "cost", "plan", "layers"), ScheduleError)
    if cost is None:
        raise ScheduleError(
            "policy 'cost' needs a machine profile; measure one with `weft calibrate`"
        )
    rules = build(*assign_backends(graph, devices, user, not devices.op_offload.is_off))
    if all(node.op.is_view for node in graph.nodes):
        return rules
    model = cost.model(graph, devices)

    def build_chosen(chosen: Mapping[Tensor, int]) -> Schedule:
        where, why = assign_as_chosen(graph, devices, user | dict(chosen), CHOSEN)
        return build(where, why | dict.fromkeys(user, USER))

    chosen, found = place_by_cost(model, user, [rules.backend_of], cost.effort)
    return faster(model, rules, build_chosen, chosen, found)


def _user_assignments(
    assign: Mapping[Tensor, Backend | int], devices: Devices
) -> dict[Tensor, int]:
    user: dict[Tensor, int] = {}
    for tensor, target in assign.items():
        index = target if isinstance(target, int) else _index_of(target, devices)
        if not 0 <= index < devices.n:
            names = ", ".join(b.name for b in devices.backends)
            raise ScheduleError(
                f"{describe(tensor)} is assigned to device {target!r}, which is not one of {names}"
            )
        user[tensor] = index
    return user


def _index_of(backend: Backend, devices: Devices) -> int:
    for i, candidate in enumerate(devices.backends):
        if candidate is backend:
            return i
    return -1
