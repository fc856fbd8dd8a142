"""The program that encodes texts with the package `tokenizers`, in a `weft.worker.Worker`.

A tokenizer.json may hold regexes that take hours and steps that make a text a million times as
long, and the package holds Python's lock meanwhile. It is asked with

    {"key", and
     "tokenizer": its JSON, and "special": true for texts without special tokens; or
     "text", with "special": true where the package adds tokens; or
     "named": ids of tokens}

and answers with ids, or with the texts of tokens.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any


def answerer() -> Callable[[dict[str, Any]], Any]:
    """The function that answers messages."""
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    from tokenizers import Tokenizer

    made: dict[str, Any] = {}

    def answer(asked: dict[str, Any]) -> Any:
        key = asked["key"]
        if "tokenizer" in asked:
            made[key] = Tokenizer.from_str(asked["tokenizer"])
            made[key].encode_special_tokens = asked["special"]
            return []
        if "named" in asked:
            return [made[key].id_to_token(id_) for id_ in asked["named"]]
        return made[key].encode(asked["text"], add_special_tokens=asked["special"]).ids

    return answer
