"""Ollama's API: `/api/chat`, `/api/generate`, `/api/embed` and what its clients ask about models.

Source of the format: https://github.com/ollama/ollama/blob/main/docs/api.md
"""
