"""Every normalizer, pre-tokenizer, model option and flag of a tokenizer.json gives the ids of the
package tokenizers, or is refused by name."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.llm import hf_folders as folders
from tests.llm.test_hf_encoders import ENCODERS
from tests.llm.tiny import metadata, write_model
from weft.errors import FormatError, TokenizerError
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.writer import write_gguf
from weft.frontends.hf.convert import convert_folder
from weft.frontends.hf.tokenizer_json import _as_pieces
from weft.frontends.models import open_model
from weft.llm.tokenizers.tokenizer import Tokenizer

tokenizers = folders.tokenizers
N, P, Added, Regex = (
    tokenizers.normalizers,
    tokenizers.pre_tokenizers,
    tokenizers.AddedToken,
    tokenizers.Regex,
)

_WORDS = [
    "the quick brown fox", "hello", "WORLD", "It's", "123456", "e\u0301", "ÄÖÜ", "안녕하세요",
    "हिन्दी", "你好", "カﾞ", "\u00a0", "\u3000", "  ", "\n\n", "\t", "ﬁne", "Ａ½", "ẛ\u0323", "!!!",
    "(a)--", "\u200b", "\u2028", "\u0085", "ß", "İ", "Σς", "a" * 101, "१२३", "▁a", "foo", "Foo",
    "foobar", " foo ", "<|im_start|>", "<unk>",
]  # fmt: skip
_THREES = list(zip(_WORDS, _WORDS[7:], _WORDS[::-1], strict=False))
TEXTS = [*_WORDS, *("".join(three) for three in _THREES)]
TEXTS += [f" {a} {b}  {c} " for a, b, c in _THREES]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Path]]:
    """A folder of each kind of vocabulary."""
    found = {}
    for name in ("qwen3", "llama", "bert"):
        found[name] = tmp_path_factory.mktemp(name)
        folders.make_folder(name, found[name])
    kind, options, tokenizer = ENCODERS["xlm-roberta"]
    found["xlm-roberta"] = tmp_path_factory.mktemp("xlm")
    folders.made_model(kind, "Model", options).save_pretrained(found["xlm-roberta"])
    folders.save_tokenizer(tokenizer, found["xlm-roberta"])
    yield found


def changed(folder: Path, to: Path, **parts: Any) -> Any:
    """A copy of the folder with other parts of its tokenizer; returns that of the package."""
    shutil.copytree(folder, to, dirs_exist_ok=True)
    theirs = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    theirs.add_tokens(parts.pop("added", []))
    for part in ("normalizer", "pre_tokenizer"):
        if part in parts:
            setattr(theirs, part, parts.pop(part))
    data = json.loads(theirs.to_str())
    data["model"] |= parts
    (to / "tokenizer.json").write_text(json.dumps(data))
    return tokenizers.Tokenizer.from_str(json.dumps(data))


def same(folder: Path, theirs: Any, *, unigrams: bool = False) -> None:
    """Compares the ids of all texts, with control tokens and without."""
    ours = Tokenizer.from_gguf(open_model(folder))
    for parse in (True, False):
        theirs.encode_special_tokens = not parse
        for text in TEXTS:
            if unigrams and not parse and "<" in text:
                continue  # there the model itself finds control tokens in texts of strangers
            got = ours.encode(text, add_special=False, parse_special=parse)
            assert got == theirs.encode(text, add_special_tokens=False).ids, (text, parse)


NORMALIZERS = [
    N.NFC(), N.NFD(), N.NFKC(), N.NFKD(), N.Lowercase(), N.Strip(), N.Strip(left=True, right=False),
    N.Sequence([N.NFD(), N.StripAccents()]), N.Replace("o", "0"), N.Replace(Regex(" {2,}"), " "),
    N.Prepend("▁"), N.Prepend("x"), N.Nmt(), N.ByteLevel(), N.BertNormalizer(), N.Sequence([]),
    N.Sequence([N.NFC(), N.NFKD()]), N.Sequence([N.NFKC(), N.Lowercase(), N.Replace("a", "b")]),
    N.BertNormalizer(clean_text=False), N.BertNormalizer(handle_chinese_chars=False),
    N.BertNormalizer(strip_accents=False), N.BertNormalizer(lowercase=False), None,
]  # fmt: skip


@pytest.mark.parametrize("kind", ["qwen3", "llama", "bert", "xlm-roberta"])
@pytest.mark.parametrize("normalizer", NORMALIZERS, ids=str)
def test_normalizers(made: dict[str, Path], tmp_path: Path, kind: str, normalizer: Any) -> None:
    theirs = changed(made[kind], tmp_path, normalizer=normalizer)
    same(tmp_path, theirs, unigrams=kind == "xlm-roberta")


def _bytes(*steps: Any, **options: Any) -> Any:
    return P.Sequence([*steps, P.ByteLevel(**{"add_prefix_space": False, **options})])


SPLITS = ["removed", "isolated", "merged_with_previous", "merged_with_next", "contiguous"]
BYTE_LEVEL = [
    _bytes(), _bytes(use_regex=False), _bytes(add_prefix_space=True), _bytes(P.Digits()),
    _bytes(P.Digits(individual_digits=True)), _bytes(P.UnicodeScripts(), use_regex=False),
    _bytes(P.WhitespaceSplit(), add_prefix_space=True), _bytes(P.FixedLength(3)),
    _bytes(P.CharDelimiterSplit("o")), _bytes(P.Whitespace()),
    *(_bytes(P.Split(Regex(r"\s+|\p{L}+"), how), use_regex=False) for how in SPLITS),
    *(_bytes(P.Split(Regex(r"\s+|\p{L}+"), how, invert=True), use_regex=False) for how in SPLITS),
    *(_bytes(P.Split(" ", how), use_regex=False) for how in SPLITS),
    *(_bytes(P.Punctuation(how)) for how in SPLITS),
]  # fmt: skip
SPACES = [
    P.Metaspace(split=split, prepend_scheme=scheme)
    for split in (True, False)
    for scheme in ("always", "first", "never")
]
SPACES += [P.Metaspace(replacement="_", split=False), P.BertPreTokenizer(), P.WhitespaceSplit(),
           P.Sequence([P.WhitespaceSplit(), P.Metaspace()]), P.Whitespace(),
           P.Sequence([P.BertPreTokenizer(), P.Digits(individual_digits=True)]),
           P.Split(" ", "isolated"), None]  # fmt: skip
CUTS = [("qwen3", step) for step in BYTE_LEVEL]
CUTS += [(kind, step) for kind in ("llama", "bert", "xlm-roberta") for step in SPACES]


@pytest.mark.parametrize(("kind", "step"), CUTS, ids=lambda value: str(value)[:60])
def test_pre_tokenizers(made: dict[str, Path], tmp_path: Path, kind: str, step: Any) -> None:
    theirs = changed(made[kind], tmp_path, pre_tokenizer=step)
    same(tmp_path, theirs, unigrams=kind == "xlm-roberta")


FLAGS = [
    {"lstrip": True}, {"rstrip": True}, {"lstrip": True, "rstrip": True}, {"single_word": True},
    {"normalized": True}, {"normalized": False}, {"special": True, "lstrip": True},
    {"special": True, "normalized": True},
]  # fmt: skip


@pytest.mark.parametrize("kind", ["qwen3", "llama", "bert", "xlm-roberta"])
@pytest.mark.parametrize("flags", FLAGS, ids=str)
@pytest.mark.parametrize("lower", [False, True])
def test_added_tokens(
    made: dict[str, Path], tmp_path: Path, kind: str, flags: dict[str, bool], lower: bool
) -> None:
    more = {"normalizer": N.Sequence([N.NFC(), N.Lowercase()])} if lower else {}
    added = [Added("Foo", **flags), Added("own f", **flags)]
    theirs = changed(made[kind], tmp_path, added=added, **more)
    same(tmp_path, theirs, unigrams=kind == "xlm-roberta")


@pytest.mark.parametrize("option", ["ignore_merges", "fuse_unk", "byte_fallback", "unk_token"])
def test_options_of_merges(made: dict[str, Path], tmp_path: Path, option: str) -> None:
    theirs = changed(made["qwen3"], tmp_path, **{option: "<unk>" if "unk_t" in option else True})
    same(tmp_path, theirs)


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        ("qwen3", {"dropout": 0.1}, "dropout 0.1"),
        ("qwen3", {"end_of_word_suffix": "</w>"}, "end_of_word_suffix '</w>'"),
        ("qwen3", {"continuing_subword_prefix": "##"}, "continuing_subword_prefix '##'"),
        ("bert", {"continuing_subword_prefix": "@@"}, "continuing_subword_prefix '@@'"),
        ("bert", {"type": "WordLevel"}, "the model WordLevel"),
    ],
)
def test_what_nobody_holds_is_named(
    made: dict[str, Path], tmp_path: Path, kind: str, options: dict[str, Any], named: str
) -> None:
    shutil.copytree(made[kind], tmp_path, dirs_exist_ok=True)
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    data["model"] |= options
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    with pytest.raises(FormatError, match=rf"tokenizer\.json asks for .*{named}"):
        open_model(tmp_path)


def test_a_text_that_goes_on_has_nothing_in_front(made: dict[str, Path], tmp_path: Path) -> None:
    for kind, step in (("qwen3", _bytes(add_prefix_space=True)), ("llama", P.Metaspace())):
        theirs = changed(made[kind], tmp_path, pre_tokenizer=step)
        ours = Tokenizer.from_gguf(open_model(tmp_path))
        ids = ours.encode("fox", add_special=False, continues=True)
        assert ids != theirs.encode("fox", add_special_tokens=False).ids
        assert ours.decode(ids) == "fox"


def test_a_file_holds_what_its_folder_does(
    made: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, file = tmp_path / "folder", tmp_path / "m.gguf"
    theirs = changed(made["qwen3"], folder, normalizer=N.Nmt())
    convert_folder(folder, file)
    ours = Tokenizer.from_gguf(open_model(file))
    for text in TEXTS:
        assert ours.encode(text, parse_special=True) == theirs.encode(text).ids
        ids = ours.encode(text, add_special=False)
        assert ours.fewest_tokens(text) <= len(ids)
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(TokenizerError, match="needs the package tokenizers"):
        Tokenizer.from_gguf(open_model(file))


def test_words_of_a_file_beside_its_folder(made: dict[str, Path], tmp_path: Path) -> None:
    """Files of llama.cpp do not say that BERT keeps Hangul whole and cuts words at 100 letters."""
    shutil.copytree(made["bert"], tmp_path, dirs_exist_ok=True)
    theirs = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    convert_folder(tmp_path, tmp_path / "whole.gguf")
    with open_gguf(tmp_path / "whole.gguf") as whole:
        keys = whole.copy_metadata()
        del keys["tokenizer.weft.settings"]
        tensors = [(t.name, t.dtype, t.shape[::-1], lambda t=t: t.data)
                   for t in whole.tensors.values()]  # fmt: skip
        write_gguf(tmp_path / "m.gguf", keys, tensors)
    (tmp_path / "whole.gguf").unlink()
    file = open_model(tmp_path / "m.gguf")
    assert "tokenizer.weft.settings" in file.notes[0]
    ours = Tokenizer.from_gguf(file)
    alone = Tokenizer.from_gguf(open_gguf(tmp_path / "m.gguf"))
    texts = [text for text in TEXTS if "<" not in text]
    for text in texts:
        assert ours.encode(text) == theirs.encode(text).ids, text
    assert any(ours.encode(text) != alone.encode(text) for text in texts)


def test_texts_of_strangers_name_no_control_token(made: dict[str, Path], tmp_path: Path) -> None:
    """Where the package tokenizers encodes, its model does not find them either."""
    for kind, control, step in (
        ("xlm-roberta", "</s>", P.Metaspace()),
        ("bert", "[SEP]", P.WhitespaceSplit()),
        ("qwen3", "<|im_end|>", _bytes()),
    ):
        changed(made[kind], tmp_path, normalizer=N.Nmt(), pre_tokenizer=step)
        ours = Tokenizer.from_gguf(open_model(tmp_path))
        (id_,) = ours.encode(control, add_special=False, parse_special=True)
        assert id_ not in ours.encode(f"a {control} b", add_special=False)


def test_a_vocab_txt_alone(made: dict[str, Path], tmp_path: Path) -> None:
    """As transformers reads it: lines end with line ends only."""
    shutil.copytree(made["bert"], tmp_path, dirs_exist_ok=True)
    data = json.loads((tmp_path / "tokenizer.json").read_text())
    (tmp_path / "tokenizer.json").unlink()
    words = sorted(data["model"]["vocab"], key=data["model"]["vocab"].__getitem__)
    words[-2:] = ["a\u2028b", "a\u0085b"]
    (tmp_path / "vocab.txt").write_text("".join(f"{word}\n" for word in words), "utf-8")
    for lower in (True, False):
        theirs = folders.transformers.BertTokenizer(
            str(tmp_path / "vocab.txt"), do_lower_case=lower
        )
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
        ours = Tokenizer.from_gguf(open_model(tmp_path))
        assert ours.vocab.tokens[len(words) - 1].decode() == "▁a\u0085b"
        for text in TEXTS:
            assert ours.encode(text) == theirs.encode(text), text


@pytest.mark.parametrize(
    "text", ["{", "[]", "1", "{}", '{"model": 1}', '{"model": []}', '{"model": {}}', "[" * 200_000]
)
def test_a_damaged_whole_tokenizer_is_refused(tmp_path: Path, text: str) -> None:
    keys = metadata(**{"tokenizer.huggingface.json": text})
    path = write_model(tmp_path / "m.gguf", keys)
    with pytest.raises(TokenizerError, match=r"tokenizer\.huggingface\.json"):
        Tokenizer.from_gguf(open_gguf(path))


def test_merges_of_long_tokens_are_not_compared() -> None:
    assert _as_pieces({"vocab": {"a" * 1000: 0}}, ())
    assert not _as_pieces({"vocab": {"a" * 1001: 0}}, ())
    assert not _as_pieces({"vocab": {}, "merges": [["a" * 1000, "b"]]}, ())
