"""The families of models that a Hugging Face folder may have, by the class in its config.json.

A family is a row of a table `FAMILIES` in a file of this folder, and its classes are a row of
`frontends/architectures.py`. The steps are in docs/add-a-model.md.
"""

from __future__ import annotations

from collections.abc import Mapping
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


def find_family(config: Mapping[str, Any]) -> Family:
    """The family of a model by its config.json. Raises FormatError, which names
    classes with names alike, if it is not known."""
    name = class_of(config)
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
    other = found.variant({**config, **text_of(config)})
    return families[other] if other else found


def families_of(arch: str) -> list[Family]:
    """The families whose files are of the architecture `arch`."""
    files = dict.fromkeys(file for file, _ in CLASSES.values())
    tables = [import_module(f"{__name__}.{file}").FAMILIES for file in files]
    return [family for table in tables for family in table.values() if family.arch == arch]
