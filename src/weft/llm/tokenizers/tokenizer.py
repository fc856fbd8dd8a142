"""Converts text to tokens and back, from GGUF metadata alone.

`Tokenizer` has the rules that all kinds share: special tokens are cut out first, and BOS and EOS
are added as the file says. The text in between is encoded by the class that `MODELS` has for the
file's `tokenizer.ggml.model`. All rules follow llama.cpp, for which the files are made.
"""

from __future__ import annotations

import codecs
import re
import unicodedata
from collections.abc import Callable, Iterable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from weft.errors import ArgumentError, TokenizerError
from weft.frontends.gguf import GGUFFile
from weft.frontends.gguf.format import WHOLE_TOKENIZER
from weft.llm.tokenizers.bpe import BpeModel
from weft.llm.tokenizers.characters import WHITESPACE
from weft.llm.tokenizers.huggingface import HuggingFaceTokenizer
from weft.llm.tokenizers.spm import SpmModel
from weft.llm.tokenizers.unigram import UnigramModel
from weft.llm.tokenizers.vocab import TokenType, Vocab
from weft.llm.tokenizers.wpm import GreedyModel, WordPieceModel

_SPECIAL = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
_ASCII_SPACE = " \t\n\v\f\r"
_SPACES = (" ", "\u2581")
_MARK = re.compile("([\ud800-\udbff][\udc00-\udfff])")


def _mark(number: int) -> str:
    """The mark that replaces a special token: two surrogates, which text cannot contain."""
    return chr(0xD800 + (number >> 10)) + chr(0xDC00 + (number & 1023))


def _number(mark: str) -> int:
    return ord(mark[0]) - 0xD800 << 10 | ord(mark[1]) - 0xDC00


class TokenizerModel(Protocol):
    """One kind of tokenizer."""

    add_space_prefix: bool
    """True if the kind can put a space in front of text that follows a special token."""

    def encode(self, text: str) -> list[int]:
        """The ids of text without special tokens."""

    def piece(self, id_: int, special: bool = False) -> bytes:
        """The bytes of a token; empty for control tokens unless `special`."""

    def covered(self, text: str) -> bytes | None:
        """The bytes of all pieces of `text` together, bytes that no token has included; None if
        they are not known without encoding."""


def _plamo(vocab: Vocab) -> TokenizerModel:
    from weft.llm.tokenizers.plamo import PlamoModel  # few models have it

    return PlamoModel(vocab)


MODELS: dict[str, Callable[[Vocab], TokenizerModel]] = {
    "llama": SpmModel, "gpt2": BpeModel, "gemma4": BpeModel, "bert": WordPieceModel,
    "t5": UnigramModel, "rwkv": GreedyModel, "plamo2": _plamo,
}  # fmt: skip
"""The kinds of tokenizers, by their names in GGUF files."""


