"""Pass 5 and the steps behind it: splits, copies between devices, and the graph that is
allocated.
"""

from __future__ import annotations

from weft.errors import ScheduleError
from weft.graph.node import describe
from weft.graph.op import NONE
from weft.graph.tensor import Tensor
from weft.schedule.assign import Where, buffer_supported
from weft.schedule.cause import COPY, INPUT_COPY
from weft.schedule.devices import Devices
from weft.schedule.result import Role, Schedule, Split

# The reference stores names in 64 bytes with a final zero.
_NAME_BYTES = 63
# The reference's number of sources per node; a `keep` node holds no more.
_MAX_SRC = 10

_IN_AND_OUT = frozenset({"input", "output"})


def cut(schedule: Schedule, devices: Devices, first_backend: int) -> None:
    """Pass 5: cuts the nodes into splits, and copies the sources that a split cannot read.

    A new split starts where the backend changes, and where a split that already has inputs needs a
    weight from elsewhere, so that the memory of earlier weights can be reused. Sources that the
    split's backend cannot read become copies, made once per tensor and backend. Views never start a
    split and are never rewired. `first_backend` is the backend of a graph of views only. Raises
    ScheduleError for a source that no pass could place."""
    graph, where, copies = schedule.graph, schedule.backend_of, schedule.copies
    work = [(i, node) for i, node in enumerate(graph.nodes) if not node.op.is_view]
    current = where[work[0][1]] if work else first_backend
    split = Split(current, 0, len(graph.nodes))
    schedule.splits.append(split)
    for i, node in work:
        b = where[node]
        if b != current or (split.inputs and _reads_foreign_weight(node, current, devices, where)):
            split.end = i
            split = Split(b, i, len(graph.nodes))
            schedule.splits.append(split)
            current = b
        for j, src in enumerate(node.src):
            if src is None:
                continue
            at = where.get(src, -1)
            if at == current:
                continue
            if at == -1:
                raise ScheduleError(
                    f"{describe(src)}, source {j} of {describe(node)}, could not be placed: "
                    "it is a view of a tensor that nothing else reads; give the base a device"
                )
            if buffer_supported(src, current, devices, where):
                continue
            if (src, current, 0) not in copies:
                _copy_all(schedule, src, current)
                split.inputs.append(src)
            schedule.rewired[(node, j)] = copies[(src, current, schedule.cur_copy)]


def _reads_foreign_weight(node: Tensor, current: int, devices: Devices, where: Where) -> bool:
    return any(
        src is not None
        and src.buffer is not None
        and src.buffer.usage == "weights"
        and where.get(src, -1) != current
        and not buffer_supported(src, current, devices, where)
        for src in node.src
    )


def _copy_all(schedule: Schedule, src: Tensor, backend: int) -> None:
    for c in range(schedule.n_copies):
        copy = _copy_of(src, schedule.backends[backend].name, c)
        if schedule.n_copies > 1:
            copy.flags = _IN_AND_OUT
        schedule.copies[(src, backend, c)] = copy
        schedule.cause_of[copy] = COPY


def _copy_of(tensor: Tensor, backend: str, number: int) -> Tensor:
    """A leaf with the type, sizes and strides of `tensor`, named `BACKEND#name#number`."""
    name = f"{backend}#{tensor.name}#{number}"
    if len(name) > _NAME_BYTES or not name.isascii():
        name = name.encode()[:_NAME_BYTES].decode(errors="ignore")
    return Tensor(tensor.dtype, tensor.ne, nb=tensor.nb, name=name, rank=tensor.rank)


def add_input_copies(schedule: Schedule) -> None:
    """Pass 6, with several copies: every input gets its copies on its own backend.

    The current copy is the input itself, so that a batch can be prepared while another runs."""
    if schedule.n_copies == 1:
        return
    copies = schedule.copies
    schedule.graph_inputs = [leaf for leaf in schedule.graph.leaves if "input" in leaf.flags]
    for leaf in schedule.graph_inputs:
        b = schedule.backend_of.get(leaf, -1)
        if b == -1:
            raise ScheduleError(f"input {describe(leaf)} has no device")
        if (leaf, b, 0) in copies:
            continue
        for c in range(schedule.n_copies):
            if c == schedule.cur_copy:
                copy = leaf
            else:
                copy = _copy_of(leaf, schedule.backends[b].name, c)
                copy.flags = _IN_AND_OUT
            copies[(leaf, b, c)] = copy
            schedule.cause_of[copy] = INPUT_COPY


