"""`weft quantize --fit`: the best types of a model for a budget of memory, file size and speed."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.table import Table

from weft.backends import make_backend
from weft.cli.calibrate import measure_machine
from weft.cli.command import usage_error
from weft.cli.console import (
    StatusLine,
    TimeLeft,
    errors,
    note,
    say,
    size_text,
    span_text,
    wide,
)
from weft.cli.quantize_arguments import QuantizeFlags
from weft.cli.text_input import read_text
from weft.dtype import DTYPES, DType
from weft.errors import FormatError
from weft.files import read_json, write_text
from weft.frontends.gguf import GGUFFile
from weft.frontends.gguf.imatrix_file import Importance
from weft.frontends.gguf.mixes import MIXES, Choices
from weft.llm.fitting.baseline import Text, beginning, text_of
from weft.llm.fitting.baseline import write_text as write_own_text
from weft.llm.fitting.budget import Budget
from weft.llm.fitting.choices import TYPES
from weft.llm.fitting.fit import Fit, FitOptions, Tried, fit
from weft.llm.fitting.measured import MANNERS, Manner, digest_of, kept_folder
from weft.llm.fitting.plan_file import fit_data, types_in_plan
from weft.llm.model import Model
from weft.llm.opening import DEFAULT_N_CTX
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.schedule import Profile, load_profile
from weft.schedule.profile import parse_size

_CHUNK = 512
_COLUMNS = ("types", "file", "bits/weight", "memory", "KL", "±", "99%", "same top", "tokens/s")
_DETAILS = ("±", "99%")
_WIDE = 100
"""Number of columns of a screen from which the table has the details, too."""


def chosen_types(
    file: GGUFFile,
    name: str,
    arguments: QuantizeFlags,
    choices: Choices,
    importance: Importance | None,
) -> tuple[dict[str, DType], dict[str, Any]]:
    """The best type of each tensor of the model called `name`, by tensor, and the plan as data.
    What was found is printed."""
    options = replace(_options(file, arguments, choices, importance), name=name)
    if not choices.requantize:
        _note_quantized(file, name)
    with StatusLine() as status:
        left = TimeLeft()

        def announce(n: int, seconds: float) -> None:
            nonlocal left
            status("")
            say(
                f"{n} measurements of {arguments.probe_tokens} tokens at most, of about "
                f"{span_text(seconds)} each: about {span_text(n * seconds)}"
            )
            left = TimeLeft(seconds)

        def progress(done: int, total: int, what: str) -> None:
            status(f"measuring {done} of {total}{left(done, total)}: {what}")

        found = fit(
            file, options, lambda model: _text(model, arguments, status), progress, announce
        )
    data = fit_data(found)
    _show(found, arguments)
    if arguments.html is not None:
        from weft.report import page_html

        write_text(arguments.html, page_html(data))
        say(f"report written to {arguments.html}")
    if arguments.as_json:
        print(json.dumps(data, indent=1))
    return found.fitting.by_tensor(found.best.choice.types), data


def _note_quantized(file: GGUFFile, name: str) -> None:
    """Notes that types are chosen for tensors that are quantized already."""
    before = Counter(t.dtype.name for t in file.tensors.values() if t.dtype.is_quantized)
    if before:
        listed = ", ".join(f"{n} x {dtype}" for dtype, n in before.most_common())
        note(
            f"{name} is quantized already ({listed}): quantizing again loses more than quantizing "
            "the original model, and the figures are against this file, not the original",
            "yellow",
        )


def planned_types(file: GGUFFile, path: Path) -> dict[str, DType]:
    """The types in a plan file; says which cache types it was made for."""
    types, cache = types_in_plan(path, file)
    if cache:
        say(f"the plan is for a cache of other types: run the model with {cache}")
    return types


def save_plan(target: str, data: Mapping[str, Any]) -> None:
    """Saves a plan beside the model."""
    path = Path(target).with_suffix(".fit.json")
    write_text(path, json.dumps(data, indent=1) + "\n")
    say(f"plan saved to {path}; --fit-plan {path} uses it again")


def as_patterns(types: Mapping[str, DType], choices: Choices) -> tuple[str, Choices]:
    """The types as what `quantize_file` takes: a mix, and patterns that name each tensor."""
    sizes = Counter(dtype.name for dtype in types.values() if dtype.is_quantized)
    base = sizes.most_common(1)[0][0] if sizes else "q8_0"
    mix = next((m.name for m in MIXES.values() if m.base == base), "Q8_0")
    patterns = tuple((re.compile(f"^{re.escape(name)}$"), d) for name, d in types.items())
    return mix, replace(choices, output=None, embedding=None, patterns=patterns, requantize=True)


def _options(
    file: GGUFFile, arguments: QuantizeFlags, choices: Choices, importance: Importance | None
) -> FitOptions:
    if choices.pure:
        raise usage_error("--pure has one type for all, --fit chooses a type for each; give one")
    if arguments.probe is not None and arguments.probe not in MANNERS:
        raise usage_error(f"--probe {arguments.probe}: choose one of {', '.join(MANNERS)}")
    manner: Manner | None = next((m for m in MANNERS if m == arguments.probe), None)
    if arguments.speed is not None and not 0 < arguments.speed < 1e9:
        raise usage_error(f"--speed is {arguments.speed:g}; it must be above 0 tokens/s")
    budget = Budget(
        _size("--fit", arguments.fit), _size("--fit-file", arguments.fit_file),
        None if arguments.speed is None else 1 / arguments.speed,
    )  # fmt: skip
    trained = Model(file).config.n_ctx_train
    n_ctx = arguments.n_ctx
    n_ctx = min(trained, DEFAULT_N_CTX) if n_ctx is None else n_ctx or trained
    speeds = _speeds(arguments)
    return FitOptions(
        budget, n_ctx, manner, _types(arguments.fit_types), choices, importance,
        arguments.cache_types, speeds,
    )  # fmt: skip


def _size(flag: str, text: str | None) -> int | None:
    if text is None:
        return None
    try:
        size = parse_size(text)
    except FormatError as error:
        raise usage_error(f"{flag}: {error}") from None
    if size < 1:
        raise usage_error(f"{flag} is {text}; it must be 1 byte or more")
    return size


def _types(text: str | None) -> tuple[str, ...]:
    if text is None:
        return TYPES
    by_name = {name.lower(): name for name in TYPES}
    names = [word.strip().lower() for word in text.split(",") if word.strip()]
    unknown = [name for name in names if name not in by_name]
    if unknown or not names:
        raise usage_error(f"--fit-types {text}: choose some of {', '.join(TYPES)}")
    chosen = {by_name[name] for name in names}
    return tuple(name for name in TYPES if name in chosen)


def _speeds(arguments: QuantizeFlags) -> Profile | None:
    """The speeds of this machine; those that a wish for speed needs are measured."""
    if arguments.speeds is not None:
        return load_profile(arguments.speeds)
    if arguments.speed is None:
        return None
    note("speeds of this machine are measured; `weft calibrate -o FILE` keeps them for --speeds")
    with StatusLine() as status:
        return measure_machine([make_backend("cpu")], 0.1, status)


def _text(model: Model, arguments: QuantizeFlags, status: StatusLine) -> Text:
    """The text to measure on: that of -f, or one that the model writes."""
    if arguments.probe_tokens < 16:
        raise usage_error(f"--probe-tokens is {arguments.probe_tokens}; it must be 16 or more")
    tokenizer = Tokenizer.from_gguf(model.file)
    chunk = min(_CHUNK, model.config.n_ctx_train, arguments.probe_tokens)
    n = max(1, arguments.probe_tokens // chunk)
    bos = beginning(tokenizer)
    if arguments.text is not None:
        return text_of(tokenizer.encode(read_text(None, arguments.text)), chunk, n, bos)
    path = kept_folder() / f"{digest_of(model.file, chunk, n)}.text.json"
    known = _kept_text(path, chunk, model.config.n_vocab)
    if known is None:
        known = write_own_text(
            model, chunk, n, bos,
            progress=lambda done, all_: status(f"writing a text to measure on: {done} of {all_}"),
        ).chunks.ravel().tolist()  # fmt: skip
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, json.dumps(known))
    return text_of(known, chunk, n, bos)


def _kept_text(path: Path, chunk: int, n_vocab: int) -> list[int] | None:
    """The tokens of a text that the model wrote before; None: there are none."""
    if not path.exists():
        return None
    try:
        tokens = read_json(path, "text")
    except FormatError:
        return None
    if not isinstance(tokens, list) or len(tokens) < chunk:
        return None
    whole = all(isinstance(t, int) and 0 <= t < n_vocab for t in tokens)
    return tokens if whole else None


def _show(found: Fit, arguments: QuantizeFlags) -> None:
    """Prints the table of what was tried, and what the choice is for."""
    screen = wide(to_error=True)
    screen.print(_table(found, screen.width))
    best = found.best
    types = Counter(dtype.name for dtype in best.choice.types.values())
    order = sorted(types, key=lambda n: -DTYPES[n].bytes / DTYPES[n].block)
    say(f"{best.choice.name}: {', '.join(f'{types[n]} x {n}' for n in order)}")
    if best.choice is not found.solved:
        say(f"the mix {best.choice.name} is better on this text than what the solver chose")
    if not best.choice.is_best:
        say("the solver ran out of time; there may be a slightly better choice")
    pair = best.choice.cache
    if arguments.cache_types is None and str(pair) != "f16/f16":
        cost = next(c.kl for c in found.fitting.caches if c.pair == pair)
        say(
            f"the cache is a large part of the budget: run the model with {pair.flags} "
            f"(cache {size_text(best.choice.whole.cache)}, {cost:.2g} nats of KL)"
        )
    if errors.is_terminal and arguments.text is None:
        note("measured on a text that the model wrote; -f TEXT measures on yours")


def _table(found: Fit, width: int) -> Table:
    """The choices that were tried; screens of few columns get the figures that matter most."""
    weights = sum(t.n_elements for t in found.file.tensors.values())
    rows = [dict(zip(_COLUMNS, _cells(tried, weights), strict=True)) for tried in found.tried]
    shown = [name for name in _COLUMNS if width >= _WIDE or name not in _DETAILS]
    shown = [name for name in shown if any(row[name] for row in rows)]
    table = Table(box=None, pad_edge=False)
    for name in shown:
        table.add_column(name, justify="left" if name == "types" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(row[name] for name in shown))
    return table


def _cells(tried: Tried, weights: int) -> tuple[str, ...]:
    choice = tried.choice
    speed = choice.whole.tokens_per_second
    return (
        choice.name, size_text(choice.file), f"{choice.file * 8 / max(weights, 1):.2f}",
        size_text(choice.whole.nbytes), f"{tried.kl:.5f}", f"{tried.kl_error:.5f}",
        f"{tried.kl_99:.4f}", f"{tried.same_top:.2%}", "" if speed is None else f"{speed:.1f}",
    )  # fmt: skip
