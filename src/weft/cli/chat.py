"""`weft chat` holds a conversation with a model."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.console import LoadProgress, errors, say
from weft.cli.conversation import Conversation
from weft.cli.draft_options import DraftFlags
from weft.cli.groups import Group
from weft.cli.loading import loads_model
from weft.cli.mistakes import show_error
from weft.cli.model_file import ModelFile
from weft.cli.options import TEXT_OPTIONS, most_tokens
from weft.cli.prefix_flags import UNUSED_BY_WRITERS, PrefixFlags
from weft.cli.run import WriterLoad
from weft.cli.sampling_options import SamplingFlags
from weft.cli.template_options import TemplateFlags, TemplateOptions
from weft.cli.text_input import (
    read_file,
    read_line,
    system_text,
    unescaped,
    unescaped_texts,
    with_input,
)
from weft.cli.unused_options import REASONING
from weft.errors import ChatError, ContextError, ContextFull, TokenizerError
from weft.files import private
from weft.flags import FLAGS
from weft.llm import LLM, SamplingParams
from weft.llm.generate_options import GenerateOptions
from weft.llm.planning.draft_options import DraftOptions
from weft.llm.sampling.constraint import check_constraint
from weft.options import option

QUOTES = '"""'


class ChatLoad(WriterLoad):
    """The options of `weft chat` for its model."""

    unused = (*UNUSED_BY_WRITERS, REASONING)


class ChatFlags(Group):
    """The options of `weft chat` that are in no group."""

    table = TEXT_OPTIONS
    system: str | None = option(
        None, "What the model should keep to.", "--system --system-prompt -sys"
    )
    prompt: str | None = option(None, "The first message.", "--prompt -p")
    file: Path | None = option(None, "Read the first message here.", "--file -f")
    system_file: Path | None
    single_turn: bool = option(False, "Leave after the first answer.", "--single-turn -st")
    max_tokens: int = option(
        -1, "Most tokens of an answer; -1: no limit; -2: until the context is full.",
        "--n-predict --predict --max-tokens -n",
    )  # fmt: skip
    stop: list[str] | None = option(
        None, "Text that ends an answer; repeatable.", "--stop --reverse-prompt -r"
    )
    context_shift: bool
    n_keep: int
    mmproj: Path | None
    image: list[str] | None
    audio: list[str] | None
    ignore_eos: bool
    escape: bool | None
    special: bool
    quiet: bool = option(False, "Print answers only.", "--quiet -q")
    verbose: bool = option(False, "Say tokens and speed after each answer.", "--verbose -v")
    hide_thinking: bool = option(
        False, "Do not print the reasoning.", "--hide-thinking --hidethinking"
    )
    message: list[str] | None = option(
        None, "A message that the conversation begins with; repeatable.", metavar="'ROLE TEXT'"
    )
    conversation: bool = option(
        False, "", "--conversation -cnv --interactive -i --interactive-first -if", hidden=True
    )


@loads_model
def chat(
    *,
    model: ModelFile,
    text: Annotated[
        str | None, typer.Argument(metavar="[MESSAGE]", help="The first message, as with -p.")
    ] = None,
    kept: Annotated[dict[str, Any], PrefixFlags],
    sampling: Annotated[SamplingParams, SamplingFlags],
    own: ChatFlags,
    drafts: Annotated[DraftOptions | None, DraftFlags],
    chats: Annotated[TemplateOptions, TemplateFlags],
    load: Annotated[dict[str, Any], ChatLoad],
) -> None:
    """Talk with a model; /help lists the commands. Lines of a pipe are messages; behind a first
    message, a pipe is its rest."""
    most = most_tokens(own.max_tokens)
    if text is not None and own.prompt is not None:
        raise ContextError("give the message as an argument or with -p, not both")
    first = text if own.prompt is None else own.prompt
    if first is not None and own.file is not None:
        raise ContextError("give the message as text or with --file, not both")
    system = system_text(own.system, own.system_file, own.escape)
    if first is not None:
        first = with_input(first if own.escape is False else unescaped(first))
    if own.file is not None:
        first = read_file(own.file).removesuffix("\n")
        first = unescaped(first) if own.escape else first
    check_constraint(sampling)
    load["n_seq_max"] = None if load["plan"] else 1
    with LoadProgress() as progress:
        llm = LLM(
            model, context_shift=own.context_shift and own.max_tokens != -2,
            n_keep=own.n_keep, chat_template=chats.source, drafting=drafts, mmproj=own.mmproj,
            progress=progress, **kept, **load,
        )  # fmt: skip
    llm.chat_template.render([{"role": "user", "content": "x"}])  # raises if the template is broken
    if not own.quiet:
        config = llm.model.config
        say(
            f"{model.name}: {config.arch}, {llm.context.n_ctx} tokens of context. /help lists the "
            "commands; Ctrl-C stops an answer, Ctrl-D leaves.",
            "dim",
        )
    options: GenerateOptions = {
        "max_tokens": most,
        "sampling": sampling,
        "stop": tuple(unescaped_texts(own.stop, own.escape)),
        "special": own.special,
        "ignore_eos": own.ignore_eos,
    }
    talk = Conversation(
        llm,
        system,
        options,
        chats.variables,
        said=_said(own.message or ()),
        single=own.single_turn,
        quiet=own.quiet or own.hide_thinking,
        verbose=own.verbose,
    )
    try:
        for path in own.image or ():
            talk.take(f"/image {path}")
        for path in own.audio or ():
            talk.take(f"/audio {path}")
        if first is not None:
            talk.ask(first)
        if sys.stdin.isatty():
            _talk(talk)
        else:
            _follow(talk)
    finally:
        llm.close()


def _said(messages: Sequence[str]) -> list[dict[str, Any]]:
    """The messages that a Modelfile begins with, a role and a text each."""
    parts = [message.partition(" ") for message in messages]
    return [{"role": role, "content": text} for role, _, text in parts]


HISTORY = 1000
"""Maximum number of typed lines that are kept for the next start."""


@contextmanager
def _line_editor(commands: Sequence[str]) -> Iterator[None]:
    """Gives input() editing, Tab for commands, and the lines that were typed before, which are in a
    file for their user alone."""
    try:
        lines: Any = importlib.import_module("readline")
    except ImportError:
        yield
        return
    path = Path(FLAGS.cache) / "chat_history"
    with suppress(OSError):
        lines.read_history_file(path)
    lines.set_history_length(HISTORY)
    lines.set_completer_delims("")
    lines.set_completer(
        lambda text, n: [*(c for c in commands if text and c.startswith(text)), None][n]
    )
    lines.parse_and_bind("tab: complete")
    try:
        yield
    finally:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
            open(path, "a", opener=private).close()
            lines.write_history_file(path)


def _talk(conversation: Conversation) -> None:
    """Talks with a person: shows errors and reads on."""
    with _line_editor(conversation.commands):
        _read_on(conversation)


def _read_on(conversation: Conversation) -> None:
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
            if isinstance(error, ContextFull) and conversation.has_answers:
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
