"""SentencePiece unigram (GGUF's tokenizer model `t5`).

A text is split into the tokens with the largest sum of log-probabilities, which Viterbi's algorithm
finds (Kudo, arXiv 1804.10959). Before that it is normalised by a table of characters in the file.
The `sentencepiece` library is not used, because it adds in single precision and has other rules for
spaces and unknown characters than the reference.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

import numpy as np
from numpy.typing import NDArray

from weft.errors import TokenizerError
from weft.llm.tokenizers.characters import WHITESPACE
from weft.llm.tokenizers.vocab import TokenType, Vocab, WordIds, require_short_tokens

_SPACE = "\u2581"
_WHITESPACE = re.compile(f"[{''.join(WHITESPACE)}]+")
_KEY = "tokenizer.ggml"
_MATCHED = (TokenType.NORMAL, TokenType.USER_DEFINED, TokenType.UNUSED)
_UNKNOWN_PENALTY = 10.0  # below the least likely token


class UnigramModel:
    """Converts text without special tokens to ids, and ids to bytes."""

    add_space_prefix = False  # `_normalize` does this

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
        self._words = WordIds(self._encode_word)

    def _collect(self, types: NDArray[np.int32]) -> set[str]:
        """Collects the tokens that text can contain: ids and scores by text, and the length of the
        longest text by first character.

        `types` are the types in the file. Returns all beginnings of user-defined tokens."""
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
        require_short_tokens(texts)
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
        """The ids of `text`; each run of characters without a token is one unknown token."""
        text = self._normalize(text)
        if not text:
            return []
        if not self._words_apart:
            return self._encode_word(text)
        # no token has a space behind its first character, so words can be encoded one by one
        first, *others = text.split(_SPACE)
        ids = list(self._words[first]) if first else []
        for word in others:
            ids += self._words[_SPACE + word]
        return ids

    def _encode_word(self, word: str) -> list[int]:
        n = len(word)
        scores, longest = self._scores, self._longest
        best = [-float("inf")] * (n + 1)  # the best score of tokens for word[:i]
        best[0] = 0.0
        begin = [0] * (n + 1)  # the start of the last of these tokens; -1 - start if it is unknown
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
        """Replaces characters by the table, and spaces by U+2581."""
        if self._chars is not None:
            text = "".join(self._chars.apply(text))
        spaces = self.vocab.settings.get("spaces")
        if spaces == "words":
            words = _WHITESPACE.split(text)
            return "".join(w if w[0] == _SPACE else _SPACE + w for w in words if w)
        if spaces is not None:
            text = (re.sub(" +", " ", text) if spaces == "one" else text).replace(" ", _SPACE)
            return text if text[:1] in ("", _SPACE) else _SPACE + text
        if self._merge_spaces:
            return "".join(_SPACE + word for word in text.split(" ") if word)
        if self.vocab.add_space_prefix:
            stripped = text.lstrip(" ")
            if stripped:
                text = text[: len(text) - len(stripped)] + " " + stripped
        return text.replace(" ", _SPACE)

    def covered(self, text: str) -> bytes | None:
        return None  # the bytes are known only after normalising

    def piece(self, id_: int, special: bool = False) -> bytes:
        """The bytes that token `id_` stands for; empty for control tokens unless `special`."""
        return self.vocab.piece(id_, special)


class CharsMap:
    """SentencePiece's precompiled table of characters: texts and their replacements.

    The data is a size in bytes, a double-array trie of that size, and zero-terminated replacements.
    A unit of the trie has 32 bits: the offset to its children in bits 10 to 30 (shifted by 8 if bit
    9 is set), in bit 8 whether a key ends here, and its label in bits 0 to 7 and 31. Children are
    at `unit ^ offset ^ byte`. Where a key ends, the child for byte 0 has the position of the
    replacement."""

    def __init__(
        self, table: NDArray[np.int8] | NDArray[np.uint8], kept: Collection[str] = ()
    ) -> None:
        """`kept` are texts that stay unchanged, and all their beginnings.

        Raises TokenizerError for a damaged table."""
        data = table.tobytes()
        size = int.from_bytes(data[:4], "little")
        if size % 4 or 4 + size >= len(data):
            raise _damaged()
        self._units: list[int] = np.frombuffer(data, "<u4", size // 4, 4).tolist()
        self._replacements = data[4 + size :]
        self._ascii = {i: self._replace_one(i) for i in range(128)}
        # known tables have no key of two ASCII characters, which allows a fast path
        pairs = any(self._goes_on(a, b) for a in range(1, 128) for b in range(1, 128))
        self._kept = kept
        usual = "".join(re.escape(chr(i)) for i in range(128) if chr(i) not in kept)
        self._plain = re.compile(f"[{usual}]+(?![^\0-\x7f])") if usual and not pairs else None

    def apply(self, text: str) -> Iterator[str]:
        """Yields the normalised text in parts, replacing the longest key at each position."""
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
        """The length of the longest key at `text[at:]` and its replacement; 0 if there is none."""
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
        """True if some key begins with these two bytes."""
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
