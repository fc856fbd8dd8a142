"""Options that read a model's metadata with other values than its file has."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from weft.cli.command import usage_error
from weft.cli.groups import Group
from weft.options import ADVANCED, option

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
            f"--override-kv {text}: write KEY=TYPE:VALUE, where TYPE is int, float, bool (true or "
            "false) or str, and VALUE is of that type"
        ) from None


class MetadataFlags(Group):
    """The options that change metadata for every command that loads a model."""

    override_kv: list[str] | None = option(
        None, "A key of the metadata with another value than the file's, e.g. "
        "qwen3.context_length=int:65536; TYPE is int, float, bool or str; repeatable.",
        panel=ADVANCED, metavar="KEY=TYPE:VALUE", show_default=False,
    )  # fmt: skip
    rope_scaling: str | None = option(
        None, "How positions beyond the trained length are scaled; default: the model's.",
        panel=ADVANCED, metavar="none|linear|yarn",
    )  # fmt: skip
    rope_scale: float | None = option(
        None, "Factor by which positions reach further, e.g. 4.", panel=ADVANCED, metavar="X"
    )
    rope_freq_base: float | None = option(
        None, "Base of the rotary embedding's frequencies.", panel=ADVANCED, metavar="X"
    )
    rope_freq_scale: float | None = option(
        None, "One divided by --rope-scale, e.g. 0.25.", panel=ADVANCED, metavar="X"
    )
    yarn_orig_ctx: int | None = option(
        None, "Length that the model was trained for before its positions are scaled.",
        panel=ADVANCED, metavar="N",
    )  # fmt: skip
    yarn_ext_factor: float | None = option(
        None, "YaRN: share of its mix.", panel=ADVANCED, metavar="X"
    )
    yarn_attn_factor: float | None = option(
        None, "YaRN: factor of the magnitude.", panel=ADVANCED, metavar="X"
    )
    yarn_beta_slow: float | None = option(None, "YaRN: low bound, 1.", panel=ADVANCED, metavar="X")
    yarn_beta_fast: float | None = option(
        None, "YaRN: high bound, 32.", panel=ADVANCED, metavar="X"
    )

    def metadata_arguments(self) -> dict[str, Any]:
        """The argument `metadata` of `open_model`, if an option asks for one."""
        if self.rope_scale is not None and self.rope_freq_scale is not None:
            raise usage_error("--rope-scale N is --rope-freq-scale 1/N; give one of them")
        scales = {"--rope-scale": self.rope_scale, "--rope-freq-scale": self.rope_freq_scale}
        for flag, value in scales.items():
            if value is not None and not 0 < value < float("inf"):
                raise usage_error(f"{flag} is {value:g}; it must be above 0")
        if self.rope_freq_scale is not None:
            self.rope_scale = 1 / self.rope_freq_scale
        numbers = {
            ".rope.scaling.factor": self.rope_scale,
            ".rope.freq_base": self.rope_freq_base,
            ".rope.scaling.yarn_ext_factor": self.yarn_ext_factor,
            ".rope.scaling.attn_factor": self.yarn_attn_factor,
            ".rope.scaling.yarn_beta_slow": self.yarn_beta_slow,
            ".rope.scaling.yarn_beta_fast": self.yarn_beta_fast,
        }
        if self.yarn_orig_ctx is not None and not 0 < self.yarn_orig_ctx < 1 << 31:
            raise usage_error(f"--yarn-orig-ctx is {self.yarn_orig_ctx}; it must be 1 or more")
        keys: dict[str, Any] = {} if self.rope_scaling is None else _scaling(self.rope_scaling)
        keys |= {key: np.float32(value) for key, value in numbers.items() if value is not None}
        if self.yarn_orig_ctx is not None:
            keys[".rope.scaling.original_context_length"] = np.uint32(self.yarn_orig_ctx)
        keys |= map(key_and_value, self.override_kv or ())
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
