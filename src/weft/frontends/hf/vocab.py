"""The keys `tokenizer.*` of a Hugging Face folder, from tokenizer.json or tokenizer.model."""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.pretokenizer import name_pretokenizer
from weft.frontends.hf.special import SpecialTokens

Vocabulary = Iterator[tuple[str, object]]
"""Metadata keys, and their values."""

SPARE_TOKENS = 1 << 16
"""Maximum number of ids without a token, besides one for each token: a model may have some for
images."""
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6  # as SentencePiece has them
_SPACE = "\u2581"
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_LOOK_SPECIAL = re.compile(
    r"<pad>|<mask>|<2mass>|\[@BOS@\]|<\|.*\|>|<\uff5c.*\uff5c>|<unused.*>", re.DOTALL
)


def has(c: Config, name: str) -> bool:
    """True if the folder has the file `name`."""
    return (c.folder / name).is_file()


def bpe(c: Config, *, merges: bool = True) -> Vocabulary:
    """A byte-level vocabulary, GGUF's `gpt2`; pieces with U+2581 where tokenizer.json has such."""
    if _has_pieces(c):
        yield from _pieces_of_json(c)
        return
    tokens, kinds = _listed(c)
    yield "tokenizer.ggml.model", "gpt2"
    yield "tokenizer.ggml.pre", name_pretokenizer(c)
    yield "tokenizer.ggml.tokens", tokens
    yield "tokenizer.ggml.token_type", np.array(kinds, np.int32)
    yield from SpecialTokens(c, merges=merges).keys()


def word_pieces(c: Config) -> Vocabulary:
    """A WordPiece vocabulary, GGUF's `bert`."""
    tokens, kinds = _listed(c)
    yield "tokenizer.ggml.token_type_count", c.get("type_vocab_size", 1)
    yield "tokenizer.ggml.model", "bert"
    yield "tokenizer.ggml.pre", name_pretokenizer(c)
    # words begin with U+2581 there, and the rest of words with nothing instead of ##
    yield (
        "tokenizer.ggml.tokens",
        [_phantom(t, kind) for t, kind in zip(tokens, kinds, strict=True)],
    )
    yield "tokenizer.ggml.token_type", np.array(kinds, np.int32)
    yield from SpecialTokens(c, n_vocab=len(tokens)).keys()


def _phantom(token: str, kind: int) -> str:
    if kind == CONTROL:
        return token
    return token[2:] if token.startswith("##") else _SPACE + token


def llama(c: Config) -> Vocabulary:
    """The vocabulary of LLaMA's folders: SentencePiece, the same as tokenizer.json, or LLaMA 3's
    bytes."""
    settings = c.json("tokenizer_config.json")
    if settings.get("add_prefix_space") is not None:
        yield "tokenizer.ggml.add_space_prefix", settings["add_prefix_space"]
    if has(c, "tokenizer.model"):
        yield from sentencepiece(c)
    elif _falls_back_to_bytes(c):
        yield from _pieces_of_json(c)
    else:
        yield from bpe(c)
    n_vocab = c.get("vocab_size", 32000)
    if n_vocab == 32016:  # Code Llama fills in the middle
        for kind, id_ in (("prefix", 32007), ("suffix", 32008), ("middle", 32009), ("eot", 32010)):
            yield f"tokenizer.ggml.{kind}_token_id", id_
    elif n_vocab == 49152:  # Granite's small models
        yield "tokenizer.ggml.add_bos_token", False


def pieces_or_bpe(c: Config) -> Vocabulary:
    """The vocabulary of tokenizer.model if the folder has one, or else the one of bytes."""
    return sentencepiece(c) if has(c, "tokenizer.model") else bpe(c)


def pieces_or_llama(c: Config) -> Vocabulary:
    """The vocabulary of tokenizer.model if the folder has one, or else as LLaMA's folders."""
    return sentencepiece(c) if has(c, "tokenizer.model") else llama(c)


