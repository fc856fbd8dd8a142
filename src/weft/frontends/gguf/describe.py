"""The summary of a GGUF file that `weft inspect` prints, as plain values."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from weft.frontends.gguf.format import ValueType
from weft.frontends.gguf.reader import GGUFFile
from weft.frontends.gguf.tensors import TensorInfo
from weft.records import dataclass

CONTROL_VECTOR = "controlvector"
"""The architecture of files with control vectors."""
_ALPHA = "adapter.lora.alpha"
_PEEK = 6  # items of an array that are shown


@dataclass(frozen=True, slots=True)
class MetadataRow:
    """A key of the file."""

    key: str
    type: str
    """`u32`, `string`, `string[128256]`, ..."""
    value: str
    """The value, or its beginning, on one line."""


@dataclass(frozen=True, slots=True)
class TensorRow:
    """A tensor of the file."""

    name: str
    type: str
    shape: tuple[int, ...]
    """The sizes, outermost first."""
    nbytes: int
    bits_per_weight: float
    """Stored bits for each element, all of the tensor's bytes counted."""


@dataclass(frozen=True, slots=True)
class TypeTotal:
    """All tensors of one type."""

    type: str
    tensors: int
    elements: int
    nbytes: int
    bits_per_weight: float


@dataclass(frozen=True, slots=True)
class Description:
    """A file in figures; all fields are plain values (`dataclasses.asdict` gives JSON's types)."""

    paths: tuple[str, ...]
    version: int
    kind: str
    about: str
    """Kind and size of an adapter or a control vector, in words; empty for other files."""
    architecture: str | None
    nbytes: int
    """Bytes of all files."""
    tensor_nbytes: int
    elements: int
    bits_per_weight: float
    """The average over all tensors; 0 when there are none."""
    metadata: tuple[MetadataRow, ...]
    tensors: tuple[TensorRow, ...]
    totals: tuple[TypeTotal, ...]
    """A row for each type, most bytes first."""
    notes: tuple[str, ...] = ()
    """Sentences about what does not come from the file itself."""


def describe(file: GGUFFile, *, width: int = 80) -> Description:
    """Describe `file`; values are cut to `width` characters, and arrays are not decoded whole.

    Strings are made safe to print: control characters and bytes that are not UTF-8 are escaped."""
    tensors = tuple(
        TensorRow(
            printable(t.name), _type_of(t), t.shape, t.stored_nbytes,
            _bits(t.stored_nbytes, t.n_elements),
        )
        for t in file.tensors.values()
    )  # fmt: skip
    elements = sum(t.n_elements for t in file.tensors.values())
    nbytes = sum(t.stored_nbytes for t in file.tensors.values())
    return Description(
        paths=tuple(str(p) for p in file.paths),
        version=file.version,
        kind=_string(file, "general.type") or ("model" if tensors else "vocab"),
        about=in_words(file),
        architecture=_string(file, "general.architecture"),
        nbytes=file.nbytes,
        tensor_nbytes=nbytes,
        elements=elements,
        bits_per_weight=_bits(nbytes, elements),
        metadata=tuple(
            MetadataRow(printable(key), _type_label(file, key), _short(file, key, width))
            for key in file.metadata
        ),
        tensors=tensors,
        totals=_totals(file),
        notes=file.notes,
    )


def in_words(file: GGUFFile) -> str:
    """Kind and size of an adapter or a control vector, such as `a LoRA adapter of llama, rank 8,
    alpha 16, 14 matrices`; empty for other files."""
    arch = _string(file, "general.architecture")
    if arch == CONTROL_VECTOR:
        made_for = _string(file, f"{CONTROL_VECTOR}.model_hint")
        numbers = (name.rpartition(".")[2] for name in file.tensors)
        layers = sorted(int(n) for n in numbers if n.isascii() and n.isdigit() and len(n) < 10)
        sizes = {t.ne[0] for t in file.tensors.values()}
        return (
            f"a control vector{f' of {made_for}' if made_for else ''}"
            f"{f', layers {layers[0]} to {layers[-1]}' if layers else ''}"
            f"{f', rows of {max(sizes)}' if sizes else ''}"
        )
    if _string(file, "general.type") != "adapter":
        return ""
    how = _string(file, "adapter.type") or "some"
    ends = (".lora_b", ".lora_B.weight", ".lora_embedding_B")
    ranks = sorted({t.ne[0] for name, t in file.tensors.items() if name.endswith(ends)})
    n = sum(name.endswith(ends) for name in file.tensors)
    alpha = file.metadata.peek(_ALPHA, 0, 8) if _ALPHA in file.metadata else None
    ranked = f"{ranks[0]} to {ranks[-1]}" if len(ranks) > 1 else "".join(map(str, ranks))
    return (
        f"a {'LoRA' if how == 'lora' else how} adapter{f' of {arch}' if arch else ''}"
        f"{f', rank {ranked}' if ranked else ''}"
        f"{'' if alpha is None else f', alpha {_scalar(alpha)}'}, {n} matrices"
    )


def printable(text: str) -> str:
    """`text` on one line, with every character that could disturb a terminal escaped as in
    Python."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _string(file: GGUFFile, key: str) -> str | None:
    """The string of `key`; None where there is none, since a summary should not fail over it."""
    value = file.metadata.peek(key, 0, 1000) if key in file.metadata else None
    return printable(value) if isinstance(value, str) else None


def _totals(file: GGUFFile) -> tuple[TypeTotal, ...]:
    sums: dict[str, list[int]] = {}
    for t in file.tensors.values():
        row = sums.setdefault(_type_of(t), [0, 0, 0])
        row[0] += 1
        row[1] += t.n_elements
        row[2] += t.stored_nbytes
    totals = [TypeTotal(k, n, m, nbytes, _bits(nbytes, m)) for k, (n, m, nbytes) in sums.items()]
    return tuple(sorted(totals, key=lambda t: -t.nbytes))


def _type_of(t: TensorInfo) -> str:
    """The type in the file, and that in memory if it has another name."""
    same = t.stored_type == t.dtype.name
    return t.stored_type if same else f"{t.stored_type} ({t.dtype.name} in memory)"


def _bits(nbytes: int, elements: int) -> float:
    return 8.0 * nbytes / elements if elements else 0.0


def _type_label(file: GGUFFile, key: str) -> str:
    item = file.metadata.item_type_of(key)
    if item is None:
        return file.metadata.type_of(key).label
    return f"{item.label}[{file.metadata.count_of(key)}]"


def _short(file: GGUFFile, key: str, width: int) -> str:
    if file.metadata.item_type_of(key) is ValueType.ARRAY:
        return f"{file.metadata.count_of(key)} arrays"
    # Up to four bytes make a character.
    value = file.metadata.peek(key, _PEEK, 4 * (width + 1))
    if isinstance(value, str):
        return _cut(printable(value[: width + 1]), width)
    if isinstance(value, (list, np.ndarray)):
        more = file.metadata.count_of(key) > len(value)
        return _cut(f"[{', '.join(_items(value, width))}{', ...' if more else ''}]", width)
    return _cut(_scalar(value), width)


def _items(values: Iterable[object], width: int) -> Iterable[str]:
    for v in values:
        if isinstance(v, str):
            yield f"'{printable(v[: width + 1])}'"
        else:
            yield _scalar(v)


def _scalar(value: object) -> str:
    if isinstance(value, (bool, np.bool_)):
        return "true" if value else "false"
    # Seven digits distinguish most float32 values; a float64 that needs more is rare in files.
    return f"{value:.7g}" if isinstance(value, (float, np.floating)) else str(value)


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: max(width - 3, 0)] + "..."
