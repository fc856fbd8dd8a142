"""Answers of llama.cpp's `/completion`, whole or streamed, and the parameters that they show."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from weft.llm import SamplingParams, Tokenizer
from weft.llm.engine import Delta, Done, Request
from weft.llm.sampling import TokenLogprobs
from weft.serve.errors import ApiError
from weft.serve.llama.schema import Writing
from weft.serve.logprobs import chat_logprobs
from weft.serve.respond import sse, sse_error
from weft.serve.texts import Texts, timings_of

_NAMES = {"dry_last_n": "dry_penalty_last_n"}
_EMPTY: dict[str, Any] = {"grammar": "", "json_schema": None, "logit_bias": []}


def params_shown(request: Request, *, stream: bool | None = None) -> dict[str, Any]:
    """The parameters of a request, without its prompt."""
    limit = -1 if request.max_tokens is None else request.max_tokens
    return _sampling(request.sampling) | {
        "n_predict": limit,
        "max_tokens": limit,
        "n_keep": 0,
        "stop": list(request.stop),
        "ignore_eos": request.ignore_eos,
        "n_probs": request.logprobs or 0,
        **({} if stream is None else {"stream": stream}),
    }


def defaults_shown(usual: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of `/completion` for a request that names none; `usual` are the server's."""
    return params_shown(Request((0,), sampling=SamplingParams(**usual)), stream=False)


def _sampling(sampling: SamplingParams) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    for field in fields(sampling):
        value = getattr(sampling, field.name)
        if value is None:
            value = _EMPTY.get(field.name)
        elif isinstance(value, tuple):
            value = list(value)
        elif isinstance(value, dict):
            value = [[token, bias] for token, bias in value.items()]
        shown[_NAMES.get(field.name, field.name)] = value
    shown["seed"] = -1 if sampling.seed is None else sampling.seed
    return shown


class CompletionAnswer:
    """The texts of one request to `/completion` or `/infill`."""

    def __init__(
        self, texts: Texts, tokenizer: Tokenizer, model: str, body: Writing, as_list: bool
    ) -> None:
        """`as_list` answers with a list, whatever the number of texts."""
        self.texts = texts
        self._tokenizer = tokenizer
        self._model = model
        self._body = body
        self._as_list = as_list
        n = len(texts.tickets)
        self._content = [""] * n
        self._told = [0] * n
        self._tokens: list[list[TokenLogprobs]] = [[] for _ in range(n)]

    async def whole(self) -> Any:
        """The body of an answer that is not streamed: an object, or a list for several prompts."""
        async for choice, event in self.texts.events():
            if isinstance(event, Delta):
                self._content[choice] += event.text
                self._tokens[choice] += event.tokens
        rows = [self._end(i) for i in range(len(self.texts.tickets))]
        return rows if self._as_list or len(rows) > 1 else rows[0]

    async def stream(self) -> AsyncIterator[bytes]:
        """Yields server-sent events; the last of each text has `stop` true."""
        try:
            async for choice, event in self.texts.events():
                if isinstance(event, Done):
                    left = event.ids[self._told[choice] :]
                    yield sse(self._end(choice) | {"content": "", "tokens": list(left)})
                elif isinstance(event, Delta):
                    yield sse(self._part(choice, event))
        except ApiError as error:
            yield sse_error(error)

    def _part(self, choice: int, event: Delta) -> dict[str, Any]:
        ticket = self.texts.tickets[choice]
        ids = ticket.growth.ids[self._told[choice] : event.n_ids]
        self._told[choice] = max(event.n_ids, self._told[choice])
        part: dict[str, Any] = {
            "index": choice,
            "content": event.text,
            "tokens": list(ids),
            "stop": False,
            "id_slot": -1,
            "tokens_predicted": event.n_ids,
            "tokens_evaluated": len(ticket.request.prompt),
        }
        if self._body.n_probs:
            part["completion_probabilities"] = self._shown(event.tokens)
        if self._body.timings_per_token:
            part["timings"] = timings_of([ticket])
        return part

    def _end(self, choice: int) -> dict[str, Any]:
        """The whole answer of one text."""
        ticket, end = self.texts.tickets[choice], self.texts.ends[choice]
        word = end.stopped_by
        stop_type = "word" if word is not None else "eos" if end.reason == "stop" else "limit"
        prompt = [i for i in ticket.request.prompt if i < self._tokenizer.n_vocab]
        content = self._content[choice]
        answer: dict[str, Any] = {
            "index": choice,
            "content": content,
            "tokens": list(end.ids) if self._body.return_tokens else [],
            "id_slot": -1,
            "stop": True,
            "model": self._model,
            "tokens_predicted": end.n_generated,
            "tokens_evaluated": end.n_prompt,
            "generation_settings": params_shown(ticket.request, stream=bool(self._body.stream)),
            "prompt": self._tokenizer.decode(prompt, special=True),
            "has_new_line": "\n" in content,
            "truncated": end.reason == "context",
            "stop_type": stop_type,
            "stopping_word": word or "",
            "tokens_cached": end.n_reused,
            "timings": timings_of([ticket]),
        }
        if self._body.n_probs:
            answer["completion_probabilities"] = self._shown(self._tokens[choice])
        return _chosen(answer, self._body.response_fields)

    def _shown(self, tokens: Sequence[TokenLogprobs]) -> list[dict[str, Any]]:
        """Log-probabilities with the ids of tokens."""
        rows: list[dict[str, Any]] = chat_logprobs(self._tokenizer, tokens)["content"]
        for row, token in zip(rows, tokens, strict=True):
            row["id"] = token.id
            for top, (id_, _) in zip(row["top_logprobs"], token.top, strict=True):
                top["id"] = id_
        return rows


def _chosen(answer: dict[str, Any], names: Sequence[str] | None) -> dict[str, Any]:
    """The fields `names` alone; `a/b` takes b out of a. None: all fields."""
    if names is None:
        return answer
    found: dict[str, Any] = {}
    for name in names:
        value: Any = answer
        parts = name.split("/")
        for part in parts:
            value = value.get(part, _chosen) if isinstance(value, dict) else _chosen
        if value is not _chosen:
            found[parts[-1]] = value
    return found
