"""A conversation in a terminal: messages, streamed answers, and commands such as /save."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from weft.cli.chat_settings import ChatSettings
from weft.cli.console import PromptProgress, WordWrap, errors, say, text_out, unechoed
from weft.cli.plan_lines import memory_text
from weft.errors import ChatError, ContextError, FormatError
from weft.files import read_text, write_text
from weft.llm import LLM
from weft.llm.answers import AnswerFormat, Content, Event, Reasoning
from weft.llm.generate_options import GenerateOptions, stop_strings
from weft.llm.senses.media import Kind, Medium

FORMAT = "weft-chat 1"
_END = 64
"""Number of last tokens of a prompt that tell whether it has begun the reasoning."""
_OTHER_NAMES = {"/bye": "/exit", "/quit": "/exit", "/?": "/help", "/regenerate": "/regen"}
"""Commands as other engines call them."""


class Said:
    """An answer as it is shown: reasoning apart, grey on a screen; in a pipe, on stderr."""

    def __init__(self, *, quiet: bool, wraps: bool = True) -> None:
        """With `quiet` only the content is shown; with `wraps` a terminal gets whole words."""
        self._quiet = quiet
        width = errors.width if wraps and sys.stdout.isatty() else 0
        self._text, self._thought = WordWrap(width), WordWrap(width)
        self._content: list[str] = []
        self._reasoning: list[str] = []

    def add(self, events: Iterable[Event]) -> None:
        """Shows what has come."""
        for event in events:
            if isinstance(event, Reasoning):
                self._reasoning.append(event.text)
                self._say_thought(self._thought.push(event.text))
            elif isinstance(event, Content):
                if self._reasoning and not self._content:
                    self._say_thought(self._thought.end() + "\n\n")
                self._content.append(event.text)
                text_out.write(self._text.push(event.text))

    def _say_thought(self, text: str) -> None:
        if not self._quiet:
            errors.print(text, style="dim", markup=False, soft_wrap=True, end="")

    def end(self) -> None:
        """Ends the line."""
        if not self._content:
            self._say_thought(self._thought.end())
        text_out.write(self._text.end())
        if not self._content or not self._content[-1].endswith("\n"):
            text_out.write("\n")

    def message(self) -> dict[str, Any]:
        """The answer as a message of the conversation."""
        message = {"role": "assistant", "content": "".join(self._content)}
        if self._reasoning:
            message["reasoning_content"] = "".join(self._reasoning)
        return message


class Conversation:
    """The messages of a conversation, and the model that answers them."""

    def __init__(
        self,
        llm: LLM,
        system: str | None,
        options: GenerateOptions,
        variables: Mapping[str, Any] | None = None,
        *,
        said: Sequence[dict[str, Any]] = (),
        single: bool = False,
        quiet: bool = False,
        verbose: bool = False,
    ) -> None:
        """`system` is the text of a system message, if any, and `said` are the messages behind it;
        `options` are those of `LLM.generate` and `variables` those of the template. With `single`,
        the conversation ends after one answer; `quiet` leaves out reasoning, `verbose` adds tokens
        and speed."""
        self._llm = llm
        self._settings = ChatSettings(options.copy(), dict(variables or {}), verbose=verbose)
        self._quiet = quiet
        self._again = 0
        self._media: list[Medium] = []
        first = [] if system is None else [{"role": "system", "content": system}]
        self._first: list[dict[str, Any]] = [*first, *said]
        self.messages: list[dict[str, Any]] = list(self._first)
        self.done = False
        self._single = single
        kinds: tuple[Kind, ...] = ("image", "audio")
        hidden = [f"/{kind}" for kind in kinds if not self._takes(kind)]
        self._commands: dict[str, tuple[Callable[[str], None], str]] = {
            "/image": (partial(self._add, "image"), "FILE: an image for the next message"),
            "/audio": (partial(self._add, "audio"), "FILE: a sound for the next message"),
            "/clear": (self._clear, "forget the conversation, but not the system prompt"),
            "/regen": (self._regenerate, "answer the last message again"),
            "/set": (self._set, "parameter NAME VALUE, system TEXT, think, nothink, ..."),
            "/show": (self._show, "the system message and the parameters"),
            "/save": (self._save, "FILE: write the conversation, as JSON"),
            "/load": (self._load, "FILE: go on with a conversation"),
            "/stats": (self._show_stats, "tokens, speed and memory"),
            "/help": (self._help, "this list"),
            "/exit": (self._exit, "leave, as Ctrl-D does"),
        }
        self.commands = [name for name in self._commands if name not in hidden]
        """The commands that this model can do."""

    @property
    def has_answers(self) -> bool:
        """True if there is an answer already."""
        return any(m["role"] == "assistant" for m in self.messages)

    def take(self, text: str) -> None:
        """Handles a message or a command as it was typed; `//text` is the message `/text`.

        Raises ChatError or ContextError if it cannot; nothing is changed then."""
        name, _, argument = text.strip().partition(" ")
        name = _OTHER_NAMES.get(name, name)
        if text.startswith("//"):
            self.ask(text[1:])
        elif name in self._commands:
            self._commands[name][0](argument.strip())
        elif name.startswith("/") and name[1:].isalpha():
            raise ChatError(f"there is no command {name}; /help lists them, //{name[1:]} sends it")
        elif text.strip():
            self.ask(text)

    def ask(self, text: str) -> None:
        """Adds a message and answers it."""
        self._again = 0
        content: Any = text
        if self._media:
            content = [{"type": m.kind, m.kind: m.value} for m in self._media]
            content.append({"type": "text", "text": text})
        self._answer([*self.messages, {"role": "user", "content": content}])
        self._media = []

    def _add(self, kind: Kind, path: str) -> None:
        self._llm.senses.of(kind).ids(path)  # raises now if it is none
        self._media.append(Medium(kind, path))

    def _answer(self, messages: list[dict[str, Any]]) -> None:
        """Streams the answer to stdout. Ctrl-C ends it; the text so far stays."""
        options = self._settings.options.copy()
        sampling = self._settings.sampling
        if sampling.seed is not None:  # the same seed would give the same answer
            options["sampling"] = replace(sampling, seed=sampling.seed + self._again)
        llm = self._llm
        prompt, before = self._prompt(messages)
        options["stop"] = stop_strings(options) + llm.chat_template.stops
        constrained = sampling.constrained  # such an answer has no reasoning
        if not constrained and self._format.hides_marks(llm.tokenizer):
            options["special"] = True
        parser = None if constrained else self._format.parser(prompt=before)
        said = Said(quiet=self._quiet, wraps=self._settings.wraps)
        interrupted = False
        with unechoed(), PromptProgress() as progress:
            options["progress"] = progress
            pieces = llm.generate(prompt, stream=True, **options)
            try:
                for piece in pieces:
                    said.add(parser.push(piece) if parser else [Content(piece)])
            except KeyboardInterrupt:
                interrupted = True
                pieces.close()
        said.add(parser.finish() if parser else [])
        self.messages = [*messages, said.message()]
        self.done = self._single
        said.end()
        if self._settings.verbose:
            self._show_stats("")
        if interrupted:
            _note("stopped; /regen answers again")
        elif self._llm.stats.finish_reason == "context":
            _note(
                f"the context of {self._llm.context.n_ctx} tokens is full and the answer cut off; "
                "/clear starts anew, -c makes it larger, --context-shift goes on"
            )

    def _prompt(self, messages: list[dict[str, Any]]) -> tuple[list[int], str]:
        """The tokens that an answer to `messages` continues, and the text of the last of them.
        Reasoning that a template begins is ended, if there is to be none."""
        llm = self._llm
        ids = llm.chat_prompt(messages, variables=self._settings.variables)
        if self._settings.variables.get("enable_thinking") is False:
            if self._format.is_thinking(self._end(ids)):
                closing = self._format.no_thought
                ids += llm.tokenizer.encode(
                    closing, add_special=False, parse_special=True, continues=True
                )
        return ids, self._end(ids)

    def _end(self, ids: list[int]) -> str:
        own = [id_ for id_ in ids[-_END:] if id_ < self._llm.tokenizer.n_vocab]
        return self._llm.detokenize(own, special=True)

    @cached_property
    def _format(self) -> AnswerFormat:
        return AnswerFormat.of(self._llm.chat_template)

    def _clear(self, _: str) -> None:
        self.messages = list(self._first)
        _note("the conversation is forgotten")

    def _regenerate(self, _: str) -> None:
        if not self.messages or self.messages[-1]["role"] != "assistant":
            raise ChatError("there is no answer yet")
        self._again += 1
        self._answer(self.messages[:-1])

    def _set(self, argument: str) -> None:
        name, _, value = argument.partition(" ")
        if name.lower() == "system":
            first = [{"role": "system", "content": value.strip().strip('"')}]
            for messages in (self._first, self.messages):
                messages[:] = first + [m for m in messages if m["role"] != "system"]
        else:
            self._settings.change(argument)

    def _show(self, _: str) -> None:
        system = [_plain(m["content"]) for m in self._first if m["role"] == "system"]
        for line in (f"system: {system[0] if system else 'none'}", *self._settings.lines()):
            _note(line)

    def _takes(self, kind: Kind) -> bool:
        try:
            return bool(self._llm.senses.of(kind))
        except ContextError:
            return False

    def _save(self, argument: str) -> None:
        path = _file("/save", argument)
        data = {
            "format": FORMAT,
            "model": self._llm.model.file.path.name,
            "messages": self.messages,
        }
        try:
            write_text(path, json.dumps(data, indent=1, ensure_ascii=False) + "\n")
        except FormatError as error:
            raise ChatError(str(error)) from None
        _note(f"{len(self.messages)} messages saved to {path}")

    def _load(self, argument: str) -> None:
        path = _file("/load", argument)
        try:
            data = json.loads(read_text(path))
        except (OSError, ValueError, RecursionError, FormatError) as error:
            why = getattr(error, "strerror", None) or error
            raise ChatError(f"{path} cannot be read: {why}") from None
        messages = data.get("messages") if isinstance(data, dict) else None
        if not isinstance(messages, list) or data.get("format") != FORMAT:
            raise ChatError(f"{path} holds no conversation of weft chat")
        if not all(
            isinstance(m, dict)
            and isinstance(m.get("role"), str)
            and isinstance(m.get("content"), str | list)
            for m in messages
        ):
            raise ChatError(f"{path}: a message has no role or no content")
        self.messages = messages
        first = messages[:1] if messages and messages[0]["role"] == "system" else []
        self._first = first
        for message in messages[-2:]:
            _note(f"{message['role']}: {_plain(message['content'])}")
        _note(f"{len(messages)} messages loaded from {path}")

    def _show_stats(self, _: str) -> None:
        stats, context = self._llm.stats, self._llm.context
        if not stats.n_prompt:
            raise ChatError("nothing has been computed yet")
        _note(
            f"context: {context.cache.n_used} of {context.n_ctx} tokens; prompt: "
            f"{stats.n_prompt} tokens, {stats.n_cached} of them kept, "
            f"{stats.prompt_tokens_per_second:.1f} tokens/s; answer: {stats.n_generated} tokens, "
            f"{stats.tokens_per_second:.1f} tokens/s"
        )
        _note(f"memory: {memory_text(context)}")
        if stats.why_not_reused and stats.n_cached:
            _note(f"no more of the prompt was kept: {stats.why_not_reused}")
        if context.plan.experts is not None:
            _note(f"experts: {context.plan.experts.about()}")

    def _help(self, _: str) -> None:
        for name in self.commands:
            _note(f"{name:<8}{self._commands[name][1]}")
        _note('A line that ends with \\ goes on; """ begins and ends a text of several lines.')
        _note("Ctrl-C stops an answer.")

    def _exit(self, _: str) -> None:
        self.done = True


def _file(command: str, argument: str) -> Path:
    if not argument:
        raise ContextError(f"{command} needs the name of a file")
    return Path(argument).expanduser()


def _plain(content: Any) -> str:
    """The text of a message."""
    if isinstance(content, str):
        return content
    return " ".join(str(part.get("text", f"[{part.get('type')}]")) for part in content)


def _note(text: str) -> None:
    say(text, "dim")
