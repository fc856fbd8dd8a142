"""Rotates cached keys to the positions that `seq_add` and `seq_div` gave their cells."""

from __future__ import annotations

from weft.execute import Session
from weft.llm.cache.cells import Cells
from weft.llm.cache.kv_cache import KVCache, uninterrupted

__all__ = ["rotate_keys"]


def rotate_keys(cache: KVCache, session: Session | None) -> None:
    """Rotates the keys of `cache` with `session` (None: the model rotates none).

    Neither Ctrl-C nor `abort` stops it half way, because partly rotated keys are useless. If a
    device fails, the cache is emptied."""
    if session is None or not cache.n_seen:
        cache.shifted()
        return
    try:
        uninterrupted(lambda: _rotate(cache, session))
    except KeyboardInterrupt:
        if cache.has_shift:  # the rotation itself raised it and has not ended
            cache.clear()
        raise
    except BaseException:
        cache.clear()
        raise


def _rotate(cache: KVCache, session: Session) -> None:
    values: dict[str, int] = {}
    tables: dict[str, tuple[str, Cells]] = {"shift": ("n_kv", cache)}
    if cache.window is not None:
        tables["window_shift"] = "n_kv_window", cache.window
    for name, (symbol, cells) in tables.items():
        # free cells are rotated too, by any angle
        n = values[symbol] = max(cells.n_seen, 1)
        if name in session.program.inputs:
            session.input_view(name)[:n] = cells.shift[:n]
            session.upload(name)
    session.execute(values)
    cache.shifted()
