"""The options of chat templates: another template, its variables, and reasoning."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from weft.cli.command import TEMPLATE, usage_error
from weft.cli.groups import Group
from weft.cli.text_input import read_file
from weft.errors import ContextError
from weft.llm.chat.template import CHATML, NO_REASONING, OWN_VARIABLES
from weft.options import option
from weft.records import dataclass

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


class TemplateFlags(Group):
    """How messages are written. The command gets `TemplateOptions`."""

    template: str | None = option(
        None, "A Jinja template instead of the model's: itself, its file, or chatml.",
        "--chat-template", TEMPLATE, metavar="TEXT|FILE",
    )  # fmt: skip
    template_file: Path | None = option(
        None, "A file with a Jinja template.", "--chat-template-file", TEMPLATE, metavar="FILE"
    )
    kwargs: str | None = option(
        None, "Variables of the template, e.g. '{\"enable_thinking\": false}'.",
        "--chat-template-kwargs --default-chat-template-kwargs", TEMPLATE, metavar="JSON",
    )  # fmt: skip
    reasoning: str | None = option(
        None,
        "Whether the model reasons before it answers, if its template has a choice; low, medium, "
        "high: how much. Default: as the template has it.", "--reasoning -rea --think", TEMPLATE,
        metavar="on|off|EFFORT",
    )  # fmt: skip
    no_think: bool = option(False, "", hidden=True)
    budget: int | None = option(
        None, "0: no reasoning, as with --reasoning off; -1: any.", "--reasoning-budget", TEMPLATE,
        metavar="0|-1",
    )  # fmt: skip

    def made(self, given: Mapping[str, Any]) -> TemplateOptions:
        """The template options of these flags. Raises ContextError for a wrong value."""
        if self.template is not None and self.template_file is not None:
            raise usage_error("give --chat-template or --chat-template-file, not both")
        file = self.template_file
        source = read_file(file) if file is not None else _source(self.template)
        variables = _variables(self.kwargs)
        if self.budget not in (None, 0, -1):
            raise ContextError(
                f"--reasoning-budget is {self.budget}; it is 0 for no reasoning or -1 for any; -n "
                "limits the answer"
            )
        said = None if self.reasoning is None else self.reasoning.strip().lower()
        if said in _EFFORTS:
            variables = {"enable_thinking": True, "reasoning_effort": said} | variables
        elif said is not None and said not in _SWITCH:
            raise ContextError(
                f"--reasoning {self.reasoning}: write on, off, auto, or low, medium, high"
            )
        elif said is not None and _SWITCH[said]:
            variables = {"enable_thinking": True} | variables
        off = said is not None and _SWITCH.get(said, True) is False
        if off or self.no_think or self.budget == 0:
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
