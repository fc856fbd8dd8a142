"""The bodies of Anthropic's API. Its fields for services that are not here, such as
`cache_control`, are accepted without effect."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from weft.serve.schema import Part, Sampled

__all__ = ["CountBody", "MessagesBody", "Thinking", "ToolChoice"]

Blocks = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
_FUNCTIONS = (None, "custom", "function")


def _is_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Checks a tool of the client; those that Anthropic runs itself are not here."""
    if tool.get("type") not in _FUNCTIONS:
        raise ValueError(
            f"a tool of type {str(tool['type'])[:40]!r} is not here; tools have a name and an "
            "input_schema"
        )
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise ValueError("a tool has no name")
    if not isinstance(tool.get("input_schema", {}), dict):
        raise ValueError("the input_schema of a tool is a JSON schema, an object")
    return tool


Tool = Annotated[dict[str, Any], AfterValidator(_is_tool)]


class Thinking(Part):
    type: Literal["enabled", "disabled", "adaptive", "between_tools"]
    budget_tokens: int | None = None
    display: str | None = None


class ToolChoice(Part):
    type: Literal["auto", "any", "tool", "none"]
    name: str | None = None
    disable_parallel_tool_use: bool = False


class OutputFormat(Part):
    type: Literal["json_schema"]
    schema_: Annotated[dict[str, Any], Field(alias="schema")]


class OutputConfig(Part):
    effort: str | None = None
    format: OutputFormat | None = None


class CountBody(Sampled):
    """The body of `/v1/messages/count_tokens`."""

    model: str | None = None
    messages: Annotated[
        list[dict[str, Any]], Field(fail_fast=True, description="a list of messages, objects")
    ]
    system: Annotated[str | Blocks | None, Field(description="a text or a list of text blocks")] = (
        None
    )
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None
    tool_choice: ToolChoice | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: OutputFormat | None = None
    mcp_servers: list[Any] | None = None
    # these have no effect here
    cache_control: dict[str, Any] | None = None
    context_management: dict[str, Any] | None = None
    speed: str | None = None

    @property
    def thinks(self) -> bool:
        """True if the model is to think before its answer."""
        return self.thinking is not None and self.thinking.type in ("enabled", "adaptive")


class MessagesBody(CountBody):
    """The body of `/v1/messages`."""

    max_tokens: Annotated[int, Field(ge=1)]
    stop_sequences: Annotated[list[str], Field(fail_fast=True)] | None = None
    stream: bool = False
    temperature: Annotated[float, Field(ge=0, le=2)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    top_k: int | None = None
    # these have no effect here
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    container: Any = None
