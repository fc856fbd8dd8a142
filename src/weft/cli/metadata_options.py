"""Options that read a model's metadata with other values than those of its file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Annotated, Any

import numpy as np
import typer

from weft.cli.command import ADVANCED, usage_error

__all__ = [
    "OverrideKv",
    "RopeFreqBase",
    "RopeFreqScale",
    "RopeScale",
    "RopeScaling",
    "YarnAttnFactor",
    "YarnBetaFast",
    "YarnBetaSlow",
    "YarnExtFactor",
    "YarnOrigCtx",
    "key_and_value",
    "metadata_arguments",
]


def _number(flag: str, about: str) -> Any:
    return typer.Option(flag, metavar="X", rich_help_panel=ADVANCED, help=about)


OverrideKv = Annotated[
    list[str] | None,
    typer.Option(
        "--override-kv", metavar="KEY=TYPE:VALUE", show_default=False, rich_help_panel=ADVANCED,
        help="A key of the metadata with another value than the file's, e.g. "
        "qwen3.context_length=int:65536; TYPE is int, float, bool or str; repeatable.",
    ),
]  # fmt: skip
RopeScaling = Annotated[
    str | None,
    typer.Option(
        "--rope-scaling", metavar="none|linear|yarn", rich_help_panel=ADVANCED,
        help="How positions beyond the trained length are scaled; default: the model's.",
    ),
]  # fmt: skip
RopeScale = Annotated[
    float | None, _number("--rope-scale", "Factor by which positions reach further, e.g. 4.")
]
RopeFreqBase = Annotated[
    float | None, _number("--rope-freq-base", "Base of the rotary embedding's frequencies.")
]
RopeFreqScale = Annotated[
    float | None, _number("--rope-freq-scale", "One divided by --rope-scale, e.g. 0.25.")
]
YarnOrigCtx = Annotated[
    int | None,
    typer.Option(
        "--yarn-orig-ctx", metavar="N", rich_help_panel=ADVANCED,
        help="Length that the model was trained for before its positions are scaled.",
    ),
]  # fmt: skip
YarnExtFactor = Annotated[float | None, _number("--yarn-ext-factor", "YaRN: share of its mix.")]
YarnAttnFactor = Annotated[
    float | None, _number("--yarn-attn-factor", "YaRN: factor of the magnitude.")
]
YarnBetaSlow = Annotated[float | None, _number("--yarn-beta-slow", "YaRN: low bound, 1.")]
YarnBetaFast = Annotated[float | None, _number("--yarn-beta-fast", "YaRN: high bound, 32.")]

_KEY_TYPES: dict[str, Callable[[str], int | float | str | bool]] = {
    "int": int,
    "float": float,
    "str": str,
    "bool": lambda text: {"true": True, "false": False}[text],
}


def key_and_value(text: str) -> tuple[str, Any]:
    """A metadata key with its value, as llama-quantize stores it."""
    key, _, rest = text.partition("=")
    kind, colon, value = rest.partition(":")
    try:
        read = _KEY_TYPES[kind](value)
        if not key or not colon:
            raise ValueError
        if kind == "int":
            return key, np.uint32(abs(int(read)))
        return key, np.float32(read) if kind == "float" else read
    except (KeyError, ValueError, OverflowError):
        raise usage_error(
            f"--override-kv {text}: write KEY=TYPE:VALUE, where TYPE is int, float, bool or str"
        ) from None


def metadata_arguments(
    override_kv: Sequence[str] | None,
    rope_scaling: str | None,
    rope_scale: float | None,
    rope_freq_base: float | None,
    rope_freq_scale: float | None,
    yarn_orig_ctx: int | None,
    yarn_ext_factor: float | None,
    yarn_attn_factor: float | None,
    yarn_beta_slow: float | None,
    yarn_beta_fast: float | None,
) -> dict[str, Any]:
    """The argument `metadata` of `open_model`, if an option asks for one."""
    if rope_scale is not None and rope_freq_scale is not None:
        raise usage_error("--rope-scale N is --rope-freq-scale 1/N; give one of them")
    scales = {"--rope-scale": rope_scale, "--rope-freq-scale": rope_freq_scale}
    for flag, value in scales.items():
        if value is not None and not 0 < value < float("inf"):
            raise usage_error(f"{flag} is {value:g}; it must be above 0")
    if rope_freq_scale is not None:
        rope_scale = 1 / rope_freq_scale
    numbers = {
        ".rope.scaling.factor": rope_scale,
        ".rope.freq_base": rope_freq_base,
        ".rope.scaling.yarn_ext_factor": yarn_ext_factor,
        ".rope.scaling.attn_factor": yarn_attn_factor,
        ".rope.scaling.yarn_beta_slow": yarn_beta_slow,
        ".rope.scaling.yarn_beta_fast": yarn_beta_fast,
    }
    if yarn_orig_ctx is not None and not 0 < yarn_orig_ctx < 1 << 31:
        raise usage_error(f"--yarn-orig-ctx is {yarn_orig_ctx}; it must be 1 or more")
    keys: dict[str, Any] = {} if rope_scaling is None else _scaling(rope_scaling)
    keys |= {key: np.float32(value) for key, value in numbers.items() if value is not None}
    if yarn_orig_ctx is not None:
        keys[".rope.scaling.original_context_length"] = np.uint32(yarn_orig_ctx)
    keys |= map(key_and_value, override_kv or ())
    return {"metadata": keys} if keys else {}


def _scaling(text: str) -> dict[str, Any]:
    """The keys of a kind of scaling, or of an object of a model's config.json."""
    if not text.lstrip().startswith("{"):
        if text not in ("none", "linear", "yarn"):
            raise usage_error(f"--rope-scaling {text}: write none, linear or yarn")
        return {".rope.scaling.type": text}
    try:
        given = json.loads(text)
        kind = str(given.pop("rope_type", given.pop("type", "")))
        keys: dict[str, Any] = {".rope.scaling.type": "none" if kind == "default" else kind}
        if "factor" in given:
            keys[".rope.scaling.factor"] = np.float32(given.pop("factor"))
        if "original_max_position_embeddings" in given:
            trained = np.uint32(int(given.pop("original_max_position_embeddings")))
            keys[".rope.scaling.original_context_length"] = trained
        given.pop("type", None)
        if given or kind not in ("default", "linear", "yarn"):
            raise ValueError
    except (ValueError, TypeError, RecursionError, OverflowError):
        raise usage_error(
            f"--rope-scaling {text:.80}: write none, linear or yarn, or an object with rope_type "
            "(linear or yarn), factor and original_max_position_embeddings"
        ) from None
    return keys
