"""The families of models that a Hugging Face folder may have, by the class in its config.json.

A family is a row of a table `FAMILIES` in a file of this folder, and its classes a row here. The
steps are in docs/add-a-model.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from importlib import import_module
from typing import Any

from weft.errors import FormatError
from weft.frontends.hf.config import class_of
from weft.frontends.hf.family import Family

__all__ = ["CLASSES", "families_of", "find_family"]

_FILES = {
    "bert": {
        "bert": "BertModel BertForMaskedLM BertForSequenceClassification CamembertModel",
        "distilbert": ("DistilBertModel DistilBertForMaskedLM DistilBertForSequenceClassification"),
        "roberta": "RobertaModel RobertaForSequenceClassification",
        "xlm-roberta": "XLMRobertaModel XLMRobertaForSequenceClassification",
        "nomic-bert": "NomicBertModel",
        "jina-bert-v2": "JinaBertModel JinaBertForMaskedLM",
        "jina-bert-v3": "JinaEmbeddingsV3Model",
    },
    "cohere": {
        "command-r": "CohereForCausalLM",
        "cohere2": "Cohere2ForCausalLM",
        "cohere2moe": "Cohere2MoeForCausalLM",
    },
    "deepseek": {
        "deepseek2": "DeepseekV2ForCausalLM DeepseekV3ForCausalLM YoutuForCausalLM",
        "mistral4": "Mistral4ForCausalLM",
        "deepseek32": "DeepseekV32ForCausalLM",
        "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
        "glm-dsa": "GlmMoeDsaForCausalLM",
    },
    "delta": {
        "qwen3next": "Qwen3NextForCausalLM",
        "qwen35": "Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration",
        "qwen35moe": "Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration",
    },
    "encoders": {
        "modern-bert": "ModernBertModel ModernBertForMaskedLM ModernBertForSequenceClassification",
        "eurobert": "EuroBertModel JinaEmbeddingsV5Model",
        "neo-bert": "NeoBERT NeoBERTLMHead NeoBERTForSequenceClassification",
        "llama-embed": "LlamaBidirectionalModel",
        "gemma-embedding": "Gemma3TextModel",
    },
    "gemma": {
        "gemma": "GemmaForCausalLM",
        "gemma2": "Gemma2ForCausalLM",
        "gemma3": "Gemma3ForCausalLM Gemma3ForConditionalGeneration",
    },
    "gemma4": {
        "gemma3n": "Gemma3nForCausalLM Gemma3nForConditionalGeneration",
        "gemma4": "Gemma4ForCausalLM Gemma4ForConditionalGeneration",
    },
    "gpt": {
        "bloom": "BloomForCausalLM BloomModel",
        "falcon": "FalconForCausalLM RWForCausalLM",
        "gpt2": "GPT2LMHeadModel",
        "gptneox": "GPTNeoXForCausalLM",
        "mpt": "MPTForCausalLM MptForCausalLM",
        "starcoder": "GPTBigCodeForCausalLM",
        "starcoder2": "Starcoder2ForCausalLM",
    },
    "gptoss": {"gpt-oss": "GptOssForCausalLM"},
    "hybrid": {
        "granitehybrid": "GraniteMoeHybridForCausalLM",
        "bamba": "BambaForCausalLM",
        "jamba": "JambaForCausalLM",
        "falcon-h1": "FalconH1ForCausalLM",
    },
    "nemotron_h": {"nemotron_h": "NemotronHForCausalLM"},
    "kimi": {"kimi-linear": "KimiLinearForCausalLM KimiLinearModel"},
    "lfm2": {
        "lfm2": "Lfm2ForCausalLM Lfm2VlForConditionalGeneration",
        "lfm2moe": "Lfm2MoeForCausalLM",
    },
    "hrm": {"hrm_text": "HrmTextForCausalLM"},
    "llama": {
        "llama": "LlamaForCausalLM LLaMAForCausalLM LlamaModel IQuestCoderForCausalLM",
        "internlm3": "InternLM3ForCausalLM",
        "mistral": "MistralForCausalLM MinistralForCausalLM CwmForCausalLM "
        "LlavaForConditionalGeneration VoxtralForConditionalGeneration "
        "Idefics3ForConditionalGeneration "
        "SmolVLMForConditionalGeneration",
        "mistral3": "Ministral3ForCausalLM Mistral3ForConditionalGeneration",
        "mixtral": "MixtralForCausalLM",
        "apertus": "ApertusForCausalLM",
        "arcee": "ArceeForCausalLM",
        "bitnet": "BitnetForCausalLM BitNetForCausalLM",
        "granite": "GraniteForCausalLM",
        "granitemoe": "GraniteMoeForCausalLM GraniteMoeSharedForCausalLM",
        "minicpm": "MiniCPMForCausalLM",
        "granite_swa": "GraniteSWAForCausalLM",
        "jais2": "Jais2ForCausalLM",
        "smollm3": "SmolLM3ForCausalLM",
    },
    "llama4": {"llama4": "Llama4ForCausalLM Llama4ForConditionalGeneration"},
    "mixtures": {
        "dbrx": "DbrxForCausalLM",
        "dots1": "Dots1ForCausalLM",
        "ernie4_5-moe": "Ernie4_5_MoeForCausalLM",
        "exaone-moe": "ExaoneMoEForCausalLM ExaoneMoeForCausalLM",
        "glm4moe": "Glm4MoeForCausalLM Glm4vMoeForConditionalGeneration",
        "hunyuan-dense": "HunYuanDenseV1ForCausalLM",
        "hunyuan-moe": "HunYuanMoEV1ForCausalLM",
        "hy_v3": "HYV3ForCausalLM",
        "minimax-m2": "MiniMaxM2ForCausalLM",
    },
    "mamba": {
        "mamba": "MambaForCausalLM MambaLMHeadModel FalconMambaForCausalLM",
        "mamba2": "Mamba2ForCausalLM",
    },
    "older": {
        "baichuan": "BaichuanForCausalLM BaiChuanForCausalLM",
        "bailingmoe": "BailingMoeForCausalLM",
        "codeshell": "CodeShellForCausalLM",
        "deepseek": "DeepseekForCausalLM",
        "exaone": "ExaoneForCausalLM",
        "internlm2": "InternLM2ForCausalLM",
        "minicpm3": "MiniCPM3ForCausalLM",
        "orion": "OrionForCausalLM",
        "refact": "GPTRefactForCausalLM",
        "xverse": "XverseForCausalLM",
    },
    "olmo": {
        "olmo": "OlmoForCausalLM OLMoForCausalLM",
        "olmo2": "Olmo2ForCausalLM",
        "olmo3": "Olmo3ForCausalLM",
        "olmoe": "OlmoeForCausalLM",
    },
    "others": {
        "ernie4_5": "Ernie4_5ForCausalLM Ernie4_5_ForCausalLM",
        "exaone4": "Exaone4ForCausalLM",
        "chatglm": "GlmForCausalLM ChatGLMModel ChatGLMForConditionalGeneration",
        "glm4": "Glm4ForCausalLM",
        "glm4v": "Glm4vForConditionalGeneration",
        "nemotron": "NemotronForCausalLM",
        "seed_oss": "SeedOssForCausalLM",
        "stablelm": "StableLmForCausalLM StableLMEpochForCausalLM",
    },
    "phi": {
        "phi2": "PhiForCausalLM",
        "phi3": "Phi3ForCausalLM",
        "phimoe": "PhiMoEForCausalLM PhimoeForCausalLM",
    },
    "qwen": {
        "qwen2": "Qwen2ForCausalLM Qwen2Model KORMoForCausalLM",
        "internvl": "InternVLForConditionalGeneration",
        "qwen2audio": "Qwen2AudioForConditionalGeneration",
        "qwen2moe": "Qwen2MoeForCausalLM",
        "qwen2vl": "Qwen2VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration",
        "qwen3vl": "Qwen3VLForConditionalGeneration",
        "qwen3vlmoe": "Qwen3VLMoeForConditionalGeneration",
        "qwen3": "Qwen3ForCausalLM Qwen3Model",
        "qwen3moe": "Qwen3MoeForCausalLM",
    },
    "recent": {
        "bailingmoe2": "BailingMoeV2ForCausalLM",
        "deci": "DeciLMForCausalLM",
        "maincoder": "MaincoderForCausalLM",
        "mimo2": "MiMoV2FlashForCausalLM",
        "pangu-embedded": "PanguEmbeddedForCausalLM",
        "solar_open": "SolarOpenForCausalLM",
    },
    "t5": {
        "t5": "T5ForConditionalGeneration T5WithLMHeadModel",
        "mt5": "MT5ForConditionalGeneration UMT5ForConditionalGeneration UMT5Model",
        "t5encoder": "T5EncoderModel",
    },
    "windowed": {
        "afmoe": "AfmoeForCausalLM",
        "laguna": "LagunaForCausalLM",
        "mellum": "MellumForCausalLM",
    },
}
"""The files of this folder, the families in each, and the classes of transformers of a family."""

CLASSES = {
    name: (file, family)
    for file, families in _FILES.items()
    for family, names in families.items()
    for name in names.split()
}
"""The file and the family of each class."""


_DIFFUSION = ("DreamModel", "LLaDAModelLM", "LLaDAMoEModel", "LLaDAMoEModelLM", "RND1")


def find_family(config: Mapping[str, Any]) -> Family:
    """The family of a model by its config.json. Raises FormatError, which lists the known classes,
    if it is not known."""
    name = class_of(config)
    if name not in CLASSES:
        what = f"the class {name!r}" if name else "a model without `architectures`"
        near = get_close_matches(name, CLASSES, 3, 0.7)
        hint = f" (names alike: {', '.join(near)})" if near else ""
        if name in _DIFFUSION:
            hint = " (it writes in any order: diffusion)"
        raise FormatError(
            f"config.json is of {what}, which weft does not know{hint}; known are "
            f"{', '.join(CLASSES)}"
        )
    file, family = CLASSES[name]
    families: Mapping[str, Family] = import_module(f"{__name__}.{file}").FAMILIES
    found = families[family]
    other = found.variant(config)
    return families[other] if other else found


def families_of(arch: str) -> list[Family]:
    """The families whose files are of the architecture `arch`."""
    tables = [import_module(f"{__name__}.{file}").FAMILIES for file in _FILES]
    return [family for table in tables for family in table.values() if family.arch == arch]
