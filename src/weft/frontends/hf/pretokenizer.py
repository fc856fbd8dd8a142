"""Finds the pre-tokenizer of a tokenizer.json, by the name that GGUF files have in
`tokenizer.ggml.pre`.

The reference's converter encodes a text that tells pre-tokenizers apart, and looks up the hash of
the ids: this knows a published vocabulary. With the package `tokenizers` weft does the same. Other
vocabularies are known by the regexes with which tokenizer.json cuts texts.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from weft.errors import WeftError
from weft.files import read_text
from weft.frontends.hf.config import Config
from weft.frontends.hf.package_tokenizer import PackageTokenizers, has_package

UNKNOWN = "huggingface"
"""The name of a pre-tokenizer that neither the vocabulary nor its steps tell."""

PROBE = (
    "\n \n\n \n\n\n \t \t\t \t\n  \n   \n    \n     \n🚀 (normal) 😶\u200d🌫️ (multiple emo"
    "jis concatenated) ✅ 🦙🦙 3 33 333 3333 33333 333333 3333333 33333333 3.3 3..3 3...3 ក"
    "ាន់តែពិសេសអាច😁 ?我想在apple工作1314151天～ ------======= нещо на Български ''''''```````\""
    "\"\"\"......!!!!!!?????? I've been 'told he's there, 'RE you sure? 'M not sure I'"
    "ll make it, 'D you like some tea? We'Ve a'lL"
)
"""A text whose ids differ between vocabularies."""

# Names, and the beginnings of the SHA-256 sums of the ids that their vocabularies give for PROBE.
_HASHES = """
    chatglm-bpe=b6e8e1518dc4+81d72c7348a9 glm4=a1336059768a+9ca2dd618e8a+cdf5f3532578
    minerva-7b=1431a23e583c hunyuan=7e57df22b1fe hunyuan-dense=bba3b3366b64 hy_v4=e6ddf9c66867
    falcon-h1=a6b57017d60e+60476e124377+3eda48b4c4dc+48f8e02c0359 kimi-k2=81212dc7cdb7
    qwen2=d4540891389e+e636dc30a262 qwen35=1444df51289c+d30d75d9059f grok-2=66b8d4e19ab1
    jina-v2-de=b3d1dd861f1d+27949a2493fc gpt-2=0fe1cf6eda06+3ce83efda565
    lfm2=9e454714343b+169bf0296a13 gemma4=846deafc5b0f spark2_5=0a766d034107
    llama-bpe=0ef9807a4087 deepseek-llm=049ecf762987 deepseek-coder=347715f54460
    falcon=8aeee3860c56 jina-v2-en=0876d13b5074 falcon3=9d032fcbd550 bert-bge-large=8e6229583275
    olmo=b6dc8df998e1 starcoder=35d91631860c stablelm2=32d85c31273f refact=6221ad2852e8
    command-r=9c2227e4dd92 tiny_aya=d772b220ace2 cohere2moe=52df12b4c8d4 dbrx=a8594e3edff7
    jina-v1-en=c7699093ba42 jina-v2-es=171aeeedd6fb jina-v5-nano=a023e9fdc5a1
    smaug-bpe=c136ed14d01c poro-chat=c7ea5862a53e jina-v2-code=7967bfa498ad viking=7fc505bd3104
    jais=b53802fb28e2 jais-2=bc5108ee1eb6 codeshell=7b3e7548e430 tekken=63b97e425335
    smollm=855059429035 bloom=3c30d3ad1d6b gpt3-finnish=bc01ce58980e exaone=4e2b24cc4770
    phi-2=fcace8b9cac3 chameleon=60824e3c0d94 roberta-bpe=8b5a93ed7040 gigachat=ad851be1dba6
    megrez=d4c8f286ea6b deepseek-v3=877081d19cf6 deepseek-r1-qwen=b3f499bb4255
    gpt-4o=ccc2ef013c10 superbpe=7dec86086fcc trillion=1994ffd01900 bailingmoe=96a5f08be625
    llama4=d353350c764d pixtral=0e9433cbbb16 seed-coder=d5f1dd6f980f a.x-4.0=b0a6b1c0bd59
    midm-2.0=f6791d196f87 exaone4=2085e1638f6c mellum=a1e163ecab2e modern-bert=a0b64b4385f1
    afmoe=49fc0303c9e0 bailingmoe2=9b1be57e70d2 granite-docling=53e325976a6e
    minimax-m2=f4f37b6c8eb9 kormo=4a2e2abae11c youtu=9d70134b369a solar-open=16389f0a1f51
    exaone-moe=6c81ce329e08 joyai-llm=b4b8ca1f9769 kanana2=e4d54df1ebc1 f2llmv2=862f827721df
    sarvam-moe=62f6fb0a6fd5 talkie=f728162c1315 minicpm5=36f3066e97b7
    granite-embed-multi-97m=f24107214567 granite-embed-multi-311m=789696f5946c
    mellum2=9dcf830ee999 laguna=972da7b59cec ufakzeka=653660222fb7
