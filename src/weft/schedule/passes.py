"""A placement step by step: what each sweep of the passes changed, and the questions that it asked.

The record comes from the functions that every placement runs (`assign`, `split`), once more, with
dictionaries and devices that write down what happens. A placement that nobody follows pays nothing
for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from weft.errors import ScheduleError
from weft.graph.op import NONE
from weft.graph.tensor import Tensor, shape_text
from weft.records import dataclass
from weft.schedule.assign import Sweep, sweeps, sweeps_as_chosen
from weft.schedule.cause import CHOSEN, OF_LAYER, PLANNED, USER, Cause, code_meaning
from weft.schedule.describe import name_of
from weft.schedule.devices import Devices
from weft.schedule.explain import seconds_text
from weft.schedule.parts import Candidate
from weft.schedule.passes_text import only_about, passes_lines, story_lines
from weft.schedule.result import Schedule
from weft.schedule.split import add_input_copies, cut
from weft.tables import count_text

__all__ = ["FORMAT", "Change", "Copied", "Cut", "Passes", "Question", "Step", "passes_of"]

FORMAT = "weft-passes-1"
"""The format of `Passes.to_dict`; it changes when the keys do."""

_LETTERS = "ABDEFHIJKLMNOPQRSTUVWXYZ0123456789abcdefghijklmnopqrstuvwxyz"


@dataclass(frozen=True, slots=True)
class Change:
    """A tensor that a step gave another device or another cause."""

    tensor: Tensor
    was: str | None
    """The device before; None: it had none."""
    now: str
    cause: Cause
    over: Cause | None = None
    """The cause that was overwritten."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question to a device about a node, and the answer."""

    tensor: Tensor
    """The node or leaf whose turn it was."""
    device: str
    question: str
    """The rest of a sentence that begins with the device: `runs MUL_MAT`."""
    answer: bool
    reason: str = ""
    """The device's sentence where the answer is no."""
    about: Tensor | None = None
    """The tensor in that memory, for questions about memory."""


@dataclass(frozen=True, slots=True)
class Step:
    """A sweep of a pass."""

    number: str
    """The pass: `1` to `6`; `0` are user assignments, `plan` a plan file, `cost` the search."""
    sweep: str
    """The sweep within the pass, such as `leaves`, `nodes`, `down` or `rest up`."""
    title: str
    """A sentence that says what the sweep does."""
    changes: tuple[Change, ...] = ()
    questions: tuple[Question, ...] = ()


@dataclass(frozen=True, slots=True)
class Copied:
    """A copy of a tensor on another device."""

    copy: Tensor
    of: Tensor
    device: str
    """The device that reads the copy."""
    number: int
    """Which of several copies it is."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A split, and why it begins where it does."""

    device: str
    start: int
    """Index of the first node of the graph."""
    end: int
    """Index after the last node."""
    inputs: tuple[Tensor, ...]
    """Tensors that are copied before it runs."""
    why: str


