"""`weft explain` of a graph as text, and each pass of a placement, one sweep at a time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Protocol

from weft.backends import Backend
from weft.cli.command import usage_error
from weft.cli.console import say, wide
from weft.cli.mistakes import flag_name
from weft.cli.model_file import STANDARD_INPUT
from weft.cli.text_input import read_text
from weft.compiler.pipeline import plan_graph, resolve_devices
from weft.errors import ScheduleError
from weft.files import write_text
from weft.graph.format import HEADER
from weft.graph.graph import Graph
from weft.graph.tensor import Tensor
from weft.graph.text import parse_graph
from weft.schedule import Candidate, CostOptions, Profile, Schedule, load_profile
from weft.schedule.draw import dot, mermaid
from weft.schedule.explain import table_lines
from weft.schedule.offload import op_offload_for

_KIND = HEADER.rpartition(" ")[0].encode()
"""The beginning of a graph as text, in any version of the format."""
_USED = (
    *(
        "devices",
        "place",
        "policy",
        "profile",
        "rewrites",
        "op_offload",
        "machine",
        "why",
        "brief",
        "nodes",
    ),
    *("as_json", "as_mermaid", "as_dot", "passes", "node", "html", "save"),
)
"""The options that graphs have, too."""


class Shown(Protocol):
    """The options that choose what `weft explain` shows."""

    why: str | None
    brief: bool
    nodes: bool
    as_json: bool
    as_mermaid: bool
    as_dot: bool
    passes: bool
    node: str | None
    html: Path | None
    save: Path | None


def is_graph(path: Path) -> bool:
    """Whether a file is a graph as text, by its first line; standard input can be nothing else."""
    if path == STANDARD_INPUT:
        return True
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(_KIND)) == _KIND


def explain_graph(
    path: Path, own: Shown, load: Mapping[str, Any], usual: Mapping[str, Any]
) -> None:
    """Shows the plan of a graph as text. `load` are the options for models, `usual` the defaults of
    all options."""
    _require_used({**load, **vars(own)}, usual)
    graph = parse_graph(read_text(None, None if path == STANDARD_INPUT else path))
    backends = resolve_devices(load["devices"] or ["cpu"])
    assign = _place(graph, load["place"] or {}, backends)
    profile = load["profile"]
    if profile is not None and not isinstance(profile, Profile):
        profile = load_profile(profile)
    cost = None if profile is None or load["policy"] != "cost" else CostOptions(profile)
    plan = plan_graph(
        graph, backends, policy=load["policy"], assign=assign,
        op_offload=op_offload_for(backends, load["op_offload"]), cost=cost,
        rewrites=load["rewrites"],
    )  # fmt: skip
    if own.save is not None:
        raise ScheduleError("--save is for models: `weft run --plan` takes no graph; use --json")
    if own.html is not None:
        from weft.report import graph_data, page_html

        write_text(own.html, page_html(graph_data(plan, path.name)))
        say(f"report written to {own.html}")
    elif own.as_json and not own.passes:
        print(json.dumps(plan.to_json(), indent=1))
    elif not show(plan.schedule, own):
        out = wide()
        width = out.width if out.is_terminal else None
        lines = table_lines(plan.to_json(), width, nodes=not own.brief, in_short=True,
                            fold=not own.nodes)  # fmt: skip
        for line in (*lines, *plan.allocation.explain().splitlines()):
            out.print(line, markup=False, soft_wrap=True)


def show(schedule: Schedule, own: Shown, considered: Sequence[Candidate] = ()) -> bool:
    """Prints what the options ask of a schedule; False if they ask for a table. `considered` are
    the plans of a model from which its plan was chosen."""
    if own.passes:
        from weft.schedule.passes import passes_of  # only here, as most calls need none of it
        from weft.schedule.passes_text import candidate_lines

        out = wide()
        passes = passes_of(schedule)
        width = out.width if out.is_terminal else None
        if own.as_json:
            plans = [one.to_json() for one in considered]
            print(json.dumps(passes.to_dict(own.node) | {"plans": plans}, indent=1))
            return True
        text = passes.text(width, node=own.node, fold=not own.nodes)
        if considered and own.node is None:
            title = ["", "The whole plan, for a prompt and what is generated after it:"]
            text = "\n".join([text, *title, *candidate_lines(considered, width)])
        out.print(text, markup=False, soft_wrap=True)
    elif own.as_mermaid:
        print(mermaid(schedule))
    elif own.as_dot:
        print(dot(schedule))
    elif own.why is not None:
        print(schedule.why(own.why))
    else:
        return False
    return True


def _require_used(given: Mapping[str, Any], usual: Mapping[str, Any]) -> None:
    """Raises a usage error for an option that only models have."""
    for name, value in given.items():
        if name not in _USED and value != usual[name]:
            raise usage_error(
                f"a graph as text takes no {flag_name(name)}; --devices or --machine, --place and "
                "--policy place it"
            )


def _place(
    graph: Graph, place: Mapping[str, str], backends: Sequence[Backend]
) -> dict[Tensor, int]:
    """Puts constants into the memory that `place` says, and returns the devices of other tensors.

    Raises ScheduleError for an unknown device and for a glob that matches nothing."""
    number = {b.name: i for i, b in enumerate(backends)}
    for glob, device in place.items():
        if device not in number:
            raise ScheduleError(f"--place {glob}={device}: the devices are {', '.join(number)}")
        if not any(fnmatchcase(tensor.name, glob) for tensor in graph.tensors):
            raise ScheduleError(f"--place {glob}={device}: no tensor of the graph has such a name")
    chosen = {
        tensor: number[place[globs[0]]]
        for tensor in graph.tensors
        if (globs := [glob for glob in place if fnmatchcase(tensor.name, glob)])
    }
    for tensor, b in chosen.items():
        if tensor.buffer is not None:
            tensor.buffer = replace(tensor.buffer, type=backends[b].buffer_type)
    return {tensor: b for tensor, b in chosen.items() if tensor.buffer is None}
