"""The architectures, by the names that GGUF files have in `general.architecture`.

A new architecture is a file with a table `ARCHITECTURES`, which says how it differs from the
skeleton in `architecture.py` and is composed of the parts in `parts.py`, and a line here. The steps
are in docs/add-a-model.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from importlib import import_module

from weft.errors import FormatError
from weft.llm.models.architecture import Architecture

__all__ = ["ARCHITECTURES", "Architecture", "find_architecture"]

_FILES = {
    "afmoe": ("afmoe", "laguna"),
    "apertus": ("apertus",),
    "arcee": ("arcee", "jais2"),
    "arctic": ("arctic",),
    "bert": ("bert", "jina-bert-v2", "jina-bert-v3", "nomic-bert", "nomic-bert-moe"),
    "bitnet": ("bitnet",),
    "bloom": ("bloom",),
    "commandr": ("command-r", "cohere2", "cohere2moe", "plamo"),
    "dbrx": ("dbrx",),
    "deepseek": ("bailingmoe", "deepseek"),
    "deci": ("deci",),
    "deepseek2": ("deepseek2", "mistral4"),
    "deepseek32": ("deepseek32", "glm-dsa"),
    "delta": ("qwen3next", "qwen35", "qwen35moe"),
    "dots1": ("bailingmoe2", "dots1"),
    "encoders": ("eurobert", "gemma-embedding", "llama-embed", "modern-bert", "neo-bert"),
    "ernie": ("ernie4_5", "ernie4_5-moe"),
    "exaone4": ("exaone", "exaone4", "exaone-moe"),
    "falcon": ("falcon",),
    "gemma": ("gemma",),
    "gemma2": ("gemma2",),
    "gemma3": ("gemma3",),
    "gemma3n": ("gemma3n",),
    "gemma4": ("gemma4",),
    "glm4": ("chatglm", "glm4", "glm4moe"),
    "gpt2": ("gpt2", "starcoder"),
    "gptneox": ("gptneox",),
    "gptoss": ("gpt-oss",),
    "granite": ("granite", "granite_swa", "granitemoe", "minicpm"),
    "grok": ("grok",),
    "hrm_text": ("hrm_text",),
    "hybrid": ("granitehybrid", "jamba", "falcon-h1", "nemotron_h", "nemotron_h_moe"),
    "hunyuan": ("hunyuan-dense", "hunyuan-moe", "hy_v3", "maincoder"),
    "jais": ("jais",),
    "kimi": ("kimi-linear",),
    "lfm2": ("lfm2", "lfm2moe"),
    "llama": ("baichuan", "internlm2", "llama", "mistral3", "orion", "refact", "xverse"),
    "llama4": ("llama4",),
    "mamba": ("mamba", "mamba2"),
    "maple": ("maple",),
    "mimo2": ("mimo2",),
    "minicpm3": ("minicpm3", "plm"),
    "minimax": ("minimax-m2",),
    "mpt": ("mpt",),
    "muse": ("muse-glimmer",),
    "nanbeige": ("nanbeige",),
    "nemotron": ("nemotron",),
    "olmo": ("olmo",),
    "olmo2": ("olmo2",),
    "olmoe": ("olmoe",),
    "phi2": ("phi2",),
    "phi3": ("phi3",),
    "phimoe": ("phimoe",),
    "qwen2": ("qwen", "qwen2", "pangu-embedded", "qwen2vl", "qwen2moe"),
    "qwen3": ("mellum", "openelm", "qwen3", "qwen3moe", "qwen3vl", "qwen3vlmoe"),
    "rwkv": ("rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"),
    "seed_oss": ("seed_oss",),
    "smallthinker": ("smallthinker",),
    "smollm3": ("smollm3",),
    "spark": ("spark2_5",),
    "stablelm": ("stablelm",),
    "starcoder2": ("codeshell", "starcoder2"),
    "stepfun": ("step35",),
    "t5": ("t5", "t5encoder"),
    "talkie": ("talkie",),
}
"""The files of this folder, and the architectures in each."""


class _Table(Mapping[str, Architecture]):
    """Architectures by name; a file is imported when one of its architectures is first used."""

    def __init__(self) -> None:
        self._file_of = {name: file for file, names in _FILES.items() for name in names}

    def __getitem__(self, name: str) -> Architecture:
        module = import_module(f"{__name__}.{self._file_of[name]}")
        architecture: Architecture = module.ARCHITECTURES[name]
        return architecture

    def __iter__(self) -> Iterator[str]:
        return iter(self._file_of)

    def __len__(self) -> int:
        return len(self._file_of)


ARCHITECTURES = _Table()


_OTHERS = {
    **dict.fromkeys(("dream", "llada", "llada-moe", "rnd1"), "writes in any order (diffusion)"),
    **dict.fromkeys(("dflash", "eagle3", "gemma4-assistant"), "drafts tokens for another model"),
    **dict.fromkeys(("pockettts", "qwen3tts", "wavtokenizer-dec"), "makes sound"),
    "clip": "turns images into rows for another model (give it as --mmproj)",
}
"""Architectures that are no models of text by themselves, and what they do."""

_NOT_YET = (
    *("bailingmoe3", "chameleon", "cogvlm", "deepseek2-ocr", "deepseek4", "dots3note", "glm5-next"),
    *("gptj", "graniteswitch", "grovemoe", "hunyuan_vl", "hy_v4", "kimi-k3", "minimax-01"),
    *("minimax-m3", "paddleocr", "plamo2", "plamo3", "qwen4exp"),
)
"""Architectures of files that other programs run and weft does not yet."""


def find_architecture(name: str) -> Architecture:
    """The architecture called `name`. Raises FormatError if there is none: it says that weft does
    not run it yet, or names those alike and lists the known ones."""
    if name in _OTHERS:
        what = f"a model of the architecture {name!r} {_OTHERS[name]}"
        raise FormatError(f"{what}; weft runs models that write text token by token")
    if name not in ARCHITECTURES:
        if name in _NOT_YET:
            raise FormatError(
                f"weft does not run the architecture {name!r} yet; README.md lists those that it "
                "runs, and docs/add-a-model.md says how to add one"
            )
        near = get_close_matches(name, ARCHITECTURES, 3, 0.7)
        hint = f" (names alike: {', '.join(near)})" if near else ""
        raise FormatError(
            f"unknown architecture {name!r}{hint}; known architectures: {', '.join(ARCHITECTURES)}"
        )
    return ARCHITECTURES[name]
