"""`AsyncLLM`: texts of a model for programs with asyncio, written at the same time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Generator, Iterable, Mapping, Sequence
from typing import Any, Self, Unpack

from weft.errors import ArgumentError
from weft.heap import trim_heap
from weft.llm.chat.messages import Message
from weft.llm.completion import Completion, Completions
from weft.llm.engine.admission import QueueOptions
from weft.llm.engine.engine import Engine
from weft.llm.engine.request import Done, Event, Ticket
from weft.llm.generate_options import GENERATE_OPTIONS, GenerateOptions
from weft.llm.prompts import Prompt, is_list
from weft.llm.text_model import Asked, LLMArguments, TextModel
from weft.options import asks_by_name, require_options

_ANY_NUMBER = 1 << 30
_OPTIONS = tuple(name for name in GENERATE_OPTIONS if name != "progress")


def _require(what: str, options: Mapping[str, Any]) -> None:
    """Raises ArgumentError for an option that texts of an AsyncLLM do not have."""
    if "stream" in options:
        raise ArgumentError(
            f"{what} of an AsyncLLM has no option 'stream'; await what it returns for the whole "
            f"text, or iterate over it: async for piece in llm.{what}(...)"
        )
    require_options(what, options, _OPTIONS, f"help(weft.LLM.{what})")


class AsyncText(AsyncIterator[str]):
    """A text that is being written. Await it for the whole text, or iterate over its pieces, after
    which `completion` is the whole text. Its prompt waits until then."""

    def __init__(self, engine: Any, asked: Any) -> None:
        """Made by `AsyncLLM.generate` and `AsyncLLM.chat`."""
        self._engine: Engine = engine
        self._request, reader = asked
        self._texts = Completions([reader])
        self._events: asyncio.Queue[Event] = asyncio.Queue()
        self._ticket: Ticket | None = None
        self._done = False

    @property
    def completion(self) -> Completion:
        """The whole text, once it has ended."""
        return self._texts.all[0]

    def cancel(self) -> None:
        """Ends the text; the completion is what was written, with the reason "cancelled"."""
        if self._ticket is not None:
            self._ticket.cancel()

    async def __anext__(self) -> str:
        if self._ticket is None:
            loop, events = asyncio.get_running_loop(), self._events

            def tell(event: Event) -> None:  # without self, which would be a cycle
                loop.call_soon_threadsafe(events.put_nowait, event)

            self._ticket = self._engine.submit(self._request, tell)
        while not self._done:
            try:
                event = await self._events.get()
            except asyncio.CancelledError:
                self._ticket.cancel()
                raise
            self._done = isinstance(event, Done)
            piece = self._texts.take(0, self._ticket, event)
            if piece:
                return piece
        raise StopAsyncIteration

    def __await__(self) -> Generator[Any, None, Completion]:
        return self._whole().__await__()

    async def _whole(self) -> Completion:
        async for _ in self:
            pass
        return self.completion

    def __del__(self) -> None:
        if not self._done:
            self.cancel()


class AsyncLLM(TextModel):
    """A model whose texts are written at the same time, for programs with asyncio.

        async with weft.AsyncLLM("model.gguf") as llm:
            texts = await asyncio.gather(*(llm.generate(p, max_tokens=64) for p in prompts))
            async for piece in llm.chat(messages, max_tokens=64):
                print(piece, end="", flush=True)

    As many texts as `n_seq_max` (usually 16) are written with one pass over the weights for a token
    of each; the others wait in order of arrival. Every method may be called from any thread with an
    event loop."""

    @asks_by_name
    def __init__(self, path: str | os.PathLike[str], **all_options: Unpack[LLMArguments]) -> None:
        """Opens the model as `LLM` does, with the same options and errors; this blocks until it is
        loaded. Raises ContextError for a model that computes embeddings only."""
        super().__init__(path, all_options)
        loaded = self._open()
        self._engine = Engine(
            loaded.context, self.tokenizer, queue=QueueOptions(_ANY_NUMBER),
            drafting=loaded.drafting, prefixes=self._prefixes,
        )  # fmt: skip

    @asks_by_name
    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncText:
        """Continues `prompt` (text or token ids): await the result for the whole text, a `str` as
        from `LLM.generate`, or iterate over its pieces with `async for`. Raises the errors of
        `LLM.generate`. Cancelling the task ends the text."""
        _require("generate", options)
        if is_list(prompt) and len(prompt):
            raise ArgumentError(
                "the prompt is a list of prompts, and an AsyncLLM takes one at a time; call "
                "generate for each, and await them with asyncio.gather"
            )
        return self._text(self._asked(prompt, options))

    def chat(
        self,
        messages: Iterable[Message],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncText:
        """The model's answer to `messages`, to be awaited or iterated over as in `generate`. The
        arguments and errors are as in `LLM.chat`."""
        _require("chat", options)
        return self._text(self._asked_chat(messages, tools, variables, options))

    def _text(self, asked: Asked) -> AsyncText:
        self._engine.check(asked[0])
        return AsyncText(self._engine, asked)

    async def close(self) -> None:
        """Ends all texts and frees the weights, the context and its threads. A second call does
        nothing."""
        if self._loaded is not None:
            self._loaded = None
            await asyncio.to_thread(self._engine.close)
            del self._engine
            trim_heap()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
