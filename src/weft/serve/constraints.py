"""Fields of other servers that narrow an answer: as the fields that do so here, or refused. None of
them may be without an effect, since the answer would not be what was asked for."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from weft.serve.errors import ApiError

__all__ = ["IDLE", "with_constraints"]

IDLE = frozenset(("guided_decoding_backend", "guided_whitespace_pattern"))
"""Fields about how a constraint is computed, which do not change what satisfies it."""
_STRUCTURED = {
    "json": "guided_json",
    "regex": "guided_regex",
    "choice": "guided_choice",
    "grammar": "guided_grammar",
}
"""The fields of vLLM's `structured_outputs`, and vLLM's older names for them."""
_INSTEAD = {
    "bad_words": "give logit_bias",
    "allowed_token_ids": "give grammar or regex",
    "structural_tag": "give grammar",
    "functions": "it is the older form of tools; give tools",
    "grammar_lazy": "give tools, or grammar without it",
}
"""Fields that narrow an answer and are not here, and what is."""
_MARKS = re.compile(r"[\\.+*?()|\[\]{}^$&~#-]")


def with_constraints(body: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """A body in which `structured_outputs` are fields of their own and `guided_choice` is a regular
    expression. Fields of `known` stay. Raises ApiError for those that cannot be held."""
    made = dict(body)
    structured = made.get("structured_outputs")
    if structured is not None:
        del made["structured_outputs"]
        made |= _structured(structured)
    for name, instead in _INSTEAD.items():
        if name not in known and made.get(name) not in (None, False, [], {}, ""):
            raise ApiError(400, f"{name} is not held here; {instead}", name, "unsupported")
    if isinstance(made.get("guided_choice"), list):
        made["guided_choice"] = _choice(made["guided_choice"])
    return made


def _structured(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise ApiError(
            400, "structured_outputs is an object with json, regex, choice or grammar",
            "structured_outputs",
        )  # fmt: skip
    made: dict[str, Any] = {}
    for name, value in given.items():
        if name in _STRUCTURED:
            made[_STRUCTURED[name]] = value
        elif name == "json_object":
            made |= {"guided_json": {"type": "object"}} if value else {}
        elif value not in (None, False) and not name.startswith("disable_"):
            where = f"structured_outputs.{name[:60]}"
            raise ApiError(
                400, f"{where} is not held here; there are json, json_object, regex, choice and "
                "grammar", where, "unsupported",
            )  # fmt: skip
    return made


def _choice(texts: list[Any]) -> str:
    """A regular expression of these texts."""
    if not texts or not all(isinstance(text, str) and text for text in texts):
        raise ApiError(400, "guided_choice is a list of texts, none empty", "guided_choice")
    return "|".join(_MARKS.sub(r"\\\g<0>", text) for text in texts)
