"""Vocabularies in the form of tiktoken: on each line the bytes of a token, in base64, and its rank.

Folders of Kimi, Qwen 1 and Hunyuan have one, and no tokenizer.json. The merges that such a file
implies are found here: the two last parts of a token, when the tokens of lower ranks are merged
first.
"""

from __future__ import annotations

import base64
from itertools import pairwise
from pathlib import Path
from typing import Any

from weft.bounds import RANK_UNITS
from weft.errors import FormatError

N_RESERVED = 256
"""The number of ids behind the ranks that Kimi's tokenizer keeps for special tokens."""
_QWEN = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *(f"<|extra_{i}|>" for i in range(205))]
"""The special tokens behind the ranks of Qwen's tokenizer."""
_HUNYUAN = ["<|endoftext|>", "<|startoftext|>", "<|bos|>", "<|eos|>", "<|pad|>", *_QWEN[3:]]
"""The last tokens of Hunyuan's tokenizer."""
_SHOWN = {*range(33, 127), *range(161, 173), *range(174, 256)}
_HIDDEN = [byte for byte in range(256) if byte not in _SHOWN]
_CHARS = {byte: chr(byte) for byte in _SHOWN} | {b: chr(256 + i) for i, b in enumerate(_HIDDEN)}


def read_ranks(path: Path) -> dict[bytes, int]:
    """The rank of each token; the ranks count from 0. Raises FormatError for another file."""
    try:
        if path.stat().st_size > RANK_UNITS:
            raise FormatError(f"{path}: larger than {RANK_UNITS >> 20} MiB: not a vocabulary")
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror or error}") from None
    ranks: dict[bytes, int] = {}
    for line in filter(None, lines):
        try:
            token, rank = line.split()
            ranks[base64.b64decode(token, validate=True)] = int(rank)
        except ValueError:
            raise FormatError(f"{path}: not a token and its rank: {line[:80]!r}") from None
    if not ranks or sorted(ranks.values()) != list(range(len(ranks))) or b"" in ranks:
        raise FormatError(f"{path}: its ranks are not the numbers from 0, one for each token")
    if sum(len(token) ** 2 for token in ranks) > RANK_UNITS:
        raise FormatError(f"{path}: its tokens are too long for a vocabulary")
    return ranks


def kimi_tokenizer(path: Path, n_vocab: int, named: frozenset[int]) -> dict[str, Any]:
    """The tokenizer.json of Kimi's folders for the ranks of `path`: reserved ids below `n_vocab`
    that are not `named` get the name that their tokenizer gives them."""
    ranks = read_ranks(path)
    ends = range(len(ranks), min(len(ranks) + N_RESERVED, n_vocab))
    special = {i: f"<|reserved_token_{i}|>" for i in ends if i not in named}
    return _tokenizer("Kimi", ranks, special)


def hunyuan_tokenizer(path: Path, n_vocab: int) -> dict[str, Any]:
    """The tokenizer.json of Hunyuan's folders for the ranks of `path`, whose special tokens end at
    `n_vocab`."""
    ranks = read_ranks(path)
    first = max(len(ranks), n_vocab - len(_HUNYUAN))
    special = {i: text for i, text in enumerate(_HUNYUAN, first) if i < n_vocab}
    return _tokenizer("Hunyuan", ranks, special)


def qwen_tokenizer(path: Path, n_vocab: int) -> dict[str, Any]:
    """The tokenizer.json of Qwen's first folders for the ranks of `path`, with special tokens below
    `n_vocab`."""
    ranks = read_ranks(path)
    special = {i: text for i, text in enumerate(_QWEN, len(ranks)) if i < n_vocab}
    return _tokenizer("Qwen", ranks, special)


def _tokenizer(kind: str, ranks: dict[bytes, int], special: dict[int, str]) -> dict[str, Any]:
    """The tokenizer.json of ranks, whose texts are cut in the way that `kind` names."""
    ordered = sorted(ranks, key=ranks.__getitem__)
    return {
        "model": {
            "type": "BPE",
            "vocab": {_shown(token): i for i, token in enumerate(ordered)},
            "merges": [
                " ".join(map(_shown, parts))
                for token in ordered
                if len(token) > 1 and len(parts := _parts(token, ranks)) == 2
            ],
        },
        "pre_tokenizer": {
            "type": "Sequence",
            "pretokenizers": [{"type": kind}, {"type": "ByteLevel", "use_regex": False}],
        },
        "added_tokens": [
            {"id": i, "content": text, "special": True} for i, text in special.items()
        ],
    }


def _shown(token: bytes) -> str:
    """A token as byte-level vocabularies write it."""
    return "".join(_CHARS[byte] for byte in token)


def _parts(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The parts of `token` before the merge that makes it; more than two if no merge does."""
    parts = [token[i : i + 1] for i in range(len(token))]
    limit = ranks[token]
    while len(parts) > 1:
        found = [ranks.get(left + right, limit) for left, right in pairwise(parts)]
        rank = min(found)
        if rank >= limit:
            break
        i = found.index(rank)
        parts[i : i + 2] = [parts[i] + parts[i + 1]]
    return parts
