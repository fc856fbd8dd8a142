"""Towers that make rows of a model's width from images (`LLM(path, mmproj=...)`)."""
