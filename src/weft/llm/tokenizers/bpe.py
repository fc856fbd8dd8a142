"""Byte-level byte-pair encoding (GGUF's tokenizer models `gpt2` and `gemma4`).

Text is cut into words (`pretokenizers`), a word becomes bytes in GPT-2's alphabet, and neighbours
merge, the merge that was learnt first coming first (Sennrich et al., arXiv 1508.07909; Radford et
al. 2019). A merge of the file is the line `left right`, its rank the number of the line.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from functools import cached_property
from itertools import pairwise

from weft.errors import TokenizerError
from weft.llm.tokenizers.pretokenizers import PRETOKENIZERS
from weft.llm.tokenizers.vocab import TokenType, Vocab

__all__ = ["SYMBOLS", "BpeModel", "merge"]

_SPACE = "\u2581"
_MERGES = "tokenizer.ggml.merges"


def _alphabet() -> list[str]:
    """GPT-2's character for each byte: itself where it prints, else the next from U+0100 on."""
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (b for b in range(256) if b not in printing)
    chars = {b: chr(b) for b in printing} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [chars[b] for b in range(256)]


SYMBOLS = [char.encode() for char in _alphabet()]
"""GPT-2's spelling of each byte, as the UTF-8 of a character."""
_TO_LATIN1 = {ord(char): byte for byte, char in enumerate(_alphabet())}


class BpeModel:
    """Text without special tokens to ids, and ids to bytes."""

    add_space_prefix = False

    _CACHED_WORDS = 1 << 16
    _LONGEST_CACHED = 64  # characters; longer words hardly come twice

    def __init__(self, vocab: Vocab) -> None:
        """Raises TokenizerError for an unknown pre-tokenizer, or when there are no merges."""
        self.vocab = vocab
        how = PRETOKENIZERS.get(vocab.pre)
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
        self._words: dict[str, list[int]] = {}

    @cached_property
    def _ranks(self) -> dict[bytes, int]:
        """Ranks by merge as the file spells it, `left right`; the first of equal ones counts."""
        merges = self._merges
        wrong = [line for line in merges if b" " not in line]
        if wrong:
            raise TokenizerError(
                f"the merge {wrong[0]!r} is not two tokens with a space between; convert the model "
                "again"
            )
        return dict(zip(reversed(merges), range(len(merges) - 1, -1, -1), strict=True))

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; raises TokenizerError when a merge of the file is no pair of tokens."""
        how, words = self._how, self._words
        if not how.byte_level:
            text = text.replace(" ", _SPACE)
        ids: list[int] = []
        for word in how.split(text):
            found = words.get(word)
            if found is None:
                found = [id_ for part in how.split_word(word) for id_ in self._encode_word(part)]
                if len(word) <= self._LONGEST_CACHED:
                    if len(words) >= self._CACHED_WORDS:
                        words.clear()
                    words[word] = found
            ids += found
        return ids

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
        """What stands in for a token that merges make and the vocabulary does not have.

        Some vocabularies lack bytes that hardly occur; they are lost, as in the reference."""
        if self._how.byte_level:
            return [char.encode() for char in token.decode()]
        return [b"<0x%02X>" % byte for byte in token]

    def covered(self, text: str) -> bytes | None:
        """See `TokenizerModel.covered`."""
        return (text if self._how.byte_level else text.replace(_SPACE, " ")).encode()

    def piece(self, id_: int, special: bool = False) -> bytes:
        """The bytes that token `id_` stands for; empty for control tokens unless `special`."""
        vocab = self.vocab
        if not self._how.byte_level or vocab.types[id_] != TokenType.NORMAL:
            return vocab.piece(id_, special)
        text = vocab.tokens[id_].decode("utf-8", "surrogateescape")
        try:
            return text.translate(_TO_LATIN1).encode("latin-1")
        except UnicodeEncodeError:
            return text.encode("utf-8", "surrogateescape")


def merge(symbols: list[bytes], ranks: Mapping[bytes, int]) -> list[bytes]:
    """Merges neighbours, lowest rank first, then leftmost, while any pair has a rank.

    `ranks`: by `left right`. Takes O(n log n) for n symbols; changes `symbols`."""
    n = len(symbols)
    if n < 2:
        return symbols
    rank_of = ranks.get
    right = list(range(1, n + 1))  # index of the next symbol; n: none
    left = list(range(-1, n - 1))
    # The rank of each symbol's pair with the next one; what the heap holds besides is stale.
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
