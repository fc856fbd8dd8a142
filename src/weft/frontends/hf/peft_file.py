"""An adapter of PEFT shown as a GGUF file, with its own names, for `weft inspect`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from weft.dtype import find_dtype
from weft.errors import FormatError
from weft.frontends.gguf.filemap import FileMap
from weft.frontends.gguf.format import tensor_bytes
from weft.frontends.gguf.metadata import made_metadata
from weft.frontends.gguf.reader import GGUFFile, present_as_gguf
from weft.frontends.gguf.tensors import TensorInfo
from weft.frontends.gguf.writer import encode_value
from weft.frontends.hf.lora import adapter_tensors, read_settings
from weft.frontends.hf.safetensors import Stored, read_safetensors

__all__ = ["open_peft"]

_TYPES = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F64": "f64"}


def open_peft(folder: str | os.PathLike[str]) -> GGUFFile:
    """Opens adapter_config.json and adapter_model.safetensors of `folder`, as they are: a key of
    the first is `peft.KEY`. Raises FormatError for a folder that is no adapter or damaged."""
    path = Path(folder)
    settings = read_settings(path)
    file = FileMap(adapter_tensors(settings))
    keys: dict[str, object] = {"general.type": "adapter", "adapter.type": "lora"}
    if "lora_alpha" in settings.values:
        keys["adapter.lora.alpha"] = settings.alpha
    for key, value in settings.values.items():
        text = ", ".join(map(str, value)) if isinstance(value, list) else value
        if isinstance(text, str | bool | float) or (type(text) is int and abs(text) < 1 << 31):
            keys[f"peft.{key}"] = text
    raw = {_text(key): encode_value(_text(key), _text(value)) for key, value in keys.items()}
    infos = [_info(path, stored) for stored in read_safetensors(file).values()]
    return present_as_gguf(path, made_metadata(path, raw), infos, [file])


def _text(value: Any) -> Any:
    """A text without halves of characters, which JSON may have and files may not."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def _info(path: Path, t: Stored) -> TensorInfo:
    if t.kind not in _TYPES or not 0 < len(t.shape) <= 4 or 0 in t.shape:
        raise FormatError(f"{path}: {t.name} is {t.kind} {list(t.shape)}, which is no adapter's")
    dtype, ne = find_dtype(_TYPES[t.kind]), t.shape[::-1]
    padded = (*ne, 1, 1, 1)
    ne4 = (padded[0], padded[1], padded[2], padded[3])
    return TensorInfo(t.name, dtype, ne4, len(ne), t.offset, tensor_bytes(dtype, ne), t.file)
