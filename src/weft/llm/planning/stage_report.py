"""Report of a plan over several machines: stages, bytes on links, tokens per second, idleness.

    report = stage_report(plan, profile)
    report.stages[0].machine, report.links[0].token_bytes, report.loads[1].tokens_per_second

A *stage* is all that one device runs of a pass. Passes in flight (an ubatch of a prompt, or a
group of sequences that get a token each) use the stages at the same time, each stage and each link
one pass at a time: a pass is done every `max(all seconds / in flight, those of the busiest)`. A
stage is idle for the rest of that time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from weft.graph.tensor import Tensor
from weft.llm.planning.explain import plan_for
from weft.llm.planning.plan import ContextPlan, MemoryNeed, RegimePlan
from weft.records import dataclass
from weft.schedule.explain import seconds_text
from weft.schedule.machines import machine_of, machines_of, unmeasured
from weft.schedule.profile import Profile
from weft.schedule.timing import Point, TimeModel, nbytes_at, work
from weft.tables import size_text, text_table


@dataclass(slots=True)
class Pass:
    """One pass, predicted: what each device and each link has to do."""

    n_tokens: int
    busy: dict[str, float]
    """Seconds that each device works."""
    links: dict[tuple[str, str], tuple[int, int, float]]
    """(from, to) -> copies, bytes, seconds; the ends are machines, or memories of one machine."""

    @property
    def seconds(self) -> float:
        """From the tokens to the logits, with nothing else under way."""
        return sum(self.busy.values()) + sum(s for _, _, s in self.links.values())

    def period(self, in_flight: int) -> float:
        """Seconds between the ends of two passes, with so many under way."""
        busiest = max([*self.busy.values(), *(s for _, _, s in self.links.values())])
        return max(self.seconds / in_flight, busiest)


@dataclass(slots=True)
class Stage:
    """The layers, memory and work of one device."""

    machine: str
    device: str
    holds: str
    """The layers of the stage, in words; empty: none."""
    memory: dict[str, Any]
    """Name of the memory, bytes of `weights`, `cache`, `compute` and all (`bytes`), and `room`
    (None: not known)."""
    token_seconds: float
    """Seconds of work for one token of one sequence."""


@dataclass(slots=True)
class LinkUse:
    """Traffic over one link in one direction."""

    source: str
    target: str
    token_bytes: int
    token_copies: int
    token_seconds: float
    prompt_bytes: int


@dataclass(slots=True)
class Load:
    """A kind of use, and how fast it goes."""

    what: str
    kind: str
    """`pp`: prompts, `tg`: generated tokens."""
    sequences: int
    n_tokens: int
    in_flight: int
    """Number of passes that are under way at the same time."""
    seconds: float
    """Seconds of a pass from tokens to logits."""
    tokens_per_second: float
    """Speed over all sequences together."""
    idle: dict[str, float]
    """Fraction of the time in which each device waits."""


@dataclass(slots=True)
class StageReport:
    """Stages, links and loads of a plan."""

    machines: list[str]
    stages: list[Stage]
    """The stages in the order in which a token passes them."""
    links: list[LinkUse]
    loads: list[Load]
    """The loads; empty where speeds are not known."""
    has_times: bool = True
    """False where speeds are not known, so that times mean nothing."""

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "machines": self.machines,
            "stages": [asdict(stage) for stage in self.stages],
            "links": [asdict(link) for link in self.links],
            "loads": [asdict(load) for load in self.loads],
            "has_times": self.has_times,
        }


def stage_report(plan: ContextPlan, profile: Profile | None) -> StageReport:
    """The report of a plan whose devices are in `profile`; None: their speeds are not known, and
    the report has sizes only. As many texts are written as the plan has sequences, or one for each
    stage if it has one."""
    timed = profile is not None
    profile = profile or unmeasured(plan.backends)
    token, prompt = one_pass(plan, profile, 1), one_pass(plan, profile, plan.options.n_ubatch)
    layers = _layers(plan)
    n_stages = max(sum(1 for held in layers.values() if held), 1)
    many = plan.options.n_seq_max
    many = max(many, n_stages) if many == 1 else many
    loads = [_load("one ubatch", "pp", 1, prompt, 1), _load("one text", "tg", 1, token, 1)]
    flights = _in_flight(plan, layers)
    if flights > 1:
        loads.insert(1, _load("ubatch after ubatch", "pp", flights, prompt, flights))
    if many > 1 and timed:
        loads.append(_many(plan, profile, many, min(flights, many)))
    links = []
    for pair in dict.fromkeys([*token.links, *prompt.links]):
        copies, nbytes, seconds = token.links.get(pair, (0, 0, 0.0))
        links.append(
            LinkUse(*pair, nbytes, copies, seconds, prompt.links.get(pair, (0, 0, 0.0))[1])
        )
    needs = {name: need for need in plan.needs() for name in need.devices}
    last = plan.backends[-1].name
    shown = [*token.busy, *(n for n in layers if n not in token.busy and n == _host(n, layers))]
    stages = []
    for name in shown:
        words = _words(layers[name], plan.model.config.n_layer)
        words = ["input", *words] if name == last else words
        stages.append(
            Stage(
                machine_of(name),
                name,
                ", ".join(words),
                _memory(needs[name], plan, profile),
                token.busy.get(name, 0.0),
            )
        )
    return StageReport(machines_of(profile), stages, links, loads if timed else [], timed)


def _host(device: str, names: Iterable[str]) -> str:
    """The last device of the same machine."""
    return [n for n in names if machine_of(n) == machine_of(device)][-1]


def one_pass(plan: ContextPlan, profile: Profile, n_tokens: int, n_kv: int | None = None) -> Pass:
    """A pass of so many tokens, one row of logits for each if they are of several texts, with
    `n_kv` cells in use (None: a full cache)."""
    regime = plan_for(plan, n_tokens)
    rows = n_tokens if n_tokens <= plan.options.n_seq_max else 1
    values = _values(plan, regime, n_tokens, rows, n_kv or plan.options.n_ctx)
    schedule = regime.plan.schedule
    model = TimeModel(profile, regime.graph, schedule.backends, [Point(values)])
    busy: dict[str, float] = {}
    links: dict[tuple[str, str], tuple[int, int, float]] = {}

    def copy(inputs: Sequence[tuple[Tensor, Any]], b: int) -> None:
        for tensor, pair, seconds in model.copies(inputs, b):
            ends = machine_of(pair[0]), machine_of(pair[1])
            pair = pair if ends[0] == ends[1] else ends
            n, size, time = links.get(pair, (0, 0, 0.0))
            links[pair] = (n + 1, size + nbytes_at(tensor, values), time + seconds)

    for split in schedule.splits:
        here = schedule.backends[split.backend].name
        busy[here] = busy.get(here, 0.0) + model.start(split.backend)
        copy(model.inputs(schedule, split), split.backend)
        for node in schedule.graph.nodes[split.start : split.end]:
            if not node.op.is_view:
                busy[here] += model.node(node, split.backend)
    last = len(schedule.backends) - 1
    for output in schedule.graph.outputs.values():
        at = schedule.backend_of.get(output, last)
        if not model.devices.supports_buffer_type(last, model.devices.buffer_types[at]):
            copy([(output, model.devices.buffer_types[at])], last)
    return Pass(n_tokens, busy, links)


def token_bytes(plan: ContextPlan) -> int:
    """The bytes that a step of one token moves at the beginning of a text. Nearly all are weights
    that the token reads."""
    regime = plan_for(plan, 1)
    values = _values(plan, regime, 1, 1, 1)
    return int(sum(work(node, values).nbytes for node in regime.graph.nodes))


def _values(
    plan: ContextPlan, regime: RegimePlan, n_tokens: int, rows: int, n_kv: int
) -> dict[str, int]:
    values = {"n_tokens": n_tokens, "n_kv": n_kv, "n_outputs": rows}
    window = plan.options.window_size(plan.model.config)
    if window:
        values["n_kv_window"] = min(window, n_kv)
    return {s.name: min(values.get(s.name, s.max), s.max) for s in regime.graph.symbols.values()}


def _load(what: str, kind: str, sequences: int, one: Pass, in_flight: int) -> Load:
    period = one.period(in_flight)
    idle = {device: max(0.0, 1 - seconds / period) for device, seconds in one.busy.items()}
    return Load(
        what, kind, sequences, one.n_tokens, in_flight, one.seconds, one.n_tokens / period, idle
    )


def _in_flight(plan: ContextPlan, layers: dict[str, list[int]]) -> int:
    """Passes under way at the same time, as the engine has them: those that the caller asks for, or
    one for each machine that has layers."""
    if plan.options.n_copies > 1 or plan.cache.window is not None:
        return plan.n_copies
    return max(len({machine_of(device) for device, held in layers.items() if held}), 1)


def _many(plan: ContextPlan, profile: Profile, sequences: int, groups: int) -> Load:
    """Tokens of several texts in so many groups."""
    rows = -(-sequences // groups)
    one = one_pass(plan, profile, min(rows, plan.options.n_ubatch))
    load = _load(f"{sequences} texts", "tg", sequences, one, groups)
    load.tokens_per_second *= sequences / (rows * groups)
    return load


def _layers(plan: ContextPlan) -> dict[str, list[int]]:
    """Device -> its layers, the output as one more than there are."""
    n_layer = plan.model.config.n_layer
    found = {}
    for b, backend in enumerate(plan.backends):
        layers = {il for il, home in enumerate(plan.homes.caches) if home == b}
        layers |= {n_layer} if plan.homes.weights.get("output.weight") == b else set()
        found[backend.name] = sorted(layers)
    return found


def _memory(need: MemoryNeed, plan: ContextPlan, profile: Profile) -> dict[str, Any]:
    rooms = []
    for backend in plan.backends:
        device = profile.device(backend.name)
        if backend.name not in need.devices:
            continue
        rooms.append(backend.memory_limit())
        rooms.append(None if device is None else profile.memories[device.memory].size)
    return {
        "memory": need.memory,
        "weights": need.weights + sum(need.repacked.values()) + need.experts,
        "cache": need.cache,
        "compute": need.compute + need.copies,
        "bytes": need.total,
        "room": min((r for r in rooms if r is not None), default=None),
    }


def _words(layers: Sequence[int], n_layer: int) -> list[str]:
    """`layers 0 to 11, output` for the numbers of layers."""
    words, run = [], [n for n in layers if n < n_layer]
    while run:
        n = 1
        while n < len(run) and run[n] == run[0] + n:
            n += 1
        words.append(f"layer {run[0]}" if n == 1 else f"layers {run[0]} to {run[n - 1]}")
        run = run[n:]
    return [*words, "output"] if n_layer in layers else words


_UNKNOWN = (
    "speeds are not known: `weft calibrate` with the same machines and -o FILE measures them, and "
    "--speeds FILE predicts tokens per second from them"
)


def stage_lines(report: StageReport) -> list[str]:
    """The tables, with a title and an empty line before each."""
    return [
        "",
        "stages, as a token passes them",
        *_stages(report),
        "",
        "links, for one token of one text and for an ubatch of a prompt",
        *_links(report),
        "",
        *(["predicted, with a full cache", *_loads(report)] if report.has_times else [_UNKNOWN]),
    ]


def _if_timed(report: StageReport, text: str) -> tuple[str, ...]:
    """The text, where speeds are known."""
    return (text,) if report.has_times else ()


def _stages(report: StageReport) -> list[str]:
    numbers = ("weights", "cache", "compute", "all", "there", *_if_timed(report, "time per token"))
    rows = []
    for stage in report.stages:
        need = stage.memory
        sizes = [size_text(need[key]) for key in ("weights", "cache", "compute", "bytes")]
        there = "?" if need["room"] is None else size_text(need["room"])
        seconds = seconds_text(stage.token_seconds)
        held = stage.holds or "nothing"
        own = _if_timed(report, seconds)
        rows.append([stage.device, held, need["memory"], *sizes, there, *own])
    return text_table(("device", "holds", "memory", *numbers), rows, numbers)


def _links(report: StageReport) -> list[str]:
    numbers = (
        *("bytes per token", "copies"), *_if_timed(report, "time per token"), "bytes per ubatch",
    )  # fmt: skip
    rows = [
        [
            link.source or "here",
            link.target or "here",
            f"{link.token_bytes:,}",
            str(link.token_copies),
            *_if_timed(report, seconds_text(link.token_seconds)),
            f"{link.prompt_bytes:,}",
        ]
        for link in report.links
    ]
    return text_table(("from", "to", *numbers), rows, numbers)


def _loads(report: StageReport) -> list[str]:
    devices = [stage.device for stage in report.stages if stage.token_seconds]
    idle = [f"{device} idle" for device in devices]
    numbers = ("tokens/s", "a pass takes", "passes at a time", *idle)
    rows = [
        [
            load_text(load),
            f"{load.tokens_per_second:.4g}",
            seconds_text(load.seconds),
            str(load.in_flight),
            *(f"{load.idle.get(device, 1.0):.0%}" for device in devices),
        ]
        for load in report.loads
    ]
    return text_table(("load", *numbers), rows, numbers)


def load_text(load: Load) -> str:
    """A load in words, such as `pp512, one ubatch`."""
    n = load.n_tokens
    each = f" in {load.in_flight} groups of {n}" if load.kind == "tg" and load.in_flight > 1 else ""
    return f"pp{n}, {load.what}" if load.kind == "pp" else f"tg, {load.what}{each}"
