"""WordPiece (GGUF's tokenizer model `bert`).

Text is cut into words at white space and punctuation; each word is then split from the left, always
taking the longest token that fits (Schuster and Nakajima 2012; Devlin et al., arXiv 1810.04805). In
GGUF, tokens at the beginning of a word start with U+2581, and the others have no `##`.

Lower case and accents of files follow the reference: each character is replaced by the first
character of its canonical decomposition, so that of a Hangul syllable only the first letter stays.
Folders follow BERT itself: only marks without a width go, and a word of more than 100 letters is
the unknown token.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from functools import partial

from weft.errors import TokenizerError
from weft.llm.tokenizers.characters import WHITESPACE, CharTable, category
from weft.llm.tokenizers.vocab import TokenType, Vocab, WordIds, require_short_tokens

_WORD_START = "\u2581"
_NORMALIZER = "tokenizer.ggml.normalizer"
_ASCII_SYMBOLS = frozenset("$+<=>^`|~")

# Blocks of characters that are words of their own. 0x2B920 is the reference's slip for 0x2B820.
_CHINESE = ((0x3400, 0x4DBF), (0x4E00, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x2A6DF),
            (0x2A700, 0x2B73F), (0x2B740, 0x2B81F), (0x2B920, 0x2CEAF),
            (0x2F800, 0x2FA1F))  # fmt: skip


class WordPieceModel:
    """Converts text without special tokens to ids, and ids to bytes."""

    add_space_prefix = False

    def __init__(self, vocab: Vocab) -> None:
        """Raises TokenizerError for a vocabulary without [UNK], [CLS] or [SEP]."""
        if vocab.unknown is None or not vocab.prefix or not vocab.suffix:
            raise TokenizerError(
                "WordPiece needs the keys unknown_token_id, cls_token_id and seperator_token_id "
                "of tokenizer.ggml, each an id of the vocabulary; convert the model again"
            )
        self.vocab = vocab
        self._unknown = vocab.unknown
        lower = vocab.metadata.get_bool(f"{_NORMALIZER}.lowercase", True)
        strip = vocab.metadata.get_bool(f"{_NORMALIZER}.strip_accents", lower)
        self._letters = vocab.settings.get("letters", sys.maxsize)
        spell = _spell_exactly if "letters" in vocab.settings else _spell
        self._spelling = CharTable(partial(spell, lower=lower, strip_accents=strip))
        require_short_tokens(vocab.tokens)
        # the length of the longest token, by first byte
        self._longest = {token[0]: len(token) for token in sorted(vocab.tokens, key=len)}
        self._words = WordIds(self._encode_word)

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; a word that cannot be split into tokens is the unknown token."""
        ids: list[int] = []
        for word in text.translate(self._spelling).split(" "):
            if word:
                ids += self._words[word]
        return ids

    def _encode_word(self, word: str) -> list[int]:
        if len(word) > self._letters:
            return [self._unknown]
        data = (_WORD_START + word).encode()
        index, longest = self.vocab.index, self._longest
        ids: list[int] = []
        at = 0
        while at < len(data):
            for end in range(min(len(data), at + longest.get(data[at], 0)), at, -1):
                id_ = index.get(data[at:end])
                if id_ is not None:
                    ids.append(id_)
                    at = end
                    break
            else:
                return [self._unknown]
        return ids

    def covered(self, text: str) -> bytes | None:
        return None  # an unknown word of any length is one token

    def piece(self, id_: int, special: bool = False) -> bytes:
        """The bytes that token `id_` stands for, with a space in front of words; empty for control
        tokens unless `special`."""
        return self.vocab.piece(id_, special)


def _spell(char: str, *, lower: bool, strip_accents: bool) -> str:
    """The normalised character: between spaces if it is a word of its own, empty if dropped."""
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


def _spell_exactly(char: str, *, lower: bool, strip_accents: bool) -> str:
    """The normalised character by the rules of BERT's own tokenizer; see `_spell`."""
    if char in "\v\f\x85":
        return ""
    if char not in WHITESPACE and strip_accents and not _is_chinese(char):
        chars = unicodedata.normalize("NFD", char)
        if chars != char or category(char) == "Mn":
            kept = (c for c in chars if category(c) != "Mn")
            return "".join(_spell_exactly(c, lower=lower, strip_accents=False) for c in kept)
    shown = _spell(char, lower=False, strip_accents=False)
    return shown.lower() if lower else shown


def _is_chinese(char: str) -> bool:
    return any(first <= ord(char) <= last for first, last in _CHINESE)


# RWKV's World vocabulary (GGUF's tokenizer model `rwkv`).
#
# Text is split from the left, always taking the longest token that fits. Tokens are any bytes; in
# GGUF they are written as in a literal of Python (`\x80`, `\n`). Control tokens are not text: the
# reference lets the text `<s>` stand for one.

_ESCAPE = re.compile(rb"\\(x[0-9A-Fa-f]{2}|.)", re.DOTALL)
_NAMED = {b"t": b"\t", b"n": b"\n", b"r": b"\r"}


def unescaped(token: bytes) -> bytes:
    """The bytes that the text of a token stands for."""

    def char(match: re.Match[bytes]) -> bytes:
        name = match[1]
        return bytes((int(name[1:], 16),)) if len(name) == 3 else _NAMED.get(name, name)

    return _ESCAPE.sub(char, token)


class GreedyModel:
    """Converts text without special tokens to ids, and ids to bytes."""

    add_space_prefix = False

    def __init__(self, vocab: Vocab) -> None:
        self.vocab = vocab
        self._bytes: dict[int, bytes] = {}
        self._index: dict[bytes, int] = {}
        lengths: dict[int, set[int]] = {}
        for id_, (token, kind) in enumerate(zip(vocab.tokens, vocab.types.tolist(), strict=True)):
            if kind in (TokenType.NORMAL, TokenType.USER_DEFINED):
                self._bytes[id_] = text = unescaped(token)
                self._index.setdefault(text, id_)
                lengths.setdefault(text[0], set()).add(len(text))
        # the lengths of tokens, longest first, by first byte
        self._lengths = {first: sorted(n, reverse=True) for first, n in lengths.items()}

    def encode(self, text: str) -> list[int]:
        """The ids of `text`; a byte that no token begins with is the unknown token, if the
        vocabulary has one."""
        data, index, unknown = text.encode(), self._index, self.vocab.unknown
        ids: list[int] = []
        at = 0
        while at < len(data):
            for n in self._lengths.get(data[at], ()):
                id_ = index.get(data[at : at + n])
                if id_ is not None:
                    ids.append(id_)
                    at += n
                    break
            else:
                ids += [] if unknown is None else [unknown]
                at += 1
        return ids

    def covered(self, text: str) -> bytes | None:
        return text.encode()

    def piece(self, id_: int, special: bool = False) -> bytes:
        """The bytes that token `id_` stands for; empty for control tokens unless `special`."""
        if id_ in self._bytes:
            return self._bytes[id_]
        return self.vocab.tokens[id_] if special else b""
