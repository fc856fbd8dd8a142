"""The `weft` command. Every subcommand is a file of its own; `main` turns errors into messages."""

import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of the `weft` command: 0 done, 1 an error that a message explains, 2 wrong usage,
    130 interrupted."""
    try:
        from weft.cli.app import run_command  # imports take time too, in which Ctrl-C may come

        run_command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)
