"""`Vocab`: the tokens of a model and the rules for special tokens, from `tokenizer.ggml.*`.

Where a file says nothing, llama.cpp's rules apply: each kind of tokenizer has defaults, and some
special tokens are recognized by their texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from pathlib import Path
from reprlib import repr as short_repr
from typing import Any
from weakref import WeakMethod

import numpy as np
from numpy.typing import NDArray

from weft.bounds import TOKEN_LENGTH
from weft.errors import TokenizerError
from weft.frontends.gguf import GGUFFile, Metadata
from weft.frontends.gguf.format import TOKENIZER_SETTINGS
from weft.llm.tokenizers.pretokenizers import PRETOKENIZERS
from weft.records import dataclass

_PREFIX = "tokenizer.ggml"


class TokenType(IntEnum):
    """The type of a token, with the numbers of GGUF and SentencePiece."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


@dataclass(frozen=True)
class _Defaults:
    """The defaults of a kind of tokenizer, for keys that its file lacks."""

    bos: int | None = None
    eos: int | None = None
    unknown: int | None = None
    cls: int | None = None
    sep: int | None = None
    add_bos: bool = False
    always_bos: bool = False
    add_eos: bool = False
    add_space_prefix: bool = False
    clean_spaces: bool = False


# Defaults by `tokenizer.ggml.model`. Byte-level vocabularies have no default ids: the reference
# uses token 11, which is right for Falcon only.
_DEFAULTS = {
    "llama": _Defaults(bos=1, eos=2, unknown=0, add_bos=True, add_space_prefix=True),
    "bert": _Defaults(cls=101, unknown=100, sep=102, clean_spaces=True),
    "t5": _Defaults(eos=1, unknown=2, add_eos=True),
    "plamo2": _Defaults(bos=1, eos=2, unknown=0),
}

# Roles of special tokens, their keys, and the texts that identify them if the file has no key.
_ROLES: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "bos": (("bos",), ()),
    "eos": (("eos",), ()),
    "unknown": (("unknown",), ()),
    "sep": (("seperator",), ()),  # the format spells it like this
    "pad": (("padding",), ()),
    "cls": (("cls",), ()),
    "mask": (("mask",), ()),
    "eot": (("eot",), ()),  # its texts are in _END_TEXTS
    "eom": (("eom",), ("<|eom_id|>",)),
    "fim_pre": (
        ("fim_pre", "prefix"),
        (
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ),
    ),
    "fim_suf": (
        ("fim_suf", "suffix"),
        (
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ),
    ),
    "fim_mid": (
        ("fim_mid", "middle"),
        (
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ),
    ),
    "fim_pad": (("fim_pad",), ("<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]")),
    "fim_rep": (
        ("fim_rep",),
        ("<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"),
    ),
    "fim_sep": (("fim_sep",), ("<|file_sep|>",)),
}
_END_ROLES = ("eos", "eot", "eom", "fim_pad", "fim_rep", "fim_sep")

# Texts of tokens that end a turn; they are control tokens, whatever the file says.
_END_TEXTS = (
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>",
    "<end_of_turn>", "<|endoftext|>", "</s>", "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "[EOS]",
    "<|end_of_text|>", "<end_of_utterance>", "<eos>", "<turn|>", "<|tool_response>",
    "<｜end▁of▁sentence｜>", "[e~[",
)  # fmt: skip
# gpt-oss marks the channels of its answers with these, so they must stay visible.
_VISIBLE_TEXTS = ("<|channel|>", "<|message|>", "<|start|>", "<|constrain|>")


_SEPARATED = ("jina-v1-en", "jina-v2-code", "roberta-bpe")
"""Pre-tokenizers of models that read pairs with a separator more, unless the file says it."""