@dataclass(frozen=True, slots=True)
class Passes:
    """A placement step by step; `weft explain --passes` prints it."""

    schedule: Schedule
    devices: tuple[str, ...]
    steps: tuple[Step, ...]
    splits: tuple[Cut, ...]
    copies: tuple[Copied, ...]
    rewired: Mapping[tuple[Tensor, int], Tensor]
    """(node, index of source) -> the copy that the node reads instead."""
    candidates: tuple[Candidate, ...] = ()
    """Under `policy="cost"`, the placements that were considered."""

    @property
    def letters(self) -> dict[str, str]:
        """A letter for each device: C for the last, G for the first GPU, one of its name for each
        of the others; a star where all letters are taken."""
        letters = {self.devices[-1]: "C"}
        kinds = {b.name: b.kind for b in self.schedule.backends}
        for name in self.devices[:-1]:
            first = "G" if kinds[name] == "GPU" else ""
            free = [c for c in first + name.upper() + _LETTERS if c.isalnum()]
            letters[name] = next((c for c in free if c not in letters.values()), "*")
        return {name: letters[name] for name in self.devices}

    @property
    def tensors(self) -> list[Tensor]:
        """The leaves, then the nodes."""
        return list(self.schedule.graph.tensors)

    def devices_after(self) -> Iterator[tuple[Step, dict[Tensor, str]]]:
        """Each step, and the device that each tensor has after it."""
        placed: dict[Tensor, str] = {}
        for step in self.steps:
            placed |= {change.tensor: change.now for change in step.changes}
            yield step, dict(placed)

    def text(self, width: int | None = None, *, node: str | None = None, fold: bool = True) -> str:
        """Every step in words, or the story of the tensors whose names match the glob `node`.

        With `fold`, equal layers are one line. Lines longer than `width` are broken. Raises
        ScheduleError for a glob that matches nothing."""
        if node is not None:
            return "\n".join(story_lines(self.to_dict(), node, width))
        lines = passes_lines(self.to_dict(), width, fold=fold, candidates=self.candidates)
        return "\n".join(lines)

    def to_dict(self, node: str | None = None) -> dict[str, Any]:
        """Plain data: `format`, `devices`, `letters`, `tensors`, `steps`, `splits`, `copies`,
        `rewired` and `candidates`. Tensors are numbered, leaves first.

        The steps have the changes and questions about tensors whose names match the glob `node`;
        None: all. Raises ScheduleError for a glob that matches nothing."""
        ids = {tensor: i for i, tensor in enumerate(self.tensors)}
        copies = {one.copy: i for i, one in enumerate(self.copies)}
        nodes = {node: i for i, node in enumerate(self.schedule.graph.nodes)}
        types = Devices(self.schedule.backends)
        data = {
            "format": FORMAT,
            "devices": list(self.devices),
            "letters": list(self.letters.values()),
            "tensors": [
                _tensor_data(tensor, ids, nodes.get(tensor), types.type_of(tensor))
                for tensor in ids
            ],
            "steps": [_step_data(step, ids) for step in self.steps],
            "splits": [
                {
                    "device": one.device, "start": one.start, "end": one.end, "why": one.why,
                    "inputs": [ids[t] for t in one.inputs],
                    "nodes": [ids[t] for t in self.schedule.graph.nodes[one.start : one.end]],
                }
                for one in self.splits
            ],
            "copies": [
                {
                    "name": one.copy.name, "of": ids[one.of], "device": one.device,
                    "number": one.number, "bytes": one.of.max_bytes,
                }
                for one in self.copies
            ],
            "rewired": [
                {"node": ids[node], "source": index, "copy": copies[copy]}
                for (node, index), copy in self.rewired.items()
            ],
            "candidates": [one.to_json() for one in self.candidates],
        }  # fmt: skip
        if node is not None:
            only_about(data, node)
        return data


def _tensor_data(
    tensor: Tensor, ids: Mapping[Tensor, int], node: int | None, memory: Any
) -> dict[str, Any]:
    return {
        "id": ids[tensor],
        "name": name_of(tensor),
        "op": tensor.op.name,
        "type": tensor.dtype.name,
        "shape": shape_text(tensor),
        "leaf": node is None,
        "node": node,
        "view": tensor.op.is_view,
        "view_of": None if tensor.view_src is None else ids.get(tensor.view_src),
        "sources": [None if src is None else ids.get(src) for src in tensor.src],
        "memory": None if memory is None else memory.name,
        "weight": tensor.buffer is not None and tensor.buffer.usage == "weights",
        "input": "input" in tensor.flags,
    }


def _step_data(step: Step, ids: Mapping[Tensor, int]) -> dict[str, Any]:
    return {
        "pass": step.number,
        "sweep": step.sweep,
        "title": step.title,
        "changes": [
            {
                "tensor": ids[one.tensor], "was": one.was, "now": one.now,
                "cause": one.cause.code, "meaning": code_meaning(one.cause.code),
                "over": None if one.over is None else one.over.code,
            }
            for one in step.changes
        ],
        "questions": [
            {
                "tensor": ids[one.tensor], "device": one.device, "question": one.question,
                "answer": one.answer, "reason": one.reason,
                "about": None if one.about is None else ids.get(one.about),
            }
            for one in step.questions
        ],
    }  # fmt: skip


# -- recording -------------------------------------------------------------------------------------


class _Recorder(Devices):
    """Devices that write down the questions they are asked, about the tensor `at` hand."""

    def __init__(self, schedule: Schedule) -> None:
        assert schedule.asked is not None
        super().__init__(schedule.backends, schedule.asked.op_offload)
        self.at: Tensor | None = None
        self._memory_of: Tensor | None = None
        self.questions: list[Question] = []
        self.names = [b.name for b in self.backends]

    def walked(self, tensors: Iterable[Tensor]) -> Iterator[Tensor]:
        """The tensors, each of them at hand while its turn lasts."""
        for tensor in tensors:
            self.at = tensor
            yield tensor
        self.at = None

    def _asked(self, b: int, question: str, answer: bool, reason: str, *about: Tensor) -> None:
        assert self.at is not None
        self.questions.append(
            Question(self.at, self.names[b], question, answer, "" if answer else reason, *about)
        )

    def supports_op(self, backend: int, node: Tensor) -> bool:
        answer = super().supports_op(backend, node)
        reason = self.refusals.get((node, backend), "")
        leaf = ", the op of a leaf" if node.op is NONE else ""
        self._asked(backend, f"runs {node.op.name}{leaf}", answer, reason)
        return answer

    def type_of(self, tensor: Tensor) -> Any:
        self._memory_of = tensor
        return super().type_of(tensor)

    def supports_buffer_type(self, backend: int, buffer_type: Any) -> bool:
        answer = super().supports_buffer_type(backend, buffer_type)
        # every question about memory follows a look at the tensor that is there
        about = self._memory_of
        assert about is not None
        question = f"reads memory of type {buffer_type.name}"
        reason = f"its own memory is of type {self.buffer_types[backend].name}"
        self._asked(backend, question, answer, reason, about)
        return answer

    def offloads(self, backend: int, node: Tensor) -> bool:
        answer = super().offloads(backend, node)
        if self.questions[-1].answer:  # it runs the op
            question = f"wants {node.op.name} for this batch, with a weight in host memory"
            reason = "it leaves the op to the device that has the weight"
            self._asked(backend, question, answer, reason)
        return answer


