"""Tokenizers of many kinds, made by the package tokenizers: ids and decoded texts are those of the
package, or the folder is refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from weft.errors import FormatError
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.writer import encode_value, write_gguf
from weft.frontends.hf.folder import is_some, read_family
from weft.frontends.hf.tokenizer_json import tokenizer_keys
from weft.llm.tokenizers.tokenizer import Tokenizer

tokenizers = pytest.importorskip("tokenizers")
D, M, N, P, T = (
    tokenizers.decoders, tokenizers.models, tokenizers.normalizers, tokenizers.pre_tokenizers,
    tokenizers.trainers,
)  # fmt: skip
Added, Regex = tokenizers.AddedToken, tokenizers.Regex

LINES = ["the quick brown fox jumps over 12 lazy dogs", "Über die Brücke, 3.14!",
         "hello hello world",
         "안녕하세요 세계", "नमस्ते दुनिया", "你好 世界", "don't stop", "a_b c-d (e) [f]"]  # fmt: skip
TEXTS = [*LINES, "", " ", "  two  spaces ", "\n\ttabs\n", "ﬁne Ａ½ e\u0301 ẛ\u0323", "İSTANBUL Σς",
         "🚀 emoji \u200b zero", "<s>the</s> fox", "x" * 120, "the▁fox", "१२३ 456",
         "\u00a0nb\u3000", "thefox fox's FOX", "##ing"]  # fmt: skip
SPLITS = ("removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous")

NORMALIZERS: dict[str, Any] = {
    "none": None, "nfc": N.NFC(), "nfd": N.NFD(), "nfkc": N.NFKC(), "nfkd": N.NFKD(),
    "lower": N.Lowercase(), "accents": N.Sequence([N.NFD(), N.StripAccents()]),
    "replace": N.Replace("o", "0"), "regex": N.Replace(Regex(r"\s+"), " "),
    "prepend": N.Prepend("▁"), "strip": N.Strip(), "bert": N.BertNormalizer(), "nmt": N.Nmt(),
    "bytes": N.ByteLevel(),
    "both": N.Sequence([N.NFKC(), N.Lowercase(), N.Strip(left=True, right=False)]),
}  # fmt: skip
CUTS: dict[str, Any] = {
    "none": None, "bytes": P.ByteLevel(add_prefix_space=False), "space": P.ByteLevel(),
    "meta": P.Metaspace(), "meta first": P.Metaspace(prepend_scheme="first"),
    "meta never": P.Metaspace(prepend_scheme="never", split=False), "bert": P.BertPreTokenizer(),
    **{f"split {how}": P.Split(Regex(r"\s+|\d"), how) for how in SPLITS},
    "invert": P.Split(Regex(r"\w+"), "removed", invert=True), "string": P.Split(" ", "isolated"),
    "digits": P.Digits(individual_digits=True), "marks": P.Punctuation("merged_with_previous"),
    "white": P.Whitespace(), "white split": P.WhitespaceSplit(), "scripts": P.UnicodeScripts(),
    "char": P.CharDelimiterSplit("o"), "length": P.FixedLength(3),
    "all": P.Sequence([P.WhitespaceSplit(), P.Digits(), P.ByteLevel(add_prefix_space=False)]),
}  # fmt: skip
DECODERS: dict[str, Any] = {
    "bytes": D.ByteLevel(), "meta": D.Metaspace(), "words": D.WordPiece(),
    "bpe": D.BPEDecoder(), "ctc": D.CTC(), "fuse": D.Fuse(), "strip": D.Strip(" ", 1, 0),
    "fallback": D.Sequence([D.Replace("▁", " "), D.ByteFallback(), D.Fuse(), D.Strip(" ", 1, 0)]),
    "replace": D.Replace("▁", " "),
}  # fmt: skip
FLAGS = ({"lstrip": True}, {"rstrip": True}, {"single_word": True}, {"normalized": False},
         {"special": True}, {"normalized": True})  # fmt: skip


def model_of(kind: str) -> tuple[Any, Any]:
    special = ["<unk>", "<s>", "</s>"]
    common = {"vocab_size": 400, "show_progress": False, "special_tokens": special}
    if kind == "BPE":
        return M.BPE(), T.BpeTrainer(**common, initial_alphabet=P.ByteLevel.alphabet())
    if kind == "BPE unk":
        return M.BPE(unk_token="<unk>", fuse_unk=True), T.BpeTrainer(**common)
    if kind == "BPE fallback":
        return M.BPE(unk_token="<unk>", byte_fallback=True), T.BpeTrainer(
            **common | {"special_tokens": special + [f"<0x{i:02X}>" for i in range(256)]}
        )
    if kind == "BPE suffix":
        return M.BPE(end_of_word_suffix="</w>", unk_token="<unk>"), T.BpeTrainer(
            **common, end_of_word_suffix="</w>"
        )
    if kind == "WordPiece":
        return M.WordPiece(unk_token="<unk>"), T.WordPieceTrainer(**common)
    if kind == "WordLevel":
        return M.WordLevel(unk_token="<unk>"), T.WordLevelTrainer(**common)
    return M.Unigram(), T.UnigramTrainer(**common, unk_token="<unk>")


KINDS = ("BPE", "BPE unk", "BPE fallback", "BPE suffix", "WordPiece", "WordLevel", "Unigram")


def made(kind: str, normalizer: str, cut: str, decoder: str, flags: dict[str, bool]) -> Any:
    """A tokenizer trained on `LINES`, with an added token."""
    model, trainer = model_of(kind)
    theirs = tokenizers.Tokenizer(model)
    for part, value in (("normalizer", NORMALIZERS[normalizer]), ("pre_tokenizer", CUTS[cut]),
                        ("decoder", DECODERS[decoder])):  # fmt: skip
        if value is not None:
            setattr(theirs, part, value)
    theirs.train_from_iterator(LINES * 3, trainer)
    data = json.loads(theirs.to_str())  # bytes are pieces, not added tokens
    data["added_tokens"] = data["added_tokens"][:3]
    theirs = tokenizers.Tokenizer.from_str(json.dumps(data))
    theirs.add_tokens([Added("fox", **flags)])
    return theirs


def ours(folder: Path, theirs: Any) -> Tokenizer:
    """The tokenizer of a folder with this tokenizer.json. Raises FormatError if it is refused."""
    folder.mkdir(exist_ok=True)
    data = json.loads(theirs.to_str())
    (folder / "tokenizer.json").write_text(json.dumps(data))
    n = max([theirs.get_vocab_size(), *(row["id"] + 1 for row in data["added_tokens"])])
    config = {"architectures": ["LlamaForCausalLM"], "vocab_size": n, "num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(config))
    family, c = read_family(folder)
    keys = dict(family.vocab(c))
    keys |= tokenizer_keys(c, keys)
    keys["general.architecture"] = "llama"
    write_gguf(
        folder / "v.gguf", {k: encode_value(k, v) for k, v in keys.items() if is_some(v)}, []
    )
    return Tokenizer.from_gguf(open_gguf(folder / "v.gguf"))


def cases() -> Iterator[tuple[str, str, str, str, dict[str, bool]]]:
    """Every value of every part with each kind of model, the others in turn."""
    for i, kind in enumerate(KINDS):
        usual = ("none", "bytes", "bytes") if kind == "BPE" else ("none", "meta", "fallback")
        for j, name in enumerate(NORMALIZERS):
            yield kind, name, usual[1], usual[2], FLAGS[(i + j) % len(FLAGS)]
        for j, name in enumerate(CUTS):
            yield kind, "none", name, usual[2], FLAGS[(i + j) % len(FLAGS)]
        for j, name in enumerate(DECODERS):
            yield kind, "none", usual[1], name, FLAGS[(i + j) % len(FLAGS)]


def compared(mine: Tokenizer, theirs: Any) -> list[str]:
    """The texts whose ids, or the texts of whose ids, differ."""
    wrong = []
    for text in TEXTS:
        ids = theirs.encode(text, add_special_tokens=False).ids
        same = mine.encode(text, add_special=False, parse_special=True) == ids
        if not (same and mine.decode(ids) == theirs.decode(ids, skip_special_tokens=True)):
            wrong.append(text)
    return wrong


# how many tokenizers of each kind are held; the others are refused
HELD = {"BPE": 38, "BPE unk": 37, "BPE fallback": 38, "BPE suffix": 0, "WordPiece": 36,
        "WordLevel": 36, "Unigram": 36}  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_equal_or_refused(tmp_path: Path, kind: str) -> None:
    n_equal, refused = 0, []
    for i, case in enumerate(case for case in cases() if case[0] == kind):
        theirs = made(*case)
        try:
            mine = ours(tmp_path / str(i), theirs)
        except FormatError as error:
            refused.append(str(error))
            continue
        assert compared(mine, theirs) == [], case
        n_equal += 1
    assert n_equal == HELD[kind]
    assert all("asks for what weft does not have: " in text for text in refused)