@dataclass(frozen=True, slots=True, eq=False)
class Vocab:
    """The tokens of a model, by id, and the ids that have a special meaning."""

    model: str
    """The kind of tokenizer, by GGUF's `tokenizer.ggml.model`."""
    pre: str
    """Name of the pre-tokenizer of a byte-level vocabulary, `tokenizer.ggml.pre`; may be empty."""
    tokens: list[bytes]
    index: dict[bytes, int]
    """Ids by token; of equal tokens, the first id."""
    scores: NDArray[np.float32]
    """Merge priority or log-probability of each token; zeros if the model has none."""
    types: NDArray[np.int32]
    special: Mapping[str, int]
    """Ids of the special tokens that the model has, by role: bos, eos, eot, eom, unknown, sep, pad,
    cls, mask, fim_pre, fim_suf, fim_mid, fim_pad, fim_rep, fim_sep."""
    bos: int | None
    eos: int | None
    unknown: int | None
    add_bos: bool
    add_eos: bool
    prefix: tuple[int, ...]
    """Ids in front of a text if special tokens are added."""
    suffix: tuple[int, ...]
    """Ids behind a text if special tokens are added."""
    between: tuple[int, ...]
    """Ids between two texts that are read as a pair."""
    add_space_prefix: bool
    clean_spaces: bool
    """True if the reference removes spaces in front of punctuation from decoded text."""
    eog: frozenset[int]
    """Tokens that end generation."""
    suppressed: tuple[int, ...]
    """Tokens that are never drawn, by `tokenizer.ggml.suppress_tokens`."""
    lstrip: frozenset[int]
    """Special tokens that absorb the white space in front of them."""
    rstrip: frozenset[int]
    """Special tokens that absorb the white space behind them."""
    settings: Mapping[str, Any]
    """Options of a folder's tokenizer.json that converters leave out: `normalizers` (forms of
    Unicode), `lstrip` and `rstrip` (ids), `space_prefix` ("first": at the beginning of a text only,
    "always": behind special tokens too; neither in front of a space), `letters` (of a WordPiece
    word, at most), `strips` (whether decoding removes a space at the beginning, where encoding says
    otherwise) and `spaces` of unigrams ("words": white space parts words, "one": several spaces
    are one, "all": each counts)."""
    metadata: Metadata
    """All keys of the file; some are read by one kind of tokenizer only."""

    def __len__(self) -> int:
        return len(self.tokens)

    def piece(self, id_: int, special: bool = False) -> bytes:
        """The bytes of token `id_`, in a vocabulary where U+2581 means a space; empty for control
        tokens unless `special`."""
        token, kind = self.tokens[id_], self.types.item(id_)
        if kind in (TokenType.UNKNOWN, TokenType.CONTROL):
            return token if special else b""
        if kind == TokenType.NORMAL:
            return token.replace(b"\xe2\x96\x81", b" ")
        if kind == TokenType.BYTE:
            return bytes((int(token[3:5], 16),))
        return token if kind == TokenType.USER_DEFINED else b""

    @staticmethod
    def from_gguf(file: GGUFFile) -> Vocab:
        """Reads and checks the vocabulary of a file.

        Raises TokenizerError if it is missing or wrong, and FormatError for a key of the wrong
        type."""
        if f"{_PREFIX}.model" not in file.metadata:
            raise TokenizerError(
                f"{file.path} has no tokenizer (no key {_PREFIX}.model); convert the model again "
                "together with its tokenizer files"
            )
        model = file.get_str(f"{_PREFIX}.model")
        settings = _settings(file)
        pre = "gemma4" if model == "gemma4" else file.get_str(f"{_PREFIX}.pre", "")
        defaults = _defaults(model, pre)
        tokens = file.get_bytes_list(f"{_PREFIX}.tokens")
        if not all(tokens):  # the reference names empty tokens like this
            tokens = [token or b"[EMPTY_%d]" % i for i, token in enumerate(tokens)]
        index = dict(zip(reversed(tokens), range(len(tokens) - 1, -1, -1), strict=True))
        scores, types = _arrays(file, len(tokens))
        _require_bytes(file.path, tokens, types)
        special = _roles(file, defaults, index, types)
        eog = _end_tokens(special, index, types)
        bos, eos = special.get("bos"), special.get("eos")
        add_bos = file.get_bool(f"{_PREFIX}.add_bos_token", defaults.add_bos) or defaults.always_bos
        add_eos = file.get_bool(f"{_PREFIX}.add_eos_token", defaults.add_eos)
        first, last = (bos if add_bos else None), (eos if add_eos else None)
        if model == "bert":  # [CLS] and [SEP], whatever add_bos_token and add_eos_token say
            first, last = special.get("bos", special.get("cls")), special.get("sep")
        suffix, sep = () if last is None else (last,), special.get("sep")
        separates = model != "bert" and file.get_bool(f"{_PREFIX}.add_sep_token", pre in _SEPARATED)
        return Vocab(
            model=model,
            pre=pre,
            tokens=tokens,
            index=index,
            scores=scores,
            types=types,
            special=special,
            bos=bos,
            eos=eos,
            unknown=special.get("unknown"),
            add_bos=add_bos and bos is not None,
            add_eos=add_eos and eos is not None,
            prefix=() if first is None else (first,),
            suffix=suffix,
            between=(*suffix, sep) if separates and sep is not None else suffix,
            add_space_prefix=file.get_bool(
                f"{_PREFIX}.add_space_prefix", defaults.add_space_prefix
            ),
            clean_spaces=defaults.clean_spaces,
            eog=eog,
            suppressed=_suppressed(file, len(tokens)),
            lstrip=frozenset(settings.get("lstrip", ())) or _lstrip(file, pre, index),
            rstrip=frozenset(settings.get("rstrip", ())) or _rstrip(file, tokens, index, types),
            settings=settings,
            metadata=file.metadata,
        )


