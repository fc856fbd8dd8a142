"""From a graph with its arguments to a blob: memory of the caller, weight formats, plan, bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft.compiler import compile
from weft.errors import UnsupportedOpError
from weft.graph.graph import Graph
from weft.graph.op import NONE
from weft.graph.tensor import Buffer, Tensor
from weft.graph.text import format_graph
from weft.program import Program
from weft.schedule.cost import CostOptions, choose_homes
from weft.schedule.machine import paper_devices
from weft.schedule.profile import Profile
from weft_executorch.blob import About, Blob, IoSpec, Prediction, StateSpec, write_blob
from weft_executorch.events import NodeInfo, step_events
from weft_executorch.lowered import Argument, Delegated
from weft_executorch.options import Options
from weft_executorch.weights import store_weights

__all__ = ["prepare"]


def prepare(
    delegated: Delegated,
    options: Options,
    left_out: Sequence[tuple[str, str, str]] = (),
    fixed: Mapping[str, int] | None = None,
    nodes: Sequence[NodeInfo] = (),
    n_outputs: int = 0,
) -> Blob:
    """Plans the graph for the cpu and writes it.

    `left_out` are rows of (node, op, reason) for people; `fixed` are symbols that have one value.
    `nodes` and `n_outputs` are of the exported program, for event tracers.
    The graph is used up: its leaves and outputs get memory that represents the caller's. Raises
    UnsupportedOpError where the cpu has no kernel for a node, ProgramError where no input
    determines a dynamic size."""
    _own_memory(delegated)
    states = [_state_memory(state.leaf, state) for state in delegated.states]
    store_weights(delegated.graph, options.weights)
    text = format_graph(delegated.graph)
    machine = options.machine()
    activations = options.activations
    if activations == "auto":
        activations = "f32" if delegated.exact_activations else "native"
    least = None if machine is None else _least_seconds(delegated.graph, machine)
    program = compile(
        delegated.graph, ["cpu"], policy=options.policy, repack=options.pack,
        cost=None if machine is None else CostOptions(machine), activations=activations,
    )  # fmt: skip
    if len(program.splits) != 1:
        raise UnsupportedOpError("the delegated graph has no step that the cpu runs")
    about = About(
        text,
        left_out,
        step_events(program, delegated, nodes, n_outputs),
        None if machine is None else _predicted(program, machine, least),
    )
    return write_blob(
        program,
        [_io(program, a, program.inputs) for a in delegated.inputs],
        [_io(program, a, program.outputs) for a in delegated.outputs],
        states,
        threads=options.threads,
        share_state=options.share_state,
        fixed=fixed or {},
        about=about,
    )


def _least_seconds(graph: Graph, machine: Profile) -> float | None:
    """The least predicted time over all devices of a machine, with weights in any of its
    memories."""
    model = CostOptions(machine).model(graph, paper_devices(machine))
    limits = {m.name: m.size for m in machine.memories.values() if m.size is not None}
    homes = choose_homes(model, [t for t in graph.leaves if t.buffer is not None], limits)
    return None if homes is None else homes.seconds


def _predicted(program: Program, machine: Profile, least: float | None) -> Prediction:
    seconds = program.plan.schedule.predicted.total
    devices = tuple(device.name for device in machine.devices)
    return Prediction(machine.name, seconds, devices, min(seconds, least or seconds))


def _own_memory(delegated: Delegated) -> None:
    """Gives the arguments memory of their own, which a call replaces by the caller's."""
    for argument in delegated.inputs:
        if argument.tensor is not None:
            argument.tensor.buffer = _stand_in(argument.tensor)
    for argument in delegated.outputs:
        tensor = argument.tensor
        if tensor is not None and _may_own(tensor):
            tensor.buffer = _stand_in(tensor)


def _may_own(tensor: Tensor) -> bool:
    """Whether a step of its own computes the tensor; leaves and views lie in other memory."""
    return (
        tensor.op is not NONE
        and not tensor.op.is_view
        and tensor.view_src is None
        and tensor.buffer is None
    )


def _stand_in(tensor: Tensor) -> Buffer:
    # the pages are never touched, as only the address counts
    return Buffer("any", data=np.empty(max(1, tensor.max_bytes), np.uint8))


def _state_memory(leaf: Tensor, state: object) -> StateSpec:
    from weft_executorch.lowered import State

    assert isinstance(state, State)
    leaf.buffer = _stand_in(leaf)
    return StateSpec(leaf.buffer.data, state.name, state.first)


def _io(program: Program, argument: Argument, named: dict[str, int]) -> IoSpec:
    if argument.tensor is None:
        return IoSpec(argument.name, -1, argument.dims, argument.scalar_type)
    index = named[argument.tensor.name]
    data = program.buffers[program.tensors[index].buffer].data
    return IoSpec(argument.name, index, argument.dims, argument.scalar_type, data)
