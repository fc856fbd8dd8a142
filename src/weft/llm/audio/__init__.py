"""Towers that make rows of a model's width from sounds."""
