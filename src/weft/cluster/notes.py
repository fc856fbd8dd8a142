"""Small notes that the processes of a cluster leave for each other, in Ray's key-value store."""

from __future__ import annotations

__all__ = ["forget", "get", "put"]

_SPACE = b"weft"


def put(app: str, name: str, value: bytes) -> None:
    """Leaves a note of an application."""
    from ray.experimental.internal_kv import _internal_kv_put

    _internal_kv_put(_key(app, name), value, overwrite=True, namespace=_SPACE)


def get(app: str, name: str) -> bytes | None:
    """A note of an application; None if there is none."""
    from ray.experimental.internal_kv import _internal_kv_get

    value: bytes | None = _internal_kv_get(_key(app, name), namespace=_SPACE)
    return value


def forget(app: str, name: str) -> None:
    """Removes a note."""
    from ray.experimental.internal_kv import _internal_kv_del

    _internal_kv_del(_key(app, name), namespace=_SPACE)


def _key(app: str, name: str) -> bytes:
    return f"{app}/{name}".encode()
