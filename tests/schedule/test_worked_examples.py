"""The worked examples of the two published walks through the reference's scheduler, with their
tables: "split graph" (how a graph becomes subgraphs) and "process ubatch" (the passes, step by
step). `G` is a GPU, `C` the CPU, `?` a node without a device."""

from __future__ import annotations

from tests.schedule.planning_graphs import Stub, chain, cpu, gpu, node, value, view, weight
from weft.backends.null import NullBufferType
from weft.graph import upper
from weft.graph.graph import Graph
from weft.graph.node import leaf
from weft.graph.tensor import Tensor
from weft.schedule import Schedule, schedule
from weft.schedule.assign import sweep, sweeps
from weft.schedule.devices import Devices


def start(pattern: str) -> tuple[Graph, Devices, dict[Tensor, int]]:
    """A row of nodes of which some have a device already."""
    g, c = gpu(), cpu()
    graph = chain(pattern.replace(" ", ""), {"G": g, "C": c})
    where = {
        n: "GC".index(letter)
        for n, letter in zip(graph.nodes, pattern.replace(" ", ""), strict=True)
        if letter != "?"
    }
    return graph, Devices([g, c]), where


def row(graph: Graph, where: dict[Tensor, int]) -> str:
    return " ".join("?GC"[where.get(n, -1) + 1] for n in graph.nodes)


def splits(scheduled: Schedule) -> list[tuple[str, int, int, list[str]]]:
    """Backend, i_start, i_end and inputs of each split."""
    return [
        (scheduled.backends[s.backend].name, s.start, s.end, [t.name for t in s.inputs])
        for s in scheduled.splits
    ]


# ---- split graph ---------------------------------------------------------------------------------


def test_six_nodes_in_two_splits() -> None:
    """
    graph->nodes = [Node0, Node1, Node2, Node3, Node4, Node5]
    splits[0] = {i_start: 0, i_end: 3, backend_id: GPU_BACKEND}   // first 3 nodes
    splits[1] = {i_start: 3, i_end: 6, backend_id: CPU_BACKEND}   // last 3 nodes
    """
    g, c = gpu(), cpu()
    scheduled = schedule(chain("GGGCCC", {"G": g, "C": c}), [g, c])
    assert [(name, a, b) for name, a, b, _ in splits(scheduled)] == [("gpu", 0, 3), ("cpu", 3, 6)]


def test_inputs_of_a_split() -> None:
    """
    Node1(GPU) -> Node2(GPU) -> Node3(CPU) -> Node4(CPU)
    Split1: {GPU, i_start: 0, i_end: 2, inputs: []}        // all inputs are on the GPU
    Split2: {CPU, i_start: 2, i_end: 4, inputs: [Node2]}   // needs Node2's output
    """
    g, c = gpu(), cpu()
    x = weight("x", g, (64, 4))
    x.buffer.usage = "any"  # a value that is on the GPU already
    nodes = [x]
    for i in range(1, 5):
        nodes.append(node("SQR", f"Node{i}", nodes[-1]))
    scheduled = schedule(
        Graph(nodes[-1]), [g, c], assign={nodes[1]: g, nodes[2]: g, nodes[3]: c, nodes[4]: c}
    )
    assert splits(scheduled) == [("gpu", 0, 2, []), ("cpu", 2, 4, ["Node2"])]


def test_two_leaves_and_a_product() -> None:
    """
    mul = a * b: n_nodes = 1, n_leafs = 2. None of them has memory or a weight, so pass 1 leaves
    the node unassigned (-1) and so do the sweeps of pass 2.
    """
    a, b = leaf("f32", (1,), "a"), leaf("f32", (1,), "b")
    graph = Graph(node("MUL", "mul", a, b))
    assert len(graph.nodes) == 1 and [t.name for t in graph.leaves] == ["a", "b"]
    devices, where = Devices([cpu()]), {}
    for one in sweeps(graph, devices.last, op_offload=True):
        if one.number in "12":
            one.walk(one.order, devices, where, {})
            assert set(where.values()) == {-1}
    scheduled = schedule(graph, [cpu()])
    causes = [scheduled.cause_of[t].code for t in (graph.nodes[0], a, b)]
    assert causes == ["3.best", "4.cur", "4.cur"]


