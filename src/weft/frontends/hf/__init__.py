"""Hugging Face folders: config.json, safetensors and a tokenizer, read as GGUF files are."""

from __future__ import annotations

from weft.lazy import imported_when_used

TYPE_CHECKING = False
if TYPE_CHECKING:
    from weft.frontends.hf.folder import open_folder as open_folder

__all__ = ["open_folder"]

__getattr__, __dir__ = imported_when_used(__name__, {"weft.frontends.hf.folder": ("open_folder",)})
