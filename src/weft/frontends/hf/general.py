"""`general.*` metadata of a converted model: its name, size, licence and what it was made from.

How a model's name is taken apart, and its card read, is up to the package `gguf`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from weft.errors import FormatError
from weft.frontends.gguf.format import RawValue, ValueType
from weft.frontends.gguf.writer import encode_value
from weft.frontends.hf.values import Values

__all__ = ["general_keys"]


def general_keys(
    folder: Path, name: str | None, tensors: Iterable[tuple[str, Values]], *, kind: str = "model"
) -> Iterator[tuple[str, RawValue]]:
    """Keys and values in the order of the reference's converter. `name` replaces the model's own;
    `kind` is `model` or `adapter`.

    Raises FormatError if the extra `weft[hf]` is not installed."""
    try:
        import gguf
    except ImportError:
        raise FormatError(
            "weft convert needs the package gguf for the names of models: pip install 'weft[hf]'"
        ) from None
    sizes = {name: values.shape for name, values in tensors}
    writer: Any = gguf.GGUFWriter(None, "llama")
    counts = _parameters(writer, sizes)
    about = _about(gguf, folder, name, counts[0])
    if about.name is None:
        about.name = folder.name
    if about.size_label is None and counts[0] > 0:
        about.size_label = gguf.size_label(*counts)
    yield "general.type", encode_value("general.type", kind)
    if kind == "adapter":
        yield "adapter.type", encode_value("adapter.type", "lora")
    about.set_gguf_meta_model(writer)
    for key, value in writer.kv_data[0].items():
        if key == "general.architecture":
            continue
        try:
            packed = _raw(gguf, key, value)
        except Exception:  # the package takes what a file says as it is
            raise FormatError(
                f"{folder}: {key} would be {value.value!r:.60}, which is of the wrong kind; mend "
                "the README.md or generation_config.json of the folder"
            ) from None
        yield key, packed


def _about(gguf: Any, folder: Path, name: str | None, count: int) -> Any:
    """The contents of the model's card and its generation settings. Raises FormatError for files
    that the package cannot read."""
    try:
        about = gguf.Metadata.load(None, folder, name, count)
        generation = gguf.Metadata.load_generation_config(folder)
        if about.sampling_penalty_repeat is None:  # newer versions of the package read it
            about.sampling_penalty_repeat = generation.get("repetition_penalty")
    except Exception as error:  # whatever the package raises over a stranger's files
        raise FormatError(
            f"{folder}: README.md, config.json or generation_config.json cannot be read "
            f"({type(error).__name__}: {str(error)[:80]})"
        ) from None
    return about


def _parameters(writer: Any, sizes: dict[str, tuple[int, ...]]) -> tuple[int, int, int, int]:
    """Elements in all, outside experts, of one expert in every layer, and the number of experts."""
    import numpy as np

    for name, shape in sizes.items():
        writer.add_tensor_info(name, shape, np.dtype(np.float32), 0)
    counts: tuple[int, int, int, int] = writer.get_total_parameter_count()
    return counts


def _raw(gguf: Any, key: str, value: Any) -> RawValue:
    """A value of the package's writer, packed as it packs it."""
    packed: bytes = gguf.GGUFWriter(None, "llama")._pack_val(
        value.value, value.type, add_vtype=False, sub_type=getattr(value, "sub_type", None)
    )
    return RawValue(ValueType(int(value.type)), packed)
