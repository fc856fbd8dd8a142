"""Writes an adapter of PEFT as a GGUF file, as the reference's converter does."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from weft import quants
from weft.dtype import DType, find_dtype
from weft.errors import FormatError
from weft.frontends.gguf.writer import TensorSource, encode_value, write_gguf
from weft.frontends.hf.completed import family_metadata, rotated_elements
from weft.frontends.hf.convert import ConvertedTensor
from weft.frontends.hf.folder import read_family
from weft.frontends.hf.general import general_keys
from weft.frontends.hf.lora import PeftPair, PeftSettings, peft_pairs, read_settings
from weft.frontends.hf.values import Values

__all__ = ["ADAPTER_TYPES", "convert_adapter"]

ADAPTER_TYPES = ("f32", "f16", "bf16", "q8_0", "auto")
"""Types of an adapter's matrices; `auto` keeps the 16-bit type of the folder."""


def convert_adapter(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    base: str | os.PathLike[str],
    to: str = "f32",
    *,
    name: str | None = None,
    progress: Callable[[ConvertedTensor], None] | None = None,
) -> list[ConvertedTensor]:
    """Reads the folder `source`, which PEFT saved, and writes the GGUF file `target`. From the
    model's folder `base`, config.json is read.

    Keys, names, order, types and bytes are the same as from the reference's converter. A file says
    one alpha for all matrices; where `alpha_pattern` or `use_rslora` say otherwise, B is multiplied
    by the rest. `to` is one of `ADAPTER_TYPES`. `name` replaces the adapter's name. `progress` is
    called after each tensor. Raises FormatError for a folder that cannot be read, or an adapter
    that files have no words for."""
    if to not in ADAPTER_TYPES:
        raise FormatError(f"unknown type {to!r}; choose one of {', '.join(ADAPTER_TYPES)}")
    settings = read_settings(source)
    if not settings.alpha:
        raise FormatError(f"{settings.path}: lora_alpha is 0, which changes nothing; train it anew")
    family, c = read_family(Path(base))
    try:
        n_rotated = rotated_elements(c, family_metadata(family, c)) if family.adjacent else None
        pairs = list(peft_pairs(settings, family, c, n_rotated=n_rotated))
    except FormatError as e:
        raise e if str(e).startswith(str(source)) else FormatError(f"{base}: {e}") from None
    tensors = [half for pair in pairs for half in _halves(settings, pair)]
    kind = to if to != "auto" else _guessed(pairs)
    report: list[ConvertedTensor] = []
    rows: list[TensorSource] = []
    for tensor, values in tensors:
        dtype = find_dtype(kind)
        if values.shape[-1] % dtype.block:
            dtype = find_dtype("f16")

        def make(
            tensor: str = tensor, values: Values = values, dtype: DType = dtype
        ) -> NDArray[np.uint8]:
            data = _encoded(values, dtype)
            done = ConvertedTensor(tensor, values.kind, dtype, values.shape, data.nbytes)
            report.append(done)
            if progress is not None:
                progress(done)
            return data

        rows.append((tensor, dtype, values.shape[::-1], make))
    keys: dict[str, object] = {"general.architecture": family.arch}
    keys |= dict(general_keys(Path(source).resolve(), name, tensors, kind="adapter"))
    keys["adapter.lora.alpha"] = float(settings.alpha)
    invocation = settings.invocation_tokens
    if invocation:
        keys["adapter.alora.invocation_tokens"] = np.array(invocation, np.uint32)
    keys["general.quantization_version"] = 2
    write_gguf(
        target, {key: encode_value(key, value) for key, value in keys.items()}, rows, all_sizes=True
    )
    return report


def _halves(settings: PeftSettings, pair: PeftPair) -> Iterator[tuple[str, Values]]:
    """The names and values of A and B."""
    rest = np.float32(pair.scale * pair.b.shape[-1] / settings.alpha)
    b = pair.b if rest == 1 else pair.b.through(lambda x: x * rest)
    yield f"{pair.name}.lora_a", pair.a
    yield f"{pair.name}.lora_b", b


def _guessed(pairs: list[PeftPair]) -> str:
    """The 16-bit type of the first matrix that has one."""
    kinds = (pair.a.kind for pair in pairs if pair.a.kind == pair.b.kind)
    return next((kind for kind in kinds if kind in ("f16", "bf16")), "f16")


def _encoded(values: Values, dtype: DType) -> NDArray[np.uint8]:
    x = values.load()
    made = quants.encode(x, dtype) if dtype.is_quantized else quants.to_storage(x, dtype)
    return np.ascontiguousarray(made).reshape(-1).view(np.uint8)
