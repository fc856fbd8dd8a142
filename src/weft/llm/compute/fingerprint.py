"""Tells the model and the computation of a context apart from all that give other bits, for files
that outlive the process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from weft.llm.cache.prefix_files import Layout, PrefixFiles
from weft.llm.cache.snapshots import checkpoint_bytes, row_sizes
from weft.llm.compute.context import Context
from weft.version import __version__

_PIECE = 1 << 12
_PIECES = 256
_SIZES = ("n_ctx", "n_ubatch", "n_outputs", "n_seq_max", "n_copies")
"""Options on which no bit of a result depends."""


def files_of(context: Context, folder: Path, most_bytes: int) -> PrefixFiles:
    """The files in `folder` that keep texts of a context. Raises ContextError for a folder that
    cannot be used."""
    cache = context.cache
    window = 0 if cache.window is None else cache.window.window - 1
    state = checkpoint_bytes(cache, 0)
    row = checkpoint_bytes(cache, 1) - state if window else 0
    layout = Layout(maker_of(context), row_sizes(cache), window, row, state)
    return PrefixFiles(folder, most_bytes, layout)


def maker_of(context: Context) -> str:
    """A hash of the model's files and of all that decides the bits of a result: the weights' types,
    the devices and their kernels, and where everything is."""
    plan, model = context.plan, context.model
    options = {k: v for k, v in asdict(plan.options).items() if k not in _SIZES}
    devices = [
        (b.name, b.kind, getattr(b, "target", ""), getattr(b, "activations", ""))
        for b in plan.backends
    ]
    what = (
        __version__,
        list(_files(model.file.paths)),
        [(name, leaf.dtype.name) for name, leaf in model.weights.items()],
        model.config,
        options,
        devices,
        plan.homes.weights,
        plan.homes.caches,
        plan.rewrites,
        context.cache.window is not None,
        context.cache.rotated,
    )
    return hashlib.sha256(repr(what).encode()).hexdigest()


def _files(paths: tuple[Path, ...]) -> Iterator[tuple[str, int, int, str]]:
    """Name, bytes, time of the last change, and a hash of pieces of each file: reading all of a
    large model would take longer than the prompt."""
    for path in paths:
        about = path.stat()
        hash_ = hashlib.sha256()
        with path.open("rb") as file:
            hash_.update(file.read(1 << 20))
            for i in range(_PIECES):
                file.seek(about.st_size * i // _PIECES, os.SEEK_SET)
                hash_.update(file.read(_PIECE))
        yield path.name, about.st_size, about.st_mtime_ns, hash_.hexdigest()
