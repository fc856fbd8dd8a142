"""WordPiece (GGUF's tokenizer model `bert`).

Words are cut at white space and punctuation, then the longest token that fits is taken again and
again from the left (Schuster and Nakajima 2012; Devlin et al., arXiv 1810.04805). In GGUF a token
that begins a word begins with U+2581, and the others have lost their `##`.

Lower case and accents follow the reference, character by character: an accented letter becomes the
first character of its canonical decomposition, so a Hangul syllable keeps its first letter only.
"""

from __future__ import annotations

import unicodedata
from functools import partial

from weft.errors import TokenizerError
from weft.llm.tokenizers.characters import WHITESPACE, CharTable, category
from weft.llm.tokenizers.vocab import Vocab

__all__ = ["WordPieceModel"]

_WORD_START = "\u2581"
_NORMALIZER = "tokenizer.ggml.normalizer"
_ASCII_SYMBOLS = frozenset("$+<=>^`|~")

# Blocks of characters that are words of their own; 0x2B920 stands where 0x2B820 was meant.
_CHINESE = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2B73F),
    (0x2B740, 0x2B81F),
    (0x2B920, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


class WordPieceModel:
    """Text without special tokens to ids, and ids to bytes."""

    add_space_prefix = False

    _CACHED_WORDS = 1 << 16
    _LONGEST_CACHED = 64  # characters

    def __init__(self, vocab: Vocab) -> None:
        """Raises TokenizerError when the vocabulary has no [UNK], [CLS] or [SEP]."""
        if vocab.unknown is None or not vocab.prefix or not vocab.suffix:
            raise TokenizerError(
                "WordPiece needs the keys unknown_token_id, cls_token_id and seperator_token_id "
                "of tokenizer.ggml, each an id of the vocabulary; convert the model again"
            )
        self.vocab = vocab
        self._unknown = vocab.unknown
        lower = vocab.metadata.get_bool(f"{_NORMALIZER}.lowercase", True)
        strip = vocab.metadata.get_bool(f"{_NORMALIZER}.strip_accents", lower)
        self._spelling = CharTable(partial(_spell, lower=lower, strip_accents=strip))
        # The longest token by first byte.
        self._longest = {token[0]: len(token) for token in sorted(vocab.tokens, key=len)}
        self._words: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Ids of `text`; a word that does not come out of tokens is the unknown token."""
        ids: list[int] = []
        for word in text.translate(self._spelling).split(" "):
            if not word:
                continue
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
        rest = (_WORD_START + word).encode()
        index, longest = self.vocab.index, self._longest
        ids: list[int] = []
        at = 0
        while at < len(rest):
            for end in range(min(len(rest), at + longest.get(rest[at], 0)), at, -1):
                id_ = index.get(rest[at:end])
                if id_ is not None:
                    ids.append(id_)
                    at = end
                    break
            else:
                return [self._unknown]
        return ids

    def covered(self, text: str) -> bytes | None:
        """See `TokenizerModel.covered`."""
        return None  # an unknown word of any length is one token

    def piece(self, id_: int, special: bool = False) -> bytes:
        """The bytes that token `id_` stands for, with a space in front of words; empty for control
        tokens unless `special`."""
        return self.vocab.piece(id_, special)


def _spell(char: str, *, lower: bool, strip_accents: bool) -> str:
    """The character as words have it: between spaces if it is one, empty if it is dropped."""
    if strip_accents:
        char = unicodedata.normalize("NFD", char)[0]
    if char in WHITESPACE:
        return " "
    kind = category(char)
    if char in "\0\ufffd" or (kind[0] == "C" and kind != "Cn"):
        return ""
    if strip_accents and kind[0] == "M":
        return ""
    shown = char.lower()[0] if lower else char
    alone = kind[0] == "P" or char in _ASCII_SYMBOLS or _is_chinese(char)
    return f" {shown} " if alone else shown


def _is_chinese(char: str) -> bool:
    return any(first <= ord(char) <= last for first, last in _CHINESE)
