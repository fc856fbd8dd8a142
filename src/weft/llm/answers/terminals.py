"""Writes texts as the terminals of a grammar for llguidance."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from weft.llm.answers.markers import HOLE
from weft.llm.sampling.schema import has_references, under
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.llm.tokenizers.vocab import TokenType

__all__ = ["Terminals", "json_rule"]

_NO_SPACE = {"whitespace_pattern": r" |\n[ \t]{0,20}"}
_WHOLE = "#/$defs/whole"
_HIDDEN = (TokenType.CONTROL, TokenType.UNKNOWN, TokenType.UNUSED)


def json_rule(schema: Mapping[str, Any], root: Mapping[str, Any] | None = None) -> str:
    """A terminal for JSON of `schema`, whose references are to the schema `root` (None: to
    itself)."""
    if root is not None and has_references(schema):
        inner = {name: value for name, value in schema.items() if name != "$defs"}
        schema = {**under(inner, _WHOLE), "$defs": {"whole": under(root, _WHOLE)}}
    return "%json " + json.dumps({**schema, "x-guidance": _NO_SPACE}, ensure_ascii=False)


class Terminals:
    """Writes texts as terminals: control tokens in them as tokens, everything else as strings."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __call__(self, text: str) -> str:
        """`text` up to a token that ends answers. White space with a line break may be missing,
        and a hole is the rule `word`."""
        return " ".join(_loose(part) for part in self._parts(text))

    def exact(self, text: str) -> str:
        """`text` as it is."""
        return " ".join(_exact(part) for part in self._parts(text))

    def ends(self, text: str) -> bool:
        """True if `text` has a token that ends answers."""
        eog = self._tokenizer.vocab.eog
        return any(part in eog for part in self._parts(text, stops=False) if isinstance(part, int))

    def until(self, rule: str, end: str, least: int = 0, most: int | None = None) -> str:
        """A rule for text of `least` to `most` characters up to `end`; `behind(end)` has to follow
        it."""
        first = next(iter(self._parts(end)), "")
        text = "/(?s:.*)/" if most is None and not least else f"/(?s:.{{{least},{most or ''}}})/"
        if isinstance(first, int) or not first:
            return f"{rule}: {text}"  # text has no control tokens
        return f"{rule}[suffix={json.dumps(first, ensure_ascii=False)}]: {text}"

    def behind(self, end: str) -> str:
        """What follows a rule of `until`."""
        parts = self._parts(end)
        if parts and isinstance(parts[0], str):
            parts = parts[1:]
        return " ".join(map(_exact, parts))

    def _parts(self, text: str, *, stops: bool = True) -> list[str | int]:
        """`text` as strings and the ids of control tokens."""
        vocab = self._tokenizer.vocab
        parts: list[str | int] = []
        for id_ in self._tokenizer.encode(text, add_special=False, parse_special=True):
            name = vocab.tokens[id_].decode(errors="replace")
            if vocab.types[id_] in _HIDDEN and name in text:
                before, _, text = text.partition(name)
                parts += [before, int(id_)]
                if stops and id_ in vocab.eog:
                    parts.pop()
                    text = ""
                    break
        return [part for part in [*parts, text] if part != ""]


def _exact(part: str | int) -> str:
    return f"<[{part}]>" if isinstance(part, int) else json.dumps(part, ensure_ascii=False)


def _loose(text: str | int) -> str:
    """Terminals of a part of a text."""
    if isinstance(text, int):
        return _exact(text)
    parts = re.split(rf"(\s*\n\s*|{HOLE})", text)
    written = []
    for part in parts:
        if part == HOLE:
            written.append("word")
        elif part and not part.strip():
            written.append("space")
        elif part:
            written.append(json.dumps(part, ensure_ascii=False))
    return " ".join(written)
