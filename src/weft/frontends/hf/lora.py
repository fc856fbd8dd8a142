"""LoRA adapters in PEFT's folders: adapter_config.json and adapter_model.safetensors.

A family's changes of matrices, which take rows apart or put them in another order, apply to B: a
product P (B A) is (P B) A.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.dtype import find_dtype
from weft.errors import FormatError, MissingFileError
from weft.files import read_json
from weft.frontends.gguf.filemap import FileMap
from weft.frontends.gguf.format import tensor_bytes
from weft.frontends.gguf.metadata import made_metadata
from weft.frontends.gguf.reader import GGUFFile, present_as_gguf
from weft.frontends.gguf.tensors import TensorInfo
from weft.frontends.gguf.writer import encode_value
from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Family, experts_together, in_order, text_tensors
from weft.frontends.hf.safetensors import Stored, read_safetensors
from weft.frontends.hf.values import Values, stored_values
from weft.records import dataclass

_MOST = 3e38
_REPEATS, _REPEATED_GROUP = re.compile(r"[*+{]"), re.compile(r"\)[*+?{]")
_CONFIG, _TENSORS = "adapter_config.json", "adapter_model.safetensors"
Floats = NDArray[np.float32]
_PART = re.compile(r"\.lora_(embedding_)?([AB])(?:\.default)?(?:\.weight)?$")
_MERGE = "merge it with PEFT (merge_and_unload) and convert the model"


@dataclass(frozen=True, slots=True)
class PeftPair:
    """The two matrices of a changed weight, which gets B A times `scale`."""

    name: str
    """The GGUF name of the changed matrix."""
    a: Values
    """`[..., rank, n_in]`; for token embeddings `[n_vocab, rank]`."""
    b: Values
    """`[..., n_out, rank]`; for token embeddings `[n_embd, rank]`."""
    scale: float


@dataclass(frozen=True, slots=True)
class PeftSettings:
    """The settings in adapter_config.json."""

    path: Path
    values: Mapping[str, Any]

    @property
    def alpha(self) -> float:
        """`lora_alpha`, by whose quotient with the rank adapters are scaled."""
        return self._number(self.values.get("lora_alpha"))

    def _matches(self, pattern: str, module: str) -> bool:
        """True if a pattern of PEFT, a regular expression, stands for the module of that name.

        Raises FormatError for what is none, and for one that could take for ever."""
        try:
            if len(_REPEATS.findall(pattern)) > 3 or _REPEATED_GROUP.search(pattern):
                raise re.error("it repeats too much")
            return re.fullmatch(rf"(.*\.)?({pattern})", module) is not None
        except (re.error, OverflowError, RecursionError):
            raise FormatError(
                f"{self.path}: alpha_pattern has {pattern!r:.60}, which weft cannot match; write "
                "names of modules, such as q_proj"
            ) from None

    def _number(self, value: object) -> float:
        # larger ones are infinite in f32
        if not isinstance(value, int | float) or not abs(value) < _MOST:
            raise FormatError(f"{self.path}: lora_alpha is {value!r}; it must be a number")
        return float(value)

    @property
    def base(self) -> str:
        """The name or the path of the model that it was trained on; may be empty."""
        return str(self.values.get("base_model_name_or_path") or "")

    @property
    def invocation_tokens(self) -> list[int]:
        """The tokens behind which the adapter begins to act (aLoRA); empty: it acts always.

        Raises FormatError for a text in their place."""
        ids = self.values.get("alora_invocation_tokens") or []
        if not isinstance(ids, list) or not all(type(i) is int and 0 <= i < 1 << 31 for i in ids):
            raise FormatError(f"{self.path}: alora_invocation_tokens are not a list of token ids")
        if self.values.get("invocation_string") and not ids:
            raise FormatError(
                f"{self.path}: invocation_string is a text; write its token ids as "
                "alora_invocation_tokens"
            )
        return ids

    def scale(self, module: str, rank: int) -> float:
        """The factor of B A for the module of that name."""
        own = self.values.get("alpha_pattern") or {}
        if not isinstance(own, dict):
            raise FormatError(f"{self.path}: alpha_pattern must be an object of numbers by module")
        alphas = [v for pattern, v in own.items() if self._matches(pattern, module)]
        alpha = self._number(alphas[0]) if alphas else self.alpha
        return alpha / (math.sqrt(rank) if self.values.get("use_rslora") else rank)


def is_peft(path: str | os.PathLike[str]) -> bool:
    """True for a folder with adapter_config.json."""
    return (Path(path) / _CONFIG).is_file()


def read_settings(folder: str | os.PathLike[str]) -> PeftSettings:
    """Reads adapter_config.json. Raises FormatError for methods that are not plain LoRA."""
    path = Path(folder) / _CONFIG
    if not path.is_file():
        raise MissingFileError(f"{folder}: a folder without {_CONFIG}; give PEFT's, or a GGUF file")
    values = read_json(path, "the adapter's configuration")
    kind = values.get("peft_type") if isinstance(values, dict) else None
    if kind not in (None, "LORA"):
        raise FormatError(f"{path}: the adapter is of type {kind!r}; weft reads LORA")
    if not isinstance(values, dict):
        raise FormatError(f"{path}: must be a JSON object")
    if values.get("use_dora"):
        raise FormatError(f"{path}: weight-decomposed adapters (use_dora) are not sums; {_MERGE}")
    return PeftSettings(path, values)


def adapter_tensors(settings: PeftSettings) -> Path:
    """The file with the adapter's tensors. Raises MissingFileError if there is none that can be
    read."""
    path = settings.path.parent / _TENSORS
    if not path.is_file():
        others = " (adapter_model.bin is a pickle, which may run any program when it is read)"
        hint = others if path.with_name("adapter_model.bin").is_file() else ""
        raise MissingFileError(
            f"{path.parent}: no {_TENSORS}{hint}; save the adapter with safe_serialization=True"
        )
    return path


def peft_pairs(
    settings: PeftSettings, family: Family, c: Config, *, n_rotated: int | None
) -> Iterator[PeftPair]:
    """The matrices of an adapter by GGUF names, in the order of its file.

    With `n_rotated`, the elements of a head that rotate, the rows of queries and keys are in the
    order of GGUF files. Raises FormatError for tensors that are not LoRA's, and matrices that the
    architecture changes in another way."""
    path = adapter_tensors(settings)
    halves = _stored_pairs(path)
    for name, half in halves.items():
        if not any(text_tensors({name: half.a})):
            raise FormatError(
                f"{path}: the adapter changes {name.removesuffix('.weight')}, a part of the tower "
                f"for images or sound; weft adapts text models alone; {_MERGE}"
            )
    together = zip(
        experts_together(family, c, text_tensors({n: h.a for n, h in halves.items()})),
        experts_together(family, c, text_tensors({n: h.b for n, h in halves.items()})),
        strict=True,
    )
    for (name, a), (_, b) in together:
        scale = settings.scale(name.removesuffix(".weight"), b.shape[-1])
        whole = halves.get(name)
        if whole is not None and whole.embeds:
            rows, columns = _turned(a), _turned(b)
            for new, part, own in _parts(path, family, c, name, rows, columns, n_rotated):
                if new != "token_embd.weight":
                    raise FormatError(f"{path}: weft cannot change the embeddings {new}; {_MERGE}")
                yield PeftPair(new, part, _turned(own), scale)
        else:
            for new, part, own in _parts(path, family, c, name, b, a, n_rotated):
                yield PeftPair(new, own, part, scale)


def _turned(values: Values) -> Values:
    return values.through(lambda x: x.T, values.shape[::-1])


def _parts(
    path: Path, family: Family, c: Config, name: str, b: Values, a: Values, n_rotated: int | None
) -> list[tuple[str, Values, Values]]:
    """GGUF names, and B and A of each, of what the family makes of the matrix `name`.

    Raises FormatError if it does not change rows or columns alone, tried with a few of B A."""

    def changed(values: Values) -> list[tuple[str, Values]]:
        try:
            return _changed(family, c, name, values, n_rotated)
        except (ValueError, IndexError):  # of reshaping, where a change looks at the other side
            return []

    by_rows, by_columns = changed(b), changed(a)
    if len(by_rows) == 1 and by_rows[0][1].shape == b.shape[::-1] != b.shape:
        # the model's matrix is stored the other way round, those of LoRA are not
        return [(by_rows[0][0], b, a)]
    few = [part for _, part in changed(_product(b, a, (..., slice(0, _TRIED))))]
    parts = [(new, part, a) for new, part in by_rows]
    if parts and _are_products(parts, few, (..., slice(0, _TRIED))):
        return parts
    few = [part for _, part in changed(_product(b, a, (..., slice(0, _TRIED), slice(None))))]
    parts = [(new, b, part) for new, part in by_columns]
    if parts and _are_products(parts, few, (..., slice(0, _TRIED), slice(None))):
        return parts
    raise FormatError(
        f"{path}: it changes {name}, which files of the architecture {family.arch} do not have, "
        f"or not as one matrix; train it without, or {_MERGE}"
    )


_TRIED = 3
"""Rows or columns of B A with which it is tried what a change does."""


def _product(b: Values, a: Values, index: Any) -> Values:
    """Some of the rows or columns of B A."""

    def load() -> Floats:
        rows = len(index) > 2
        left, right = b.load(), a.load()
        product: Floats = left[index] @ right if rows else left @ right[index]
        return product

    shape = (*b.shape[:-1], a.shape[-1])
    shape = (*shape[:-2], _TRIED, shape[-1]) if len(index) > 2 else (*shape[:-1], _TRIED)
    return Values(shape, "f32", load)


def _are_products(parts: list[tuple[str, Values, Values]], few: list[Values], index: Any) -> bool:
    """True if `few` are some rows or columns of the products of all parts."""
    return len(parts) == len(few) and all(
        b.shape[-1] == a.shape[-2] and _alike(_product(b, a, index), some)
        for (_, b, a), some in zip(parts, few, strict=True)
    )


def _alike(made: Values, some: Values) -> bool:
    if made.shape != some.shape:
        return False
    try:
        x, y = made.load(), some.load()
    except (ValueError, IndexError):  # a change that looks at the other side
        return False
    return np.allclose(y, x, rtol=1e-4, atol=1e-5 * max(1.0, float(np.abs(x).max())))


def _changed(
    family: Family, c: Config, name: str, values: Values, n_rotated: int | None
) -> list[tuple[str, Values]]:
    """GGUF names and values of what the family makes of a tensor of the folder."""
    made = family.change(c, name, values)
    if n_rotated is not None and family.adjacent:
        made = [(new, in_order(c, new, part, n_rotated)) for new, part in made]
    return [(family.gguf_name(c, new), part) for new, part in made]


@dataclass(frozen=True, slots=True)
class _Halves:
    a: Values
    b: Values
    embeds: bool
    """True for embeddings, which gain the rows of (B A) transposed."""


def _stored_pairs(path: Path) -> dict[str, _Halves]:
    """A and B of each matrix, by its name in the model's folder."""
    halves: dict[str, dict[str, Values]] = {}
    embeddings = set()
    for full, stored in read_safetensors(FileMap(path)).items():
        part = _PART.search(full)
        name = full.replace("base_model.model.", "")
        if part is None:
            what = "is a whole tensor" if name.endswith((".weight", ".bias")) else "is not LoRA's"
            raise FormatError(f"{path}: {name} {what}, which weft cannot add; {_MERGE}")
        base = _PART.sub("", name) + ".weight"
        if part[1]:
            embeddings.add(base)
        halves.setdefault(base, {})[part[2]] = stored_values(stored)
    pairs: dict[str, _Halves] = {}
    for name, found in halves.items():
        if len(found) < 2:
            raise FormatError(f"{path}: {name} has a lora_{next(iter(found))} only; save it again")
        a, b = found["A"], found["B"]
        if len(a.shape) != 2 or len(b.shape) != 2 or a.shape[0] != b.shape[1] or 0 in a.shape:
            raise FormatError(
                f"{path}: {name} has a lora_A of the sizes {list(a.shape)} and a lora_B of "
                f"{list(b.shape)}, which make no product; save it again"
            )
        pairs[name] = _Halves(a, b, name in embeddings)
    if not pairs:
        raise FormatError(f"{path}: there are no tensors; save the adapter again")
    return pairs


_TYPES = {"F32": "f32", "F16": "f16", "BF16": "bf16", "F64": "f64"}


def open_peft(folder: str | os.PathLike[str]) -> GGUFFile:
    """Opens adapter_config.json and adapter_model.safetensors of `folder` as a GGUF file with their
    own names, for `weft inspect`: a key of the first is `peft.KEY`. Raises FormatError for a folder
    that is damaged or not an adapter."""
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
        raise FormatError(
            f"{path}: {t.name} is {t.kind} {list(t.shape)}, which is not an adapter's"
        )
    dtype, ne = find_dtype(_TYPES[t.kind]), t.shape[::-1]
    padded = (*ne, 1, 1, 1)
    ne4 = (padded[0], padded[1], padded[2], padded[3])
    return TensorInfo(t.name, dtype, ne4, len(ne), t.offset, tensor_bytes(dtype, ne), t.file)
