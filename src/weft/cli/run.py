"""`weft run`: load a model, say where everything runs, and stream text."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.console import LoadProgress, PromptProgress, errors, size_text, text_out
from weft.cli.dump import TensorDump
from weft.cli.explain import memory_rows
from weft.cli.loading import loads_model
from weft.cli.model_file import ModelFile
from weft.cli.options import ContextShift, Keep, most_tokens
from weft.cli.sampling_options import sampling_flags
from weft.cli.text_input import read_text, unescaped
from weft.cli.unused_options import Conversation, require_text_only
from weft.errors import ContextError
from weft.llm import LLM, SamplingParams, Stats
from weft.llm.sampling.constraint import check_constraint
from weft.program import Program
from weft.schedule.describe import CAUSES

__all__ = ["run"]


@sampling_flags
@loads_model
def run(
    model: ModelFile,
    load: dict[str, Any],
    text: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="The text to continue, as with -p.")
    ] = None,
    prompt: Annotated[
        str | None,
        typer.Option("--prompt", "-p", help="The text to continue; without it, or -: stdin."),
    ] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read the text to continue here.")
    ] = None,
    n_predict: Annotated[
        int,
        typer.Option(
            "--n-predict", "--predict", "-n",
            help="Most tokens to generate; -1: no limit; -2: until the context is full.",
        ),
    ] = 128,
    *,
    sampling: SamplingParams,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", "--reverse-prompt", "-r", help="Text that ends it; repeatable."),
    ] = None,
    context_shift: ContextShift = False,
    keep: Keep = 0,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the model's end token.")
    ] = False,
    escape: Annotated[
        bool,
        typer.Option("--escape/--no-escape", "-e", help=r"In the prompt, \\n is a line break, ..."),
    ] = False,
    display_prompt: Annotated[
        bool | None,
        typer.Option(
            "--display-prompt/--no-display-prompt",
            help="Print the prompt before its continuation. Default: on a screen, unless the text "
            "has a constraint.",
        ),
    ] = None,
    dump_tensors: Annotated[
        str | None,
        typer.Option(
            "--dump-tensors",
            metavar="GLOB",
            help="Print name, sizes and statistics of these tensors of the model, each time they "
            "are computed, to stderr; e.g. 'Qcur-*'.",
        ),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the new text only.")] = False,
    verbose: Annotated[
        bool,
        typer.Option(
            "--verbose", "-v", "--verbose-prompt",
            help="Print the tokens of the prompt and the causes of the placement, too.",
        ),
    ] = False,
    no_conversation: Annotated[
        bool, typer.Option("--no-conversation", "-no-cnv", hidden=True)
    ] = False,
    conversation: Conversation = None,
) -> None:  # fmt: skip
    """Generate text; the plan and the speed go to stderr. In a pipe, stdout gets the new text
    alone."""
    require_text_only(conversation)
    most = most_tokens(n_predict)
    if text is not None and prompt is not None:
        raise ContextError("give the prompt as an argument or with -p, not both")
    start = _prompt(prompt if text is None else text, file)
    if escape:
        start = unescaped(start)
    check_constraint(sampling)
    dump = TensorDump(dump_tensors) if dump_tensors is not None else None
    with LoadProgress() as progress:
        shifts = context_shift and n_predict != -2
        llm = LLM(
            model, context_shift=shifts, n_keep=keep, progress=progress, eval_callback=dump, **load
        )
    if dump is not None:
        dump.require_match()
    if not quiet:
        _show_plan(model, llm, verbose)
        if verbose:
            _show_tokens(llm, start)
    waiting = PromptProgress()
    pieces: Iterator[str]
    if most == 0:
        pieces = _compute_only(llm, start, waiting)
    else:
        pieces = llm.generate(
            start, max_tokens=most, sampling=sampling, stop=stop or (), ignore_eos=ignore_eos,
            progress=waiting,
        )  # fmt: skip
    shown = start if _is_shown(display_prompt, sampling, quiet) else ""
    try:
        with waiting:
            for piece in pieces:  # the prompt with the first one, as the bar wants the line
                text_out.write(shown + piece)
                shown = ""
    finally:
        text_out.write(f"{shown}\n")
        if not quiet:
            _show_speed(llm.stats)


def _is_shown(wanted: bool | None, sampling: SamplingParams, quiet: bool) -> bool:
    """Whether the prompt is printed: a pipe and a parser want the new text alone."""
    if wanted is not None:
        return wanted
    return not quiet and sys.stdout.isatty() and not sampling.constrained


def _compute_only(llm: LLM, prompt: str, progress: PromptProgress) -> Iterator[str]:
    """The prompt, and not one token more."""
    for _ in llm.generate(prompt, max_tokens=1, progress=progress):
        pass
    llm.stats.n_generated, llm.stats.finish_reason = 0, "length"
    yield ""


def _show_tokens(llm: LLM, prompt: str) -> None:
    for id_ in llm.tokenize(prompt):
        piece = llm.tokenizer.piece(id_, special=True).decode(errors="replace")
        errors.print(f"{id_:>7}  {piece!r}", markup=False, soft_wrap=True)


def _prompt(prompt: str | None, file: Path | None) -> str:
    """The text to continue, from the command line, a file or a pipe."""
    if prompt is not None and prompt != "-" and file is None:
        return prompt
    nobody_types = file is not None or prompt == "-" or not sys.stdin.isatty()
    text = read_text(prompt, file) if nobody_types else ""
    if not text:
        raise ContextError("there is no text to continue; give it with -p or --file")
    return text.removesuffix("\n")  # which ends files and lines of shells


def _show_plan(path: Path, llm: LLM, verbose: bool) -> None:
    config = llm.model.config
    program = llm.context.program
    errors.print(
        f"{path.name}: {config.arch}, {config.n_layer} layers, {config.n_embd} wide, "
        f"{config.n_vocab} tokens; {llm.context.n_ctx} of context",
        markup=False,
        soft_wrap=True,
    )
    for line in placement_lines(program, verbose):
        errors.print(line, markup=False, soft_wrap=True)
    rows = memory_rows(llm.context.plan, [r.program for r in llm.context.regimes])
    several = len({row["memory"] for row in rows}) > 2  # threads' scratch has a row of its own
    parts = [
        f"{row['buffer']}{' in ' + row['memory'] if several else ''} {size_text(row['bytes'])}"
        for row in rows
    ]
    errors.print(f"memory: {', '.join(parts)}", markup=False, soft_wrap=True)


def placement_lines(program: Program, codes: bool = False) -> list[str]:
    """One line a device: splits, nodes, and why they are there, in words or as the codes of
    `weft explain`."""
    schedule = program.plan.schedule
    lines = []
    for index, backend in enumerate(schedule.backends):
        splits = [s for s in schedule.splits if s.backend == index]
        nodes = [n for s in splits for n in schedule.graph.nodes[s.start : s.end] if not n.is_view]
        if not nodes:
            lines.append(f"placement: {backend.name}: nothing")
            continue
        causes = Counter(schedule.cause_of.get(n, "?") for n in nodes)
        target = getattr(backend, "target", None)
        detail = f" ({target}, {threads_text(backend)} threads)" if target else ""
        steps = sum(len(program.splits[i].steps) for i, s in enumerate(schedule.splits)
                    if s.backend == index)  # fmt: skip
        if len(schedule.backends) == 1:  # there was nothing to decide
            lines.append(f"placement: {backend.name}{detail}: all {steps} ops")
            continue
        count = f"{len(splits)} split{'s' if len(splits) != 1 else ''}"
        lines.append(
            f"placement: {backend.name}{detail}: {count}, {steps} ops; {_why(causes, codes)}"
        )
    return lines


def _why(causes: Counter[str], codes: bool) -> str:
    """How many nodes are where they are for which reason."""
    if codes:
        return "causes: " + ", ".join(f"{code} {n}" for code, n in causes.most_common())
    words: Counter[str] = Counter()
    for code, n in causes.items():
        known = "1.wgt" if code.startswith("1.wgt") else code
        words[CAUSES.get(known, "of no known reason")] += n
    return "; ".join(f"{n} because {what}" for what, n in words.most_common())


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
