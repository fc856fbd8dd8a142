"""The families of models that a Hugging Face folder may have, by the class in its config.json.

A family is a row of a table `FAMILIES` in a file of this folder, and its classes are a row of
`frontends/architectures.py`. The steps are in docs/add-a-model.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from weft.errors import FormatError
from weft.frontends.architectures import APART, FILES
from weft.frontends.hf.config import class_of, text_of
from weft.frontends.hf.family import Family

__all__ = ["CLASSES", "families_of", "find_family"]

CLASSES = {
    name: (file, family)
    for file, families in (FILES | APART).items()
    for family, names in families.items()
    for name in names.split()
}
"""The file and the family of each class."""


def is_eagle(config: Mapping[str, Any]) -> bool:
    """True for the configuration of EAGLE-3, which some folders have under LLaMA's class."""
    return "draft_vocab_size" in config and config.get("num_hidden_layers") == 1


_LLAVA_TEXTS = {
    "llama": "", "mistral": "", "granite": "GraniteForCausalLM", "qwen2": "Qwen2ForCausalLM",
}  # fmt: skip
"""Classes of the text models of LLaVA, by their `model_type`; empty: LLaVA's own class."""
_LLAMA: dict[str, object] = {
    "hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32,
    "num_attention_heads": 32, "max_position_embeddings": 2048, "rms_norm_eps": 1e-6,
}  # fmt: skip
_LLAVA_SIZES = {
    "llama": _LLAMA,
    "mistral": _LLAMA | {
        "intermediate_size": 14336, "num_key_value_heads": 8, "max_position_embeddings": 131072,
    },
}  # fmt: skip
"""Sizes that LLaVA's config.json leaves out where they are transformers' usual ones."""


def _owner(config: Mapping[str, Any]) -> str:
    """The class of the whole model; may be empty."""
    names = config.get("architectures")
    return names[0] if isinstance(names, list) and names and isinstance(names[0], str) else ""


def _of_llava(family: Family, kind: object) -> Family:
    """The family of a text model of this `model_type` in LLaVA, which has no scale of logits."""
    sizes, keys = _LLAVA_SIZES.get(str(kind), {}), family.keys
    return replace(
        family, defaults=sizes | dict(family.defaults or {}),
        keys=lambda c: (pair for pair in keys(c) if pair[0] != "logit_scale"),
    )  # fmt: skip


def _llava_text(config: Mapping[str, Any], name: str) -> str:
    """The class of the text model of LLaVA, whose config.json does not name it."""
    kind = text_of(config).get("model_type", "llama")
    if kind not in _LLAVA_TEXTS:
        raise FormatError(
            f"the text model of {name} is {str(kind)[:40]!r}; weft knows LLaVA over "
            f"{', '.join(_LLAVA_TEXTS)}"
        )
    return _LLAVA_TEXTS[kind] or name


def find_family(config: Mapping[str, Any]) -> Family:
    """The family of a model by its config.json. Raises FormatError, which names
    classes with names alike, if it is not known."""
    name = class_of(config)
    if name.startswith("Llava"):
        name = _llava_text(config, name)
    if name == "LlamaForCausalLM" and is_eagle(config):
        name = "LlamaForCausalLMEagle3"
    if name not in CLASSES:
        what = f"the class {name!r}" if name else "a model without `architectures`"
        near = get_close_matches(name, CLASSES, 3, 0.7)
        hint = f" (names alike: {', '.join(near)})" if near else ""
        raise FormatError(
            f"config.json is of {what}, which weft does not know{hint}; it knows {len(CLASSES)} "
            "classes of the architectures that docs/held.md lists"
        )
    file, family = CLASSES[name]
    families: Mapping[str, Family] = import_module(f"{__name__}.{file}").FAMILIES
    found = families[family]
    if _owner(config).startswith("Llava"):
        found = _of_llava(found, text_of(config).get("model_type", "llama"))
    other = found.variant({**config, **text_of(config)})
    return families[other] if other else found


def families_of(arch: str) -> list[Family]:
    """The families whose files are of the architecture `arch`."""
    files = dict.fromkeys(file for file, _ in CLASSES.values())
    tables = [import_module(f"{__name__}.{file}").FAMILIES for file in files]
    return [family for table in tables for family in table.values() if family.arch == arch]
