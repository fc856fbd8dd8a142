"""Holds or refuses what a tokenizer.json asks for beyond the keys that converters write.

weft's tokenizers follow these keys, and hold a few settings more (`TOKENIZER_SETTINGS`). A
tokenizer.json that asks for anything else is kept whole (`WHOLE_TOKENIZER`), and the package
`tokenizers` encodes texts with it. Without the package it is refused, as is what neither can hold.
"""

from __future__ import annotations

import importlib.util
import json
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping
from itertools import chain
from typing import Any

from weft.errors import FormatError
from weft.extras import how_to_install
from weft.frontends.gguf.format import TOKENIZER_SETTINGS, WHOLE_TOKENIZER
from weft.frontends.hf.config import Config
from weft.frontends.hf.pretokenizer import UNKNOWN, name_by_steps

_SPACE = "\u2581"
_FORMS = ("NFC", "NFD", "NFKC", "NFKD")
_MODELS = {"gpt2": "BPE", "gemma4": "BPE", "llama": "BPE", "bert": "WordPiece", "t5": "Unigram"}
_SPLITS_SPACES = {"type": "Split", "pattern": {"String": " "}, "invert": False}
_REPLACES = {"type": "Replace", "pattern": {"String": " "}, "content": _SPACE}
_MERGES_SPACES = {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "}
_SENTENCEPIECE = ("tokenizer.model", "sentencepiece.bpe.model", "spiece.model")
_BYTE_TOKEN = re.compile(r"<0x[0-9A-Fa-f]{2}>")
_LONGEST = 1000
"""Maximum number of characters of a token whose parts are all compared."""
Step = Mapping[str, Any]


def tokenizer_keys(c: Config, keys: Mapping[str, object]) -> dict[str, object]:
    """Keys that a folder's vocabulary `keys` lack. Raises FormatError for what cannot be held."""
    tokenizer = c.json("tokenizer.json")
    kind = keys.get("tokenizer.ggml.model")
    if not tokenizer or kind not in _MODELS:
        return {}
    pieces = any((c.folder / name).is_file() for name in _SENTENCEPIECE)
    if pieces and (tokenizer.get("model") or {}).get("type", "BPE") != _MODELS[kind]:
        return {}  # it is the SentencePiece model that counts
    asked = _Asked(tokenizer, keys, pieces)
    lacking = list(dict.fromkeys(asked.lacking()))
    where = c.folder / "tokenizer.json"
    wrong = list(asked.impossible())
    if wrong:
        raise FormatError(f"{where} asks for what weft does not have: {', '.join(wrong)}")
    if lacking:
        if importlib.util.find_spec("tokenizers") is None:
            raise FormatError(
                f"{where} asks for what only the package tokenizers has: "
                f"{', '.join(lacking):.500}; {how_to_install('hf')}"
            )
        asked.keys.pop(TOKENIZER_SETTINGS, None)
        if "strips" in asked.settings:
            asked.keys[TOKENIZER_SETTINGS] = json.dumps({"strips": asked.settings["strips"]})
        asked.keys[WHOLE_TOKENIZER] = json.dumps(tokenizer, ensure_ascii=False)
    return asked.keys


class _Asked:
    """A tokenizer.json, beside the metadata that its folder got."""

    def __init__(self, tokenizer: Step, given: Mapping[str, object], pieces: bool) -> None:
        self.model: Step = tokenizer.get("model") or {}
        self.kind = str(given["tokenizer.ggml.model"])
        self.added: list[Step] = list(tokenizer.get("added_tokens") or ())
        self.normalizers = list(_flat(tokenizer.get("normalizer"), "normalizers"))
        self.cuts = list(_flat(tokenizer.get("pre_tokenizer"), "pretokenizers"))
        self.decoders = list(_flat(tokenizer.get("decoder"), "decoders"))
        self.keys: dict[str, object] = {}
        self.settings: dict[str, object] = {}
        self._tokenizer = tokenizer
        self._given = given
        self._pieces = pieces  # a SentencePiece model has the vocabulary

    def impossible(self) -> Iterator[str]:
        """Names of what neither weft nor the package's tokens in a GGUF file can hold."""
        kind = self.model.get("type", "BPE")
        if kind != _MODELS[self.kind] and self.kind != "llama":
            yield f"the model {kind}"
        if kind == "BPE":
            for option in ("dropout", "continuing_subword_prefix", "end_of_word_suffix"):
                if self.model.get(option):
                    yield f"{option} {self.model[option]!r}"
            steps = (*self.normalizers, *self.cuts, *self.decoders)
            if self.kind == "gpt2" and not any(s.get("type") == "ByteLevel" for s in steps):
                yield "a BPE without ByteLevel and byte_fallback"
        if self.decoders and not self._pieces:
            yield from self._decoding()
        if kind == "WordPiece" and self.model.get("continuing_subword_prefix", "##") != "##":
            yield f"continuing_subword_prefix {self.model['continuing_subword_prefix']!r}"

    def _decoding(self) -> Iterator[str]:
        """Decoders that do not make the bytes that the tokens of the vocabulary stand for."""
        kinds = [str(s.get("type")) for s in self.decoders]
        if self.kind == "gpt2":
            wrong = [s for s in self.decoders if s.get("type") not in ("ByteLevel", "Fuse")]
            if not wrong and "ByteLevel" not in kinds:
                wrong = self.decoders
            yield from (f"the decoder {_named(s)}" for s in wrong)
        elif self.kind in ("llama", "gemma4"):
            wrong = [s for s in self.decoders if not _makes_text(s)]
            if "Metaspace" in kinds and (
                len(kinds) > 1 or [_parts_words(s) for s in self.cuts if "split" in s] != [True]
            ):
                wrong.append(self.decoders[kinds.index("Metaspace")])
            if "Strip" in kinds and "Fuse" not in kinds[: kinds.index("Strip")]:
                wrong.append(self.decoders[kinds.index("Strip")])  # it would cut every token
            yield from (f"the decoder {_named(s)}" for s in wrong)
            if not wrong and not {*kinds} & {"Replace", "Metaspace"}:
                yield "decoders that leave U+2581"
            if not wrong and self.model.get("byte_fallback") and "ByteFallback" not in kinds:
                yield "decoders without ByteFallback"

    def lacking(self) -> Iterator[str]:
        """The names of what weft's own tokenizers do not have; sets `keys` for what they have."""
        steps = [s for s in self.normalizers if s.get("type") not in _FORMS]
        forms = [str(s["type"]) for s in self.normalizers if s.get("type") in _FORMS]
        if steps and forms:
            steps, forms = self.normalizers, []
        if forms:
            self.settings["normalizers"] = forms
        yield from self._flags(forms, any(s.get("type") != "Replace" for s in steps))
        if self.kind == "gpt2":
            yield from (_named(s) for s in steps)
            yield from self._bytes()
        elif self.kind == "bert":
            yield from self._words(steps)
        elif self.kind == "t5":
            yield from self._unigrams(steps)
        else:
            yield from self._merged(steps)
        if self.settings:
            self.keys[TOKENIZER_SETTINGS] = json.dumps(self.settings)

    def _flags(self, forms: list[str], changes: bool) -> Iterator[str]:
        """Added tokens."""
        for side in ("lstrip", "rstrip"):
            ids = [int(row["id"]) for row in self.added if row.get(side)]
            if ids:
                self.settings[side] = ids
        for row in self.added:
            text = str(row["content"])
            if row.get("single_word"):
                yield f"single_word of the token {text!r}"
            same = not changes and all(unicodedata.normalize(f, text) == text for f in forms)  # type: ignore[arg-type]
            if row.get("normalized") and not same:
                yield f"normalized of the token {text!r}"
            if self.kind == "bert" and (not row.get("special") or text.isalnum()):
                yield f"the token {text!r}"  # the file could not tell it from a part of a word

    def _bytes(self) -> Iterator[str]:
        pre, model = self._given.get("tokenizer.ggml.pre"), self.model
        if pre == UNKNOWN or not any(s.get("type") == "ByteLevel" for s in self.cuts):
            yield self._cutting()
        elif pre == name_by_steps(self._tokenizer) and model.get("ignore_merges"):
            if pre != "llama-bpe":
                yield "ignore_merges"
        vocab = model.get("vocab") or {}
        if model.get("unk_token") and not all(char in vocab for char in _alphabet()):
            yield f"unk_token {model['unk_token']!r} for bytes without a token"

    def _cutting(self) -> str:
        return f"the pre-tokenizer of {' then '.join(map(_named, self.cuts)) or 'no steps'}"

    def _words(self, steps: list[Step]) -> Iterator[str]:
        how: Step = steps[0] if len(steps) == 1 else {}
        usual = how.get("clean_text", True) and how.get("handle_chinese_chars", True)
        if how.get("type") != "BertNormalizer" or not usual:
            yield from (_named(s) for s in steps or [{"type": "no normalizer"}])
        if [s.get("type") for s in self.cuts] != ["BertPreTokenizer"]:
            yield self._cutting()
        self.settings["letters"] = int(self.model.get("max_input_chars_per_word", 100))

    def _unigrams(self, steps: list[Step]) -> Iterator[str]:
        tables = [s for s in steps if s.get("type") == "Precompiled"]
        rest = [s for s in steps if s.get("type") != "Precompiled"]
        cuts = [s for s in self.cuts if s.get("type") != "WhitespaceSplit"]
        apart = len(cuts) < len(self.cuts)
        if len(tables) > 1 or rest not in ([], [_MERGES_SPACES]) or steps[-len(rest) :] != rest:
            yield from (_named(s) for s in rest)
        if len(cuts) != 1 or cuts[0].get("type") != "Metaspace" or cuts[0] != self.cuts[-1]:
            yield self._cutting()
        elif _scheme(cuts[0]) != "always" or not cuts[0].get("split", True):
            yield _named(cuts[0])
        elif any(_SPACE in str(row[0])[1:] for row in self.model.get("vocab") or ()):
            yield "split of Metaspace"
        self.settings["spaces"] = "words" if apart else "one" if rest else "all"
        if self.model.get("byte_fallback"):
            yield "byte_fallback of unigrams"

    def _merged(self, steps: list[Step]) -> Iterator[str]:
        """Pieces that merges make, with spaces spelled as U+2581."""
        if self.model.get("type", "BPE") != "BPE":
            yield f"the model {self.model['type']}"
        if self.kind == "gemma4":
            yield from (_named(s) for s in self.cuts if s.get("type") == "Metaspace")
        begins = [s for s in steps if s == {"type": "Prepend", "prepend": _SPACE}]
        spaces = [s for s in self.cuts if s.get("type") == "Metaspace"]
        splits = [{**s, "behavior": 0} == {**_SPLITS_SPACES, "behavior": 0} for s in self.cuts]
        if steps not in ([], [_REPLACES], [*begins, _REPLACES]):
            yield from (_named(s) for s in steps)
        if not (self.cuts == [] or self.cuts == spaces[:1] or (steps and splits == [True])):
            yield self._cutting()
        if not steps and not spaces:
            yield "spaces as they are"
        tokens = self.model.get("vocab") or {}
        if isinstance(tokens, list):  # unigrams, with their scores
            tokens = {str(row[0]): row for row in tokens}
        if spaces:
            inner = any(_SPACE in token[1:] for token in tokens)
            if spaces[0].get("replacement", _SPACE) != _SPACE:
                yield _named(spaces[0])
            elif spaces[0].get("split", True) and inner:
                yield "split of Metaspace"
            if _scheme(spaces[0]) != "never" and not begins:
                self.settings["space_prefix"] = _scheme(spaces[0])
        prefix = bool(begins or "space_prefix" in self.settings)
        self.keys["tokenizer.ggml.add_space_prefix"] = prefix
        strips = any(map(_strips, self.decoders))
        if self.decoders and strips is not prefix and not self._pieces:
            self.settings["strips"] = strips
        if self.model.get("ignore_merges"):
            yield "ignore_merges"
        if self._pieces:
            return
        if any(f"<0x{byte:02X}>" not in tokens for byte in range(256)):
            yield "byte_fallback without all bytes"
        special = {str(row["content"]) for row in self.added}
        yield from (f"the added token {text}" for text in special if _BYTE_TOKEN.fullmatch(text))
        special.update(f"<0x{byte:02X}>" for byte in range(256))
        is_bpe = self.model.get("type", "BPE") == "BPE"
        if self.kind == "llama" and is_bpe and not _as_pieces(self.model, special):
            yield "merges that SentencePiece would not make"


def _makes_text(step: Step) -> bool:
    """True for a decoder of SentencePiece's vocabularies."""
    kind = step.get("type")
    if kind == "Replace":
        return bool(step == {"type": kind, "pattern": {"String": _SPACE}, "content": " "})
    if kind == "Strip":
        return (step.get("content"), step.get("start"), step.get("stop")) == (" ", 1, 0)
    if kind == "Metaspace":
        return bool(step.get("replacement", _SPACE) == _SPACE)
    return kind in ("ByteFallback", "Fuse")


def _parts_words(step: Step) -> bool:
    """True for Metaspace that begins a token at each space, with one in front of the text."""
    return step.get("type") == "Metaspace" and bool(step["split"]) and _scheme(step) != "never"


def _strips(decoder: Step) -> bool:
    """True for a decoder that removes a space at the beginning of a text."""
    kind = decoder.get("type")
    return kind == "Strip" or (kind == "Metaspace" and _scheme(decoder) != "never")


def _as_pieces(model: Step, special: Collection[str]) -> bool:
    """True if merges by rank make the same tokens as the merges of any two tokens that make a
    token, by the rank of the token: all ways to make it are listed, one behind another."""
    vocab = model.get("vocab") or {}
    made: dict[str, list[int]] = {}
    pairs = set()
    for i, merge in enumerate(model.get("merges") or ()):
        a, b = merge.split(" ") if isinstance(merge, str) else merge
        made.setdefault(a + b, []).append(i)
        pairs.add((a, b))
    if max(map(len, chain(vocab, made)), default=0) > _LONGEST:
        return False
    return all(
        ranks[-1] - ranks[0] == len(ranks) - 1
        and all(
            (token[:i], token[i:]) in pairs
            for i in range(1, len(token))
            if token[:i] in vocab and token[i:] in vocab
        )
        for token, ranks in made.items()
    ) and not any(
        token[:i] in vocab and token[i:] in vocab
        for token in vocab
        if token not in made and token not in special
        for i in range(1, len(token))
    )


def _alphabet() -> Iterator[str]:
    """GPT-2's characters for bytes."""
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    yield from map(chr, printing)
    yield from (chr(256 + i) for i in range(256 - len(printing)))


def _scheme(metaspace: Step) -> str:
    old = "always" if metaspace.get("add_prefix_space", True) else "never"
    return str(metaspace.get("prepend_scheme", old))


def _named(step: Step) -> str:
    """A step and its options, without tables."""
    options = {k: v for k, v in step.items() if k not in ("type", "precompiled_charsmap")}
    return f"{step.get('type')} {options or ''}".strip()


def _flat(step: Any, inner: str) -> Iterator[Step]:
    if isinstance(step, dict):
        if step.get("type") == "Sequence":
            for one in step.get(inner) or ():
                yield from _flat(one, inner)
        elif step.get("type"):
            yield step
