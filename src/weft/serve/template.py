"""The chat template of a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from weft.frontends.gguf import GGUFFile
from weft.llm import Tokenizer
from weft.serve.prompts import Template

__all__ = ["find_template"]


class _ChatML:
    stops = ("<|im_end|>", "<|im_start|>")

    def render(
        self, messages: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] | None
    ) -> str:
        parts = [f"<|im_start|>{m.get('role')}\n{m.get('content')}<|im_end|>\n" for m in messages]
        return "".join(parts) + "<|im_start|>assistant\n"


def find_template(file: GGUFFile, tokenizer: Tokenizer) -> Template:
    """The model's template."""
    return _ChatML()
