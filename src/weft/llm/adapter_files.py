"""Reads LoRA adapters: GGUF files, and PEFT's folders.

Files are GGUF as llama.cpp's converter writes them: `general.type` "adapter", `adapter.type`
"lora", `adapter.lora.alpha`, and for each matrix NAME the tensors NAME.lora_a [rank, n_in] and
NAME.lora_b [n_out, rank].
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import FormatError, MissingFileError
from weft.frontends.gguf import GGUFFile, open_gguf
from weft.frontends.gguf.describe import CONTROL_VECTOR
from weft.frontends.gguf.format import ROPE_HALVES
from weft.frontends.gguf.tensors import TensorInfo
from weft.frontends.hf.config import Config
from weft.frontends.hf.families import families_of
from weft.frontends.hf.family import Family, adjacent_rows
from weft.frontends.hf.folder import read_family
from weft.frontends.hf.lora import peft_pairs, read_settings
from weft.llm.adapters import EMBEDDINGS, F32, Adapter, Adapters
from weft.llm.config import ModelConfig
from weft.llm.scaled_files import ScaledFiles, listed_files
from weft.llm.weights import Weights
from weft.quants import decode

AdapterFiles = ScaledFiles
"""GGUF files, or folders of PEFT; see `ScaledFiles`."""
Found = tuple[str, F32, F32]
"""The name of a matrix, A, and B times alpha / rank."""


def open_adapters(
    files: AdapterFiles, model: GGUFFile, config: ModelConfig, weights: Weights
) -> Adapters:
    """Reads adapters for a model: its file, config and weights.

    Raises ArgumentError for something else than files, ContextError for two of one name or a scale
    that is no number, and FormatError for a file that is no adapter or does not fit the model."""
    adapters: list[Adapter] = []
    for name, path, scale in listed_files(files, "adapters", "adapter"):
        try:
            found = _found(path, model, config)
            pairs = {matrix: _checked(matrix, a, b, weights) for matrix, a, b in found}
            if not pairs:
                raise FormatError("the adapter has no tensors; convert it again")
        except FormatError as e:
            if isinstance(e, MissingFileError) or str(e).startswith(str(path)):
                raise
            raise FormatError(f"{path}: {e}") from None
        rank = max(b.shape[-1] for _, b in pairs.values())
        adapters.append(Adapter(name, path, scale, rank, pairs))
    return Adapters(adapters)


def _found(path: Path, model: GGUFFile, config: ModelConfig) -> Iterator[Found]:
    """The matrices of an adapter."""
    if path.is_dir():
        yield from _peft(path, model, config)
        return
    halves = model.get_bool(ROPE_HALVES, False)
    with open_gguf(path) as file:
        for matrix, a, b in _gguf(file, config.arch):
            yield matrix, a, _in_halves(model, config, matrix, b) if halves else b


def _in_halves(model: GGUFFile, config: ModelConfig, matrix: str, b: F32) -> F32:
    """The rows of B in the order of a folder's queries and keys, in which halves rotate."""
    stem = matrix.rpartition(".")[0]
    if b.ndim != 2 or not stem.endswith((".attn_q", ".attn_k")):
        return b
    _, c = read_family(Path(model.path))
    rows = adjacent_rows(c, len(b), _rotated(config))
    if len(rows) != len(b):
        return b  # it does not fit, which `_checked` says
    out = np.empty_like(b)
    out[rows] = b
    return out


def _rotated(config: ModelConfig) -> int:
    """How many elements of a head rotate; all, if files have an order and nothing rotates."""
    return config.rope.n_dims or config.head_dim_k


def _peft(path: Path, model: GGUFFile, config: ModelConfig) -> Iterator[Found]:
    settings = read_settings(path)
    if settings.invocation_tokens:
        raise _acts_later()
    n_rotated = None if model.get_bool(ROPE_HALVES, False) else _rotated(config)
    pairs, wrong = None, FormatError(f"weft knows no folders of the architecture {config.arch}")
    for family, c in _families(model, config):
        try:
            pairs = list(peft_pairs(settings, family, c, n_rotated=n_rotated))
            break
        except FormatError as error:
            wrong = error
    if pairs is None:
        raise wrong
    for pair in pairs:
        yield pair.name, pair.a.load(), pair.b.load() * np.float32(pair.scale)


def _families(model: GGUFFile, config: ModelConfig) -> Iterator[tuple[Family, Config]]:
    """What the folder of the model is, or may have been: its family and config.json."""
    path = Path(model.path)
    if path.is_dir():
        yield read_family(path)
        return
    values = {
        "hidden_size": config.n_embd,
        "num_hidden_layers": config.n_layer,
        "num_attention_heads": config.n_head(),
        "num_key_value_heads": config.n_head_kv(),
        "head_dim": config.head_dim_k,
        "num_local_experts": 0 if config.moe is None else config.moe.n_expert,
        "tie_word_embeddings": "output.weight" not in model.tensors,
        "_name_or_path": "",
        "partial_rotary_factor": config.rope.n_dims / max(config.head_dim_k, 1),
    }
    for family in families_of(config.arch):
        yield family, _KnownConfig(path, values, family.defaults)


