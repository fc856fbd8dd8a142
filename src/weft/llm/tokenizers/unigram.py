"""SentencePiece unigram (GGUF's tokenizer model `t5`).

The tokens of a text are those whose log-probabilities add up to the most, found by Viterbi's
algorithm (Kudo, arXiv 1804.10959). Text is normalised first by the model's own table of characters.
`sentencepiece` does the same, but only with single-precision sums, and with other rules for spaces
and unknown characters than the reference.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from weft.errors import TokenizerError
from weft.llm.tokenizers.vocab import TokenType, Vocab

__all__ = ["CharsMap", "UnigramModel"]

_SPACE = "\u2581"
_KEY = "tokenizer.ggml"
_MATCHED = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
_UNKNOWN_PENALTY = 10.0  # below the least likely token


class UnigramModel:
    """Text without special tokens to ids, and ids to bytes."""

    add_space_prefix = False  # the normaliser's own work here

    _CACHED_WORDS = 1 << 16
    _LONGEST_CACHED = 64  # characters

    def __init__(self, vocab: Vocab) -> None:
        """Raises TokenizerError for a vocabulary without an unknown token, and for a damaged table
        of characters."""
        if vocab.unknown is None:
            raise TokenizerError(
                f"the vocabulary has no unknown token ({_KEY}.unknown_token_id), which a unigram "
                "model needs; convert the model again"
            )
        self.vocab = vocab
        self._unknown = vocab.unknown
        metadata = vocab.metadata
        self._merge_spaces = metadata.get_bool(f"{_KEY}.remove_extra_whitespaces", False)
        table = metadata.get_array(f"{_KEY}.precompiled_charsmap", np.zeros(0, np.uint8))
        kept = self._collect(metadata.get_array(f"{_KEY}.token_type", vocab.types))
        self._chars = CharsMap(table, kept) if len(table) else None
        self._words: dict[str, list[int]] = {}

    def _collect(self, types: NDArray[np.int32]) -> set[str]:
        """Finds what can be matched: ids and scores by text, the longest text by first character.

        Returns the beginnings of user-defined tokens. `types`: those of the file."""
        vocab = self.vocab
        if not np.isfinite(vocab.scores).all():
            raise TokenizerError(f"{_KEY}.scores has values that are not finite numbers")
        usual = vocab.scores[types == TokenType.NORMAL]
        least = usual.min() if len(usual) else np.float32(0)
        self._unknown_score = float(least - np.float32(_UNKNOWN_PENALTY))
        scores = vocab.scores.copy()
        scores[types == TokenType.USER_DEFINED] = 0
        ids = np.flatnonzero(np.isin(types, _MATCHED))
        texts = [vocab.tokens[i].decode("utf-8", "surrogateescape") for i in ids.tolist()]
        self._ids = dict(zip(texts, ids.tolist(), strict=True))
        self._scores = dict(zip(texts, scores[ids].tolist(), strict=True))
        self._longest = {text[0]: len(text) for text in sorted(texts, key=len)}
        inside = "".join(texts).count(_SPACE) - sum(text[0] == _SPACE for text in texts)
        self._words_apart = inside == 0 and _SPACE in self._ids
        kept = [
            vocab.tokens[i].decode("utf-8", "replace")
            for i in np.flatnonzero(types == TokenType.USER_DEFINED)
        ]
        return {text[:n] for text in kept for n in range(1, len(text) + 1)}

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; runs of characters that no token has are one unknown token each."""
        text = self._normalize(text)
        if not text:
            return []
        if not self._words_apart:
            return self._encode_word(text)
        # No token goes on after a space, so words can be taken one by one.
        ids: list[int] = []
        first, *rest = text.split(_SPACE)
        for word in (*([first] if first else ()), *(_SPACE + word for word in rest)):
            found = self._words.get(word)
            if found is None:
                found = self._encode_word(word)
                if len(word) <= self._LONGEST_CACHED:
                    if len(self._words) >= self._CACHED_WORDS:
                        self._words.clear()
                    self._words[word] = found
            ids += found
        return ids

    def _encode_word(self, word: str) -> list[int]:
        n = len(word)
        scores, longest = self._scores, self._longest
        best = [-float("inf")] * (n + 1)  # score of the best tokens for word[:i]
        best[0] = 0.0
        begin = [0] * (n + 1)  # where the last of them begins; -1 - begin for an unknown one
        for i in range(n):
            here = best[i]
            most = longest.get(word[i], 0)
            for end in range(i + 1, min(i + most, n) + 1):
                score = scores.get(word[i:end])
                if score is not None and here + score > best[end]:
                    best[end] = here + score
                    begin[end] = i
            if word[i] not in scores and here + self._unknown_score > best[i + 1]:
                best[i + 1] = here + self._unknown_score
                begin[i + 1] = -1 - i
        ids: list[int] = []
        end, after_unknown = n, False
        while end > 0:
            start = begin[end]
            if start >= 0:
                ids.append(self._ids[word[start:end]])
                after_unknown = False
            else:
                start = -1 - start
                if not after_unknown:
                    ids.append(self._unknown)
                after_unknown = True
            end = start
        ids.reverse()
        return ids

    def _normalize(self, text: str) -> str:
        """`text` by the table of characters, with U+2581 for spaces."""
        if self._chars is not None:
            text = "".join(self._chars.apply(text))
        if self._merge_spaces:
            return "".join(_SPACE + word for word in text.split(" ") if word)
        if self.vocab.add_space_prefix:
            rest = text.lstrip(" ")
            if rest:
                text = text[: len(text) - len(rest)] + " " + rest
        return text.replace(" ", _SPACE)

    def covered(self, text: str) -> bytes | None:
        """See `TokenizerModel.covered`."""
        return None  # normalising makes other characters of them

    def piece(self, id_: int, special: bool = False) -> bytes:
        """The bytes that token `id_` stands for; empty for control tokens unless `special`."""
        return self.vocab.piece(id_, special)