def _settings(file: GGUFFile) -> dict[str, Any]:
    try:
        settings = json.loads(file.get_str(TOKENIZER_SETTINGS, "{}"))
        if not isinstance(settings, dict):
            raise ValueError
    except (ValueError, RecursionError):
        raise TokenizerError(
            f"{file.path}: {TOKENIZER_SETTINGS} is not a JSON object; convert the model again"
        ) from None
    for name, value in settings.items():
        if name in _SETTINGS and not _SETTINGS[name](value):
            raise TokenizerError(
                f"{file.path}: {name} of {TOKENIZER_SETTINGS} cannot be {short_repr(value)}; "
                "convert the model again"
            )
    return settings


def _is_id(value: object) -> bool:
    return type(value) is int and value >= 0


def _are_ids(value: object) -> bool:
    return isinstance(value, list) and all(map(_is_id, value))


def _are_forms(value: object) -> bool:
    forms = ("NFC", "NFD", "NFKC", "NFKD")
    return isinstance(value, list) and all(form in forms for form in value)


_SETTINGS: dict[str, Callable[[object], bool]] = {
    "normalizers": _are_forms,
    "lstrip": _are_ids,
    "rstrip": _are_ids,
    "space_prefix": lambda value: value in ("first", "always"),
    "letters": _is_id,
    "strips": lambda value: isinstance(value, bool),
    "spaces": lambda value: value in ("words", "one", "all"),
}
"""Whether a value of each setting is one of its values."""


def _defaults(model: str, pre: str) -> _Defaults:
    if model in ("gpt2", "gemma4"):
        how = PRETOKENIZERS.get(pre)  # an unknown name is an error of the tokenizer itself
        if how is not None:
            return _Defaults(
                add_bos=how.add_bos, always_bos=how.always_bos, clean_spaces=how.clean_spaces
            )
    return _DEFAULTS.get(model, _Defaults())


def _arrays(file: GGUFFile, n: int) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    scores = file.get_array(f"{_PREFIX}.scores", np.zeros(n, np.float32))
    types = file.get_array(f"{_PREFIX}.token_type", np.full(n, TokenType.NORMAL, np.int32))
    for key, array in (("scores", scores), ("token_type", types)):
        if len(array) != n:
            raise TokenizerError(
                f"{file.path}: {_PREFIX}.{key} has {len(array)} entries for {n} tokens; convert "
                "the model again"
            )
    return np.asarray(scores, np.float32), np.array(types, np.int32)


_BYTE = re.compile(rb"<0x[0-9A-Fa-f]{2}>")


def _require_bytes(path: Path, tokens: list[bytes], types: NDArray[np.int32]) -> None:
    for id_ in np.flatnonzero(types == TokenType.BYTE).tolist():
        if not _BYTE.fullmatch(tokens[id_]):
            raise TokenizerError(
                f"{path}: token {id_} is of type byte, but its text is {tokens[id_]!r:.40}, not "
                "<0xNN>; convert the model again"
            )


def _roles(
    file: GGUFFile, defaults: _Defaults, index: Mapping[bytes, int], types: NDArray[np.int32]
) -> dict[str, int]:
    """The ids of special tokens, by key, by default, or by text; the last become control tokens."""
    n = len(types)
    ids: dict[str, int] = {}
    for role, (keys, texts) in _ROLES.items():
        id_: int | None = getattr(defaults, role, None)
        if id_ is not None and id_ >= n:
            id_ = None
        for key in keys:
            full = f"{_PREFIX}.{key}_token_id"
            stored = file.get_int(full, None)
            if stored is None:
                continue
            if 0 <= stored < n:
                id_ = stored
            elif stored in (-1, 0xFFFFFFFF):
                id_ = None
            else:
                raise TokenizerError(f"{file.path}: {full} is {stored}; the tokens are 0..{n - 1}")
        if id_ is None:
            id_ = next((index[t.encode()] for t in texts if t.encode() in index), None)
            if id_ is not None:
                types[id_] = TokenType.CONTROL
        if id_ is not None:
            ids[role] = id_
    return ids


