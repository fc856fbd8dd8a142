"""The compiled core, `weft._native`. Every other module imports it from here."""

import weft._native as _native

__all__ = ["_native"]
