"""`weft run` loads a model, shows where everything runs, and streams text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.console import LoadProgress, PromptProgress, say, text_out
from weft.cli.draft_options import draft_flags
from weft.cli.dump import TensorDump
from weft.cli.loading import loads_model_with
from weft.cli.model_file import ModelFile
from weft.cli.options import (
    ContextShift,
    Escape,
    Images,
    Keep,
    MmProj,
    ParseSpecial,
    Sounds,
    Special,
    WeightType,
    most_tokens,
)
from weft.cli.plan_lines import plan_lines, prefixes_line
from weft.cli.prefix_flags import UNUSED_BY_WRITERS, prefix_flags
from weft.cli.sampling_options import sampling_flags
from weft.cli.text_input import read_text, unescaped, unescaped_texts, with_input
from weft.cli.unused_options import Conversation, Interactive, require_text_only
from weft.errors import ContextError
from weft.llm import LLM, SamplingParams, Stats
from weft.llm.cache.prefix_options import PrefixOptions
from weft.llm.drafting.options import DraftOptions
from weft.llm.prompts import Prompt
from weft.llm.sampling.constraint import check_constraint
from weft.llm.senses.messages import Medium

__all__ = ["run"]


@prefix_flags
@sampling_flags
@draft_flags
@loads_model_with(unused=UNUSED_BY_WRITERS)
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
            "--n-predict", "--predict", "--max-tokens", "-n",
            help="Most tokens to generate; -1: no limit; -2: until the context is full.",
        ),
    ] = 128,
    *,
    kept: dict[str, Any],
    sampling: SamplingParams,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", "--reverse-prompt", "-r", help="Text that ends it; repeatable."),
    ] = None,
    context_shift: ContextShift = False,
    keep: Keep = 0,
    mmproj: MmProj = None,
    image: Images = None,
    audio: Sounds = None,
    weight_type: WeightType = None,
    drafts: DraftOptions | None,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the model's end token.")
    ] = False,
    escape: Escape = None,
    parse_special: ParseSpecial = True,
    special: Special = False,
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
            "are computed, to stderr; e.g. 'kqv_out-*'.",
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
    interactive: Interactive = False,
) -> None:  # fmt: skip
    """Generate text; the plan and the speed go to stderr. In a pipe, stdout gets the new text
    alone."""
    require_text_only(conversation, interactive)
    most = most_tokens(n_predict)
    if text is not None and prompt is not None:
        raise ContextError("give the prompt as an argument or with -p, not both")
    start = _prompt(prompt if text is None else text, file, escape)
    stop = unescaped_texts(stop, escape)
    check_constraint(sampling)
    dump = TensorDump(dump_tensors) if dump_tensors is not None else None
    load |= {"n_seq_max": None if load["plan"] else 1, "repack_later": True}
    with LoadProgress() as progress:
        shifts = context_shift and n_predict != -2
        llm = LLM(
            model, type=weight_type, context_shift=shifts, n_keep=keep, drafting=drafts,
            mmproj=mmproj, progress=progress, eval_callback=dump,
            **kept, **load,
        )  # fmt: skip
    if dump is not None:
        dump.require_match()
    if not quiet:
        _show_plan(model, llm, verbose)
        if mmproj is not None:
            for line in llm.senses.about():
                say(line)
        if verbose:
            say(prefixes_line(llm.context, PrefixOptions(**kept)))
            _show_tokens(llm, start, parse_special)
    waiting = PromptProgress()
    pieces: Iterator[str]
    media = [Medium("image", path) for path in image or ()]
    media += [Medium("audio", path) for path in audio or ()]
    ids = _with_media(llm, start, media) if media else start
    if most == 0:
        pieces = _compute_only(llm, ids, waiting, parse_special)
    else:
        pieces = llm.generate(
            ids, max_tokens=most, sampling=sampling, stop=stop, ignore_eos=ignore_eos,
            progress=waiting, parse_special=parse_special, special=special, stream=True,
        )  # fmt: skip
    shown = start if _is_shown(display_prompt, sampling, quiet) else ""
    try:
        with waiting:
            for piece in pieces:  # the prompt comes with the first one, when the bar is gone
                text_out.write(shown + piece)
                shown = ""
    finally:
        text_out.write(f"{shown}\n")
        if not quiet:
            _show_speed(llm.stats)
            if verbose:
                _show_drafts(llm.stats)
                _show_reused(llm.stats)
        experts = llm.context.plan.experts
        if verbose and experts is not None:
            say(f"experts: {experts.about()}")
        llm.close()


def _is_shown(option: bool | None, sampling: SamplingParams, quiet: bool) -> bool:
    """True if the prompt is printed; by default not for pipes and parsers."""
    if option is not None:
        return option
    return not quiet and sys.stdout.isatty() and not sampling.constrained


def _compute_only(
    llm: LLM, prompt: Prompt, progress: PromptProgress, parse_special: bool
) -> Iterator[str]:
    """Computes the prompt without generating text."""
    llm.generate(prompt, max_tokens=1, progress=progress, parse_special=parse_special)
    llm.stats.n_generated, llm.stats.finish_reason = 0, "length"
    yield ""


def _with_media(llm: LLM, text: str, media: list[Medium]) -> list[int]:
    """The prompt of images, sounds and a text: a message, if the model has a template."""
    if llm.chat_template.is_fallback:
        return llm.senses.prompt([""] * len(media) + [text], media)
    parts = [{"type": medium.kind, medium.kind: medium.value} for medium in media]
    return llm.chat_prompt([{"role": "user", "content": [*parts, {"type": "text", "text": text}]}])


def _show_tokens(llm: LLM, prompt: str, parse_special: bool) -> None:
    for id_ in llm.tokenize(prompt, parse_special=parse_special):
        piece = llm.tokenizer.piece(id_, special=True).decode(errors="replace")
        say(f"{id_:>7}  {piece!r}")


def _prompt(prompt: str | None, file: Path | None, escape: bool | None) -> str:
    """The text to continue, from the command line, a file or a pipe; the text of a pipe follows a
    prompt of the command line."""
    if prompt is not None and prompt != "-" and file is None:
        return with_input(prompt if escape is False else unescaped(prompt))
    nobody_types = file is not None or prompt == "-" or not sys.stdin.isatty()
    text = read_text(prompt, file) if nobody_types else ""
    if not text:
        raise ContextError(
            "there is no text to continue; give it with -p or --file; weft chat has conversations"
        )
    text = text.removesuffix("\n")  # files and lines of shells end with one
    return unescaped(text) if escape else text


def _show_plan(path: Path, llm: LLM, verbose: bool) -> None:
    for line in plan_lines(path, llm.context, codes=verbose):
        say(line)
    for name, context in llm.draft_contexts.items():
        for line in plan_lines(context.model.file.path, context, label=f"{name}: "):
            say(line)


def _show_speed(stats: Stats) -> None:
    why = f" ({stats.finish_reason})" if stats.finish_reason else ""
    speed = f", {stats.tokens_per_second:.1f} tokens/s" if stats.n_generated > 1 else ""
    say(
        f"prompt: {stats.n_prompt} tokens, {stats.prompt_tokens_per_second:.1f} tokens/s; "
        f"generation: {stats.n_generated} token{'s' if stats.n_generated != 1 else ''}{speed}{why}"
    )


def _show_reused(stats: Stats) -> None:
    why = f"; {stats.why_not_reused}" if stats.why_not_reused else ""
    say(f"prefix: {stats.n_cached} of {stats.n_prompt} tokens were kept{why}")


def _show_drafts(stats: Stats) -> None:
    n, right = stats.n_drafted, stats.n_accepted
    part = f" ({right / n:.0%})" if n else ""
    say(f"drafting: {right} of {n} guessed tokens were right{part}")