def test_an_input_goes_to_the_last_device() -> None:
    """`graph input: cur_backend_id = sched->n_backends - 1; SET_CAUSE(tensor, "1.inp")`"""
    x = value("x")
    scheduled = schedule(Graph(node("SQR", "y", x)), [gpu(), cpu()])
    assert (scheduled.backend_of[x], scheduled.cause_of[x].code) == (1, "1.inp")


def test_forward_and_backward_pass() -> None:
    """
    Initial state:        Node1(?) -> Node2(?) -> Node3(GPU) -> Node4(?)   -> Node5(GPU)
    After forward pass:   Node1(?) -> Node2(?) -> Node3(GPU) -> Node4(GPU) -> Node5(GPU)
    After backward pass:  all on the GPU
    """
    graph, devices, where = start("? ? G ? G")
    sweep(graph.nodes, devices, where, {}, devices.last)
    assert row(graph, where) == "? ? G G G"
    sweep(reversed(graph.nodes), devices, where, {}, devices.last)
    assert row(graph, where) == "G G G G G"


def test_upgrade_by_buffer_type() -> None:
    """
    Backend    Buffer type    Physical memory
    CUDA GPU   CUDA_MEMORY    NVIDIA GPU memory
    ROCm GPU   ROCM_MEMORY    AMD GPU memory
    CPU        HOST_MEMORY    system RAM
    BLAS       HOST_MEMORY    system RAM

    Pass 3 moves a node to a device of higher priority only where the buffer types are the same: a
    product on the CPU goes to BLAS, not to a GPU.
    """
    host = NullBufferType("HOST_MEMORY")
    cuda, rocm = gpu("CUDA"), gpu("ROCm")
    blas = Stub("BLAS", "ACCEL", ops=["MUL_MAT"], memory=host)
    c = Stub("CPU", "CPU", memory=host)
    x = node("SQR", "x", value("in"))
    y = node("MUL_MAT", "y", x, x, shape=(4, 4))
    z = node("SQR", "z", y)
    scheduled = schedule(Graph(z), [cuda, rocm, blas, c], assign={x: c, y: c, z: c})
    placements = [(scheduled.backend_for(n).name, scheduled.cause_of[n].code) for n in (x, y, z)]
    assert placements == [("CPU", "usr"), ("BLAS", "3.upg"), ("CPU", "usr")]


def test_views_and_sources_of_pass_4() -> None:
    """A view goes where its source is; a source without a device goes where its reader is."""
    g, c = gpu(), cpu()
    loose = leaf("f32", (64, 4), "loose")
    x = node("ADD", "x", node("MUL_MAT", "m", weight("w", g), value("in"), shape=(64, 4)), loose)
    v = view("v", x, "RESHAPE")
    scheduled = schedule(Graph(node("SQR", "y", v)), [g, c])
    assert (scheduled.backend_of[v], scheduled.cause_of[v].code) == (0, "4.vsrc")
    assert (scheduled.backend_of[loose], scheduled.cause_of[loose].code) == (0, "4.cur")


def test_a_new_split_for_a_foreign_weight() -> None:
    """
    `need_new_split`: a node of the split's own backend reads a weight that lives elsewhere, and
    the split has inputs already: "by starting a new split, the memory of the previously offloaded
    weights can be reused".
    """
    g, c = gpu(offload_from=1), cpu()
    scheduled = schedule(chain("CC", {"C": c}), [g, c])
    assert splits(scheduled) == [("gpu", 0, 1, ["w0", "x"]), ("gpu", 1, 2, ["w1"])]


def test_more_inputs_than_the_reference_has_room_for() -> None:
    """The reference starts a new split when one has 30 inputs; here a split has as many as it
    needs."""
    g, c = gpu(), cpu()
    total = value("x0")
    nodes = []
    for i in range(1, 40):
        total = node("ADD", f"s{i}", total, value(f"x{i}"))
        nodes.append(total)
    scheduled = schedule(Graph(total), [g, c], assign=dict.fromkeys(nodes, g))
    assert [len(s.inputs) for s in scheduled.splits] == [40]


# ---- process ubatch ------------------------------------------------------------------------------