def sentencepiece(c: Config, *, n_vocab: int = 0) -> Vocabulary:
    """The vocabulary of tokenizer.model, GGUF's `llama`; `n_vocab` ids (0: as config.json says)."""
    pieces = _padded(c, read_pieces(c.folder / "tokenizer.model"), n_vocab)
    n = len(pieces)
    for text, id_ in c.json("added_tokens.json").items():
        if isinstance(id_, int) and 0 <= id_ < n:
            pieces[id_] = (text, -1000.0, USER_DEFINED)
    decoder = c.json("tokenizer_config.json").get("added_tokens_decoder")
    for key, row in (decoder if isinstance(decoder, dict) else {}).items():
        if int(key) < n:
            text = row["content"]
            special = row.get("special") or _LOOK_SPECIAL.fullmatch(text)
            kind = CONTROL if special else USER_DEFINED
            pieces[int(key)] = (text if special else text.replace(_SPACE, " "), -1000.0, kind)
    yield from _as_llama(c, pieces)


def _as_llama(c: Config, pieces: list[Piece]) -> Vocabulary:
    yield "tokenizer.ggml.model", "llama"
    yield "tokenizer.ggml.pre", "default"
    yield "tokenizer.ggml.tokens", [text for text, _, _ in pieces]
    yield "tokenizer.ggml.scores", np.array([score for _, score, _ in pieces], np.float32)
    yield "tokenizer.ggml.token_type", np.array([kind for _, _, kind in pieces], np.int32)
    yield from SpecialTokens(c, n_vocab=len(pieces)).keys()


def plamo(c: Config) -> Vocabulary:
    """PLaMo's vocabulary: a line of tokenizer.jsonl for each token, its text, score and kind."""
    text = c.text("tokenizer.jsonl")
    if text is None:
        raise FormatError(f"{c.folder}: no tokenizer.jsonl; download the tokenizer too")
    kinds = {"UNKNOWN": UNKNOWN, "CONTROL": CONTROL, "BYTE": BYTE}
    pieces: list[Piece] = []
    for line in filter(str.strip, text.split("\n")):
        try:
            token, score, *rest = json.loads(line)
            kind = kinds.get(rest[0] if rest else "", NORMAL)
            special = token.startswith("<|plamo:") and token.endswith("|>")
            pieces.append((token, float(score), CONTROL if special else kind))
        except (ValueError, TypeError, AttributeError) as error:
            raise FormatError(f"{c.folder / 'tokenizer.jsonl'}: not a token: {error}") from None
    n = c.count("vocab_size")
    require_vocabulary(c, n, len(pieces))
    pieces += [(f"[PAD{i}]", -1000.0, UNUSED) for i in range(1, n - len(pieces) + 1)]
    ids = {token: i for i, (token, _, _) in reversed(list(enumerate(pieces)))}
    yield "tokenizer.ggml.model", "plamo2"
    yield "tokenizer.ggml.pre", "default"
    yield "tokenizer.ggml.tokens", [token for token, _, _ in pieces]
    yield "tokenizer.ggml.scores", np.array([score for _, score, _ in pieces], np.float32)
    yield "tokenizer.ggml.token_type", np.array([kind for _, _, kind in pieces], np.int32)
    settings = c.json("tokenizer_config.json")
    for role, key in (("bos", "bos"), ("eos", "eos"), ("pad", "padding"), ("sep", "seperator"),
                      ("unk", "unknown")):  # fmt: skip
        name = settings.get(f"{role}_token")
        if name in ids:
            yield f"tokenizer.ggml.{key}_token_id", ids[name]
    yield "tokenizer.ggml.eot_token_id", 4
    yield "tokenizer.ggml.add_space_prefix", False
    template = c.text("chat_template.jinja") or settings.get("chat_template")
    if template:
        yield "tokenizer.chat_template", template


def require_vocabulary(c: Config, n: int, n_found: int) -> None:
    """Raises FormatError if a vocabulary of `n` ids is out of proportion to the tokens found: the
    others get a token each that is made up."""
    if n > 2 * n_found + SPARE_TOKENS:
        raise FormatError(
            f"{c.folder}: its vocabulary has {n} ids, but the tokenizer has {n_found} tokens; the "
            "config.json or the tokenizer is of another model"
        )


def _padded(c: Config, pieces: list[Piece], n_vocab: int) -> list[Piece]:
    n = n_vocab or c.first("vocab_size_per_layer_input", "vocab_size") or len(pieces)
    require_vocabulary(c, n, len(pieces))
    missing = [(f"[PAD{i}]", -10000.0, UNUSED) for i in range(len(pieces), n)]
    return pieces[:n] + missing


