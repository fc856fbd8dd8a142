"""How to install the extras of weft, which pyproject.toml lists."""

from __future__ import annotations

__all__ = ["how_to_install"]


def how_to_install(extra: str, *packages: str) -> str:
    """The part of an error that says how to install an extra, and `packages` with it, from an index
    and in a checkout."""
    beside = "".join(f" {package}" for package in packages)
    return (
        f"install it with `pip install 'weft[{extra}]'{beside}` "
        f"(in a checkout: `pip install '.[{extra}]'{beside}`)"
    )