def collect_keeps(schedule: Schedule) -> dict[Tensor, list[Tensor]]:
    """Node -> tensors that the backend of its split keeps allocated until the node has run.

    The optional backend method `allocation_deps(nodes)` returns them as pairs (tensor, until).
    Raises ScheduleError for a node that is not in the graph."""
    keep: dict[Tensor, list[Tensor]] = {}
    graph_nodes: set[Tensor] | None = None
    for split in schedule.splits:
        backend = schedule.backends[split.backend]
        nodes = schedule.graph.nodes[split.start : split.end]
        for tensor, until in backend.allocation_deps(nodes):
            if graph_nodes is None:
                graph_nodes = set(schedule.graph.nodes)
            if until not in graph_nodes:
                raise ScheduleError(
                    f"{backend.name} wants {describe(tensor)} kept until {describe(until)}, which "
                    "is not a node of the graph"
                )
            tensors = keep.setdefault(until, [])
            if tensor not in tensors:
                tensors.append(tensor)
    return keep


def build_plan_lists(schedule: Schedule) -> None:
    """Fills the lists that memory is planned on from `splits[].nodes`, as final tensors
    throughout."""
    final = schedule.final
    where = schedule.backend_of
    cur_copy = schedule.cur_copy
    nodes: list[Tensor] = []
    node_backends: list[int] = []
    roles: dict[Tensor, Role] = {}
    origin = schedule.origin
    keep_until = {final.get(node, node): tensors for node, tensors in schedule.keep.items()}

    for split in schedule.splits:
        split.copies = []
        for tensor in split.inputs:
            source = final.get(tensor, tensor)
            copy = schedule.copies[(tensor, split.backend, cur_copy)]
            dep = _view_of(source, (source,))
            roles[dep] = Role("dep", (tensor,))
            roles[copy] = Role("copy", (tensor,), split.backend, cur_copy)
            nodes += (dep, copy)
            node_backends += (where[tensor], split.backend)
            split.copies.append((source, copy))
        for node in split.nodes:
            nodes.append(node)
            # a view may be on another backend than the split it happens to stand in
            node_backends.append(where.get(origin.get(node, node), split.backend))
            tensors = keep_until.get(node, ()) if keep_until else ()
            for k in range(0, len(tensors), _MAX_SRC):
                group = tuple(tensors[k : k + _MAX_SRC])
                kept = tuple(final.get(t, t) for t in group)
                dep = _view_of(kept[0], kept)
                roles[dep] = Role("keep", group)
                nodes.append(dep)
                node_backends.append(split.backend)

    leaves: list[Tensor] = []
    leaf_backends: list[int] = []
    if schedule.n_copies > 1:
        crossing = [(t, where[t]) for t in schedule.graph_inputs]
        crossing += [(t, split.backend) for split in schedule.splits for t in split.inputs]
        for tensor, b in crossing:
            for c in range(schedule.n_copies):
                copy = schedule.copies[(tensor, b, c)]
                if copy is not tensor:
                    roles[copy] = Role("copy", (tensor,), b, c)
                leaves.append(final.get(copy, copy))
                leaf_backends.append(b)
    for leaf in schedule.graph.leaves:
        leaves.append(final.get(leaf, leaf))
        leaf_backends.append(where.get(leaf, -1))

    n_inputs = len(schedule.graph_inputs) + sum(len(s.inputs) for s in schedule.splits)
    n_keeps = sum(-(-len(tensors) // _MAX_SRC) for tensors in schedule.keep.values())
    longest = max(len(schedule.graph.nodes), len(schedule.graph.leaves))
    schedule.graph_size = longest + n_inputs * 2 * schedule.n_copies + n_keeps
    schedule.plan_nodes, schedule.plan_node_backends = nodes, node_backends
    schedule.plan_leaves, schedule.plan_leaf_backends = leaves, leaf_backends
    schedule.roles = roles


def _view_of(tensor: Tensor, src: tuple[Tensor, ...]) -> Tensor:
    base = tensor if tensor.view_src is None else tensor.view_src
    return Tensor(
        tensor.dtype,
        tensor.ne,
        nb=tensor.nb,
        name=f"{tensor.name} (view)",
        op=NONE,
        src=src,
        view_src=base,
        view_offs=tensor.view_offs,
    )