def test_the_scans_of_pass_2() -> None:
    """
    idx:              0 1 2 3 4 5 6 7
    after pass 1:     ? ? G ? C ? G ?
    forward scan:     ? ? G G C ? G G
    backward scan:    G G G G C G G G
    """
    graph, devices, where = start("? ? G ? C ? G ?")
    assert row(graph, where) == "? ? G ? C ? G ?"
    sweep(graph.nodes, devices, where, {}, devices.last)
    assert row(graph, where) == "? ? G G C ? G G"
    sweep(reversed(graph.nodes), devices, where, {}, devices.last)
    assert row(graph, where) == "G G G G C G G G"


def test_what_a_gpu_refuses_is_left_for_the_scans_of_the_rest() -> None:
    """ "If any ? doesn't support G, it stays ?. The subsequent "rest" scans do the same but allow
    CPU to propagate too"."""
    g, c = gpu(refused=["SQR"]), cpu()
    graph = chain("?G?C?", {"G": g, "C": c})
    devices = Devices([g, c])
    where = {graph.nodes[1]: 0, graph.nodes[3]: 1}
    for order in (graph.nodes, reversed(graph.nodes)):
        sweep(order, devices, where, {}, devices.last)
    assert row(graph, where) == "? G ? C ?"
    sweep(graph.nodes, devices, where, {}, -1)
    assert row(graph, where) == "? G ? C C"
    sweep(reversed(graph.nodes), devices, where, {}, -1)
    assert row(graph, where) == "? G C C C"


def test_a_weight_leaf_is_where_its_memory_is() -> None:
    """blk.0.attn_q.weight, q4_0 [288, 288], nb {18, 162, 46656, 46656}: its buffer is the CPU's, so
    the first device that uses that buffer type gets it, with cause 1.dst."""
    g, c = gpu(), cpu()
    w = leaf("q4_0", (288, 288), "blk.0.attn_q.weight", buffer=weight("w", c).buffer)
    assert [upper(n) for n in w.nb] == [18, 162, 46656, 46656]
    x = node("MUL_MAT", "x", w, value("in", (288, 1)), shape=(288, 1))
    scheduled = schedule(Graph(x), [g, c])
    assert (scheduled.backend_of[w], scheduled.cause_of[w].code) == (1, "1.dst")
    assert (scheduled.backend_of[x], scheduled.cause_of[x].code) == (1, "1.wgt0")


def test_the_table_of_copies() -> None:
    """
    hv_tensor_copies[tensor][backend][copy], flattened:
    index = id * (n_backends * n_copies) + backend * n_copies + copy
    """
    a, b, c = gpu("a"), gpu("b"), cpu()
    x, y = value("x"), value("y")
    nodes = [node("ADD", name, x, y) for name in ("on_a", "on_b")]
    scheduled = schedule(Graph(*nodes), [a, b, c], n_copies=2, assign={nodes[0]: a, nodes[1]: b})
    number = {x: 0, y: 1}
    index = [
        number[t] * (3 * 2) + backend * 2 + copy
        for t, backend, copy in sorted(scheduled.copies, key=lambda k: (number[k[0]], k[1], k[2]))
    ]
    # both inputs on a, on b, and on their own device, twice each: the table is full
    assert index == list(range(12))
    names = [scheduled.copies[(x, backend, copy)].name for backend in (0, 1) for copy in (0, 1)]
    assert names == ["a#x#0", "a#x#1", "b#x#0", "b#x#1"]


def test_the_graph_copy_of_a_split() -> None:
    """
    For each input of a split, a view of it (`input_dep`, so that it is not freed before it is
    copied) and the copy; then the split's own nodes.
    """
    g, c = gpu(), cpu()
    scheduled = schedule(chain("GC", {"G": g, "C": c}), [g, c])
    rows = [
        (t.name, scheduled.backends[b].name)
        for t, b in zip(scheduled.plan_nodes, scheduled.plan_node_backends, strict=True)
    ]
    assert rows == [
        ("x (view)", "cpu"), ("gpu#x#0", "gpu"), ("n0", "gpu"),
        ("n0 (view)", "gpu"), ("cpu#n0#0", "cpu"), ("n1", "cpu"),
    ]  # fmt: skip