def _falls_back_to_bytes(c: Config) -> bool:
    """True if tokenizer.json has a SentencePiece vocabulary, with byte tokens such as <0x0A>."""
    tokenizer = c.json("tokenizer.json")
    model = tokenizer.get("model") or {}
    return model.get("type", "BPE") == "BPE" and bool(model.get("byte_fallback"))


def _has_pieces(c: Config) -> bool:
    """True if tokens of tokenizer.json spell spaces as U+2581, and bytes not as GPT-2 does."""
    tokenizer = c.json("tokenizer.json")
    spells = str(tokenizer.get("decoder")), str(tokenizer.get("pre_tokenizer"))
    cuts = spells[1] + str(tokenizer.get("normalizer"))
    return "ByteLevel" not in cuts and ("Metaspace" in spells[0] or _SPACE in spells[0])


def _pieces_of_json(c: Config) -> Vocabulary:
    """The SentencePiece vocabulary of tokenizer.json. A token's score is the rank of the first
    merge that makes it, which gives the same tokens as the merges; the reference's converter writes
    -1000 for each, which does not (docs/decisions.md)."""
    tokens, kinds = _listed(c)
    rank: dict[str, int] = {}
    for i, merge in enumerate(_merges(c)):
        rank.setdefault(merge, i)
    unknown = c.json("tokenizer.json")["model"].get("unk_token") or ""
    pieces: list[Piece] = []
    for text, kind in zip(tokens, kinds, strict=True):
        if kind in (NORMAL, CONTROL) and _BYTE_TOKEN.fullmatch(text):
            kind = BYTE
        elif kind == NORMAL and text == unknown:
            kind = UNKNOWN
        pieces.append((text, -float(rank[text]) if text in rank else -1e6, kind))
    yield from _as_llama(c, pieces)


def _merges(c: Config) -> Iterator[str]:
    """The tokens that the merges of tokenizer.json make."""
    for merge in c.json("tokenizer.json")["model"].get("merges") or ():
        yield merge.replace(" ", "") if isinstance(merge, str) else "".join(merge)


def _listed(c: Config) -> tuple[list[str], list[int]]:
    """The tokens and their kinds, by id; ids without a token are padding."""
    by_id, added = _vocabulary(c)
    n = c.get("vocab_size") or max((*by_id, *added), default=-1) + 1
    require_vocabulary(c, n, len(by_id) + len(added))
    tokens: list[str] = []
    kinds: list[int] = []
    for i in range(n):
        text, kind = by_id.get(i, f"[PAD{i}]"), NORMAL if i in by_id else UNUSED
        if i in added:
            text = added[i]["content"]
            special = added[i].get("special") or _LOOK_SPECIAL.fullmatch(text)
            kind = CONTROL if special else USER_DEFINED
            text = text if special else text.replace(_SPACE, " ")
        tokens.append(text)
        kinds.append(kind)
    return tokens, kinds


def base_tokens(c: Config, seen: Collection[str]) -> tuple[list[str], list[int]]:
    """The tokens of tokenizer.json without padding, and their kinds: those that the tokenizer's
    settings name are control tokens, but not those `seen` in texts."""
    by_id, added = _vocabulary(c)
    settings = c.json("tokenizer_config.json")
    named = [value for key, value in settings.items() if key.endswith("_token")]
    for key in ("additional_special_tokens", "extra_special_tokens"):
        more = settings.get(key) or ()
        named += more.values() if isinstance(more, dict) else more
    special = {value["content"] if isinstance(value, dict) else value for value in named if value}
    n, tokens, kinds = len(by_id), [], []
    for i in (*range(n), *sorted(i for i in added if i >= n)):
        text = by_id[i] if i < n else added[i]["content"]
        kind = NORMAL if i < n else USER_DEFINED
        kind = CONTROL if text in special else BYTE if _BYTE_TOKEN.fullmatch(text) else kind
        tokens.append(text)
        kinds.append(USER_DEFINED if text in seen else kind)
    return tokens, kinds


