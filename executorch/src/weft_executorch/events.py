"""The steps of a part for event tracers: names, nodes, intermediate results.

ExecuTorch's Inspector finds the nodes of a step by the step's name, and compares the value of a
node in the exported program with the one that the step gave. Of the events with a debug handle it
takes the first, and fails on one without a value. So only the last step of a node has its value,
the delegate reports values before times, and a node without a value is given to no step.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from weft.graph.size import Size
from weft.program import Program
from weft_executorch.lowered import Delegated, NodeValue

__all__ = ["Event", "EventValue", "NodeInfo", "step_events"]

_SCALAR_TYPES = {"f32": 6, "f16": 5, "bf16": 15, "i8": 1, "i16": 2, "i32": 3, "i64": 4, "f64": 7}
"""ExecuTorch's numbers of element types, by weft's name."""


@dataclass(frozen=True, slots=True)
class NodeInfo:
    """A node of the exported program, its debug handle, and the names of the nodes that read it."""

    name: str
    handle: int
    readers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class EventValue:
    """The value of a node, as a view of all elements that step number `step` computes."""

    step: int
    scalar_type: int
    dims: tuple[Size, ...]
    strides: tuple[Size, ...] = ()
    """In elements; empty where they lie in order."""
    offset: Size = 0


@dataclass(frozen=True, slots=True)
class Event:
    """A step as a tracer sees it."""

    name: str
    """No other step of the part has it."""
    handles: tuple[int, ...] = ()
    """The debug handles of the nodes that it computes; the value is of the last."""
    values: tuple[EventValue, ...] = ()
    """The results of the node that is complete with this step."""


def step_events(
    program: Program, delegated: Delegated, nodes: Sequence[NodeInfo] = (), n_outputs: int = 0
) -> tuple[Event, ...]:
    """The events of a program's steps.

    `nodes` are the exported program's nodes with debug handles, in order; `n_outputs` is the number
    of its outputs. Without them every step has its own result for a value."""
    steps = program.splits[0].steps
    names = [program.tensors[step.dst].name for step in steps]
    handles = {node.name: node.handle for node in nodes}
    values = _values(delegated, names, handles)
    groups = _groups([handle for handle, _ in values.values()], nodes, handles)
    readers = {t: number for number, s in reversed([*enumerate(steps)]) for t in s.src}
    taken: Counter[str] = Counter()
    events = []
    for number, (step, name) in enumerate(zip(steps, names, strict=True)):
        title = f"{step.op.name} {name}"
        taken[title] += 1
        title = title if taken[title] == 1 else f"{title} ({taken[title]})"
        if number in values:
            last, results = values[number]
            # The Inspector takes as many handles of each step as the delegate has outputs, from the
            # end. It skips numbers that no node has.
            padding = [-(last << 16 | i) for i in range(1, n_outputs)]
            events.append(Event(title, (*groups[last][:-1], *padding, last), results))
        elif nodes:
            reader, _ = values.get(readers.get(step.dst, -1), (0, ()))
            handle = handles.get(_maker(delegated, name)) or groups.get(reader, [0])[0]
            told = any(handle in group for group in groups.values())
            events.append(Event(title, (handle,) if told else ()))
        else:
            events.append(Event(title, (), _own(program, number, step.dst)))
    return tuple(events)


def _maker(delegated: Delegated, tensor: str) -> str:
    """The node for which a tensor was made; empty for tensors that weft inserts."""
    return delegated.origin.get(tensor, "").partition(".result")[0].partition(".out")[0]


def _values(
    delegated: Delegated, names: Sequence[str], handles: Mapping[str, int]
) -> dict[int, tuple[int, tuple[EventValue, ...]]]:
    """Step -> the debug handle and the results of the node that is complete with it.

    Nodes into which an op was decomposed share a handle, and the last of them has its value. Nodes
    that are views of the value of another node have no step, except where they are outputs."""
    numbers = {name: i for i, name in enumerate(names)}
    copies = {
        output.name.partition(".out")[0]: NodeValue(output.tensor, output.scalar_type, output.dims)
        for output in delegated.outputs
        if output.tensor is not None
    }
    found: dict[int, tuple[int, tuple[EventValue, ...]]] = {}
    # the Inspector takes a result of several tensors at its node, not where one is taken out
    last = {
        handle: node
        for node, handle in handles.items()
        if "getitem" not in node and (node in delegated.values or node in copies)
    }
    for handle, node in last.items():

        def is_own(tensor: str, handle: int = handle) -> bool:
            return handles.get(_maker(delegated, tensor)) == handle

        for values in (delegated.values.get(node, (None,)), (copies.get(node),)):
            results = (_seen(v, numbers, is_own) for v in values if v is not None)
            known = [result for result in results if result is not None]
            if known:
                found[max(result.step for result in known)] = handle, tuple(known)
                break
    return found


def _seen(
    value: NodeValue, numbers: Mapping[str, int], is_own: Callable[[str], bool]
) -> EventValue | None:
    """The value in what a step of its own node gives; None where there is no such step."""
    tensor, offset = value.tensor, value.offset
    if tensor.name not in numbers and tensor.view_src is not None:
        if not tensor.is_contiguous or not isinstance(tensor.view_offs, int):
            return None
        offset = offset + tensor.view_offs // tensor.dtype.bytes
        tensor = tensor.view_src
    if tensor.name not in numbers or not is_own(tensor.name):
        return None
    return EventValue(numbers[tensor.name], value.scalar_type, value.dims, value.strides, offset)


def _own(program: Program, number: int, dst: int) -> tuple[EventValue, ...]:
    """All that a step gives, as it is; nothing where ExecuTorch has no such type."""
    spec = program.tensors[dst]
    scalar_type = _SCALAR_TYPES.get(spec.dtype.name)
    dims = list(spec.ne)
    while len(dims) > 1 and dims[-1] == 1:
        dims.pop()
    return () if scalar_type is None else (EventValue(number, scalar_type, tuple(dims[::-1])),)


def _groups(
    told: Sequence[int], nodes: Sequence[NodeInfo], handles: Mapping[str, int]
) -> dict[int, list[int]]:
    """Each handle that has a value -> the handles of all nodes that are part of its step, in order.

    A node that has no value of its own and that only one step reads was fused into that step, or is
    a view."""
    readers: dict[int, set[int]] = {}
    for node in nodes:
        readers.setdefault(node.handle, set()).update(handles.get(n, 0) for n in node.readers)
    groups = {handle: [handle] for handle in told}
    group_of = {handle: handle for handle in told}
    for handle in reversed(readers):
        if handle not in group_of:
            found = {group_of.get(reader) for reader in readers[handle] - {handle}}
            group = found.pop() if len(found) == 1 else None
            if group is not None:
                group_of[handle] = group
                groups[group].insert(0, handle)
    return groups
