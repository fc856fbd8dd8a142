"""Renders messages as the text that a model was trained on, by its own template."""