class Tokenizer:
    """Encodes and decodes text with one vocabulary."""

    def __init__(self, vocab: Vocab) -> None:
        """Raises TokenizerError for a kind that is not in `MODELS`."""
        make = MODELS.get(vocab.model)
        if make is None:
            raise TokenizerError(
                f"unknown tokenizer model {vocab.model!r}; supported: {', '.join(MODELS)}"
            )
        self.vocab = vocab
        self._model = make(vocab)
        self._whole = HuggingFaceTokenizer(vocab) if WHOLE_TOKENIZER in vocab.metadata else None
        self._space_prefix = vocab.add_space_prefix and self._model.add_space_prefix
        self._prefix_scheme = vocab.settings.get("space_prefix")
        self._forms = tuple(vocab.settings.get("normalizers", ()))
        self._space = "".join(WHITESPACE) if vocab.settings else _ASCII_SPACE
        self.strips: bool = vocab.settings.get("strips", vocab.add_space_prefix)
        """True if the space that begins a text is left out when it is decoded."""
        self._shares: NDArray[np.float64] | None = None
        self._pieces: tuple[dict[int, bytes], dict[int, bytes]] = {}, {}  # plain, special
        if self._whole is not None:  # a normalizer may have changed the texts of added tokens
            for id_, piece in self._whole.added_pieces(vocab).items():
                self._pieces[False][id_] = self._pieces[True][id_] = piece
        special: list[int] = np.flatnonzero(np.isin(vocab.types, _SPECIAL)).tolist()
        # the longest first: a token that contains another one wins
        special.sort(key=lambda id_: -len(vocab.tokens[id_]))
        self._special = [
            (vocab.tokens[id_].decode("utf-8", "surrogateescape"), id_) for id_ in special
        ]
        self._user_defined = [
            row for row in self._special if vocab.types[row[1]] == TokenType.USER_DEFINED
        ]

    @staticmethod
    def from_gguf(file: GGUFFile) -> Tokenizer:
        """The tokenizer of a model or vocabulary file. Raises TokenizerError if it has none."""
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
        """Encodes `text` as token ids.

        `add_special` adds BOS and EOS if the model expects them. `parse_special` turns texts such
        as `<s>` into the control tokens that they name; never use it for text from strangers.
        Without it only user-defined tokens are recognised. `continues` says that other text
        precedes, so that no space is put in front. Raises TokenizerError for a lone surrogate, and
        ArgumentError for another type."""
        if not isinstance(text, str):
            raise ArgumentError(f"is {text!r:.60}; it must be a text", argument="text")
        try:
            text.encode()
        except UnicodeEncodeError as e:
            raise TokenizerError(
                f"the text has a lone surrogate at character {e.start}, which UTF-8 cannot hold; "
                "decode the input as UTF-8 (errors='replace')"
            ) from None
        ids: list[int] = list(self.vocab.prefix) if add_special else []
        after_special = not continues
        if self._whole is not None:
            ids += self._whole.encode(text, parse_special=parse_special, continues=continues)
            text = ""
        for i, part in enumerate(self._split(text, parse_special)):
            if isinstance(part, int):
                ids.append(part)
                after_special = True
                continue
            for form in self._forms:
                part = unicodedata.normalize(form, part)
            begins = self._space_prefix and after_special
            if self._prefix_scheme and begins:
                first = self._prefix_scheme == "always" or i == 0
                begins = first and not part.startswith(_SPACES)
            ids += self._model.encode(" " + part if begins else part)
            after_special = False
        if add_special:
            ids += self.vocab.suffix
        return ids

    def _split(self, text: str, parse_special: bool) -> list[str | int]:
        """Cuts text at special tokens: strings, and the ids between them.

        Each token in turn is replaced by a mark in the whole text, so that shorter tokens can be
        looked for in one string."""
        vocab = self.vocab
        marked: list[int] = []
        chars = set(text)  # rules out most tokens much faster than a search
        for token, id_ in self._special if parse_special else self._user_defined:
            if not chars.issuperset(token) or token not in text:
                continue
            mark = _mark(len(marked))
            marked.append(id_)
            text = text.replace(token, mark)
            if id_ in vocab.rstrip:
                text = re.sub(f"{mark}[{self._space}]+", mark, text)
            if id_ in vocab.lstrip:
                text = re.sub(f"(?<![{self._space}])[{self._space}]+{mark}", mark, text)
        parts = enumerate(_MARK.split(text))
        return [part if i % 2 == 0 else marked[_number(part)] for i, part in parts if part]

    def fewest_tokens(self, text: str) -> int:
        """A lower bound of the number of ids that `encode` returns for `text`, much faster than
        encoding; 0 if nothing is known.

        If the longest token that contains some byte has n bytes, the byte counts as 1/n of a token;
        so the bytes of a token count as at most 1."""
        if self._shares is None:
            self._shares = self._byte_shares()
        data = self._model.covered(text.encode(errors="replace").decode())
        if data is None or self._whole is not None or self._forms:
            return 0
        counts = np.bincount(np.frombuffer(data, np.uint8), minlength=256)
        return int(float(counts @ self._shares) * (1 - 1e-9))

    def _byte_shares(self) -> NDArray[np.float64]:
        """The share of a token that each byte value [256] counts as; 0 if it may be lost."""
        pieces = [self._model.piece(id_, True) for id_ in range(self.n_vocab)]
        sizes = np.array([len(piece) for piece in pieces])
        # unused tokens have no piece, but may result from merges too
        hidden = [len(token) for token, n in zip(self.vocab.tokens, sizes, strict=True) if not n]
        longest = np.full(256, max(hidden, default=1))
        np.maximum.at(longest, np.frombuffer(b"".join(pieces), np.uint8), np.repeat(sizes, sizes))
        alone = np.zeros(256, np.bool_)
        alone[[piece[0] for piece in pieces if len(piece) == 1]] = True
        if self.vocab.rstrip or self.vocab.lstrip:
            alone[list(_ASCII_SPACE.encode())] = False
        return np.where(alone, 1 / longest, 0)

    def piece(self, id_: int, *, special: bool = False) -> bytes:
        """The bytes of token `id_`; empty for control tokens unless `special`.

        Raises TokenizerError if there is no such token."""
        pieces = self._pieces[special]
        piece = pieces.get(id_)
        if piece is None:
            if not 0 <= id_ < len(self.vocab):
                raise TokenizerError(f"token {id_} is not in 0..{len(self.vocab) - 1}")
            piece = pieces[id_] = self._model.piece(id_, special)
        return piece

    def decode_bytes(
        self, ids: Iterable[int], *, special: bool = False, clean_spaces: bool = False
    ) -> bytes:
        """The bytes that `ids` stand for, without the space that encoding puts in front.

        `special` includes the texts of control tokens. `clean_spaces` removes spaces in front of
        punctuation for some vocabularies, as the reference's detokenizer does (see
        `Vocab.clean_spaces`); the result may then differ from the encoded text. Raises
        TokenizerError for an unknown id, and ArgumentError for another type than ids."""
        try:
            data = b"".join([self.piece(id_, special=special) for id_ in ids])
        except TypeError:
            raise ArgumentError(
                f"is {ids!r:.60}; it must be a list of token ids", argument="ids"
            ) from None
        if self.strips and data.startswith(b" "):
            data = data[1:]
        return _clean(data) if clean_spaces and self.vocab.clean_spaces else data

    def decode(
        self, ids: Iterable[int], *, special: bool = False, clean_spaces: bool = False
    ) -> str:
        """The text of `ids`; bytes that are not UTF-8 become U+FFFD. The options are the same as
        for `decode_bytes`."""
        data = self.decode_bytes(ids, special=special, clean_spaces=clean_spaces)
        return data.decode("utf-8", "replace")

    def stream(self, *, special: bool = False) -> StreamDecoder:
        """A decoder that takes tokens one by one; it keeps a leading space."""
        return StreamDecoder(self, special)


