"""The record of a request in the `state` of its scope, for the log, usage and traces.

| key of `state` | what |
|---|---|
| `request_id` | its id, the client's (`x-request-id`) or a new one |
| `model` | the model that answered, where the server has several |
| `key` | the name of the key that it was sent with |
| `texts` | the texts that the engine writes for it |
| `counted` | what another process has counted of a request that it answers |
| `tokens` | numbers of tokens of prompts and texts, where there are no `texts` |
| `ignored` | names of unknown fields |
| `sent` | the status that the connection sent in place of the application; 499: the client left |
| `trace_id` | the id of its trace, in hexadecimal digits |
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from uuid import uuid4

from starlette.types import Scope

from weft.serve.endpoints import find

_ID = re.compile(rb"[\w.:/+=@-]{1,128}")


class Tokens(NamedTuple):
    """Numbers of tokens of a request."""

    prompt: int = 0
    """Number of prompt tokens; a prompt that several texts share counts once."""
    cached: int = 0
    """Number of prompt tokens that were in the cache."""
    generated: int = 0

    def minus(self, other: Tokens) -> Tokens:
        """The differences."""
        return Tokens(*(a - b for a, b in zip(self, other, strict=True)))


class Counted(NamedTuple):
    """The counts of a request that another process answers, so far."""

    tokens: Tokens | None
    n_ended: int
    """Number of texts that have ended."""


def tokens_of(state: dict[str, Any]) -> Tokens | None:
    """The tokens of a request so far; None: it has none. Of a text that was cancelled, the tokens
    of its prompt that were read count, and those that were drawn."""
    texts, counted = state.get("texts"), state.get("counted")
    if counted is not None:
        tokens: Tokens | None = counted.tokens
        return tokens
    if texts is None:
        pair = state.get("tokens")
        return None if pair is None else Tokens(pair[0], 0, pair[1])
    prompts: dict[tuple[int, ...], tuple[int, int]] = {}
    generated = 0
    for number, ticket in enumerate(texts.tickets):
        prompt = ticket.request.prompt
        n_read = len(prompt) if number in texts.ends else ticket.n_read
        # texts with the prompt of another one find all of it in the cache, and count nothing
        prompts.setdefault(prompt, (n_read, min(ticket.n_reused, n_read)))
        generated += ticket.growth.n_drawn
    read, cached = (sum(column) for column in zip(*prompts.values(), strict=True))
    return Tokens(read, cached, generated)


def n_ended(state: dict[str, Any]) -> int:
    """The number of texts of a request that have ended."""
    texts, counted = state.get("texts"), state.get("counted")
    if counted is not None:
        return int(counted.n_ended)
    return 0 if texts is None else len(texts.ends)


def request_id_of(scope: Scope) -> str:
    """The id that the client gave in `x-request-id`, if it is one, or else a new one."""
    for name, value in scope["headers"]:
        if name == b"x-request-id" and _ID.fullmatch(value):
            return str(value, "ascii")
    return f"req_{uuid4().hex}"


def route_of(scope: Scope) -> str:
    """The path of the endpoint that a request is for, without what varies, also where it was
    refused before; `other`: there is none."""
    route = scope.get("route")
    if route is not None:
        return str(route.path)
    path = scope["path"]
    endpoint = find(path)
    if endpoint is None:
        return "other"
    return path if path in endpoint.paths else endpoint.path
