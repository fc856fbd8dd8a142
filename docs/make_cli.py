"""Prints docs/cli.md: every command of `weft` with its arguments and options, as its help has them.

python docs/make_cli.py > docs/cli.md
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import typer

from weft.cli.app import _SECTIONS, COMMANDS, app
from weft.cli.command import _GROUPS, _group_of, _plain


def page() -> str:
    """The whole page."""
    lines = [
        "# The command line",
        "",
        "Made by `make docs` from the commands; `weft COMMAND --help` says the same.",
        "[using.md](using.md) shows them at work.",
        "",
    ]
    root = typer.main.get_command(app)
    above = root.make_context("weft", ["version"], resilient_parsing=True)
    for name in COMMANDS:
        if name in _SECTIONS:
            lines += [f"## {_SECTIONS[name]}", ""]
        lines += _command(name, root.get_command(above, name), above)  # type: ignore[attr-defined]
    return "\n".join(lines).rstrip() + "\n"


def _command(name: str, command: Any, above: Any) -> Iterator[str]:
    context = command.make_context(name, [], parent=above, resilient_parsing=True)
    yield f"### `weft {name}`"
    yield ""
    yield f"    weft {name} {' '.join(command.collect_usage_pieces(context))}"
    yield ""
    yield _safe(command.help or COMMANDS[name])
    yield ""
    groups: dict[str, list[tuple[str, str]]] = {}
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None:
            groups.setdefault(_group_of(parameter), []).append(_plain(parameter, record))
    for group in sorted(groups, key=_GROUPS.index):
        yield f"{group}:"
        yield ""
        yield from (
            f"- `{left}`{': ' * bool(right)}{_safe(right)}" for left, right in groups[group]
        )
        yield ""


def _safe(text: str) -> str:
    """A sentence in which nothing is taken for HTML or emphasis."""
    return re.sub(r"([<*])", r"\\\1", " ".join(text.split()))


if __name__ == "__main__":
    print(page(), end="")