def _vocabulary(c: Config) -> tuple[dict[int, str], dict[int, Mapping[str, Any]]]:
    """Tokens by id, and added tokens by id."""
    tokenizer = c.json("tokenizer.json")
    model = tokenizer.get("model") or {}
    vocab = model.get("vocab") if tokenizer else c.json("vocab.json")
    if isinstance(vocab, list):  # unigrams: pairs of text and score
        vocab = {row[0]: i for i, row in enumerate(vocab)}
    if not isinstance(vocab, dict) or not vocab:
        raise FormatError(
            f"{c.folder}: no vocabulary: neither tokenizer.json nor tokenizer.model nor vocab.json "
            "is in this folder; download or save the tokenizer too"
        )
    added = {int(row["id"]): row for row in tokenizer.get("added_tokens") or ()}
    decoder = c.json("tokenizer_config.json").get("added_tokens_decoder")
    for key, row in (decoder if isinstance(decoder, dict) else {}).items():
        added.setdefault(int(key), row)
    for text, id_ in c.json("added_tokens.json").items():
        added.setdefault(int(id_), {"content": text})
    return {i: text for text, i in vocab.items()}, added


def token_id(c: Config, text: str) -> int | None:
    """The id of the token `text`; None if there is none."""
    by_id, added = _vocabulary(c)
    ids = {row["content"]: i for i, row in added.items()}
    return ids.get(text, next((i for i, t in by_id.items() if t == text), None))


# Reads the pieces of tokenizer.model, a protocol buffer of SentencePiece.
#
#     ModelProto { repeated SentencePiece pieces = 1; TrainerSpec = 2; NormalizerSpec = 3; ... }
#     SentencePiece { string piece = 1; float score = 2; Type type = 3; }
#
# Source: sentencepiece_model.proto of SentencePiece. Three fields of two messages are read; the
# library would be a dependency of every run for them.

Piece = tuple[str, float, int]
"""A token's text, score and kind."""
MAX_BYTES = 256 << 20

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def read_pieces(path: Path) -> list[Piece]:
    """The pieces of a model, by id. Raises FormatError if the file is not one."""
    pieces: list[Piece] = []
    for field, value in _message(path):
        if field == 1 and isinstance(value, bytes):
            text, score, kind = "", 0.0, 1
            for inner, content in _fields(path, value):
                if inner == 1 and isinstance(content, bytes):
                    text = _utf8(path, content)
                elif inner == 2 and isinstance(content, bytes):
                    (score,) = struct.unpack("<f", content)
                elif inner == 3 and isinstance(content, int):
                    kind = content
            pieces.append((text, score, kind))
    if not pieces:
        raise FormatError(f"{path}: no tokens; this is not a SentencePiece model")
    return pieces


def read_normalizer(path: Path) -> dict[int, bytes | int]:
    """The fields of the message `normalizer_spec` by number: 2 is the table of characters, 3 is 1
    for a space in front of texts, 4 is 1 if repeated white space is removed."""
    for field, value in _message(path):
        if field == 3 and isinstance(value, bytes):
            return dict(_fields(path, value))
    return {}


def _message(path: Path) -> Iterator[tuple[int, bytes | int]]:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise FormatError(f"{path}: larger than {MAX_BYTES >> 20} MiB: not a tokenizer")
        return _fields(path, path.read_bytes())
    except OSError as error:
        raise FormatError(f"{path}: cannot be read: {error.strerror or error}") from None


def _fields(path: Path, data: bytes) -> Iterator[tuple[int, bytes | int]]:
    """Numbers and contents of the fields of a message; 32-bit numbers are their four bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(path, data, at)
        kind = key & 7
        if kind == _VARINT:
            value, at = _varint(path, data, at)
            yield key >> 3, value
            continue
        n = {_FIXED64: 8, _FIXED32: 4}.get(kind)
        if kind == _BYTES:
            n, at = _varint(path, data, at)
        if n is None or at + n > len(data):
            raise FormatError(f"{path}: not a SentencePiece model, or cut short at byte {at}")
        yield key >> 3, data[at : at + n]
        at += n


def _varint(path: Path, data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while at < len(data) and shift < 64:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
    raise FormatError(f"{path}: not a SentencePiece model, or cut short at byte {at}")


def _utf8(path: Path, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise FormatError(f"{path}: a token is not UTF-8; download the file again") from None
