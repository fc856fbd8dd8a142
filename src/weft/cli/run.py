"""`weft run`: load a model, say where everything runs, and stream text."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.console import LoadProgress, PromptProgress, errors, size_text, text_out
from weft.cli.explain import memory_rows
from weft.cli.loading import loads_model
from weft.cli.model_file import ModelFile
from weft.cli.options import ContextShift, Keep
from weft.cli.sampling_options import sampling_flags
from weft.cli.text_input import read_text
from weft.errors import ContextError
from weft.llm import LLM, SamplingParams, Stats
from weft.program import Program

__all__ = ["run"]


@sampling_flags
@loads_model
def run(
    model: ModelFile,
    load: dict[str, Any],
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", help="The text to continue; without it, or -: stdin."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read the text to continue here.")
    ] = None,
    n_predict: Annotated[
        int, typer.Option("--n-predict", "-n", help="Most tokens to generate; -1: no limit.")
    ] = 128,
    *,
    sampling: SamplingParams,
    stop: Annotated[list[str] | None, typer.Option(help="Text that ends it; repeatable.")] = None,
    context_shift: ContextShift = False,
    keep: Keep = 0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the model's end token.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the text only.")] = False,
) -> None:
    """Generate text; the plan and the speed go to stderr."""
    prompt = _prompt(prompt, file)
    with LoadProgress() as progress:
        llm = LLM(model, context_shift=context_shift, n_keep=keep, progress=progress, **load)
    if not quiet:
        _show_plan(model, llm)
    waiting = PromptProgress()
    pieces = llm.generate(
        prompt, max_tokens=None if n_predict < 0 else n_predict, sampling=sampling,
        stop=stop or (), ignore_eos=ignore_eos, progress=waiting,
    )  # fmt: skip
    shown = "" if quiet else prompt  # with the first piece, as the bar wants the line
    try:
        with waiting:
            for piece in pieces:
                text_out.write(shown + piece)
                shown = ""
    finally:
        text_out.write(f"{shown}\n")
        if not quiet:
            _show_speed(llm.stats)


def _prompt(prompt: str | None, file: Path | None) -> str:
    """The text to continue, from the command line, a file or a pipe."""
    if prompt is not None and prompt != "-" and file is None:
        return prompt
    nobody_types = file is not None or prompt == "-" or not sys.stdin.isatty()
    text = read_text(prompt, file) if nobody_types else ""
    if not text:
        raise ContextError("there is no text to continue; give it with -p or --file")
    return text.removesuffix("\n")  # which ends files and lines of shells


def _show_plan(path: Path, llm: LLM) -> None:
    config = llm.model.config
    program = llm.context.program
    errors.print(
        f"{path.name}: {config.arch}, {config.n_layer} layers, {config.n_embd} wide, "
        f"{config.n_vocab} tokens; {llm.context.n_ctx} of context",
        markup=False,
        soft_wrap=True,
    )
    for line in placement_lines(program):
        errors.print(line, markup=False, soft_wrap=True)
    rows = memory_rows(llm.context.plan, [r.program for r in llm.context.regimes])
    several = len({row["memory"] for row in rows}) > 2  # threads' scratch has a row of its own
    parts = [
        f"{row['buffer']}{' in ' + row['memory'] if several else ''} {size_text(row['bytes'])}"
        for row in rows
    ]
    errors.print(f"memory: {', '.join(parts)}", markup=False, soft_wrap=True)


def placement_lines(program: Program) -> list[str]:
    """One line a device: splits, nodes, and why they are there."""
    schedule = program.plan.schedule
    lines = []
    for index, backend in enumerate(schedule.backends):
        splits = [s for s in schedule.splits if s.backend == index]
        nodes = [n for s in splits for n in schedule.graph.nodes[s.start : s.end] if not n.is_view]
        if not nodes:
            lines.append(f"placement: {backend.name}: nothing")
            continue
        causes = Counter(schedule.cause_of.get(n, "?") for n in nodes)
        why = ", ".join(f"{cause} {n}" for cause, n in causes.most_common())
        target = getattr(backend, "target", None)
        detail = f" ({target}, {threads_text(backend)} threads)" if target else ""
        steps = sum(len(program.splits[i].steps) for i, s in enumerate(schedule.splits)
                    if s.backend == index)  # fmt: skip
        if len(schedule.backends) == 1:  # there was nothing to decide
            lines.append(f"placement: {backend.name}{detail}: all {steps} ops")
            continue
        count = f"{len(splits)} split{'s' if len(splits) != 1 else ''}"
        lines.append(f"placement: {backend.name}{detail}: {count}, {steps} ops; causes: {why}")
    return lines


def threads_text(backend: Any) -> str:
    """`4`, or `4/8`: for single tokens, and for more."""
    counts = dict.fromkeys((backend.n_threads, getattr(backend, "n_threads_batch", 0) or None))
    return "/".join(str(n) for n in counts if n)


def _show_speed(stats: Stats) -> None:
    why = f" ({stats.finish_reason})" if stats.finish_reason else ""
    errors.print(
        f"prompt: {stats.n_prompt} tokens, {stats.prompt_tokens_per_second:.1f} tokens/s; "
        f"generation: {stats.n_generated} tokens, {stats.tokens_per_second:.1f} tokens/s{why}",
        markup=False,
        soft_wrap=True,
    )