class _Noted(dict[Tensor, Any]):
    """A dictionary that adds the tensors it gets to `touched`."""

    def __init__(self, values: Mapping[Tensor, Any], touched: dict[Tensor, None]) -> None:
        super().__init__(values)
        self._touched = touched

    def __setitem__(self, tensor: Tensor, value: Any) -> None:
        self._touched[tensor] = None
        super().__setitem__(tensor, value)


class _Where(_Noted):
    """The devices of tensors."""

    def __init__(
        self, user: Mapping[Tensor, int], touched: dict[Tensor, None], devices: _Recorder
    ) -> None:
        super().__init__(user, touched)
        self._devices = devices

    def __getitem__(self, tensor: Tensor) -> Any:
        # pass 5 looks its nodes up like this, and their sources by `get`
        self._devices.at = tensor
        return super().__getitem__(tensor)


class _Record:
    """The steps so far."""

    def __init__(self, schedule: Schedule, assign: Mapping[Tensor, int]) -> None:
        self.devices = _Recorder(schedule)
        self._graph = schedule.graph
        self._touched: dict[Tensor, None] = dict.fromkeys(assign)
        self.where = _Where(assign, self._touched, self.devices)
        self.why = _Noted(dict.fromkeys(assign, USER), self._touched)
        self._before: dict[Tensor, tuple[int, Cause | None]] = {}
        self.steps: list[Step] = []
        if assign:
            self.add("0", "user", "User assignments come first, and passes 1 and 2 keep them.")

    def walk(self, one: Sweep, title: str) -> None:
        """Runs a sweep, and adds it as a step."""
        one.walk(self.devices.walked(one.order), self.devices, self.where, self.why)
        self.add(one.number, one.name, title)

    def add(self, number: str, sweep: str, title: str) -> None:
        """A step with all that has happened since the last one."""
        changes = []
        for tensor in self._touched:
            if tensor not in self._graph:  # a copy, or one that the user named without need
                continue
            device, cause = self.where.get(tensor, -1), self.why.get(tensor)
            was, over = self._before.get(tensor, (-1, None))
            if device < 0 or cause is None or (device, cause) == (was, over):
                continue
            self._before[tensor] = device, cause
            before = None if was < 0 else self.devices.names[was]
            changes.append(Change(tensor, before, self.devices.names[device], cause, over))
        self._touched.clear()
        questions, self.devices.questions = tuple(self.devices.questions), []
        self.steps.append(Step(number, sweep, title, tuple(changes), questions))

    def move(self, schedule: Schedule) -> None:
        """Takes over the placement of a schedule."""
        for tensor in schedule.graph.tensors:
            if tensor in schedule.cause_of:
                self.where[tensor] = schedule.backend_of.get(tensor, -1)
                self.why[tensor] = schedule.cause_of[tensor]


def passes_of(schedule: Schedule) -> Passes:
    """The steps by which a schedule came about: each assignment, and each question to a device.

    The passes run once more, on the same graph. Raises ScheduleError if they lead elsewhere now,
    because tensors have moved to other memory since."""
    asked = schedule.asked
    if asked is None:
        raise ScheduleError("this schedule was not made by `weft.schedule.schedule`")
    graph, last = schedule.graph, schedule.backends[-1].name
    as_planned = asked.policy in ("plan", "layers")
    record = _Record(schedule, {} if as_planned else asked.assign)
    if as_planned:
        causes = set(schedule.cause_of.values())
        cause = next((c for c in (CHOSEN, OF_LAYER) if c in causes), PLANNED)
        walks = sweeps_as_chosen(graph, asked.assign, cause)
    else:
        walks = sweeps(graph, record.devices.last, not asked.op_offload.is_off)
    for one in walks:
        record.walk(one, _TITLES[one.number, one.name].format(last=last))
    if schedule.tried:
        record.move(schedule)
        record.add("cost", "search", _verdict(schedule.tried))
    result = _cut(schedule, record)
    moved = [t for t in graph.tensors if record.where.get(t, -1) != schedule.backend_of.get(t, -1)]
    if moved or [s.start for s in result.splits] != [s.start for s in schedule.splits]:
        what = f"{name_of(moved[0])} would be elsewhere" if moved else "its splits would differ"
        raise ScheduleError(
            f"the passes lead to another schedule now ({what}); the memory of its tensors has "
            "changed since it was made, so look at the passes before"
        )
    return Passes(
        schedule,
        tuple(record.devices.names),
        tuple(record.steps),
        tuple(_cuts(result, record.devices.names)),
        tuple(
            Copied(copy, of, record.devices.names[b], number)
            for (of, b, number), copy in result.copies.items()
            if copy is not of
        ),
        result.rewired,
        schedule.tried,
    )


