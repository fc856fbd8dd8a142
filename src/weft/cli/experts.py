"""`weft experts` shows which experts would have been in memory, by budget and policy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.backends.cpu.experts import ExpertArena, expert_arena
from weft.backends.cpu.routing import SIMULATED, Routing
from weft.cli.console import LoadProgress, say, size_text
from weft.cli.loading import Load, loads_model
from weft.cli.model_file import ModelFile
from weft.cli.text_input import read_text
from weft.errors import ContextError
from weft.free_memory import available_bytes
from weft.llm import LLM
from weft.llm.opening import Opening, take_model_arguments
from weft.tables import text_table

SHARES = (5, 10, 25, 50, 75, 100)
"""The budgets of the table, in percent of all experts."""

_ASSUMED = 8 << 30
"""Memory where the system does not say how much there is."""


@loads_model
def experts(
    *,
    model: ModelFile,
    prompt: Annotated[
        str | None, typer.Option("--prompt", "-p", help="The text to continue; -: stdin.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="A file with the text to continue.")
    ] = None,
    n_predict: Annotated[int, typer.Option("-n", "--n-predict", help="Tokens to generate.")] = 128,
    routing: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Take a record of --save instead of generating a text."),
    ] = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the record of chosen experts.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    load: Annotated[dict[str, Any], Load],
) -> None:
    """Simulate policies for --expert-budget with the experts that a model chooses. Generates a text
    and records its experts, then shows for several budgets how many would have been in memory with
    each policy; best knows what comes."""
    if (prompt is not None or file is not None) == (routing is not None):
        raise ContextError("give either a text (-p, -f), to generate from, or a record (--routing)")
    budget = load["expert_budget"]
    if budget is None:  # any will do: the model chooses the same experts with each
        load["expert_budget"] = max(1, (available_bytes() or _ASSUMED) // 2)
    if routing is None:
        arena, record = _recorded(model, load, read_text(prompt, file), n_predict)
    else:
        arena, record = _planned(model, load), Routing.load(routing)
    if save is not None:
        record.save(save)
        say(f"record saved to {save}")
    budgets = [arena.all_bytes * share // 100 for share in SHARES] if budget is None else [budget]
    rows = []
    for size in budgets:
        if budget is None and size < arena.least:
            continue
        sized = expert_arena(arena.stacks, int(size) if budget is None else arena.budget)
        rates = sized.simulated(record)
        rows.append({"bytes": sized.nbytes, "share": sized.nbytes / sized.all_bytes, **rates})
    if as_json:
        print(
            json.dumps({"steps": record.n_steps, "asked": record.n_asked, "rows": rows}, indent=1)
        )
        return
    say(
        f"{record.n_asked} experts were chosen in {record.n_steps} steps of "
        f"{len(record.n_experts)} layers; part of them that was in memory:"
    )
    cells = [
        [size_text(r["bytes"]), f"{r['share']:.0%}", *(f"{r[p]:.1%}" for p in SIMULATED)]
        for r in rows
    ]
    columns = ("budget", "of all", *SIMULATED)
    print("\n".join(text_table(columns, cells, columns)))


def _recorded(
    path: Path, load: dict[str, Any], text: str, n_predict: int
) -> tuple[ExpertArena, Routing]:
    """Generates a text and records the experts that it takes."""
    load["n_seq_max"] = None if load["plan"] else 1
    with LoadProgress() as progress, LLM(path, progress=progress, **load) as llm:
        arena = llm.context.plan.experts
        assert arena is not None
        arena.record()
        llm.generate(text, max_tokens=n_predict, ignore_eos=True)
        return arena, arena.recorded()


def _planned(path: Path, load: dict[str, Any]) -> ExpertArena:
    """The experts of a model that is not loaded."""
    load["drafting"] = None
    opening = Opening(path, planned=True, **take_model_arguments(load))
    (plan,) = opening.plans(n_outputs=1, n_seq_max=None if load["plan"] else 1, **load)
    arena = plan.experts
    assert arena is not None
    return arena
