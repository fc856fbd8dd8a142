"""The arguments of calls in messages, in a form that every chat template can read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["Arguments"]


class Arguments(dict[str, Any]):
    """The arguments of a function call.

    The OpenAI API has them as JSON text; most templates need an object, some the text. So this is
    an object that prints as JSON, in exactly the text `written` if that was given."""

    def __init__(self, value: Mapping[str, Any], written: str | None = None) -> None:
        super().__init__(value)
        self.written = written

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False) if self.written is None else self.written

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)
