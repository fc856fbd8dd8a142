"""The table of architectures: their files, and the classes of transformers in their folders.

`llm/models/FILE.py` computes the architectures of a file, and `frontends/hf/families/FILE.py`, if
there is one, reads their folders. The steps of adding one are in docs/add-a-model.md.
"""

from __future__ import annotations

__all__ = ["FILES", "RELATED"]

FILES = {
    "bert": {
        "bert": "BertModel BertForMaskedLM BertForSequenceClassification CamembertModel",
        "jina-bert-v2": "JinaBertModel JinaBertForMaskedLM",
        "jina-bert-v3": "JinaEmbeddingsV3Model",
        "nomic-bert": "NomicBertModel",
        "nomic-bert-moe": "",
        "distilbert": "DistilBertModel DistilBertForMaskedLM DistilBertForSequenceClassification",
        "roberta": "RobertaModel RobertaForSequenceClassification",
        "xlm-roberta": "XLMRobertaModel XLMRobertaForSequenceClassification",
    },
    "cohere": {
        "command-r": "CohereForCausalLM",
        "cohere2": "Cohere2ForCausalLM",
        "cohere2moe": "Cohere2MoeForCausalLM",
        "plamo": "",
    },
    "deepseek": {
        "deepseek2": "DeepseekV2ForCausalLM DeepseekV3ForCausalLM YoutuForCausalLM",
        "mistral4": "Mistral4ForCausalLM",
        "bailingmoe": "BailingMoeForCausalLM",
        "deepseek": "DeepseekForCausalLM",
        "bailingmoe2": "BailingMoeV2ForCausalLM",
        "dots1": "Dots1ForCausalLM",
        "deepseek32": "DeepseekV32ForCausalLM",
        "glm-dsa": "GlmMoeDsaForCausalLM",
        "minicpm3": "MiniCPM3ForCausalLM",
        "plm": "",
        "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    },
    "delta": {
        "qwen3next": "Qwen3NextForCausalLM",
        "qwen35": "Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration",
        "qwen35moe": "Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration",
    },
    "encoders": {
        "eurobert": "EuroBertModel JinaEmbeddingsV5Model",
        "gemma-embedding": "Gemma3TextModel",
        "llama-embed": "LlamaBidirectionalModel",
        "modern-bert": "ModernBertModel ModernBertForMaskedLM ModernBertForSequenceClassification",
        "neo-bert": "NeoBERT NeoBERTLMHead NeoBERTForSequenceClassification",
    },
    "exaone": {
        "exaone": "ExaoneForCausalLM",
        "exaone4": "Exaone4ForCausalLM",
        "exaone-moe": "ExaoneMoEForCausalLM ExaoneMoeForCausalLM",
    },
    "gemma": {
        "gemma": "GemmaForCausalLM",
        "gemma2": "Gemma2ForCausalLM",
        "gemma3": "Gemma3ForCausalLM Gemma3ForConditionalGeneration",
    },
    "gemma4": {
        "gemma4": "Gemma4ForCausalLM Gemma4ForConditionalGeneration",
        "gemma3n": "Gemma3nForCausalLM Gemma3nForConditionalGeneration",
    },
    "gpt": {
        "gpt2": "GPT2LMHeadModel",
        "starcoder": "GPTBigCodeForCausalLM",
        "bloom": "BloomForCausalLM BloomModel",
        "jais": "",
        "mpt": "MPTForCausalLM MptForCausalLM",
        "codeshell": "CodeShellForCausalLM",
        "starcoder2": "Starcoder2ForCausalLM",
        "falcon": "FalconForCausalLM RWForCausalLM",
        "gptneox": "GPTNeoXForCausalLM",
        "stablelm": "StableLmForCausalLM StableLMEpochForCausalLM",
    },
    "gptoss": {
        "gpt-oss": "GptOssForCausalLM",
    },
    "granite": {
        "granite": "GraniteForCausalLM",
        "granite_swa": "GraniteSWAForCausalLM",
        "granitemoe": "GraniteMoeForCausalLM GraniteMoeSharedForCausalLM",
        "minicpm": "MiniCPMForCausalLM",
    },
    "grok": {
        "grok": "",
        "muse-glimmer": "",
        "talkie": "",
    },
    "hrm_text": {
        "hrm_text": "HrmTextForCausalLM",
    },
    "hybrid": {
        "granitehybrid": "GraniteMoeHybridForCausalLM",
        "jamba": "JambaForCausalLM",
        "falcon-h1": "FalconH1ForCausalLM",
        "bamba": "BambaForCausalLM",
    },
    "kimi": {
        "kimi-linear": "KimiLinearForCausalLM KimiLinearModel",
    },
    "lfm2": {
        "lfm2": "Lfm2ForCausalLM Lfm2VlForConditionalGeneration",
        "lfm2moe": "Lfm2MoeForCausalLM",
    },
    "llama": {
        "baichuan": "BaichuanForCausalLM BaiChuanForCausalLM",
        "internlm2": "InternLM2ForCausalLM",
        "llama": "LlamaForCausalLM LLaMAForCausalLM LlamaModel IQuestCoderForCausalLM",
        "mistral3": "Ministral3ForCausalLM Mistral3ForConditionalGeneration",
        "orion": "OrionForCausalLM",
        "refact": "GPTRefactForCausalLM",
        "xverse": "XverseForCausalLM",
        "arcee": "ArceeForCausalLM",
        "jais2": "Jais2ForCausalLM",
        "seed_oss": "SeedOssForCausalLM",
        "smollm3": "SmolLM3ForCausalLM",
        "apertus": "ApertusForCausalLM",
        "bitnet": "BitnetForCausalLM BitNetForCausalLM",
        "deci": "DeciLMForCausalLM",
        "nanbeige": "",
        "internlm3": "InternLM3ForCausalLM",
        "mistral": "MistralForCausalLM MinistralForCausalLM CwmForCausalLM "
        "LlavaForConditionalGeneration VoxtralForConditionalGeneration "
        "Idefics3ForConditionalGeneration SmolVLMForConditionalGeneration",
        "mixtral": "MixtralForCausalLM",
    },
    "llama4": {
        "llama4": "Llama4ForCausalLM Llama4ForConditionalGeneration",
    },
    "mamba": {
        "mamba": "MambaForCausalLM MambaLMHeadModel FalconMambaForCausalLM",
        "mamba2": "Mamba2ForCausalLM",
    },
    "mixtures": {
        "arctic": "",
        "dbrx": "DbrxForCausalLM",
        "ernie4_5": "Ernie4_5ForCausalLM Ernie4_5_ForCausalLM",
        "ernie4_5-moe": "Ernie4_5_MoeForCausalLM",
        "chatglm": "GlmForCausalLM ChatGLMModel ChatGLMForConditionalGeneration",
        "glm4": "Glm4ForCausalLM",
        "glm4moe": "Glm4MoeForCausalLM Glm4vMoeForConditionalGeneration",
        "hunyuan-dense": "HunYuanDenseV1ForCausalLM",
        "hunyuan-moe": "HunYuanMoEV1ForCausalLM",
        "hy_v3": "HYV3ForCausalLM",
        "maincoder": "MaincoderForCausalLM",
        "minimax-m2": "MiniMaxM2ForCausalLM",
        "glm4v": "Glm4vForConditionalGeneration",
        "solar_open": "SolarOpenForCausalLM",
    },
    "nemotron": {
        "nemotron": "NemotronForCausalLM",
        "nemotron_h": "NemotronHForCausalLM",
        "nemotron_h_moe": "",
    },
    "olmo": {
        "olmo": "OlmoForCausalLM OLMoForCausalLM",
        "olmo2": "Olmo2ForCausalLM",
        "olmoe": "OlmoeForCausalLM",
        "olmo3": "Olmo3ForCausalLM",
    },
    "phi": {
        "phi2": "PhiForCausalLM",
        "phi3": "Phi3ForCausalLM",
        "phimoe": "PhiMoEForCausalLM PhimoeForCausalLM",
    },
    "qwen": {
        "qwen": "",
        "qwen2": "Qwen2ForCausalLM Qwen2Model KORMoForCausalLM",
        "pangu-embedded": "PanguEmbeddedForCausalLM",
        "qwen2vl": "Qwen2VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration",
        "qwen2moe": "Qwen2MoeForCausalLM",
        "mellum": "MellumForCausalLM",
        "openelm": "",
        "qwen3": "Qwen3ForCausalLM Qwen3Model",
        "qwen3moe": "Qwen3MoeForCausalLM",
        "qwen3vl": "Qwen3VLForConditionalGeneration",
        "qwen3vlmoe": "Qwen3VLMoeForConditionalGeneration",
        "internvl": "InternVLForConditionalGeneration",
        "qwen2audio": "Qwen2AudioForConditionalGeneration",
    },
    "rwkv": {
        "rwkv6": "",
        "rwkv6qwen2": "",
        "rwkv7": "",
        "arwkv7": "",
    },
    "t5": {
        "t5": "T5ForConditionalGeneration T5WithLMHeadModel",
        "t5encoder": "T5EncoderModel",
        "mt5": "MT5ForConditionalGeneration UMT5ForConditionalGeneration UMT5Model",
    },
    "windowed": {
        "afmoe": "AfmoeForCausalLM",
        "laguna": "LagunaForCausalLM",
        "maple": "",
        "mimo2": "MiMoV2FlashForCausalLM",
        "smallthinker": "",
        "spark2_5": "",
        "step35": "",
    },
}
"""For each file its kinds of models, which are architectures or names of `RELATED`, and the classes
of transformers whose folders are of a kind. A kind without classes has GGUF files only."""

RELATED = ("distilbert", "roberta", "xlm-roberta", "glm4_moe_lite", "bamba", "internlm3", "mistral",
           "mixtral", "olmo3", "glm4v", "internvl", "qwen2audio", "solar_open", "mt5")  # fmt: skip
"""Kinds of folders whose models are of an architecture of another name."""
