"""`weft gguf` splits, merges, changes and checks GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from weft.cli.command import usage_error
from weft.cli.console import errors, say
from weft.cli.convert import SPLIT_OPTIONS
from weft.cli.groups import Group, changed, grouped
from weft.errors import FormatError
from weft.frontends.gguf.describe import in_words
from weft.frontends.gguf.reader import open_gguf
from weft.frontends.gguf.shards import ShardLimits, bad_tensors, merge_shards, set_key, split_file
from weft.options import option

_WANTED = {
    "split": "IN OUT", "merge": "IN OUT", "set": "FILE KEY VALUE [OUT]", "check": "FILE",
}  # fmt: skip
"""The actions, and what follows them."""


class GgufFlags(Group):
    """The options of `weft gguf`."""

    table = SPLIT_OPTIONS
    max_bytes: int = changed(SPLIT_OPTIONS["max_bytes"], flags=("--split-max-size", "--max-size"))
    max_tensors: int
    split: bool = option(False, "", "--split", hidden=True)
    merge: bool = option(False, "", "--merge", hidden=True)
    kind: str | None = option(
        None, "The type of a new key: u32, f32, string, ...", "--type", metavar="TYPE"
    )


@grouped
def gguf(
    action: Annotated[str, typer.Argument(metavar="|".join(_WANTED))],
    arguments: Annotated[
        list[str],
        typer.Argument(
            metavar="FILE...",
            help="split IN OUT; merge IN OUT, where IN is the first of several files; set FILE KEY "
            "VALUE [OUT]; check FILE, which reads every value.",
        ),
    ],
    own: GgufFlags,
) -> None:
    """Split, merge, change or check GGUF files."""
    if own.merge or own.split:  # as llama-gguf-split has it
        arguments, action = [action, *arguments], "merge" if own.merge else "split"
    if action not in _WANTED:
        raise usage_error(f"{action!r} is none of {', '.join(_WANTED)}")
    wanted = _WANTED[action]
    least = len(wanted.partition(" [")[0].split())
    if not least <= len(arguments) <= len(wanted.split()):
        raise usage_error(f"weft gguf {action} takes {wanted}")
    source, rest = Path(arguments[0]), arguments[1:]
    if action == "check":
        _check(source)
    elif action == "set":
        target = Path(rest[2]) if len(rest) > 2 else source
        set_key(source, target, rest[0], rest[1], own.kind)
        say(f"{target}: {rest[0]} is {rest[1]}")
    elif action == "merge":
        merge_shards(source, rest[0])
        say(f"{rest[0]}: one file")
    else:
        limits = ShardLimits(own.max_bytes, own.max_tensors)
        if not any(limits):
            raise usage_error("weft gguf split takes --max-size 4G or --max-tensors 128")
        paths = split_file(source, rest[0], limits)
        say(f"{paths[0]}: {len(paths)} files")


def _check(path: Path) -> None:
    with open_gguf(path) as file:
        found = list(bad_tensors(file))
        n, about = len(file.tensors), in_words(file)
    for tensor, problem in found:
        errors.print(f"{tensor.name}: {problem}", markup=False, soft_wrap=True)
    if found:
        raise FormatError(f"{path}: {len(found)} of {n} tensors are damaged; download it again")
    say(f"{path}: {f'{about}; ' if about else ''}{n} tensors, all values finite")
