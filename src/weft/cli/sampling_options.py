"""The options that say how tokens are drawn, by llama.cpp's names.

    @sampling_flags
    def run(model: ..., sampling: SamplingParams) -> None: ...

A command gets all of them for its one parameter `sampling`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

from weft.cli.command import CONSTRAINTS, SAMPLING, SAMPLING_MORE
from weft.errors import ContextError
from weft.llm.sampling import BREAKERS, SAMPLERS, SamplingParams

__all__ = ["sampling_flags", "sampling_params"]


_USUAL = ("--temp", "--top-k", "--top-p", "--min-p", "--seed", "--repeat-penalty")
_LIMITING = ("--grammar", "--json-schema", "--regex")
RANDOM_SEEDS = (-1, 2**32 - 1)
"""Values of --seed that mean another one each time."""


def _flag(*names: str, help: str, metavar: str | None = None) -> Any:
    group = SAMPLING if names[0] in _USUAL else SAMPLING_MORE
    panel = CONSTRAINTS if names[0] in _LIMITING else group
    return typer.Option(*names, help=help, metavar=metavar, rich_help_panel=panel)


def sampling_params(
    temp: Annotated[float, _flag("--temp", help="Temperature; 0 takes the likeliest token.")] = 0.8,
    top_k: Annotated[int, _flag("--top-k", help="Keep the k likeliest tokens; 0: all.")] = 40,
    top_p: Annotated[
        float, _flag("--top-p", help="Keep the likeliest tokens up to this sum; 1: all.")
    ] = 0.95,
    min_p: Annotated[
        float, _flag("--min-p", help="Keep tokens this likely beside the best; 0: all.")
    ] = 0.05,
    seed: Annotated[
        int | None,
        _flag("--seed", "-s", help="Seed of sampling; -1: another one each time, the default."),
    ] = None,
    typical: Annotated[
        float,
        _flag("--typical", "--typical-p",
              help="Keep tokens of typical surprise up to this sum; 1: all."),
    ] = 1.0,
    top_n_sigma: Annotated[
        float,
        _flag("--top-n-sigma", "--top-nsigma",
              help="Keep logits within this many deviations of the best; 0: all."),
    ] = 0.0,
    xtc_probability: Annotated[
        float, _flag("--xtc-probability", help="How often the likeliest tokens are left out.")
    ] = 0.0,
    xtc_threshold: Annotated[
        float, _flag("--xtc-threshold", help="Of tokens this likely, XTC leaves the last.")
    ] = 0.1,
    dynatemp_range: Annotated[
        float, _flag("--dynatemp-range", help="Move the temperature by this, with the entropy.")
    ] = 0.0,
    dynatemp_exp: Annotated[
        float, _flag("--dynatemp-exp", help="Exponent of --dynatemp-range.")
    ] = 1.0,
    repeat_penalty: Annotated[
        float, _flag("--repeat-penalty", help="Weaken tokens that occurred; 1: off.")
    ] = 1.0,
    repeat_last_n: Annotated[
        int, _flag("--repeat-last-n", help="Tokens that penalties look back at; -1: all.")
    ] = 64,
    presence_penalty: Annotated[
        float, _flag("--presence-penalty", help="Taken from tokens that occurred.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, _flag("--frequency-penalty", help="Taken from tokens as often as they occurred.")
    ] = 0.0,
    dry_multiplier: Annotated[
        float, _flag("--dry-multiplier", help="Weight of the penalty on repeated sequences.")
    ] = 0.0,
    dry_base: Annotated[
        float, _flag("--dry-base", help="Its growth per repeated token.")
    ] = 1.75,
    dry_allowed_length: Annotated[
        int, _flag("--dry-allowed-length", help="Repetitions shorter than this are free.")
    ] = 2,
    dry_penalty_last_n: Annotated[
        int, _flag("--dry-penalty-last-n", help="Tokens that DRY looks back at; -1: all.")
    ] = -1,
    dry_sequence_breaker: Annotated[
        list[str] | None,
        _flag("--dry-sequence-breaker",
              help="Text that ends a sequence, in place of the defaults; repeatable; none: none."),
    ] = None,
    mirostat: Annotated[int, _flag("--mirostat", help="2: mirostat 2.0; 0: off.")] = 0,
    mirostat_lr: Annotated[
        float, _flag("--mirostat-lr", help="How fast mirostat corrects itself (eta).")
    ] = 0.1,
    mirostat_ent: Annotated[
        float, _flag("--mirostat-ent", help="The surprise that mirostat holds, in bits (tau).")
    ] = 5.0,
    logit_bias: Annotated[
        list[str] | None,
        _flag("--logit-bias", "-l", metavar="ID+X|ID-X",
              help="Added to the logit of token ID; repeatable."),
    ] = None,
    samplers: Annotated[
        str,
        _flag("--samplers", metavar="NAMES",
              help="The chain in order; those not named are left out."),
    ] = ";".join(SAMPLERS),
    grammar: Annotated[
        str | None,
        _flag("--grammar", "--grammar-file",
              help="A grammar for the text, Lark or GBNF: itself or its file."),
    ] = None,
    json_schema: Annotated[
        str | None,
        _flag("--json-schema", "-j", "--json-schema-file", "-jf",
              help="Write JSON of this schema: itself or its file.")
    ] = None,
    regex: Annotated[
        str | None, _flag("--regex", help="Write text that matches this regular expression.")
    ] = None,
) -> SamplingParams:  # fmt: skip
    """The options as `SamplingParams`; raises ContextError for values out of range."""
    breakers = BREAKERS
    if dry_sequence_breaker:
        breakers = tuple(_unescaped(b) for b in dry_sequence_breaker if b != "none")
    return SamplingParams(
        temperature=temp, top_k=0 if top_k == -1 else top_k, top_p=top_p, min_p=min_p,
        seed=None if seed in RANDOM_SEEDS else seed, typical_p=typical,
        top_n_sigma=top_n_sigma, xtc_probability=xtc_probability, xtc_threshold=xtc_threshold,
        dynatemp_range=dynatemp_range, dynatemp_exponent=dynatemp_exp,
        repeat_penalty=repeat_penalty, repeat_last_n=repeat_last_n,
        presence_penalty=presence_penalty, frequency_penalty=frequency_penalty,
        dry_multiplier=dry_multiplier, dry_base=dry_base, dry_allowed_length=dry_allowed_length,
        dry_last_n=dry_penalty_last_n, dry_sequence_breakers=breakers,
        mirostat=mirostat, mirostat_tau=mirostat_ent, mirostat_eta=mirostat_lr,
        logit_bias=_biases(logit_bias) if logit_bias else None, samplers=samplers,
        grammar=_text_or_file("--grammar", grammar),
        json_schema=_text_or_file("--json-schema", json_schema), regex=regex,
    )  # fmt: skip


def sampling_flags(command: Callable[..., None]) -> Callable[..., None]:
    """`command` with the options in place of its parameter `sampling`."""
    signature = inspect.signature(command, eval_str=True)
    flags = inspect.signature(sampling_params, eval_str=True).parameters

    @wraps(command)
    def with_flags(**arguments: Any) -> None:
        chosen = {name: arguments.pop(name) for name in flags}
        command(**arguments, sampling=sampling_params(**chosen))

    parameters = []
    for parameter in signature.parameters.values():
        parameters += list(flags.values()) if parameter.name == "sampling" else [parameter]
    keyword_only = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
    with_flags.__signature__ = signature.replace(parameters=keyword_only)  # type: ignore[attr-defined]
    with_flags.__annotations__ = {p.name: p.annotation for p in parameters}
    return with_flags


def _biases(texts: Sequence[str]) -> dict[int, float]:
    biases = {}
    for text in texts:
        match = re.fullmatch(r"(\d+)([+-].+)", text.strip())
        try:
            if match is None:
                raise ValueError
            biases[int(match[1])] = float(match[2])
        except ValueError:
            raise ContextError(
                f"--logit-bias {text!r}: write ID+NUMBER or ID-NUMBER, e.g. 13-2.5 or 13-inf"
            ) from None
    return biases


def _text_or_file(option: str, text: str | None) -> str | None:
    """What the user wrote, or the contents of the file of that name."""
    if text is None or any(sign in text for sign in '\n"{}'):
        return text
    path = Path(text)
    try:
        if path.is_file():
            return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as e:
        raise ContextError(f"{option}: cannot read {path}: {e}") from None
    if path.suffix in (".json", ".gbnf", ".lark"):
        raise ContextError(f"{option}: no such file {path}")
    return text


def _unescaped(text: str) -> str:
    """A line break may be written as two characters."""
    return text.replace("\\n", "\n").replace("\\t", "\t")
