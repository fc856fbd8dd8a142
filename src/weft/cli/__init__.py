"""The `weft` command. Every subcommand is a file of its own; `main` turns errors into messages."""

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of the `weft` command: 0 done, 1 an error that a message explains, 2 wrong usage,
    130 interrupted."""
    try:
        import signal

        interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if interruptible:  # not an exception, which importing may lose or print
            signal.signal(signal.SIGINT, _leave)
        from weft.lazy import import_at_once

        run_command = import_at_once("weft.cli.app").run_command

        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run_command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _leave(*_: object) -> None:
    """Ends the process while it has nothing but imports."""
    os.write(2, b"interrupted\n")
    os._exit(130)