def _cut(schedule: Schedule, record: _Record) -> Schedule:
    """The same graph, cut once more, with passes 5 and 6 as steps."""
    assert schedule.asked is not None
    names, copies = record.devices.names, (schedule.n_copies, schedule.cur_copy)
    result = Schedule(
        schedule.graph, schedule.backends, *copies, record.where, record.why, schedule.refusals
    )
    cut(result, record.devices, schedule.asked.first_backend)
    record.add("5", "splits", _cut_title(result, names))
    add_input_copies(result)
    if schedule.graph_inputs:
        record.add(
            "6", "inputs",
            f"Pass 6: each of {count_text(len(result.graph_inputs), 'input')} exists "
            f"{schedule.n_copies} times, so that a batch can be prepared while another one runs.",
        )  # fmt: skip
    return result


def _cut_title(result: Schedule, names: Sequence[str]) -> str:
    n_inputs = sum(len(split.inputs) for split in result.splits)
    used = " and ".join(dict.fromkeys(names[split.backend] for split in result.splits))
    copied = count_text(n_inputs, "tensor is", "tensors are") if n_inputs else "nothing is"
    splits = count_text(len(result.splits), "split")
    return f"Pass 5: the nodes are cut into {splits} on {used}, and {copied} copied."


def _cuts(result: Schedule, names: Sequence[str]) -> Iterator[Cut]:
    before = None
    for split in result.splits:
        name = names[split.backend]
        if before is None:
            why = "it begins the graph"
        elif before.backend != split.backend:
            first = result.graph.nodes[split.start]
            why = f"{name_of(first)} is on {name}"
        else:
            first = result.graph.nodes[split.start]
            why = f"{name_of(first)} needs a copied weight, and the split before has copies already"
        before = split
        yield Cut(name, split.start, split.end, tuple(split.inputs), why)


def _verdict(tried: Sequence[Candidate]) -> str:
    """Which placement was taken, and why."""
    rules, best = tried[0], tried[-1]
    taken = next(one for one in tried if one.taken)
    if taken is rules:
        return (
            f"The search found no placement that is faster than {rules.how} "
            f"({seconds_text(rules.seconds)} per {_of(rules)}), which stay."
        )
    assert rules.prediction is not None and best.prediction is not None
    parts = ", ".join(
        f"{what} {seconds_text(old)} -> {seconds_text(new)}"
        for what, old, new in (
            ("computing", rules.prediction.nodes, best.prediction.nodes),
            ("copies", rules.prediction.copies, best.prediction.copies),
            ("starting splits", rules.prediction.splits, best.prediction.splits),
        )
    )
    return (
        f"The search takes {taken.how}: {seconds_text(taken.seconds)} per {_of(rules)} are "
        f"predicted, instead of {seconds_text(rules.seconds)} by {rules.how} ({parts})."
    )


def _of(candidate: Candidate) -> str:
    """A word for the work that takes the predicted time."""
    return "pass" if candidate.prediction is None else candidate.prediction.what


_TITLES = {
    ("1", "leaves"): "Pass 1, leaves: memory decides, and an input is on the last device, {last}.",
    ("1", "nodes"): "Pass 1, nodes: memory or the first weight decides, unless a device asks for "
    "the op.",
    ("2", "down"): "Pass 2, down: a node without a device joins the node before it; {last} does "
    "not spread yet.",
    ("2", "up"): "Pass 2, up: a node without a device joins the node behind it; {last} does not "
    "spread yet.",
    ("2", "rest down"): "Pass 2, rest down: it goes down once more, and {last} spreads, too.",
    ("2", "rest up"): "Pass 2, rest up: it goes up once more, and {last} spreads, too.",
    ("3", "nodes"): "Pass 3: a node without a device goes where most of its sources can be read; "
    "others move up within the same memory.",
    ("4", "nodes"): "Pass 4: a view is where its base is, and a source without a device is where "
    "its reader is.",
    ("plan", "leaves"): "The plan, leaves: memory decides, and the others are where the plan has "
    "them.",
    ("plan", "nodes"): "The plan, nodes: every node that does work is where the plan has it.",
}
