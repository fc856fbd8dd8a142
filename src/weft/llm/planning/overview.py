"""Answers what is asked first of a plan: what the model is, whether it fits, where it runs, and how
fast it will be; as data, as sentences, and as a picture of each memory.

    about = overview(plan, memory_rows(plan, scratch))
    for line in overview_lines(about, 80):
        print(line)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import repeat
from typing import Any

from weft.llm.model_name import model_name
from weft.llm.planning.plan import ContextPlan, RegimePlan
from weft.llm.planning.speed import Speed, speed_of
from weft.records import dataclass
from weft.tables import count_text, list_text, size_text

PARTS = {"weights": "█", "experts": "▆", "cache": "▓", "compute": "▒", "drafts": "▄"}
"""The parts of a memory, and how a terminal draws them."""
_FREE, _CUT = "·", "⋯"
_PART_OF = {
    "weights": "weights", "tower weights": "weights", "experts": "experts", "cache": "cache",
}  # fmt: skip
"""Kinds of buffers by the part that they belong to; the others are compute memory."""
_LEAST_SHARE = 0.25
"""A plan that takes less than this share of a memory is drawn larger, with a gap in what is
free."""
_WIDE = 60
"""Minimum number of columns at which a line has a bar and how much memory there is."""
_MOST_BAR = 60
"""Maximum number of columns of a bar."""


@dataclass(frozen=True, slots=True)
class Room:
    """A memory: what a plan needs of it, and how much there is."""

    memory: str
    devices: tuple[str, ...]
    """The devices whose results live there."""
    parts: Mapping[str, int]
    """The bytes of each part, with the names of `PARTS`."""
    mapped: int
    """Bytes of the parts that count against no limit: they are mapped from the file, and the system
    may drop them."""
    limit: int | None
    """Bytes that plans may take there; None: not known."""
    holds: tuple[str, ...]
    """The memories of the rows of `memory_rows` that lie in it."""
    scratch: int = 0
    """Bytes of compute memory that the kernels of threads take, which no plan counts."""
    in_pool: bool = False
    """The bytes are the host's, whose memory has several devices; the limit is what the others
    leave."""

    @property
    def bytes(self) -> int:
        """The sum of the parts."""
        return sum(self.parts.values())

    @property
    def counted(self) -> int:
        """The bytes that planning compares with the limit."""
        return self.bytes - self.mapped - self.scratch

    @property
    def fits(self) -> bool:
        """False where the plan needs more than there is."""
        return self.limit is None or self.counted <= self.limit


@dataclass(frozen=True, slots=True)
class Worker:
    """The share of a device in the ops of a plan."""

    device: str
    layers: int
    """The number of layers whose weights are in its memory, the output as one more; 0 where another
    device of the list has that memory, too."""
    ops: int
    """The number of ops that it runs for each batch."""
    splits: int


@dataclass(frozen=True, slots=True)
class Run:
    """How batches run."""

    max_tokens: int
    """The number of tokens of the largest of these batches."""
    workers: tuple[Worker, ...]
    """The devices that run ops."""
    copies: int
    """The number of tensors that are copied between devices for each batch."""


@dataclass(frozen=True, slots=True)
class Overview:
    """The answers to what is asked first of a plan."""

    what: str
    """The model in a few words."""
    weights: int
    """Bytes of the tensors of its files."""
    n_ctx: int
    n_layers: int
    """The number of layers, the output as one more."""
    writes: bool
    """False for a model that reads texts and writes none."""
    rooms: tuple[Room, ...]
    runs: tuple[Run, ...]
    """How the largest batches run, or those that were asked for, and how single tokens do where
    that is otherwise."""
    speed: Speed | None
    """None: not known."""
    by_diffusion: bool = False
    """True if a text takes as many steps as are asked for, each over the whole of it."""
    beside: int = 0
    """Bytes of prefixes of texts that may be kept where there is room."""
    beyond: int = 0
    """The number of tokens that the model was trained for, where a text may have more; else 0."""

    def to_json(self) -> dict[str, Any]:
        """Plain data, with `fits` and the sentences in `words`."""
        fits = all(room.fits for room in self.rooms)
        return asdict(self) | {"fits": fits, "words": sentences(self)}


def overview(plan: ContextPlan, rows: Sequence[Mapping[str, Any]], regime: RegimePlan) -> Overview:
    """The overview of a plan whose `memory_rows` are `rows`; `regime` is the plan of the batches
    whose ops are counted."""
    model = plan.model
    runs = (_run(plan, r) for r in (regime, plan.regimes[0]))
    trained = model.config.n_ctx_train
    return Overview(
        what=f"{model.file.path.name}: {model_name(model)}",
        weights=sum(tensor.nbytes for tensor in model.file.tensors.values()),
        n_ctx=plan.options.n_ctx,
        n_layers=len(plan.homes.caches) + 1,
        writes=model.writes and not plan.options.embeddings,
        rooms=tuple(_rooms(plan, rows)),
        runs=tuple({run.max_tokens: run for run in runs}.values()),
        speed=speed_of(plan),
        by_diffusion=model.writes and not model.continues,
        beside=sum(row["bytes"] for row in rows if row["buffer"] == "prefixes"),
        beyond=trained if 0 < trained < plan.options.n_ctx // plan.options.n_seq_max else 0,
    )


def _run(plan: ContextPlan, regime: RegimePlan) -> Run:
    splits = regime.plan.schedule.splits
    types = [backend.buffer_type for backend in plan.backends]
    apart = any(buffer_type is not types[0] for buffer_type in types)
    layers = Counter(id(types[b]) for b in plan.homes.of_layers() if apart)
    workers = []
    for b, backend in enumerate(plan.backends):
        own = [split for split in splits if split.backend == b]
        ops = sum(split.n_ops for split in own)
        if ops:  # the first device that runs ops there has the layers of a memory
            workers.append(Worker(backend.name, layers.pop(id(types[b]), 0), ops, len(own)))
    return Run(regime.max_tokens, tuple(workers), sum(len(split.inputs) for split in splits))


def _rooms(plan: ContextPlan, rows: Sequence[Mapping[str, Any]]) -> Iterator[Room]:
    host = plan.backends[-1].buffer_type.name
    needs = plan.needs()
    n_pool = sum(need.in_pool for need in needs)
    for need in needs:
        holds = [need.memory, *need.repacked, *(["CPU_EXPERTS"] if need.experts else [])]
        holds += ["threads"] if need.memory == host else []
        parts = dict.fromkeys(PARTS, 0)
        for row in rows:
            if row["memory"] in holds:
                parts[_PART_OF.get(row["buffer"], "compute")] += row["bytes"]
        same = (n for other in plan.beside for n in other.needs() if n.memory == need.memory)
        parts["drafts"] = sum(n.total for n in same)
        given = {name: size for name, size in parts.items() if size}
        scratch = sum(r["bytes"] for r in rows if r["memory"] == "threads" and "threads" in holds)
        planned = sum(parts.values()) - scratch
        counted, limit = plan.rooms.get(need.memory, (planned, None))
        mapped = max(planned - counted, 0)
        in_pool = need.in_pool and n_pool > 1
        yield Room(need.memory, need.devices, given, mapped, limit, tuple(holds), scratch, in_pool)


def sentences(about: Overview) -> list[str]:
    """Sentences: the name of the model, whether it fits, where it runs, and how fast it will be."""
    return [
        f"{about.what}, {size_text(about.weights)}.",
        needs_text(about),
        " ".join(map(_where, repeat(about), about.runs)),
        "Speed: " + (str(about.speed) if about.speed is not None else UNKNOWN_SPEED)
        + (_BY_DIFFUSION if about.by_diffusion else ""),
    ]  # fmt: skip


_BY_DIFFUSION = " It writes by diffusion: each step of a text computes prompt and answer at once."
UNKNOWN_SPEED = (
    "not measured; `weft bench MODEL` measures it, and `weft calibrate` what this machine can do, "
    "from which it is predicted."
)


def needs_text(about: Overview) -> str:
    """The memory that is needed, and whether there is enough of it."""
    used = [room for room in about.rooms if room.bytes]
    each = []
    for room in used:
        size, of = room.bytes, "" if room.limit is None else f" of {size_text(room.limit)}"
        if room.limit is not None and room.fits and size > room.limit:
            of = f" ({size_text(room.counted)}{of} must stay in memory)"
        each.append(f"{size_text(size)}{of}{f' in {room.memory}' if len(used) > 1 else ''}")
    need = f"eeds {list_text(each)} with a context of {about.n_ctx:,} tokens"
    full = [
        f"{size_text(r.counted)} must fit into {r.memory}, which has room for "
        f"{size_text(r.limit or 0)}"
        for r in used
        if not r.fits
    ]
    if full:
        return f"Does not fit: n{need}; {list_text(full)}."
    unknown = [room.memory for room in used if room.limit is None]
    if unknown:
        return f"N{need}; it is not known how much {list_text(unknown)} memory there is."
    rest = ""
    pool = [room.memory for room in used if room.in_pool]
    if len(pool) > 1:
        rest = f" {list_text(pool)} are one memory; the limit of each is what the others leave."
    if about.beside:
        rest += f" Prefixes of texts may take {size_text(about.beside)} more, where there is room."
    return f"Fits: n{need}.{rest}{_beyond_text(about)}"


def _beyond_text(about: Overview) -> str:
    if not about.beyond:
        return ""
    return (
        f" The model was trained for {about.beyond:,} tokens: what it makes of longer texts is "
        "worse, or nothing."
    )


def _where(about: Overview, run: Run) -> str:
    ops = count_text(sum(worker.ops for worker in run.workers), "op")
    splits = count_text(sum(worker.splits for worker in run.workers), "split")
    each = []
    for worker in run.workers:
        layers = (
            f"{worker.layers} of {count_text(about.n_layers, 'layer')}, " if worker.layers else ""
        )
        each.append(f"{worker.device} ({layers}{count_text(worker.ops, 'op')})")
    if len(each) == 1:
        each = [run.workers[0].device]
    start = "Runs" if run is about.runs[0] else f"{_batches(run)} run"
    copies = f", with {count_text(run.copies, 'copy')} between devices" if run.copies else ""
    return f"{start} on {list_text(each)}: {ops} in {splits}{copies}."


def _batches(run: Run) -> str:
    return "Single tokens" if run.max_tokens == 1 else f"Batches of up to {run.max_tokens} tokens"


def overview_lines(about: Overview, width: int = 80) -> list[str]:
    """The sentences, and a bar for each memory with a line that says what its parts are."""
    used = [room for room in about.rooms if room.bytes]
    label = max((len(room.memory) for room in used), default=0)
    tails = []
    for room in used:
        short = room.limit is None or width < _WIDE or (room.fits and room.bytes > room.limit)
        tails.append(size_text(room.bytes) + ("" if short else f" of {size_text(room.limit or 0)}"))
    room_left = width - label - max(map(len, tails), default=0) - 4
    lines = [*sentences(about), ""]
    for room, tail in zip(used, tails, strict=True):
        bar = bar_text(room, max(min(room_left, _MOST_BAR), 10))
        lines.append(f"{room.memory:<{label}}  {bar}  {tail}")
        names = [f"{PARTS[name]} {name} {size_text(size)}" for name, size in room.parts.items()]
        if room.limit is not None and room.fits:
            names.append(f"{_FREE} free {size_text(room.limit - room.counted)}")
        line = " " * label
        for name in names:
            if len(line) + 2 + len(name) > width and line.strip():
                lines.append(line)
                line = " " * label
            line += f"  {name}"
        lines.append(line)
    return lines


def bar_text(room: Room, width: int) -> str:
    """The parts of a memory as characters, to scale; a memory that is nearly free has a gap."""
    limit = room.limit
    whole = room.bytes if limit is None else max(limit + room.bytes - room.counted, room.bytes)
    cut = limit is not None and room.bytes < whole * _LEAST_SHARE
    free = width // 4 if cut else round(width * (whole - room.bytes) / max(whole, 1))
    left = width - free
    bar, done = "", 0
    for number, (name, size) in enumerate(room.parts.items(), 1):
        done += size
        end = round(left * done / max(room.bytes, 1))
        others = len(room.parts) - number
        bar += PARTS[name] * (max(min(end, left - others), len(bar) + 1) - len(bar))
    if not cut:
        return bar + _FREE * free
    middle = _CUT * 2
    return bar + _FREE * ((free - 2) // 2) + middle + _FREE * (free - 2 - (free - 2) // 2)
