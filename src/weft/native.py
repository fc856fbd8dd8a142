"""The compiled core, `weft._native`, for all who use it."""

import weft._native as _native

__all__ = ["_native"]
