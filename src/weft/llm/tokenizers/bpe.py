"""Byte-level byte-pair encoding (GGUF's tokenizer models `gpt2` and `gemma4`).

Text is cut into words (`pretokenizers`), the bytes of a word are spelled in GPT-2's alphabet, and
neighbouring symbols are merged, the lowest rank first (Sennrich et al., arXiv 1508.07909; Radford
et al. 2019). The file lists merges as lines `left right`; the rank is the number of the line.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise

from weft.errors import TokenizerError
from weft.frontends.gguf.format import WHOLE_TOKENIZER
from weft.llm.tokenizers.pretokenizers import PRETOKENIZERS
from weft.llm.tokenizers.vocab import TokenType, Vocab, WordIds

_SPACE = "\u2581"
_MERGES = "tokenizer.ggml.merges"


def _alphabet() -> list[str]:
    """GPT-2's character for each byte: the byte itself if it is printable, else the next unused
    character from U+0100 on."""
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (b for b in range(256) if b not in printing)
    chars = {b: chr(b) for b in printing} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [chars[b] for b in range(256)]


SYMBOLS = [char.encode() for char in _alphabet()]
"""GPT-2's character for each byte, in UTF-8."""
_TO_LATIN1 = {ord(char): byte for byte, char in enumerate(_alphabet())}


class BpeModel:
    """Converts text without special tokens to ids, and ids to bytes."""

    add_space_prefix = False

    def __init__(self, vocab: Vocab) -> None:
        """Raises TokenizerError for an unknown pre-tokenizer and for a file without merges."""
        self.vocab = vocab
        # texts of a whole tokenizer.json are encoded elsewhere
        how = PRETOKENIZERS.get("default" if WHOLE_TOKENIZER in vocab.metadata else vocab.pre)
        if how is None:
            raise TokenizerError(
                f"unknown pre-tokenizer {vocab.pre!r} (tokenizer.ggml.pre); supported: "
                f"{', '.join(filter(None, sorted(PRETOKENIZERS)))}"
            )
        self._how = how
        if _MERGES not in vocab.metadata and vocab.pre != "kimi-k2":
            raise TokenizerError(
                f"the vocabulary has no merges (no key {_MERGES}); convert the model again"
            )
        self._merges = vocab.metadata.get_bytes_list(_MERGES, [])
        self._words = WordIds(self._encode_parts)

    @cached_property
    def _ranks(self) -> dict[bytes, int]:
        """The rank of each merge, by its line `left right`; the first of equal lines counts."""
        merges = self._merges
        wrong = [line for line in merges if b" " not in line]
        if wrong:
            raise TokenizerError(
                f"the merge {wrong[0]!r} is not two tokens with a space between; convert the model "
                "again"
            )
        return dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))

    def encode(self, text: str) -> list[int]:
        """The ids of `text`. Raises TokenizerError if a merge of the file is not two tokens."""
        if not self._how.byte_level:
            text = text.replace(" ", _SPACE)
        ids: list[int] = []
        for word in self._how.split(text):
            ids += self._words[word]
        return ids

    def _encode_parts(self, word: str) -> list[int]:
        parts = self._how.split_word(word)
        return [id_ for part in parts for id_ in self._encode_word(part)]

    def _encode_word(self, word: str) -> list[int]:
        if self._how.byte_level:
            symbols = [SYMBOLS[byte] for byte in word.encode()]
        else:
            symbols = [char.encode() for char in word]
        index = self.vocab.index
        if self._how.ignore_merges or (self._how.newline_tokens and word[0] == "\n"):
            whole = index.get(b"".join(symbols))
            if whole is not None:
                return [whole]
        ids: list[int] = []
        for token in merge(symbols, self._ranks):
            id_ = index.get(token)
            if id_ is not None:
                ids.append(id_)
            else:
                ids += [index[part] for part in self._parts(token) if part in index]
        return ids

    def _parts(self, token: bytes) -> list[bytes]:
        """The tokens of the bytes of `token`, which merges have made but the vocabulary lacks.

        Some vocabularies also lack rare bytes; these are lost, as in the reference."""
        if self._how.byte_level:
            return [char.encode() for char in token.decode()]
        return [b"<0x%02X>" % byte for byte in token]

    def covered(self, text: str) -> bytes | None:
        return (text if self._how.byte_level else text.replace(_SPACE, " ")).encode()

    def piece(self, id_: int, special: bool = False) -> bytes:
        """The bytes that token `id_` stands for; empty for control tokens unless `special`."""
        vocab = self.vocab
        if not self._how.byte_level or vocab.types[id_] != TokenType.NORMAL:
            return vocab.piece(id_, special)
        text = vocab.tokens[id_].decode("utf-8", "surrogateescape")
        if _TO_LATIN1.keys() >= set(map(ord, text)):
            return text.translate(_TO_LATIN1).encode("latin-1")
        return text.encode("utf-8", "surrogateescape")  # some vocabularies have texts as they are


def merge(symbols: list[bytes], ranks: Mapping[bytes, int]) -> list[bytes]:
    """Merges neighbours, lowest rank first, then leftmost, while any pair has a rank.

    `ranks` has the rank of each pair, by `left right`. Takes O(n log n) time for n symbols and
    changes `symbols`."""
    n = len(symbols)
    if n < 2:
        return symbols
    rank_of = ranks.get
    right = list(range(1, n + 1))  # index of the next symbol; n: none
    left = list(range(-1, n - 1))
    # the rank of each symbol's pair with the next one; other entries of the heap are stale
    current = [rank_of(a + b" " + b, -1) for a, b in pairwise(symbols)]
    current.append(-1)
    heap = [rank * n + i for i, rank in enumerate(current) if rank >= 0]
    heapq.heapify(heap)
    pop, push = heapq.heappop, heapq.heappush
    while heap:
        rank, i = divmod(pop(heap), n)
        if current[i] != rank:
            continue
        j = right[i]
        symbols[i] = joined = symbols[i] + symbols[j]
        symbols[j] = b""
        current[j] = -1
        after = right[i] = right[j]
        if after < n:
            left[after] = i
            current[i] = rank = rank_of(joined + b" " + symbols[after], -1)
            if rank >= 0:
                push(heap, rank * n + i)
        else:
            current[i] = -1
        before = left[i]
        if before >= 0:
            current[before] = rank = rank_of(symbols[before] + b" " + joined, -1)
            if rank >= 0:
                push(heap, rank * n + before)
    return [symbol for symbol in symbols if symbol]
