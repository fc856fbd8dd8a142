"""The options of chat templates: another template, its variables, and reasoning.

    @template_flags
    def chat(model: ModelFile, chats: TemplateOptions) -> None: ...

The decorator replaces the parameter `chats` by all of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.command import TEMPLATE, usage_error
from weft.cli.replaced import parameters_of, replaces
from weft.cli.text_input import read_file
from weft.errors import ContextError
from weft.llm.chat.template import CHATML, NO_REASONING, OWN_VARIABLES
from weft.records import dataclass

__all__ = ["TemplateOptions", "template_flags"]

_SWITCH = {"on": True, "true": True, "1": True, "auto": None, "off": False, "false": False,
           "0": False, "none": False}  # fmt: skip
_EFFORTS = ("minimal", "low", "medium", "high", "xhigh", "max")


@dataclass(frozen=True, slots=True)
class TemplateOptions:
    """How messages are written."""

    source: str | None
    """A template in place of the model's."""
    variables: dict[str, Any]
    """Variables that the template gets."""

    @property
    def reasons(self) -> bool:
        """False if reasoning is switched off."""
        return self.variables.get("enable_thinking") is not False


def _arguments(
    template: Annotated[
        str | None,
        typer.Option(
            "--chat-template", metavar="TEXT|FILE", rich_help_panel=TEMPLATE,
            help="A Jinja template instead of the model's: itself, its file, or chatml.",
        ),
    ] = None,
    template_file: Annotated[
        Path | None,
        typer.Option(
            "--chat-template-file", metavar="FILE", rich_help_panel=TEMPLATE,
            help="A file with a Jinja template.",
        ),
    ] = None,
    kwargs: Annotated[
        str | None,
        typer.Option(
            "--chat-template-kwargs", "--default-chat-template-kwargs", metavar="JSON",
            rich_help_panel=TEMPLATE,
            help="Variables of the template, e.g. '{\"enable_thinking\": false}'.",
        ),
    ] = None,
    reasoning: Annotated[
        str | None,
        typer.Option(
            "--reasoning", "-rea", "--think", metavar="on|off|EFFORT", rich_help_panel=TEMPLATE,
            help="Whether the model reasons before it answers, if its template has a choice; low, "
            "medium, high: how much. Default: as the template has it.",
        ),
    ] = None,
    no_think: Annotated[bool, typer.Option("--no-think", hidden=True)] = False,
    budget: Annotated[
        int | None,
        typer.Option(
            "--reasoning-budget", metavar="0|-1", rich_help_panel=TEMPLATE,
            help="0: no reasoning, as with --reasoning off; -1: any.",
        ),
    ] = None,
) -> TemplateOptions:  # fmt: skip
    if template is not None and template_file is not None:
        raise usage_error("give --chat-template or --chat-template-file, not both")
    source = read_file(template_file) if template_file is not None else _source(template)
    variables = _variables(kwargs)
    if budget not in (None, 0, -1):
        raise ContextError(
            f"--reasoning-budget is {budget}; it is 0 for no reasoning or -1 for any; -n limits "
            "the answer"
        )
    said = None if reasoning is None else reasoning.strip().lower()
    if said in _EFFORTS:
        variables = {"enable_thinking": True, "reasoning_effort": said} | variables
    elif said is not None and said not in _SWITCH:
        raise ContextError(f"--reasoning {reasoning}: write on, off, auto, or low, medium, high")
    elif said is not None and _SWITCH[said]:
        variables = {"enable_thinking": True} | variables
    if no_think or budget == 0 or (said is not None and _SWITCH.get(said, True) is False):
        variables = NO_REASONING | variables
    return TemplateOptions(source, variables)


def _source(given: str | None) -> str | None:
    """The template that a file holds; a text that is one stands for itself."""
    if given is None or "{{" in given or "{%" in given:
        return given
    if given == "chatml":
        return CHATML
    if not Path(given).is_file():
        raise ContextError(
            f"--chat-template {given}: no such file; give a file with a Jinja template, or chatml; "
            "without the option the model's own is used"
        )
    return read_file(Path(given))


def _variables(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        variables = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ContextError(f"--chat-template-kwargs {text:.60}: no JSON: {error}") from None
    if not isinstance(variables, dict):
        raise ContextError(f"--chat-template-kwargs {text:.60}: write an object of JSON")
    own = next(
        (name for name in variables if name in OWN_VARIABLES or not name.isidentifier()), None
    )
    if own is not None:
        raise ContextError(f"--chat-template-kwargs has {own!r:.60}, which is not to be set")
    return variables


template_flags = replaces("chats", parameters_of(_arguments), _arguments)
"""Replaces the parameter `chats` of a command by the options of this module."""
