"""Towers that make rows of a model's width from images, and what turns messages into prompts with
them. A tower is an `mmproj` file beside the model (`LLM(path, mmproj=...)`)."""
