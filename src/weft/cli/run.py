"""`weft run` loads a model, shows where everything runs, and streams text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from weft.cli.console import LoadProgress, PromptProgress, say, text_out
from weft.cli.draft_options import DraftFlags
from weft.cli.groups import Group
from weft.cli.loading import Load, loads_model
from weft.cli.machine_options import COMMAS, is_worker
from weft.cli.model_file import ModelFile
from weft.cli.options import TEXT_OPTIONS, most_tokens
from weft.cli.plan_lines import plan_lines, prefixes_line
from weft.cli.prefix_flags import UNUSED_BY_WRITERS, PrefixFlags
from weft.cli.sampling_options import SamplingFlags
from weft.cli.text_input import read_text, unescaped, unescaped_texts, with_input
from weft.cli.unused_options import require_text_only
from weft.errors import ContextError
from weft.files import write_text
from weft.llm import LLM, SamplingParams, Stats
from weft.llm.cache.prefix_options import PrefixOptions
from weft.llm.planning.draft_options import DraftOptions
from weft.llm.prompts import Prompt
from weft.llm.sampling.constraint import check_constraint
from weft.llm.senses.media import Medium
from weft.options import option
from weft.tables import count_text

if TYPE_CHECKING:
    from weft.cli.dump import TensorDump
    from weft.llm.quality.tensor_log import TensorLog


class WriterLoad(Load):
    """The options of commands that write texts."""

    unused = UNUSED_BY_WRITERS


class RunFlags(Group):
    """The options of `weft run` that are in no group."""

    table = TEXT_OPTIONS
    prompt: str | None = option(
        None, "The text to continue; without it, or -: stdin.", "--prompt -p"
    )
    file: Path | None = option(None, "Read the text to continue here.", "--file -f")
    max_tokens: int = option(
        128, "Most tokens to generate; -1: no limit; -2: until the context is full.",
        "--n-predict --predict --max-tokens -n",
    )  # fmt: skip
    stop: list[str] | None = option(
        None, "Text that ends it; repeatable.", "--stop --reverse-prompt -r"
    )
    context_shift: bool
    n_keep: int
    mmproj: Path | None
    image: list[str] | None
    audio: list[str] | None
    ignore_eos: bool
    escape: bool | None
    parse_special: bool
    special: bool
    display_prompt: bool | None = option(
        None,
        "Print the prompt before its continuation. Default: on a screen, unless the text has a "
        "constraint.", "--display-prompt/--no-display-prompt",
    )  # fmt: skip
    dump_tensors: str | None = option(
        None, "Print name, sizes and statistics of these tensors of the model, each time they are "
        "computed, to stderr; e.g. 'kqv_out-*'.", metavar="GLOB",
    )  # fmt: skip
    beside: Path | None = option(
        None, "Compare tensors of the prompt (those of --dump-tensors) with the log of "
        "llama-eval-callback, and name the first that differs; exits with 1 if one does.",
        metavar="LOG",
    )  # fmt: skip
    html: Path | None = option(
        None, "Write a report to look at, one HTML file: each update of the cache, and the plan.",
        metavar="FILE",
    )  # fmt: skip
    quiet: bool = option(False, "Print the new text only.", "--quiet -q")
    verbose: bool = option(
        False, "Print the tokens of the prompt and the causes of the placement, too.",
        "--verbose -v --verbose-prompt",
    )  # fmt: skip
    no_conversation: bool = option(False, "", "--no-conversation -no-cnv", hidden=True)
    conversation: str | None = option(
        None, "", "-sys --system-prompt --system", metavar="TEXT", hidden=True
    )
    interactive: bool = option(
        False, "", "-cnv --conversation -i --interactive -st --single-turn", hidden=True
    )


@loads_model
def run(
    *,
    model: ModelFile,
    text: Annotated[
        str | None, typer.Argument(metavar="[PROMPT]", help="The text to continue, as with -p.")
    ] = None,
    kept: Annotated[dict[str, Any], PrefixFlags],
    sampling: Annotated[SamplingParams, SamplingFlags],
    own: RunFlags,
    drafts: Annotated[DraftOptions | None, DraftFlags],
    load: Annotated[dict[str, Any], WriterLoad],
) -> None:
    """Generate text; the plan and the speed go to stderr. In a pipe, stdout gets the new text
    alone."""
    require_text_only(own.conversation, own.interactive)
    most = most_tokens(own.max_tokens)
    start = _start(text, own)
    stop = unescaped_texts(own.stop, own.escape)
    check_constraint(sampling)
    log, dump = _dumped(own)
    load |= {"n_seq_max": None if load["plan"] else 1, "repack_later": True}
    with LoadProgress() as progress:
        shifts = own.context_shift and own.max_tokens != -2
        llm = LLM(
            model, context_shift=shifts, n_keep=own.n_keep, drafting=drafts,
            mmproj=own.mmproj, progress=progress, eval_callback=dump,
            **kept, **load,
        )  # fmt: skip
    if dump is not None:
        dump.require_match()
    if own.html is not None:
        llm.context.watch_cache()
    if not own.quiet:
        _show_loaded(model, llm, own, kept, start)
    try:
        if log is not None:
            from weft.cli.dump import show_beside

            show_beside(llm, log, start, own.dump_tensors, own.parse_special, own.verbose)
        else:
            _write(llm, start, own, sampling, most, stop)
    finally:
        if own.html is not None:
            _write_report(own.html, llm)
        llm.close()


def _start(text: str | None, own: RunFlags) -> str:
    """The text to continue: the argument, or what the options say."""
    if text is not None and own.prompt is not None:
        hint = f"; {text} was read as the prompt: {COMMAS}" if is_worker(text) else ""
        raise ContextError(f"give the prompt as an argument or with -p, not both{hint}")
    return _prompt(own.prompt if text is None else text, own.file, own.escape)


def _dumped(own: RunFlags) -> tuple[TensorLog | None, TensorDump | None]:
    """The log of --beside, or else what prints the tensors of --dump-tensors."""
    if own.beside is not None and (own.image or own.audio):
        raise ContextError("--beside compares the tensors of a text; leave out --image and --audio")
    if own.beside is None and own.dump_tensors is None:
        return None, None
    from weft.cli import dump  # most runs dump none

    if own.beside is not None:
        return dump.read_log(own.beside), None
    assert own.dump_tensors is not None
    return None, dump.TensorDump(own.dump_tensors)


def _show_loaded(model: Path, llm: LLM, own: RunFlags, kept: dict[str, Any], start: str) -> None:
    """Prints the plan and the towers, with -v also what is kept and the tokens of the prompt."""
    _show_plan(model, llm, own.verbose)
    if own.mmproj is not None:
        for line in llm.senses.about():
            say(line)
    if own.verbose:
        say(prefixes_line(llm.context, PrefixOptions(**kept)))
        _show_tokens(llm, start, own.parse_special)


def _write(
    llm: LLM, start: str, own: RunFlags, sampling: SamplingParams, most: int | None,
    stop: list[str],
) -> None:  # fmt: skip
    """Writes the text as it comes, at most `most` tokens, and behind it the speed."""
    waiting = PromptProgress()
    pieces: Iterator[str]
    media = [Medium("image", path) for path in own.image or ()]
    media += [Medium("audio", path) for path in own.audio or ()]
    ids = _with_media(llm, start, media) if media else start
    if most == 0:
        pieces = _compute_only(llm, ids, waiting, own.parse_special)
    else:
        pieces = llm.generate(
            ids, max_tokens=most, sampling=sampling, stop=stop, ignore_eos=own.ignore_eos,
            progress=waiting, parse_special=own.parse_special, special=own.special, stream=True,
        )  # fmt: skip
    shown = start if _is_shown(own.display_prompt, sampling, own.quiet) else ""
    try:
        with waiting:
            for piece in pieces:  # the prompt comes with the first one, when the bar is gone
                text_out.write(shown + piece)
                shown = ""
    finally:
        text_out.write(f"{shown}\n")
        if not own.quiet:
            _show_speed(llm.stats)
            if own.verbose:
                _show_drafts(llm.stats)
                _show_reused(llm.stats)
        experts = llm.context.plan.experts
        if own.verbose and experts is not None:
            say(f"experts: {experts.about()}")


def _write_report(path: Path, llm: LLM) -> None:
    from weft.report import report_html  # most runs write none

    write_text(path, report_html(llm, sliders=False))
    say(f"report written to {path}")


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
        f"generation: {count_text(stats.n_generated, 'token')}{speed}{why}"
    )


def _show_reused(stats: Stats) -> None:
    why = f"; {stats.why_not_reused}" if stats.why_not_reused else ""
    say(f"prefix: {stats.n_cached} of {stats.n_prompt} tokens were kept{why}")


def _show_drafts(stats: Stats) -> None:
    n, right = stats.n_drafted, stats.n_accepted
    if n:
        say(f"drafting: {right} of {n} guessed tokens were right ({right / n:.0%})")
    else:
        say("drafting: no token was guessed; guesses are made where they save time")
