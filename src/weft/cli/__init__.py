"""The `weft` command. Every subcommand is a file of its own; `main` turns errors into messages."""

from weft.cli.app import main

__all__ = ["main"]
