"""Arguments of calls in messages, as chat templates read them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

__all__ = ["Arguments"]


class Arguments(dict[str, Any]):
    """Arguments of a call of a function. The OpenAI API has them as JSON text, most templates want
    an object, some want the text: this is an object that reads as its text, to the letter where
    it was given as text."""

    def __init__(self, value: Mapping[str, Any], written: str | None = None) -> None:
        super().__init__(value)
        self.written = written

    def __str__(self) -> str:
        return json.dumps(self, ensure_ascii=False) if self.written is None else self.written

    def __add__(self, other: str) -> str:
        return str(self) + other

    def __radd__(self, other: str) -> str:
        return other + str(self)
