"""The name of a model in a table or a sentence: `llama 1B Q4_K - Medium`."""

from __future__ import annotations

from weft.dtype import DTYPES
from weft.frontends.gguf.mixes import MIXES
from weft.llm.model import Model

_SIZES = {"S": "Small", "M": "Medium", "L": "Large"}


def model_name(model: Model) -> str:
    """Architecture, number of weights and type of the file, such as `llama 1B Q4_K - Medium`, and
    the adapters and control vectors."""
    beside = [files.all for files in (model.adapters, model.control_vectors) if files is not None]
    names = "".join(f" + {one.name}" for files in beside for one in files)
    return f"{model.config.arch} {_size(model)} {_type(model)}{names}"


def _size(model: Model) -> str:
    label = model.file.metadata.get("general.size_label")
    if isinstance(label, str) and label.isalnum():
        return label
    n = sum(t.n_elements for t in model.file.tensors.values())
    for unit, letter in ((10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n >= unit:
            return f"{n / unit:.0f}{letter}"
    return str(n)


def _type(model: Model) -> str:
    """The mix that the file states, or the type of most weights where that is another and the mix
    could be: rows whose length is not a multiple of the block of a mix get other types."""
    number = model.file.metadata.get("general.file_type")
    stated = next((m for m in MIXES.values() if m.number == number), None)
    main = _main_type(model).upper()
    if stated is None:
        return main
    fits = stated.name.startswith(main)
    if not fits and not _has_rows_beside(model, DTYPES[stated.base].block):
        return main
    base, _, size = stated.name.rpartition("_")
    name = f"{base} - {_SIZES[size]}" if size in _SIZES else stated.name
    return name if fits else f"{name} (mostly {main})"


def _has_rows_beside(model: Model, block: int) -> bool:
    """Whether most weights of matrices are in rows whose length is not a multiple of `block`."""
    matrices = [t for t in model.file.tensors.values() if t.ne[1] > 1]
    beside = sum(t.n_elements for t in matrices if t.ne[0] % block)
    return 2 * beside > sum(t.n_elements for t in matrices)


def _main_type(model: Model) -> str:
    """The type of most weights."""
    counts: dict[str, int] = {}
    for t in model.file.tensors.values():
        counts[t.dtype.name] = counts.get(t.dtype.name, 0) + t.n_elements
    return max(counts, key=lambda name: counts[name])
