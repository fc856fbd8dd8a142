"""Text to tokens and back, from GGUF metadata alone.

`Tokenizer` knows the rules that all kinds share: special tokens are cut out first, BOS and EOS are
added as the file says. How the text in between becomes ids is the kind's own, by `tokenizer.ggml.
model` in `MODELS`. The rules are llama.cpp's, whose files these are.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weft.errors import TokenizerError
from weft.frontends.gguf import GGUFFile
from weft.llm.tokenizers.bpe import BpeModel
from weft.llm.tokenizers.spm import SpmModel
from weft.llm.tokenizers.unigram import UnigramModel
from weft.llm.tokenizers.vocab import TokenType, Vocab
from weft.llm.tokenizers.wpm import WordPieceModel

__all__ = ["MODELS", "StreamDecoder", "Tokenizer", "TokenizerModel"]

_SPECIAL = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
_ASCII_SPACE = " \t\n\v\f\r"
_MARK = re.compile("([\ud800-\udbff][\udc00-\udfff])")


def _mark(number: int) -> str:
    """The mark of a special token that has been found: two surrogates, which text cannot have."""
    return chr(0xD800 + (number >> 10)) + chr(0xDC00 + (number & 1023))


def _number(mark: str) -> int:
    return ord(mark[0]) - 0xD800 << 10 | ord(mark[1]) - 0xDC00


class TokenizerModel(Protocol):
    """One kind of tokenizer."""

    add_space_prefix: bool
    """Whether the kind knows a space in front of text that follows a special token."""

    def encode(self, text: str) -> list[int]:
        """Ids of text without special tokens."""

    def piece(self, id_: int, special: bool = False) -> bytes:
        """The bytes of a token; empty for control tokens unless `special`."""

    def covered(self, text: str) -> bytes | None:
        """The bytes that the pieces of the ids of `text` come to, but for those that are lost since
        no token has them; None where nothing is known of them."""


MODELS: dict[str, Callable[[Vocab], TokenizerModel]] = {
    "llama": SpmModel,
    "gpt2": BpeModel,
    "gemma4": BpeModel,
    "bert": WordPieceModel,
    "t5": UnigramModel,
}
"""Kinds by GGUF name."""


class Tokenizer:
    """Encodes and decodes with one vocabulary."""

    def __init__(self, vocab: Vocab) -> None:
        """Raises TokenizerError for a kind that is not in `MODELS`."""
        make = MODELS.get(vocab.model)
        if make is None:
            raise TokenizerError(
                f"unknown tokenizer model {vocab.model!r}; supported: {', '.join(MODELS)}"
            )
        self.vocab = vocab
        self._model = make(vocab)
        self._space_prefix = vocab.add_space_prefix and self._model.add_space_prefix
        self._shares: NDArray[np.float64] | None = None
        self._pieces: tuple[dict[int, bytes], dict[int, bytes]] = {}, {}  # plain, special
        special: list[int] = np.flatnonzero(np.isin(vocab.types, _SPECIAL)).tolist()
        # Longest first: a token that contains another one wins.
        special.sort(key=lambda id_: -len(vocab.tokens[id_]))
        self._special = [
            (vocab.tokens[id_].decode("utf-8", "surrogateescape"), id_) for id_ in special
        ]
        self._user_defined = [
            row for row in self._special if vocab.types[row[1]] == TokenType.USER_DEFINED
        ]

    @staticmethod
    def from_gguf(file: GGUFFile) -> Tokenizer:
        """The tokenizer of a model or vocabulary file; raises TokenizerError."""
        return Tokenizer(Vocab.from_gguf(file))

    @property
    def n_vocab(self) -> int:
        """Number of tokens."""
        return len(self.vocab)

    def encode(
        self,
        text: str,
        *,
        add_special: bool = True,
        parse_special: bool = False,
        continues: bool = False,
    ) -> list[int]:
        """Ids of `text`.

        `add_special`: with BOS and EOS where the model wants them. `parse_special`: texts such as
        `<s>` become the control tokens they name (never do this with text from strangers); without
        it only user-defined tokens are recognised. `continues`: other text goes before, so no space
        is put in front. Raises TokenizerError for a lone surrogate."""
        try:
            text.encode()
        except UnicodeEncodeError as e:
            raise TokenizerError(
                f"the text has a lone surrogate at character {e.start}, which UTF-8 cannot hold; "
                "decode the input as UTF-8 (errors='replace')"
            ) from None
        ids: list[int] = list(self.vocab.prefix) if add_special else []
        after_special = not continues
        for part in self._split(text, parse_special):
            if isinstance(part, int):
                ids.append(part)
                after_special = True
            else:
                prefix = " " if self._space_prefix and after_special else ""
                ids += self._model.encode(prefix + part)
                after_special = False
        if add_special:
            ids += self.vocab.suffix
        return ids

    def _split(self, text: str, parse_special: bool) -> list[str | int]:
        """Text cut at special tokens: strings, and the ids between them.

        Each token in turn is replaced in all of the text by a mark, so that what shorter tokens are
        looked for in is still one string. Text has no surrogates, so marks are two of them."""
        vocab = self.vocab
        cut: list[int] = []
        chars = set(text)  # rules out most tokens much faster than a search
        for token, id_ in self._special if parse_special else self._user_defined:
            if not chars.issuperset(token) or token not in text:
                continue
            mark = _mark(len(cut))
            cut.append(id_)
            text = text.replace(token, mark)
            if id_ in vocab.rstrip:
                text = re.sub(f"{mark}[{_ASCII_SPACE}]+", mark, text)
            if id_ in vocab.lstrip:
                text = re.sub(f"(?<![{_ASCII_SPACE}])[{_ASCII_SPACE}]+{mark}", mark, text)
        if not cut:
            return [text] if text else []
        parts = _MARK.split(text)
        return [part if i % 2 == 0 else cut[_number(part)] for i, part in enumerate(parts) if part]

    def fewest_tokens(self, text: str) -> int:
        """A number that `encode` gives at least for `text`, found much faster; 0: nothing is known.

        Where the longest token with some byte in it has n bytes, that byte is 1/n of a token or
        more; a token's bytes together are 1 at most."""
        if self._shares is None:
            self._shares = self._byte_shares()
        data = self._model.covered(text.encode(errors="replace").decode())
        if data is None:
            return 0
        counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
        return int(float(counts @ self._shares) * (1 - 1e-9))

    def _byte_shares(self) -> NDArray[np.float64]:
        """Of a token, by byte [256]; 0 for a byte that may be lost."""
        pieces = [self._model.piece(id_, True) for id_ in range(self.n_vocab)]
        sizes = np.array([len(piece) for piece in pieces])
        # unused tokens have no piece, but may come of merges, too
        hidden = [len(token) for token, n in zip(self.vocab.tokens, sizes, strict=True) if not n]
        longest = np.full(256, max(hidden, default=1))
        np.maximum.at(longest, np.frombuffer(b"".join(pieces), np.uint8), np.repeat(sizes, sizes))
        alone = np.zeros(256, np.bool_)
        alone[[piece[0] for piece in pieces if len(piece) == 1]] = True
        if self.vocab.rstrip or self.vocab.lstrip:
            alone[list(_ASCII_SPACE.encode())] = False
        return np.where(alone, 1 / longest, 0)

    def piece(self, id_: int, *, special: bool = False) -> bytes:
        """The bytes of token `id_`; raises TokenizerError when there is no such token."""
        pieces = self._pieces[special]
        found = pieces.get(id_)
        if found is None:
            if not 0 <= id_ < len(self.vocab):
                raise TokenizerError(f"token {id_} is not in 0..{len(self.vocab) - 1}")
            found = pieces[id_] = self._model.piece(id_, special)
        return found

    def decode_bytes(
        self, ids: Iterable[int], *, special: bool = False, clean_spaces: bool = False
    ) -> bytes:
        """The bytes that `ids` stand for, without the space that encoding puts in front.

        `clean_spaces`: without the spaces in front of punctuation that the reference's detokenizer
        removes for some vocabularies (`Vocab.clean_spaces`); text does not come back as it was
        then."""
        data = b"".join([self.piece(id_, special=special) for id_ in ids])
        if self.vocab.add_space_prefix and data.startswith(b" "):
            data = data[1:]
        return _clean(data) if clean_spaces and self.vocab.clean_spaces else data

    def decode(
        self, ids: Iterable[int], *, special: bool = False, clean_spaces: bool = False
    ) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD. `special`: with the texts of
        control tokens. `clean_spaces`: see `decode_bytes`."""
        data = self.decode_bytes(ids, special=special, clean_spaces=clean_spaces)
        return data.decode("utf-8", "replace")

    def stream(self, *, special: bool = False) -> StreamDecoder:
        """A decoder to which tokens are given one by one; it keeps a leading space."""
        return StreamDecoder(self, special)


class StreamDecoder:
    """Turns tokens into text as they come, and never gives half a character.

    The pieces joined are the text of the tokens; a character whose bytes are still coming is held
    back, an impossible one becomes U+FFFD."""

    def __init__(self, tokenizer: Tokenizer, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id_: int) -> str:
        """The text that `id_` completes; may be empty."""
        return self._utf8.decode(self._tokenizer.piece(id_, special=self._special))

    def flush(self) -> str:
        """What is held back, as U+FFFD; the decoder starts anew."""
        rest = self._utf8.decode(b"", True)
        self._utf8.reset()
        return rest


def _clean(data: bytes) -> bytes:
    """Without spaces in front of `?!.,`, around a lone apostrophe and in front of contractions."""
    data = re.sub(rb" (?=[?!.,])", b"", data)
    data = data.replace(b" ' ", b"'")
    return re.sub(rb" (?='(?:[sm]|[rv]e))", b"", data)