class _KnownConfig(Config):
    """What a GGUF file tells of config.json; other keys are not taken for missing ones."""

    def __init__(self, path: Path, values: Mapping[str, Any], defaults: Any) -> None:
        super().__init__(path, values, defaults)
        self._made = True

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`. Raises FormatError if the file does not tell it."""
        if key not in self and getattr(self, "_made", False):
            raise self.bad(key, "is not known")
        return super().get(key, default)

    def bad(self, key: str, what: str) -> FormatError:
        return FormatError(
            f"the model's config.json is needed, which has {key!r}; convert the adapter: "
            "weft convert --lora FOLDER OUT.gguf --base FOLDER_OF_THE_MODEL"
        )


def _gguf(file: GGUFFile, architecture: str) -> Iterator[Found]:
    meta = file.metadata
    kind = meta["general.type"] if "general.type" in meta else "model"
    if file.architecture == CONTROL_VECTOR:
        raise FormatError(
            "this is a control vector; give it as --control-vector (control_vectors=)"
        )
    if kind != "adapter":
        raise FormatError(f"this is a {kind}, not an adapter; give it as the model")
    how = meta.get_str("adapter.type")
    if how != "lora":
        raise FormatError(f"the adapter is of type {how}; weft reads those of type lora")
    if file.architecture != architecture:
        raise FormatError(
            f"the adapter is for architecture {file.architecture}, the model is {architecture}; "
            "use the model that it was trained on"
        )
    if "adapter.alora.invocation_tokens" in meta:
        raise _acts_later()
    alpha = meta.get_float("adapter.lora.alpha")
    if not math.isfinite(alpha):
        raise FormatError(f"adapter.lora.alpha is {alpha}; it must be a number")
    done = set()
    for tensor in file.tensors:
        matrix, _, end = tensor.rpartition(".")
        if end not in ("lora_a", "lora_b"):
            raise FormatError(
                f"tensor {tensor} is neither a .lora_a nor a .lora_b, which weft cannot apply"
            )
        if matrix not in done:
            done.add(matrix)
            a, b = (file.tensors.get(f"{matrix}.{part}") for part in ("lora_a", "lora_b"))
            if a is None or b is None:
                raise FormatError(f"{matrix} has a .{end} only; convert the adapter again")
            # llama.cpp too takes an alpha of 0 as none
            scale = alpha / b.ne[0] if alpha else 1.0
            yield matrix, _values(a), _values(b) * np.float32(scale)


def _acts_later() -> FormatError:
    return FormatError(
        "the adapter begins to act behind certain tokens (aLoRA), which weft cannot do; use one "
        "that acts always"
    )


def _values(info: TensorInfo) -> F32:
    shape = info.ne[info.n_dims - 1 :: -1]
    values = decode(info.data.reshape(-1, info.nbytes // math.prod(shape[:-1])), info.dtype)
    return values.astype(np.float32).reshape(shape)


def _checked(matrix: str, a: F32, b: F32, weights: Weights) -> tuple[F32, F32]:
    """A and B, if they fit the matrix of the model. Raises FormatError if they do not."""
    if matrix not in weights:
        raise FormatError(
            f"it changes {matrix}, which the model does not have; use the model that it was "
            "trained on"
        )
    base = [int(n) for n in weights[matrix].ne if isinstance(n, int)]
    n_in, n_out, n_expert = base[:3]
    rank = b.shape[-1]
    stacks = () if n_expert == 1 else (n_expert,)
    right = ((*stacks, rank, n_in), (*stacks, n_out, rank))
    if matrix == EMBEDDINGS:
        right = ((n_out, rank), (n_in, rank))
    rows = -1 if matrix == EMBEDDINGS else -2
    if rank < 1 or (a.shape, b.shape) != right:
        raise FormatError(
            f"{matrix} is {[n for n in base[::-1] if n > 1]} in the model, so that its lora_a must "
            f"be {_sizes(right[0], rows)} and its lora_b {_sizes(right[1], -1)}; they are "
            f"{list(a.shape)} and {list(b.shape)}"
        )
    for end, values in (("lora_a", a), ("lora_b", b)):
        if not np.isfinite(values).all():
            raise FormatError(
                f"tensor {matrix}.{end} has values that are not numbers; download it again"
            )
    return a, b


def _sizes(shape: tuple[int, ...], rank: int) -> str:
    """Sizes in PyTorch's order, with a word for the dimension `rank`."""
    words = [str(n) for n in shape]
    words[rank] = "rank"
    return f"[{', '.join(words)}]"
