"""Programs as plain data for the page: what `weft.compile` and `weft.from_torch` make."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, TypeAlias

from weft.compiler import Plan
from weft.errors import ProgramError
from weft.llm.planning.plan import ContextPlan
from weft.program import Program
from weft.report.tables import regime_data
from weft.schedule.explain import table_lines
from weft.version import __version__


class HasProgram(Protocol):
    """A `Session`."""

    @property
    def program(self) -> Program:
        """The program that it runs."""


class HasSession(Protocol):
    """A `TorchModule`."""

    @property
    def session(self) -> HasProgram:
        """The session that runs it."""


ProgramLike: TypeAlias = Program | HasProgram | HasSession


def program_of(subject: object) -> Program | None:
    """The program of a `Session`, of a `TorchModule` (compiled here if it never ran), or the
    program itself; None for other objects, such as a `Context`, which has a plan."""
    if isinstance(subject, Program):
        return subject
    if isinstance(getattr(subject, "plan", None), ContextPlan):
        return None
    session = getattr(subject, "session", subject)
    program = getattr(session, "program", None)
    return program if isinstance(program, Program) else None


def program_data(subject: ProgramLike, title: str = "") -> dict[str, Any]:
    """The data of a program's report; its keys are a part of the keys of `plan_data`.

    Raises ProgramError for a program that was not made from a plan."""
    program = program_of(subject)
    assert program is not None
    plan: Plan | None = program.plan
    if plan is None:
        raise ProgramError("this program was made without a plan; weft.compile makes one with it")
    what = type(subject).__name__
    return _page(plan, title or what, "the program", program.summary(what), _memory(program, plan))


def graph_data(plan: Plan, title: str) -> dict[str, Any]:
    """The data of the report of a graph that is planned only, with the keys of `program_data`."""
    needs: dict[tuple[str, str], int] = {}
    for leaf in plan.schedule.graph.leaves:
        if leaf.buffer is not None:
            memory = leaf.buffer.type or plan.schedule.backends[-1].buffer_type
            use = "weights" if leaf.buffer.usage == "weights" else "bound"
            needs[use, memory.name] = needs.get((use, memory.name), 0) + memory.alloc_size(leaf)
    for arena in plan.allocation.arenas:
        needs["compute", arena.buffer_type.name] = arena.size
    graph = plan.schedule.graph
    summary = f"a graph of {len(graph.leaves)} leaves and {len(graph.nodes)} nodes"
    return _page(plan, title, "the graph", summary, _rows(needs, plan))


def _page(
    plan: Plan, title: str, label: str, summary: str, memory: list[dict[str, Any]]
) -> dict[str, Any]:
    return {
        "kind": "program",
        "title": title,
        "weft": __version__,
        "devices": [
            {"name": b.name, "kind": b.kind, "memory": b.buffer_type.name}
            for b in plan.schedule.backends
        ],
        "memory": memory,
        "text": [summary, "", *table_lines(plan.to_json(), nodes=False)],
        "regimes": [
            {
                "label": label, "max_tokens": None, "together": False,
                **regime_data(plan),
            }
        ],
        "sliders": None,
    }  # fmt: skip


def _memory(program: Program, plan: Plan) -> list[dict[str, Any]]:
    """Rows of bytes by use and memory, as a model's plan has them."""
    sizes: dict[tuple[str, str], int] = {}
    for buffer in program.buffers:
        if buffer.kind == "arena":
            use = "compute"
        else:
            use = "weights" if buffer.usage == "weights" else "bound"
        key = (use, buffer.buffer_type.name)
        sizes[key] = sizes.get(key, 0) + buffer.size
    rows = _rows(sizes, plan)
    scratch = {"buffer": "scratch", "memory": "threads", "bytes": program.work_bytes}
    return [*rows, {**scratch, "about": "of the kernels"}]


def _rows(sizes: Mapping[tuple[str, str], int], plan: Plan) -> list[dict[str, Any]]:
    """A row for each use and memory with its bytes."""
    about = {
        "weights": "constants of the program",
        "bound": "memory that it was given, or keeps between runs",
        "compute": "results on the way",
    }
    bounds = {a.buffer_type.name: a.lower_bound for a in plan.allocation.arenas}
    rows: list[dict[str, Any]] = [
        {"buffer": use, "memory": memory, "bytes": size, "about": about[use]}
        for (use, memory), size in sizes.items()
    ]
    for row in rows:
        if row["buffer"] == "compute":
            row["lower_bound"] = bounds.get(row["memory"], 0)
    return rows
