"""Ollama's API: `/api/chat`, `/api/generate`, `/api/embed` and what its clients ask about models.

Source of the format: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from weft.serve.ollama.endpoints import add_ollama

__all__ = ["add_ollama"]
