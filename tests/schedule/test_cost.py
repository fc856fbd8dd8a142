"""Placement by predicted time: the model's figures, the search, and that it never loses."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings

from tests.profiles import examples
from tests.schedule.planning_graphs import (
    SHAPE,
    Stub,
    chain,
    cpu,
    gpu,
    node,
    random_plans,
    value,
    weight,
)  # fmt: skip
from tests.vectors.sched import Driver, GraphCase, load_cases
from weft.allocate import allocate, validate
from weft.compiler import plan_graph
from weft.compiler.pipeline import memory_needs
from weft.errors import OutOfMemoryError, ScheduleError, UnsupportedOpError
from weft.graph.graph import Graph
from weft.graph.node import leaf
from weft.graph.size import Sym
from weft.graph.tensor import Buffer, Tensor
from weft.schedule import CostOptions, Point, Profile, TimeModel, schedule
from weft.schedule.cost import choose_homes, place_by_cost
from weft.schedule.problem import Problem
from weft.schedule.profile import DeviceProfile, LinkProfile, MemoryProfile
from weft.schedule.search import improve, walk
from weft.schedule.timing import work

ROOT = Path(__file__).resolve().parents[2]
SAMPLE = ROOT / "tests" / "data" / "sched_cases.jsonl.gz"
FULL = ROOT.parent / "shared" / "vectors" / "sched" / "cases.jsonl.gz"


def profile(
    devices: list[Any], seed: int | None = None, sizes: dict[str, int] | None = None
) -> Profile:
    """A GPU is a hundred times faster than the CPU, 10 microseconds away; or all is random."""
    rnd = random.Random(seed)

    def some(x: float) -> float:
        return x if seed is None else x * 10 ** rnd.uniform(-2, 2)

    memories: dict[str, MemoryProfile] = {}
    links: dict[tuple[str, str], LinkProfile] = {}
    results = []
    host = devices[-1].buffer_type.name
    for d in devices:
        memory = d.buffer_type.name
        size = (sizes or {}).get(memory)
        memories[memory] = MemoryProfile(memory, d.buffer_type.is_host, size)
        fast = 100.0 if d.kind == "GPU" else 1.0
        results.append(
            DeviceProfile(
                d.name, d.kind, memory, some(1e10 * fast), {"default": some(1e10 * fast)},
                some(1e-6), some(1e-6),
            )
        )  # fmt: skip
        if memory != host:
            links[host, memory] = LinkProfile(some(1e10), some(1e-5))
            links[memory, host] = LinkProfile(some(1e10), some(1e-5))
    return Profile("test", tuple(results), memories, links)


def seconds(scheduled: Any, options: CostOptions) -> float:
    return options.model(scheduled.graph, scheduled.backends).predict(scheduled).total


# ---- the model -----------------------------------------------------------------------------------


def test_work_of_a_product() -> None:
    w = leaf("q4_0", (64, 32), "w")
    x = leaf("f32", (64, 8), "x")
    product = work(node("MUL_MAT", "y", w, x, shape=(32, 8)), {})
    assert product.flops == 2 * 64 * 32 * 8 and product.is_product
    assert product.nbytes == 32 * 36 + 64 * 8 * 4 + 32 * 8 * 4


def test_work_counts_the_experts_that_are_used() -> None:
    w = leaf("f32", (64, 32, 8), "w")
    n = Sym("n_tokens", 1, 16).size
    ids = leaf("i32", (2, n), "ids")
    y = Tensor(w.dtype, (32, 2, n, 1), op=node("MUL_MAT_ID", "", w).op, src=(w, ids, ids))
    one, all_ = work(y, {"n_tokens": 1}), work(y, {"n_tokens": 16})
    weights = 64 * 32 * 8 * 4
    assert one.nbytes == weights * 2 / 8 + 8 + 32 * 2 * 4
    assert all_.nbytes == weights + 16 * 8 + 16 * 32 * 2 * 4


@pytest.mark.parametrize(("n_tokens", "share"), [(1, 1 / 4), (2, 1 / 2), (3, 3 / 4), (16, 1)])
def test_copies_of_the_experts_that_are_used(n_tokens: int, share: float) -> None:
    g, c = gpu(), cpu()
    w, apart, dense = weight("w", c, (64, 32, 8)), weight("apart", c, (64, 32, 8)), weight("d", c)
    n = Sym("n_tokens", 1, 16).size
    ids = leaf("i32", (2, n), "ids", frozenset({"input"}))
    x = leaf("f32", (64, 1, n), "x", frozenset({"input"}))
    op = node("MUL_MAT_ID", "", w).op
    outs = [Tensor(w.dtype, (32, 2, n, 1), name=f"y{i}", op=op, src=(t, x, ids))
            for i, t in enumerate((w, w, apart))]  # fmt: skip
    outs.append(
        Tensor(w.dtype, (64, 1, n, 1), name="z", op=node("MUL_MAT", "", w).op, src=(dense, x))
    )
    options = CostOptions(profile([g, c]), (Point({"n_tokens": n_tokens}, 3),))
    model = options.model(Graph(*outs), (g, c))

    def copied(t: Tensor) -> float:
        return (model.copy(t, c.buffer_type, 0) / 3 - 1e-5) * 1e10

    nbytes = 64 * 32 * 8 * 4
    assert copied(apart) == pytest.approx(share * nbytes)
    assert copied(w) == pytest.approx(min(1, 2 * share) * nbytes)  # two nodes read it
    assert copied(dense) == pytest.approx(64 * 64 * 4)
    assert copied(ids) == pytest.approx(2 * n_tokens * 4)


def test_views_and_empty_nodes_cost_nothing() -> None:
    x = value("x")
    assert work(x, {}).nbytes == 0
    assert work(node("SQR", "y", value("e", (64, 0)), shape=(64, 0)), {}).nbytes == 0


def test_time_of_a_schedule_by_hand() -> None:
    g, c = gpu(), cpu()
    scheduled = schedule(chain("GC", {"G": g, "C": c}), [g, c])
    options = CostOptions(profile([g, c]))
    flops, nbytes = 2 * 64 * 64 * 4, 64 * 64 * 4 + 2 * 1024
    on_gpu = 1e-6 + max(flops / 1e12, nbytes / 1e12)
    on_cpu = 1e-6 + max(flops / 1e10, nbytes / 1e10)
    copies = 2 * (1e-5 + 1024 / 1e10)
    predicted = options.model(scheduled.graph, scheduled.backends).predict(scheduled)
    assert predicted.by_device == pytest.approx({"gpu": on_gpu, "cpu": on_cpu})
    assert predicted.copies == pytest.approx(copies) and predicted.splits == pytest.approx(2e-6)
    assert predicted.total == pytest.approx(on_gpu + on_cpu + copies + 2e-6)


def test_devices_that_may_run_a_node() -> None:
    """Those that have the op and can use the memory that it writes to."""
    g, c = gpu(refused=["SQR"]), cpu(refused=["DUP"])
    x, state = value("x"), weight("state", c, (64, 4))
    over = node("CPY", "over", x, state)
    over.view_src = state
    nodes = [node("SQR", "a", x), node("CONT", "b", x), node("DUP", "c", x), over]
    graph = Graph(*nodes)
    problem = Problem(CostOptions(profile([g, c])).model(graph, (g, c)))
    allowed = dict(zip((n.name for n in problem.nodes), problem.allowed, strict=True))
    assert allowed == {"a": (1,), "b": (0, 1), "c": (0,), "over": (1,)}
    c.refused = ["CPY"]
    with pytest.raises(UnsupportedOpError, match=r"no device runs CPY.*gpu: cannot use its memory"):
        Problem(CostOptions(profile([g, c])).model(graph, (g, c)))


def test_a_device_copies_a_value_once() -> None:
    """Placements of a problem in numbers, with each copy and each start of a split counted."""
    a, b, c = gpu("a"), gpu("b"), cpu()
    x = value("x")
    graph = Graph(*(node("SQR", f"n{i}", x) for i in range(5)))
    model = CostOptions(profile([a, b, c])).model(graph, (a, b, c))
    problem = Problem(model)
    for where in itertools.product(range(3), repeat=5):
        want = sum(problem.time[i][d] for i, d in enumerate(where))
        want += len({0, 1} & set(where)) * (1e-5 + 1024 / 1e10)
        # a device starts a split where it takes over
        want += 1e-6 * len(list(itertools.groupby(where)))
        assert problem.evaluate(where) == pytest.approx(want, rel=1e-9)


def test_points_are_added_up() -> None:
    g, c = gpu(), cpu()
    n = Sym("n_tokens", 1, 64).size
    x = leaf("f32", (64, n), "x", frozenset({"input"}))
    graph = Graph(Tensor(x.dtype, x.ne, name="y", op=node("SQR", "", x).op, src=(x,)))
    scheduled = schedule(graph, [g, c])

    def total(*points: Point) -> float:
        return seconds(scheduled, CostOptions(profile([g, c]), points))

    few, many = Point({"n_tokens": 1}), Point({"n_tokens": 64})
    assert total() == total(many) > total(few)
    assert total(Point({"n_tokens": 1}, 10), many) == pytest.approx(10 * total(few) + total(many))


def test_a_device_without_figures() -> None:
    g, c = gpu(), cpu()
    with pytest.raises(ScheduleError, match=r"no device 'gpu'.*weft calibrate"):
        schedule(chain("G", {"G": g}), [g, c], "cost", cost=CostOptions(profile([c])))
    with pytest.raises(ScheduleError, match="needs a machine profile"):
        schedule(chain("?", {}), [c], "cost")


# ---- the search ----------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(12))
def test_the_walk_is_exact_on_chains(seed: int) -> None:
    rnd = random.Random(seed)
    g1, g2, c = gpu("g1"), gpu("g2", reads=[]), cpu()
    devices = {"A": g1, "B": g2, "C": c}
    pattern = "".join(rnd.choice("AAB?C") for _ in range(7))
    graph = chain(pattern, devices)
    options = CostOptions(profile([g1, g2, c], seed))
    problem = Problem(options.model(graph, [g1, g2, c]))
    cheapest = walk(problem, 64)
    assert cheapest is not None and cheapest.exact
    best = min(problem.evaluate(where) for where in itertools.product(*problem.allowed))
    assert cheapest.seconds == pytest.approx(best)
    scheduled = schedule(graph, [g1, g2, c], "cost", cost=options)
    assert scheduled.predicted is not None and scheduled.predicted.total == pytest.approx(best)


def test_the_search_is_good_on_a_graph_with_branches() -> None:
    """Three branches from one input, joined: the walk with few states, improved, finds what trying
    everything finds."""
    for seed in range(8):
        g, c = gpu(), cpu()
        x = value("x")
        ends = []
        for i in range(3):
            y = node("MUL_MAT", f"m{i}", weight(f"w{i}", g if i else c), x, shape=SHAPE)
            ends.append(node("SQR", f"s{i}", y))
        out = node("ADD", "a", node("ADD", "b", ends[0], ends[1]), ends[2])
        options = CostOptions(profile([g, c], seed))
        problem = Problem(options.model(Graph(out), [g, c]))
        best = min(problem.evaluate(where) for where in itertools.product(*problem.allowed))
        walked = walk(problem, 4)
        assert walked is not None
        assert improve(problem, walked).seconds == pytest.approx(best)


def test_a_walk_of_few_states_is_improved() -> None:
    """Where many values are alive, a narrow walk misses a placement that small changes find."""
    g1, g2, c = gpu("g1"), gpu("g2", reads=[]), cpu()
    devices = {"A": g1, "B": g2, "C": c}
    values = [value("x")]
    sources = [(0, 0), (1, 0), ("A", 1), (2, 2), (1, 1), ("B", 5), (3, 1), (4, 6), ("B", 7),
               ("C", 9)]  # fmt: skip
    for first, second in sources:
        left = values[first] if isinstance(first, int) else weight("w", devices[first])
        op = "ADD" if isinstance(first, int) else "MUL_MAT"
        values.append(node(op, f"n{len(values)}", left, values[second], shape=SHAPE))
    model = CostOptions(profile([g1, g2, c], 6)).model(Graph(*values[-4:]), [g1, g2, c])
    problem = Problem(model)
    walked = walk(problem, 8)
    assert walked is not None and not walked.exact
    where, _ = place_by_cost(model, {}, (), effort=1)  # the least effort is a walk of 8 states
    assert problem.evaluate(where[n] for n in problem.nodes) < 0.8 * walked.seconds


def test_a_copy_serves_later_nodes() -> None:
    """An input that two nodes read on the GPU is copied once, which makes the second cheap."""
    g, c = gpu(), cpu()
    x = value("x", (4096, 512))
    a = node("SQR", "a", x, shape=(4096, 512))
    b = node("ADD", "b", node("SQR", "c", a, shape=(4096, 512)), x, shape=(4096, 512))
    scheduled = schedule(Graph(b), [g, c], "cost", cost=CostOptions(profile([g, c])))
    assert [t.name for s in scheduled.splits for t in s.inputs] == ["x"]
    assert {scheduled.cause_of[n].code for n in scheduled.graph.nodes} == {"cost"}


def test_small_work_stays_where_it_is() -> None:
    g, c = gpu(), cpu()
    graph = Graph(node("SQR", "y", value("x")))
    scheduled = schedule(graph, [g, c], "cost", cost=CostOptions(profile([g, c])))
    assert scheduled.backend_for(graph.nodes[0]) is c


def test_causes_say_what_it_takes_where() -> None:
    g, c = gpu(), cpu()
    graph = chain("??", {})
    for n in graph.nodes:
        n.ne = (4096, 4096, 1, 1)
    scheduled = schedule(graph, [g, c], "cost", cost=CostOptions(profile([g, c])))
    text = scheduled.explain()
    assert "the pass is predicted to take least time with it there: " in text
    assert "ms on cpu, the reference's rules say cpu" in text
    assert text.splitlines()[-1].startswith("predicted: ")


def test_pinned_nodes_stay() -> None:
    g, c = gpu(), cpu()
    graph = chain("GGG", {"G": g})
    for pin in (c, 1):
        scheduled = schedule(
            graph, [g, c], "cost", cost=CostOptions(profile([g, c])), assign={graph.nodes[1]: pin}
        )
        assert (
            scheduled.backend_for(graph.nodes[1]) is c
            and scheduled.cause_of[graph.nodes[1]].code == "usr"
        )


def test_memory_decides_what_a_device_may_do() -> None:
    """A node whose result lives in CPU memory cannot go to a device that does not use it."""
    g, c = gpu(), cpu()
    cache = leaf("f32", (4096, 4096), "cache", buffer=Buffer("any", c.buffer_type))
    write = node("SQR", "write", cache, shape=(4096, 4096))
    write.view_src = cache
    scheduled = schedule(Graph(write), [g, c], "cost", cost=CostOptions(profile([g, c])))
    assert scheduled.backend_for(write) is c
    with pytest.raises(UnsupportedOpError, match="no device runs SQR"):
        Problem(CostOptions(profile([g])).model(Graph(write), [Stub("gpu", "CPU")]))


@settings(max_examples=examples(2), suppress_health_check=list(HealthCheck))
@given(random_plans())
def test_random_graphs_never_lose_and_can_be_run(plan: Any) -> None:
    """Whatever `ggml` can place, `cost` places no slower, and the plan is valid."""
    graph, devices, assign, n_copies = plan
    try:
        rules = schedule(graph, devices, assign=assign, n_copies=n_copies)
    except (ScheduleError, UnsupportedOpError):
        return
    options = CostOptions(profile(devices, 1), effort=20_000)
    try:
        scheduled = schedule(graph, devices, "cost", assign=assign, n_copies=n_copies, cost=options)
        allocation = allocate(scheduled)
    except Exception as error:
        # a loose leaf that only views read can be planned by neither
        assert isinstance(error, ScheduleError | UnsupportedOpError), error
        return
    validate(scheduled, allocation)
    assert seconds(scheduled, options) <= seconds(rules, options) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("path", "step"),
    [
        pytest.param(SAMPLE, 1, id="sample"),
        pytest.param(FULL, 4, id="some"),
        pytest.param(FULL, 1, id="full", marks=pytest.mark.part("models")),
    ],
)
def test_golden_transformers_are_never_slower(path: Path, step: int) -> None:
    """On the reference's own transformer graphs, predicted time is never above that of its plan,
    and on most of them it is lower."""
    if not path.exists():
        pytest.skip("the full golden vectors (../shared/vectors) are not part of a public clone")
    ratios = []
    for case in [case for case in load_cases(path) if case["kind"] == "llama"][::step]:
        driver = Driver(case)
        graph = GraphCase(case, driver.buffer_types).graph
        how = {"op_offload": case["op_offload"], "n_copies": case["n_copies"]}
        options = CostOptions(profile(driver.backends), effort=40_000)
        rules = schedule(graph, driver.backends, **how)
        scheduled = schedule(graph, driver.backends, "cost", **how, cost=options)
        ratios.append(seconds(scheduled, options) / seconds(rules, options))
        assert ratios[-1] <= 1 + 1e-9, case["id"]
        validate(scheduled, allocate(scheduled))
    lower = sum(r < 0.999 for r in ratios)
    assert lower >= len(ratios) // 3, ratios


# ---- memory --------------------------------------------------------------------------------------


def test_plans_keep_to_the_memory_of_the_profile() -> None:
    """Results that do not fit the fast device go elsewhere; where nothing fits, that is said."""
    g, c = gpu(), cpu()
    x = value("x", (4096, 512))
    y = x
    for i in range(6):
        y = node("MUL", f"n{i}", node("SQR", f"s{i}", y, shape=(4096, 512)), x, shape=(4096, 512))
    graph = Graph(y.as_output())
    free = plan_graph(graph, [g, c], policy="cost", cost=CostOptions(profile([g, c])))
    options = CostOptions(profile([g, c]))
    need = memory_needs(free, options)["gpu"]
    tight = CostOptions(profile([g, c], sizes={"gpu": need // 2}))
    plan = plan_graph(graph, [g, c], policy="cost", cost=tight)
    assert memory_needs(plan, tight).get("gpu", 0) <= need // 2
    assert seconds(plan.schedule, options) >= seconds(free.schedule, options)
    nothing = CostOptions(profile([g, c], sizes={"gpu": 0, "cpu": 1000}))
    with pytest.raises(OutOfMemoryError, match=r"has \d.* bytes and no plan was found"):
        plan_graph(graph, [g, c], policy="cost", cost=nothing)


def _free_chain(n: int, c: Stub) -> tuple[Graph, list[Tensor]]:
    """Products with weights that have no home yet, each as big."""
    x: Tensor = value("x", (1024, 64))
    weights = []
    for i in range(n):
        w = weight(f"w{i}", c, (1024, 1024))
        weights.append(w)
        x = node("MUL_MAT", f"n{i}", w, x, shape=(1024, 64))
    return Graph(x.as_output()), weights


def test_homes_of_weights() -> None:
    g, c = gpu(), cpu()
    graph, weights = _free_chain(8, c)
    options = CostOptions(profile([g, c]))
    model = options.model(graph, [g, c])
    size = weights[0].max_bytes
    everything = choose_homes(model, weights, {})
    assert everything is not None and set(everything.device_of.values()) == {0}
    for room in (0, 3, 5):
        homes = choose_homes(model, weights, {"gpu": room * size + size // 2})
        assert homes is not None
        assert list(homes.device_of.values()).count(0) == room
        assert homes.used.get("gpu", 0) == room * size
        assert homes.seconds >= everything.seconds
    assert choose_homes(model, weights, {"gpu": 0, "cpu": 0}) is None


def test_the_dearest_bytes_go_to_the_fast_memory() -> None:
    """Among weights of one size, those that many columns are multiplied with save most."""
    g, c = gpu(), cpu()
    x: Tensor = value("x", (1024, 512))
    weights, busy = [], []
    for i in range(6):
        w = weight(f"w{i}", c, (1024, 1024))
        weights.append(w)
        many = i % 2 == 0
        source = x if many else node("SUM_ROWS", f"r{i}", x, shape=(1024, 1))
        y = node("MUL_MAT", f"n{i}", w, source, shape=(1024, 512 if many else 1))
        x = node("ADD", f"a{i}", y if many else x, x if many else y, shape=(1024, 512))
        if many:
            busy.append(w)
    model = CostOptions(profile([g, c])).model(Graph(x.as_output()), [g, c])
    homes = choose_homes(model, weights, {"gpu": 3 * weights[0].max_bytes})
    assert homes is not None
    assert [w for w in weights if homes.device_of[w] == 0] == busy


def test_every_device_list_gets_a_time_model() -> None:
    g, c = gpu(), cpu()
    model = TimeModel(profile([g, c]), chain("?", {}), [g, c])
    foreign = gpu("other").buffer_type
    assert model.memory_of(foreign) == "cpu"  # nobody reads it: as if it were the host's
    assert model.memory_of(cpu().buffer_type) == "cpu"
