"""Which of the files that somebody published are models, whatever brings them."""

from __future__ import annotations

import re
from collections.abc import Iterable

OF_A_FOLDER = ("*.json", "*.jinja", "*.safetensors", "*.model", "*.txt", "README.md")
"""Files that make a model in safetensors."""

SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$", re.IGNORECASE)
"""The end of a shard's name: its number, and how many there are."""


def gguf_models(files: Iterable[str]) -> list[str]:
    """The GGUF files that are models, sorted; of shards only the first."""
    return [
        f for f in sorted(files)
        if f.lower().endswith(".gguf") and "mmproj" not in f.lower() and _number(f) == 1
    ]  # fmt: skip


def _number(file: str) -> int:
    shard = SHARD.search(file)
    return int(shard[1]) if shard else 1
