"""The chat template of a model."""

from __future__ import annotations

from weft.frontends.gguf import GGUFFile
from weft.llm import ChatTemplate, Tokenizer
from weft.serve.prompts import Template

__all__ = ["find_template"]


def find_template(file: GGUFFile, tokenizer: Tokenizer) -> Template:
    """The model's own template, ChatML where it has none."""
    return ChatTemplate.from_gguf(file, tokenizer)
