"""`weft chat` holds a conversation with a model."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.console import LoadProgress, errors, say
from weft.cli.conversation import Conversation
from weft.cli.draft_options import draft_flags
from weft.cli.loading import loads_model_with
from weft.cli.mistakes import show_error
from weft.cli.model_file import ModelFile
from weft.cli.options import (
    ContextShift,
    Escape,
    Images,
    Keep,
    MmProj,
    Sounds,
    Special,
    WeightType,
    most_tokens,
)
from weft.cli.prefix_flags import UNUSED_BY_WRITERS, prefix_flags
from weft.cli.sampling_options import sampling_flags
from weft.cli.template_options import TemplateOptions, template_flags
from weft.cli.text_input import (
    read_file,
    read_line,
    system_text,
    unescaped,
    unescaped_texts,
    with_input,
)
from weft.cli.unused_options import REASONING
from weft.errors import ChatError, ContextError, TokenizerError
from weft.llm import LLM, SamplingParams
from weft.llm.drafting.options import DraftOptions
from weft.llm.generate_options import GenerateOptions
from weft.llm.sampling.constraint import check_constraint

__all__ = ["chat", "read_message"]

QUOTES = '"""'


@prefix_flags
@sampling_flags
@draft_flags
@template_flags
@loads_model_with(unused=(*UNUSED_BY_WRITERS, REASONING))
def chat(
    model: ModelFile,
    load: dict[str, Any],
    text: Annotated[
        str | None, typer.Argument(metavar="[MESSAGE]", help="The first message, as with -p.")
    ] = None,
    system: Annotated[
        str | None,
        typer.Option(
            "--system", "--system-prompt", "-sys", help="What the model should keep to."
        ),
    ] = None,
    prompt: Annotated[str | None, typer.Option("--prompt", "-p", help="The first message.")] = None,
    file: Annotated[
        Path | None, typer.Option("--file", "-f", help="Read the first message here.")
    ] = None,
    system_file: Annotated[
        Path | None,
        typer.Option("--system-prompt-file", "-sysf", hidden=True, metavar="FILE"),
    ] = None,
    single_turn: Annotated[
        bool, typer.Option("--single-turn", "-st", help="Leave after the first answer.")
    ] = False,
    n_predict: Annotated[
        int,
        typer.Option(
            "--n-predict", "--predict", "--max-tokens", "-n",
            help="Most tokens of an answer; -1: no limit; -2: until the context is full.",
        ),
    ] = -1,
    *,
    kept: dict[str, Any],
    sampling: SamplingParams,
    stop: Annotated[
        list[str] | None,
        typer.Option("--stop", "--reverse-prompt", "-r", help="Text that ends an answer; "
                     "repeatable."),
    ] = None,
    context_shift: ContextShift = False,
    keep: Keep = 0,
    mmproj: MmProj = None,
    image: Images = None,
    audio: Sounds = None,
    weight_type: WeightType = None,
    drafts: DraftOptions | None,
    chats: TemplateOptions,
    ignore_eos: Annotated[
        bool, typer.Option("--ignore-eos", help="Go on after the model's end token.")
    ] = False,
    escape: Escape = None,
    special: Special = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print answers only.")] = False,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Say tokens and speed after each answer.")
    ] = False,
    conversation: Annotated[
        bool,  # as it is
        typer.Option(
            *("--conversation", "-cnv", "--interactive", "-i", "--interactive-first", "-if"),
            hidden=True,
        ),
    ] = False,
) -> None:  # fmt: skip
    """Talk with a model; /help lists the commands. Lines of a pipe are messages; behind a first
    message, a pipe is its rest."""
    most = most_tokens(n_predict)
    if text is not None and prompt is not None:
        raise ContextError("give the message as an argument or with -p, not both")
    first = text if prompt is None else prompt
    if first is not None and file is not None:
        raise ContextError("give the message as text or with --file, not both")
    system = system_text(system, system_file, escape)
    if first is not None:
        first = with_input(first if escape is False else unescaped(first))
    if file is not None:
        first = read_file(file).removesuffix("\n")
        first = unescaped(first) if escape else first
    check_constraint(sampling)
    load["n_seq_max"] = None if load["plan"] else 1
    with LoadProgress() as progress:
        llm = LLM(
            model, type=weight_type, context_shift=context_shift and n_predict != -2, n_keep=keep,
            chat_template=chats.source, drafting=drafts, mmproj=mmproj, progress=progress,
            **kept, **load,
        )  # fmt: skip
    llm.chat_template.render([{"role": "user", "content": "x"}])  # raises if the template is broken
    if not quiet:
        config = llm.model.config
        say(
            f"{model.name}: {config.arch}, {llm.context.n_ctx} tokens of context. /help lists the "
            "commands; Ctrl-C stops an answer, Ctrl-D leaves.",
            "dim",
        )
    options: GenerateOptions = {
        "max_tokens": most,
        "sampling": sampling,
        "stop": tuple(unescaped_texts(stop, escape)),
        "special": special,
        "ignore_eos": ignore_eos,
    }
    talk = Conversation(
        llm, system, options, chats.variables, single=single_turn, quiet=quiet, verbose=verbose
    )
    try:
        for path in image or ():
            talk.take(f"/image {path}")
        for path in audio or ():
            talk.take(f"/audio {path}")
        if first is not None:
            talk.ask(first)
        if sys.stdin.isatty():
            _talk(talk)
        else:
            _follow(talk)
    finally:
        llm.close()


def _talk(conversation: Conversation) -> None:
    """Talks with a person: shows errors and reads on."""
    with suppress(ImportError):
        importlib.import_module("readline")  # gives input() editing and a history
    while not conversation.done:
        try:
            text = read_message(input)
        except EOFError:
            print()
            return
        except KeyboardInterrupt:
            errors.print("\nCtrl-D or /exit leaves", style="dim")
            continue
        try:
            conversation.take(text)
        except (ChatError, ContextError, TokenizerError) as error:
            show_error(error)
            if "but the context holds" in str(error) and conversation.has_answers:
                say("/clear forgets what was said before", style="dim")


def _follow(conversation: Conversation) -> None:
    """Reads messages from a pipe; the first error ends it."""

    def line(_: str) -> str:
        text = read_line()
        if not text:
            raise EOFError
        return text.removesuffix("\n").removesuffix("\r")

    while not conversation.done:
        try:
            text = read_message(line)
        except EOFError:
            return
        conversation.take(text)


def read_message(line: Callable[[str], str]) -> str:
    r'''Reads a message with `line(prompt)`. A message is a line and the next ones while they end
    with `\`, or all lines between `"""` and `"""`. Raises EOFError at the end of the input.'''
    first = line("> ")
    if first.lstrip().startswith(QUOTES):
        lines = [first.lstrip().removeprefix(QUOTES)]
        while not lines[-1].rstrip().endswith(QUOTES):
            try:
                lines.append(line(". "))
            except EOFError:
                break
        lines[-1] = lines[-1].rstrip().removesuffix(QUOTES)
        return "\n".join(lines).strip("\n")
    lines = [first]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        try:
            lines.append(line(". "))
        except EOFError:
            break
    return "\n".join(lines)
