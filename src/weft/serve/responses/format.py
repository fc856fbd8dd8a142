"""Responses of the Responses API, whole or as events.

Order of events: https://platform.openai.com/docs/api-reference/responses-streaming
"""

from __future__ import annotations

import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

from fastapi.concurrency import run_in_threadpool

from weft.llm import Tokenizer
from weft.serve.errors import ApiError
from weft.serve.logprobs import chat_logprobs
from weft.serve.messages import Part, Step
from weft.serve.respond import sse
from weft.serve.responses.schema import ResponsesBody
from weft.serve.responses.translate import seal
from weft.serve.texts import OneChat, Texts

_PREFIXES = {"text": "msg", "reasoning": "rs", "call": "fc"}


def new_id(prefix: str) -> str:
    """A random id."""
    return f"{prefix}_{uuid.uuid4().hex}"


class ResponseWriter:
    """The response to one request; see `AnswerWriter`."""

    def __init__(
        self, texts: Texts, tokenizer: Tokenizer, body: ResponsesBody, model: str, owner: object
    ) -> None:
        """`owner` is whose response it is."""
        self.texts = texts
        self.id = new_id("resp")
        self.cancelled = False
        """True after a request to cancel the response."""
        self._body = body
        self._model = model
        self.owner = owner
        self.keep: Callable[[dict[str, Any]], object] = lambda response: None
        """Called with the response when it has ended."""
        self._tokenizer = tokenizer
        self._chat = OneChat(texts)
        self._ids: dict[int, str] = {}
        self._functions = {name: names for name, _, names in body.functions()}
        self._logprobs: dict[int, list[Any]] = {}  # of each part
        self._newest: list[Any] = []  # log-probabilities that go with the newest step
        self._created = int(time.time())
        self._number = -1

    @property
    def ended(self) -> bool:
        """True if nothing more is written."""
        return bool(self.texts.ends)

    def so_far(self) -> dict[str, Any]:
        """The response while it is written."""
        output = [self._item(part, "incomplete") for part in self._chat.parts.all]
        return self._response("in_progress") | {"output": output}

    def cancel(self) -> None:
        """Ends the response as it is."""
        self.cancelled = True
        self.texts.cancel()

    async def whole(self) -> dict[str, Any]:
        """The response."""
        async for _ in self._steps():
            pass
        return await self._ended()

    async def stream(self) -> AsyncIterator[bytes]:
        """Yields the events; the last has the response, with an error if it failed."""
        yield self._event("response.created", response=self._response("in_progress"))
        yield self._event("response.in_progress", response=self._response("in_progress"))
        try:
            async for step in self._steps():
                for event in self._events(step):
                    yield event
            response = await self._ended()
            done = response["status"] == "completed"
            yield self._event(f"response.{'completed' if done else 'incomplete'}",
                              response=response)  # fmt: skip
        except ApiError as error:
            code = "rate_limit_exceeded" if error.status == 429 else "server_error"
            if error.status == 400:
                code = "invalid_prompt"
            failed = self._response("failed")
            failed["error"] = {"code": code, "message": str(error)}
            yield self._event("response.failed", response=failed)

    def ping(self) -> bytes:
        """Returns the event of a stream that has been silent for a while. Some clients count no
        comment as a sign of life."""
        return self._event("response.in_progress", response=self._response("in_progress"))

    async def _steps(self) -> AsyncIterator[Step]:
        """Yields the steps of the answer; a response that is cancelled ends."""
        try:
            async for step in self._chat.steps():
                if step.kind == "more" and step.part.kind == "text":
                    self._take_logprobs(step.part)
                yield step
        except ApiError:
            if not self.cancelled:
                raise
            for step in self._chat.parts.finish():
                yield step

    async def _ended(self) -> dict[str, Any]:
        """The response at its end, which is then kept."""
        status = self._status()
        output = [self._item(part, "completed") for part in self._chat.parts.all[:-1]]
        output += [self._item(part, status) for part in self._chat.parts.all[-1:]]
        response = self._response(status) | {"output": output, "usage": await self._usage()}
        if status == "incomplete":
            response["incomplete_details"] = {"reason": "max_output_tokens"}
        elif status == "completed":
            response["completed_at"] = int(time.time())
        self.keep(response)
        return response

    def _status(self) -> str:
        """The status of the response, and of its last item, at the end."""
        if not self.ended:
            return "completed"
        if self._chat.end.reason == "cancelled":
            return "cancelled"
        return "incomplete" if self._chat.reason == "length" else "completed"

    def _events(self, step: Step) -> Iterator[bytes]:
        """The events of a step."""
        part, index = step.part, step.part.index
        at = {"item_id": self._id(part), "output_index": index}
        if step.kind == "begin":
            item = self._item(part, "in_progress")
            yield self._event("response.output_item.added", output_index=index, item=item)
            if part.kind != "call":
                content = {"content_index": 0, "part": self._content(part)}
                yield self._event("response.content_part.added", **at, **content)
            return
        name = {"text": "output_text", "reasoning": "reasoning_text",
                "call": "function_call_arguments"}[part.kind]  # fmt: skip
        inner: dict[str, Any] = {} if part.kind == "call" else {"content_index": 0}
        if step.kind == "more":
            if part.kind == "text":
                inner["logprobs"] = self._newest
            yield self._event(f"response.{name}.delta", **at, **inner, delta=step.text)
            return
        if part.kind == "text":
            inner["logprobs"] = self._logprobs.get(index, [])
        whole = {"arguments": part.text, "name": self._names(part)["name"]}
        done = whole if part.kind == "call" else {"text": part.text}
        yield self._event(f"response.{name}.done", **at, **inner, **done)
        if part.kind != "call":
            content = {"content_index": 0, "part": self._content(part)}
            yield self._event("response.content_part.done", **at, **content)
        item = self._item(part, self._status())  # the text has not ended before its last item
        yield self._event("response.output_item.done", output_index=index, item=item)

    def _id(self, part: Part) -> str:
        return self._ids.setdefault(part.index, new_id(_PREFIXES[part.kind]))

    def _item(self, part: Part, status: str) -> dict[str, Any]:
        """The item of a part, without its text while it is in progress."""
        if status == "cancelled":
            status = "incomplete"
        item: dict[str, Any] = {"id": self._id(part)}
        written = status != "in_progress"
        if part.kind == "call":
            item |= {"type": "function_call", "call_id": part.id, **self._names(part)}
            return item | {"arguments": part.text if written else "", "status": status}
        content = [self._content(part)] if written else []
        if part.kind == "text":
            item |= {"type": "message", "role": "assistant", "status": status}
            return item | {"content": content}
        item |= {"type": "reasoning", "summary": [], "content": content, "status": status}
        if written and "reasoning.encrypted_content" in (self._body.include or ()):
            item["encrypted_content"] = seal(part.text)
        return item

    def _names(self, part: Part) -> dict[str, str]:
        """The name of the function of a call, and its namespace."""
        return self._functions.get(part.name, {"name": part.name})

    def _content(self, part: Part) -> dict[str, Any]:
        if part.kind == "reasoning":
            return {"type": "reasoning_text", "text": part.text}
        logprobs = self._logprobs.get(part.index, [])
        return {"type": "output_text", "text": part.text, "annotations": [], "logprobs": logprobs}

    def _take_logprobs(self, part: Part) -> None:
        """Log-probabilities of the tokens since the last time go with this part."""
        tokens = self._chat.take_tokens()
        self._newest = []
        if self._body.wants_logprobs and tokens:
            self._newest = chat_logprobs(self._tokenizer, tokens)["content"]
        self._logprobs.setdefault(part.index, []).extend(self._newest)

    async def _usage(self) -> dict[str, Any] | None:
        if not self.texts.ends:
            return None
        n_in, n_out = self.texts.n_prompt, self.texts.n_generated
        thoughts = "".join(p.text for p in self._chat.parts.all if p.kind == "reasoning")
        ids = await run_in_threadpool(self._tokenizer.encode, thoughts, add_special=False)
        return {
            "input_tokens": n_in,
            "input_tokens_details": {"cached_tokens": self.texts.n_reused, "cache_write_tokens": 0},
            "output_tokens": n_out,
            "output_tokens_details": {"reasoning_tokens": min(len(ids), n_out)},
            "total_tokens": n_in + n_out,
        }

    def _response(self, status: str) -> dict[str, Any]:
        body = self._body
        text = body.text.as_json() if body.text else {"format": {"type": "text"}}
        reasoning = body.reasoning
        sampling = self.texts.asked.requests[0].sampling
        return {
            "id": self.id,
            "object": "response",
            "created_at": self._created,
            "status": status,
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": body.instructions,
            "max_output_tokens": body.max_output_tokens,
            "model": self._model,
            "output": [],
            "parallel_tool_calls": body.parallel_tool_calls is not False,
            "previous_response_id": body.previous_response_id,
            "reasoning": {
                "effort": reasoning.effort if reasoning else None,
                "summary": reasoning.summary if reasoning else None,
            },
            "service_tier": "default",
            "store": body.store is not False,
            "temperature": sampling.temperature,
            "text": text,
            "tool_choice": body.tool_choice or "auto",
            "tools": body.tools or [],
            "top_logprobs": body.top_logprobs or 0,
            "top_p": sampling.top_p,
            "truncation": body.truncation or "disabled",
            "usage": None,
            "user": body.user,
            "metadata": body.metadata or {},
        }

    def _event(self, kind: str, **fields: Any) -> bytes:
        self._number += 1
        body = {"type": kind, "sequence_number": self._number} | fields
        return sse(body, kind)
