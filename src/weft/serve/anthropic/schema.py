"""The bodies of Anthropic's API. Its fields for services that are not here, such as
`cache_control`, are accepted without effect."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from weft.serve.schema import Part, Sampled

Blocks = Annotated[list[dict[str, Any]], Field(fail_fast=True)]
FUNCTIONS = (None, "custom", "function")
"""Types of tools of the client."""


def _is_tool(tool: dict[str, Any]) -> dict[str, Any]:
    """Checks a tool of the client; those that Anthropic runs itself are not here, and left out."""
    if tool.get("type") not in FUNCTIONS and "input_schema" not in tool:
        return tool
    if not isinstance(tool.get("name"), str) or not tool["name"]:
        raise ValueError("a tool has no name")
    if not isinstance(tool.get("input_schema") or {}, dict):
        raise ValueError("the input_schema of a tool is a JSON schema, an object")
    return tool


_HOSTED_BLOCKS = frozenset((
    *("server_tool_use", "mcp_tool_use", "mcp_tool_listing", "tool_reference", "tool_addition"),
    *("tool_removal", "container_upload", "browser_state", "fallback"),
))  # fmt: skip


def is_left_out(kind: Any) -> bool:
    """True for a block of a tool that Anthropic runs itself."""
    return isinstance(kind, str) and (
        kind in _HOSTED_BLOCKS or (kind.endswith("_tool_result") and kind != "tool_result")
    )


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
    diagnostics: dict[str, Any] | None = None

    def ignored(self) -> list[str]:
        """The names of unknown fields, and tools and blocks that are left out."""
        left = [
            f"messages.{i}.content.{j}.{block['type'][:40]}"
            for i, message in enumerate(self.messages) if isinstance(message.get("content"), list)
            for j, block in enumerate(message["content"])
            if isinstance(block, dict) and is_left_out(block.get("type"))
        ]  # fmt: skip
        return [*super().ignored(), *self._hosted(FUNCTIONS), *left]

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
    thread: dict[str, Any] | None = None
    # these have no effect here
    metadata: dict[str, Any] | None = None
    service_tier: str | None = None
    inference_geo: str | None = None
    container: Any = None
