"""`weft version` shows the version."""

from __future__ import annotations

import weft.version as numbers


def version() -> None:
    """Show the version."""
    print(f"weft {numbers.__version__}")