class StreamDecoder:
    """Turns tokens into text one by one, whole characters at a time.

    The returned pieces together are the text of the tokens. A character whose bytes are incomplete
    is held back; bytes that are not UTF-8 become U+FFFD."""

    def __init__(self, tokenizer: Tokenizer, special: bool = False) -> None:
        self._tokenizer = tokenizer
        self._special = special
        self.begins = False
        """True if the next token is the first of a text that nothing is in front of: the space that
        encoding would put there is left out."""
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, id_: int) -> str:
        """The text that `id_` completes; may be empty."""
        piece = self._tokenizer.piece(id_, special=self._special)
        if self.begins and piece:
            self.begins = False
            if self._tokenizer.strips:
                piece = piece.removeprefix(b" ")
        return self._utf8.decode(piece)

    def flush(self) -> str:
        """The text held back, as U+FFFD; the decoder can be used for another text."""
        held = self._utf8.decode(b"", True)
        self._utf8.reset()
        return held


def _clean(data: bytes) -> bytes:
    """Removes spaces in front of `?!.,`, around a lone apostrophe and in front of contractions."""
    data = re.sub(rb" (?=[?!.,])", b"", data)
    data = data.replace(b" ' ", b"'")
    return re.sub(rb" (?='(?:[sm]|[rv]e))", b"", data)