"""
_NAME_OF = {
    sum_: name
    for name, _, sums in (word.partition("=") for word in _HASHES.split())
    for sum_ in sums.split("+")
}

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_CL100K = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_QWEN35 = (
    rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_FRONT = r"[^\r\n\p{L}\p{N}]?"
_PATHS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_O200K = (
    rf"{_FRONT}{_UPPER}*{_LOWER}+{_CONTRACTION}?|{_FRONT}{_UPPER}+{_LOWER}*{_CONTRACTION}?"
    rf"|\p{{N}}{{1,3}}|{_PATHS}"
)
_TEKKEN = rf"{_FRONT}{_UPPER}*{_LOWER}+|{_FRONT}{_UPPER}+{_LOWER}*|\p{{N}}|{_PATHS}"
_HAN_KANA = r"[一-龥぀-ゟ゠-ヿ]+"
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_BYTES, _GPT2 = "bytes", "bytes and words"

_STEPS: dict[tuple[str, ...], str] = {
    (_GPT2,): "gpt-2",
    ("each digit", _GPT2): "starcoder",
    (_CL100K, _BYTES): "llama-bpe",
    (_QWEN2, _BYTES): "qwen2",
    (_QWEN35, _BYTES): "qwen35",
    (_O200K, _BYTES): "gpt-4o",
    (_TEKKEN, _BYTES): "tekken",
    (r"\p{N}{1,3}", _HAN_KANA, _DEEPSEEK3, _BYTES): "deepseek-v3",
    (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", "each digit", _BYTES): (
        "deepseek-coder"
    ),
    ("punctuation", _GPT2, "digits", "[0-9][0-9][0-9]"): "falcon",
    (" ?[^(\\s|[.,!?…。，、।۔،])]+", _BYTES): "bloom",
    ("words and punctuation",): "jina-v2-en",
    # ranks.py; the regexes stand in the folders' own code
    ("Kimi", _BYTES): "kimi-k2",
    ("Qwen", _BYTES): "qwen2",
    ("Hunyuan", _BYTES): "hunyuan",
}
"""Names, by the steps in which texts are cut."""


def name_pretokenizer(c: Config) -> str:
    """The name of the pre-tokenizer of a folder, or `UNKNOWN`."""
    tokenizer = c.json("tokenizer.json")
    if not tokenizer:
        return "gpt-2"  # vocab.json and merges.txt, which only GPT-2's kin have
    name = _by_vocabulary(c)
    if name is not None:
        return name
    model = tokenizer.get("model") or {}
    name = name_by_steps(tokenizer)
    if name == "llama-bpe" and not model.get("ignore_merges"):
        return "dbrx"  # the same steps
    return name or UNKNOWN


def name_by_steps(tokenizer: Mapping[str, Any]) -> str | None:
    """The name for the steps of a tokenizer.json; None: they are not known."""
    return _STEPS.get(tuple(_steps(tokenizer.get("pre_tokenizer") or {})))


def _steps(how: Mapping[str, Any]) -> Iterator[str]:
    kind = how.get("type")
    if kind == "Sequence":
        for inner in how.get("pretokenizers") or ():
            yield from _steps(inner)
    elif kind == "Split":
        pattern = how.get("pattern") or {}
        text = str(pattern.get("Regex", pattern.get("String", "")))
        behavior = how.get("behavior", "Isolated")
        if "String" in pattern or how.get("invert") or behavior != "Isolated":
            text = f"{text!r} ({behavior}{', inverted' * bool(how.get('invert'))})"
        yield text
    elif kind == "ByteLevel":
        text = _GPT2 if how.get("use_regex", True) else _BYTES
        yield f"{text}, with a space in front" if how.get("add_prefix_space") else text
    elif kind == "Digits":
        yield "each digit" if how.get("individual_digits") else "digits"
    elif kind == "Punctuation":
        behavior = how.get("behavior", "Contiguous")
        yield "punctuation" if behavior == "Contiguous" else f"punctuation ({behavior})"
    elif kind == "BertPreTokenizer":
        yield "words and punctuation"
    elif kind:
        yield str(kind)


def _by_vocabulary(c: Config) -> str | None:
    """The name of a published vocabulary, if the package `tokenizers` is there to encode PROBE."""
    if not has_package():
        return None
    if (c.json("tokenizer.json").get("model") or {}).get("continuing_subword_prefix"):
        return None  # the library may end the process
    made = PackageTokenizers()
    try:
        made.add("", read_text(c.folder / "tokenizer.json"))
        ids = made.encode("", PROBE, special=True)
    except (OSError, ValueError, WeftError):  # the library cannot read all files
        return None
    return _NAME_OF.get(hashlib.sha256(str(ids).encode()).hexdigest()[:12])
