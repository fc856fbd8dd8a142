"""Settings that a GGUF file lacks, from the config.json (and the tokenizer of BERT) beside it.

Converters leave some settings out: windows, `norm_topk_prob`, soft caps, divisors of angles. Where
the folder of a file has the config.json that the model was converted from, it says them; what the
file says itself counts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from weft.dtype import find_dtype
from weft.errors import WeftError
from weft.frontends.gguf.format import TOKENIZER_SETTINGS, WHOLE_TOKENIZER
from weft.frontends.gguf.metadata import made_metadata
from weft.frontends.gguf.reader import GGUFFile
from weft.frontends.gguf.tensors import TensorInfo
from weft.frontends.gguf.writer import encode_value
from weft.frontends.hf.completed import family_metadata, rope_tensors
from weft.frontends.hf.config import Config
from weft.frontends.hf.folder import is_some, read_family, understood
from weft.frontends.hf.tokenizer_json import tokenizer_keys
from weft.frontends.hf.values import Floats, Values

_SAME = ("block_count", "embedding_length", "attention.head_count", "feed_forward_length")
"""Sizes that must agree: the config.json of another model has nothing to say."""
_LARGEST = 1 << 22
"""Maximum number of bytes of a config.json that is read."""


def completed(file: GGUFFile) -> GGUFFile:
    """The model file with what the config.json beside it adds; the same file if there is none, or
    if it is of another architecture or other sizes. `notes` of the file say what was added."""
    folder = file.path.parent
    config = folder / "config.json"
    try:
        if not config.is_file() or config.stat().st_size > _LARGEST or file.kind != "model":
            return file
        with understood(folder):
            family, c = read_family(folder)
            if family.arch != file.architecture:
                return file
            keys = family_metadata(family, c)
            divisors = rope_tensors(family, c, keys)
        own = {f"{family.arch}.{key}": value for key, value in keys.items() if is_some(value)}
        if not all(_agrees(file, f"{family.arch}.{key}", own) for key in _SAME):
            return file
        lacking = {
            key: value
            for key, value in own.items()
            if key not in file.metadata and value is not None and ".general." not in key
        }
        if file.get_str("tokenizer.ggml.model", "") == "bert":
            with understood(folder):
                lacking |= _settings_of_words(file, dict(family.vocab(c)), c)
        given = {key: encode_value(key, value) for key, value in lacking.items()}
    except (WeftError, OSError):
        return file  # a file is whole without it
    raw = {key: file.metadata.raw(key) for key in file.metadata}
    tensors = list(file.tensors.values())
    more = [_made(tensors[0], name[1:], values) for name, values in divisors
            if name.startswith("=rope_f") and name[1:] not in file.tensors]  # fmt: skip
    if not given and not more:
        return file
    made = file.presented(made_metadata(file.path, raw | given), [*tensors, *more])
    said = [
        f"{key.removeprefix(f'{family.arch}.')} = {_shown(value)}" for key, value in lacking.items()
    ]
    said += [t.name for t in more]
    made.notes = (f"config.json beside the file says what the file lacks: {', '.join(said)}",)
    return made


def _settings_of_words(
    file: GGUFFile, vocabulary: dict[str, object], c: Config
) -> dict[str, object]:
    """The rules of BERT's own tokenizer, which files leave out, if the folder has the vocabulary of
    the file."""
    tokens = "tokenizer.ggml.tokens"
    known = TOKENIZER_SETTINGS in file.metadata or WHOLE_TOKENIZER in file.metadata
    if known or tokens not in file.metadata or file.get_str_list(tokens) != vocabulary[tokens]:
        return {}
    return dict(tokenizer_keys(c, vocabulary))


def _agrees(file: GGUFFile, key: str, own: dict[str, object]) -> bool:
    """True if the file and config.json say the same size, or one of them none or several."""
    if key not in file.metadata or file.metadata.item_type_of(key) is not None:
        return key not in own or key.endswith(("head_count", "forward_length"))
    wanted = own.get(key)
    return not isinstance(wanted, int) or file.get_int(key) == wanted


def _made(like: TensorInfo, name: str, values: Values) -> TensorInfo:
    n = values.shape[0]
    return replace(
        like, name=name, dtype=find_dtype("f32"), ne=(n, 1, 1, 1), n_dims=1, offset=-1,
        nbytes=4 * n, _make=partial(_bytes, values.load),
    )  # fmt: skip


def _bytes(load: Callable[[], Floats]) -> NDArray[np.uint8]:
    return np.ascontiguousarray(load(), np.float32).view(np.uint8)


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:56]} ..."
