"""The model of a command: the argument MODEL, or `-m`, or a repository with `-hf`.

    @takes_model
    def inspect(model: ModelFile, ...) -> None: ...

The command gets a path; with `-m`, arguments that stand where MODEL would are the ones behind it.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args

import typer

from weft.cli.command import MODEL, usage_error
from weft.errors import FormatError

__all__ = ["ModelFile", "ModelFiles", "find_model", "takes_model"]

ModelFile = Path
"""What a command with `@takes_model` calls its parameter `model`."""

Argument = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL", help="A GGUF file, or hf:OWNER/NAME[:QUANT].", show_default=False
    ),
]
OptionalArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="[MODEL]", help="A GGUF file, or hf:OWNER/NAME[:QUANT].", show_default=False
    ),
]
Named = Annotated[
    str | None,
    typer.Option("--model", "-m", metavar="MODEL", help="The same as MODEL.",
                 rich_help_panel=MODEL),
]  # fmt: skip
Repository = Annotated[
    str | None,
    typer.Option(
        "--hf-repo", "-hf", "-hfr", metavar="OWNER/NAME[:QUANT]",
        help="A model of that Hugging Face repository.", rich_help_panel=MODEL,
    ),
]  # fmt: skip
ModelFiles = list[Path]
"""What a command that takes several models calls its parameter `models`."""

_Several = list[str] | None
Arguments = Annotated[
    _Several,
    typer.Argument(
        metavar="[MODEL]", help="GGUF files, or hf:OWNER/NAME[:QUANT].", show_default=False
    ),
]
SeveralNamed = Annotated[_Several, get_args(Named)[1]]
SeveralRepositories = Annotated[_Several, get_args(Repository)[1]]
_SEVERAL = {
    "model_argument": Arguments,
    "model_option": SeveralNamed,
    "model_repo": SeveralRepositories,
}
_ADDED = {"model_argument": Argument, "model_option": Named, "model_repo": Repository}


def takes_model(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with all ways to name a model in place of its parameter `model`."""
    signature = inspect.signature(command, eval_str=True)
    if "models" in signature.parameters:
        return _takes_models(command, signature)
    needed = signature.parameters["model"].default is inspect.Parameter.empty
    behind = {
        name: get_args(p.annotation)[0]
        for name, p in signature.parameters.items()
        if any(type(part) is type(_argument_info()) for part in get_args(p.annotation)[1:])
    }

    @wraps(command)
    def with_model(**given: Any) -> None:
        argument, option, repo = (given.pop(name) for name in _ADDED)
        if repo is not None:
            if option is not None:
                raise usage_error("give -m or -hf, not both")
            option = repo if repo.startswith("hf:") else f"hf:{repo}"
        if option is not None and argument is not None:
            _shift(argument, behind, given)
        named = option if option is not None else argument
        if named is None and needed:
            raise usage_error("MODEL is missing: a GGUF file, or hf:OWNER/NAME[:QUANT]")
        command(**given, model=None if named is None else find_model(named))

    added = _ADDED if needed else _ADDED | {"model_argument": OptionalArgument}
    return _with_parameters(with_model, signature, "model", added)


def _takes_models(
    command: Callable[..., None], signature: inspect.Signature
) -> Callable[..., None]:
    """`command` with all ways to name models in place of its parameter `models`."""

    @wraps(command)
    def with_models(**given: Any) -> None:
        arguments, options, repos = (given.pop(name) or () for name in _SEVERAL)
        named = [*arguments, *(name for text in options for name in _names(text))]
        for text in repos:
            named += [n if n.startswith("hf:") else f"hf:{n}" for n in text.split(",")]
        command(**given, models=[find_model(name) for name in named])

    return _with_parameters(with_models, signature, "models", _SEVERAL)


def _names(text: str) -> list[str]:
    """The models of `-m a.gguf,b.gguf`; a file may have a comma in its name."""
    return [text] if Path(text).exists() else text.split(",")


def _with_parameters(
    command: Callable[..., None],
    signature: inspect.Signature,
    name: str,
    added: Mapping[str, Any],
) -> Callable[..., None]:
    """Says that `command` takes `added` in place of the parameter `name`."""
    keyword = inspect.Parameter.KEYWORD_ONLY
    parameters: list[inspect.Parameter] = []
    for parameter in signature.parameters.values():
        parameters += (
            [parameter.replace(kind=keyword)]
            if parameter.name != name
            else [
                inspect.Parameter(key, keyword, default=None, annotation=annotation)
                for key, annotation in added.items()
            ]
        )
    command.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    del command.__wrapped__  # type: ignore[attr-defined]  # whose signature typer would read
    return command


def _argument_info() -> Any:
    return get_args(Argument)[1]


def _shift(first: str, behind: Mapping[str, Any], given: dict[str, Any]) -> None:
    """Makes the argument in MODEL's place the first of those behind it."""
    for name, annotation in behind.items():
        if "list" in str(annotation):
            given[name] = [first, *(given[name] or ())]
            return
        if given[name] is None:
            given[name] = first
            return
    raise usage_error(f"the model is given with -m; what is {first!r}?")


def find_model(named: str) -> Path:
    """The file that a name stands for, fetched where it is not here.

    Raises FormatError with what may have been meant where there is no such file."""
    from weft.llm.hub import is_hub_name, local_path

    page = re.match(r"(https?://)?(huggingface\.co|hf\.co)/", named)
    if page and not Path(named).exists():
        named = f"hf:{named[page.end() :]}"
    path = local_path(named)
    if is_hub_name(named) or path.exists():
        return path
    raise FormatError(f"{named}: no such file{_meant(named)}")


def _meant(named: str) -> str:
    if re.match(r"https?://", named):
        return "; fetch it first, or name a Hugging Face repository: hf:OWNER/NAME[:QUANT]"
    path = Path(named)
    near = _near(path)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    if path.suffix == ".gguf" and not path.parent.is_dir():
        return f"; there is no folder {str(path.parent)!r}"
    if re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", named) and not path.parent.is_dir():
        return f"; a Hugging Face repository is written hf:{named}"
    if re.fullmatch(r"[\w.:-]+", named) and path.suffix != ".gguf":
        return (
            "; give the path of a GGUF file, or a Hugging Face repository as hf:OWNER/NAME[:QUANT]"
        )
    return ""


def _near(path: Path) -> list[str]:
    """GGUF files of the folder whose names are like that of `path`, at most three."""
    try:
        files = {p.name.lower(): p for p in sorted(path.parent.glob("*.gguf"))[:1000]}
    except OSError:
        return []
    wanted = path.name.lower()
    alike = [name for name in files if wanted.removesuffix(".gguf").replace(":", "-") in name]
    alike += get_close_matches(wanted, files, 3, 0.7)
    return [str(files[name]) for name in dict.fromkeys(alike)][:3]
