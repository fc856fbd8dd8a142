"""The bodies of Ollama's API."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from weft.serve.schema import MOST_TEXTS, Body, Part, Tokens, Tool

Images = Annotated[list[str], Field(fail_fast=True, max_length=64)]
KeepAlive = Annotated[
    int | float | str | None, Field(description='seconds, or a time such as "5m"; -1: always')
]
Think = Annotated[
    bool | Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None,
    Field(description='true, false, "none", "minimal", "low", "medium", "high" or "xhigh"'),
]
Format = Annotated[
    Literal["", "json"] | dict[str, Any] | None, Field(description='"json" or a JSON schema')
]


class Writing(Body):
    """The fields that `/api/chat` and `/api/generate` share."""

    model: str
    stream: bool | None = None
    format: Format = None
    options: dict[str, Any] | None = None
    keep_alive: KeepAlive = None
    think: Think = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=20)] | None = None

    def ignored(self) -> list[str]:
        """The names of unknown fields, without those that Ollama itself only uses on loading."""
        return [name for name in super().ignored() if name not in ("truncate", "shift")]


class ChatRequest(Writing):
    """The body of `/api/chat`."""

    messages: Annotated[
        list[dict[str, Any]] | None,
        Field(fail_fast=True, description="a list of messages, objects"),
    ] = None
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None

    def ignored(self) -> list[str]:
        """The names of unknown fields, and tools that are left out."""
        left = [
            f"tools.{i}.{str(tool['type'])[:40]}"
            for i, tool in enumerate(self.tools or ()) if tool["type"] != "function"
        ]  # fmt: skip
        return [*super().ignored(), *left]


class GenerateRequest(Writing):
    """The body of `/api/generate`."""

    prompt: str | None = None
    suffix: str | None = None
    system: str | None = None
    template: str | None = None
    context: Tokens | None = None
    raw: bool | None = None
    images: Images | None = None


class EmbedRequest(Body):
    """The body of `/api/embed`."""

    model: str
    input: Annotated[
        str | Annotated[list[str], Field(fail_fast=True, max_length=MOST_TEXTS)],
        Field(description=f"a text, or a list of at most {MOST_TEXTS}"),
    ]
    truncate: bool = True
    dimensions: Annotated[int, Field(ge=1)] | None = None
    options: dict[str, Any] | None = None
    keep_alive: KeepAlive = None


class EmbeddingsRequest(Body):
    """The body of the older `/api/embeddings`."""

    model: str
    prompt: str
    options: dict[str, Any] | None = None
    keep_alive: KeepAlive = None


class ShowRequest(Part):
    """The body of `/api/show`; older clients write `name`."""

    model: str | None = None
    name: str | None = None
    verbose: bool = False


class PullRequest(ShowRequest):
    """The body of `/api/pull`."""

    stream: bool | None = None