class CharsMap:
    """SentencePiece's precompiled table of characters: texts and what stands in for them.

    A size in bytes, a double-array trie of that size, and zero-terminated replacements. A unit of
    the trie, 32 bits: offset to its children in bits 10 to 30 (shifted by 8 when bit 9 is set),
    whether a key ends here in bit 8, its label in bits 0 to 7 with bit 31. Children are at `unit ^
    offset ^ byte`; where a key ends, the child for byte 0 holds the place of the replacement."""

    def __init__(
        self, table: NDArray[np.int8] | NDArray[np.uint8], kept: Collection[str] = ()
    ) -> None:
        """`kept`: texts that pass unchanged, with all their beginnings.

        Raises TokenizerError for a table whose parts do not fit into it."""
        data = table.tobytes()
        size = int.from_bytes(data[:4], "little")
        if size % 4 or 4 + size >= len(data):
            raise _damaged()
        self._units: list[int] = np.frombuffer(data, "<u4", size // 4, 4).tolist()
        self._replacements = data[4 + size :]
        self._ascii = {i: self._replace_one(i) for i in range(128)}
        # Between ASCII characters nothing longer than one is replaced, in any table seen so far.
        pairs = any(self._goes_on(a, b) for a in range(1, 128) for b in range(1, 128))
        self._kept = kept
        usual = "".join(re.escape(chr(i)) for i in range(128) if chr(i) not in kept)
        self._plain = re.compile(f"[{usual}]+(?![^\0-\x7f])") if usual and not pairs else None

    def apply(self, text: str) -> Iterator[str]:
        """Parts of the normalised text, the longest key replaced at each place."""
        at, n = 0, len(text)
        plain, kept = self._plain, self._kept
        while at < n:
            match = None if plain is None else plain.match(text, at)
            if match is not None:
                yield match.group().translate(self._ascii)
                at = match.end()
                continue
            end = at
            while end < n and text[at : end + 1] in kept:
                end += 1
            if end > at:
                yield text[at:end]
                at = end
                continue
            length, replacement = self._longest(text, at)
            yield replacement if length else text[at]
            at += length or 1

    def _longest(self, text: str, at: int) -> tuple[int, str]:
        """Characters of the longest key at `text[at:]`, and its replacement; 0 when none is."""
        units = self._units
        length, place = 0, 0
        try:
            node = _offset(units[0])
            for i in range(at, len(text)):
                for byte in text[i].encode():
                    node ^= byte
                    unit = units[node]
                    if byte == 0 or unit & 0x800000FF != byte:
                        return length, self._text(place) if length else ""
                    node ^= _offset(unit)
                if unit & 0x100:
                    length, place = i + 1 - at, units[node] & 0x7FFFFFFF
        except IndexError:
            raise _damaged() from None
        return length, self._text(place) if length else ""

    def _text(self, place: int) -> str:
        end = self._replacements.find(b"\0", place)
        if place >= len(self._replacements) or end < 0:
            raise _damaged()
        return self._replacements[place:end].decode("utf-8", "replace")

    def _replace_one(self, code: int) -> str:
        length, replacement = self._longest(chr(code), 0)
        return replacement if length else chr(code)

    def _goes_on(self, first: int, second: int) -> bool:
        """Whether some key begins with two given bytes."""
        units = self._units
        try:
            node = _offset(units[0]) ^ first
            if units[node] & 0x800000FF != first:
                return False
            return units[node ^ _offset(units[node]) ^ second] & 0x800000FF == second
        except IndexError:
            raise _damaged() from None


def _offset(unit: int) -> int:
    return unit >> 10 << ((unit & 0x200) >> 6)


def _damaged() -> TokenizerError:
    return TokenizerError(
        f"the table of characters ({_KEY}.precompiled_charsmap) is damaged; download the file "
        "again, or convert the model again"
    )
