"""The `weft` command. Every subcommand has a file; `main` turns errors into messages."""

import os
import sys

__all__ = ["main"]


def main() -> None:
    """Entry point of the `weft` command. Exits with 0 on success, 1 after an error message, 2 for a
    wrong command line, and 130 after Ctrl-C."""
    try:
        import signal

        interruptible = signal.getsignal(signal.SIGINT) is signal.default_int_handler
        if interruptible:  # an exception could be lost or printed by an import
            signal.signal(signal.SIGINT, _leave)
        # NumPy's OpenBLAS starts its threads when it is imported. weft multiplies with its own, so
        # they would only spin for a while; the device `blas` starts those that it is asked for.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        from weft.lazy import import_at_once

        run_command = import_at_once("weft.cli.app").run_command

        if interruptible:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        run_command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _leave(*_: object) -> None:
    """Ends the process while it only imports modules."""
    os.write(2, b"interrupted\n")
    os._exit(130)
