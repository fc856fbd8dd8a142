"""Turns the arguments of a context into a plan, before anything is loaded."""