def _end_tokens(
    special: Mapping[str, int], index: Mapping[bytes, int], types: NDArray[np.int32]
) -> frozenset[int]:
    """The tokens that end generation, by role and by text. Changes the types of some tokens."""
    ends = {special[role] for role in _END_ROLES if role in special}
    by_text = {text: index[text.encode()] for text in _END_TEXTS if text.encode() in index}
    ends.update(by_text.values())
    for id_ in by_text.values():
        types[id_] = TokenType.CONTROL
    for text in _VISIBLE_TEXTS:
        if text.encode() in index:
            types[index[text.encode()]] = TokenType.USER_DEFINED

    # here <|end|> ends a part of an answer only, and </s> (of Gemma 4) is not used
    calls = by_text.keys() & {"<|call|>", "<|calls|>"}
    if "<|end|>" in by_text and calls and by_text.keys() & {"<|return|>", "<|flush|>"}:
        ends.discard(by_text["<|end|>"])
        types[by_text["<|end|>"]] = TokenType.USER_DEFINED
    if "</s>" in by_text and "<|tool_response>" in by_text:
        ends.discard(by_text["</s>"])
        types[by_text["</s>"]] = TokenType.NORMAL
    return frozenset(ends)


def _suppressed(file: GGUFFile, n_vocab: int) -> tuple[int, ...]:
    key = f"{_PREFIX}.suppress_tokens"
    ids = np.asarray(file.get_array(key)) if key in file.metadata else np.zeros(0, np.int32)
    if ids.dtype.kind not in "iu":
        raise TokenizerError(f"{file.path}: {key} must be ids of tokens; convert the model again")
    return tuple(np.unique(ids[(ids >= 0) & (ids < n_vocab)]).tolist())


def _lstrip(file: GGUFFile, pre: str, index: Mapping[bytes, int]) -> frozenset[int]:
    if pre in ("jina-v2-de", "jina-v2-es", "jina-v2-code") or file.get_str(
        "general.architecture", ""
    ) in ("nomic-bert-moe", "jina-bert-v3"):
        mask = index.get(b"<mask>")
    elif "modern-bert" in file.get_str("general.name", "").lower():
        mask = index.get(b"[MASK]")
    else:
        mask = None
    return frozenset(() if mask is None else (mask,))


def _rstrip(
    file: GGUFFile, tokens: list[bytes], index: Mapping[bytes, int], types: NDArray[np.int32]
) -> frozenset[int]:
    """The special tokens of Phi-3, which only the name of the model identifies."""
    name = file.get_str("general.name", "").lower()
    if "phi-3" not in name and "phi3" not in name:
        return frozenset()
    kinds = (TokenType.CONTROL, TokenType.USER_DEFINED, TokenType.UNKNOWN)
    special = set(np.flatnonzero(np.isin(types, kinds)).tolist())
    return frozenset(special - {index.get(t) for t in (b"<unk>", b"<s>", b"<|endoftext|>")})


def require_short_tokens(texts: Iterable[str | bytes]) -> None:
    """Raises TokenizerError for a token that is longer than TOKEN_LENGTH."""
    longest = max(map(len, texts), default=0)
    if longest > TOKEN_LENGTH:
        raise TokenizerError(
            f"the vocabulary has a token of length {longest}; tokens of this kind of tokenizer may "
            f"have {TOKEN_LENGTH}: convert the model again"
        )


_MOST_WORDS = 1 << 16
_LONGEST = 64  # characters; longer words hardly occur twice


class WordIds(dict[str, list[int]]):
    """A cache of the ids of words; an unknown word is encoded when it is looked up.

    The cache refers weakly to the model whose method `encode` is: with a cycle, the vocabulary
    would stay until the garbage collector runs."""

    def __init__(self, encode: Callable[[str], list[int]]) -> None:
        super().__init__()
        self._encode = WeakMethod(encode)

    def __missing__(self, word: str) -> list[int]:
        encode = self._encode()
        assert encode is not None
        ids = encode(word)
        if len(word) <= _LONGEST:
            if len(self) >= _MOST_WORDS:
                self.clear()
            self[word] = ids
        return ids
