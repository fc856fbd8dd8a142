"""The table of architectures: their files, and the classes of transformers in their folders.

`llm/models/FILE.py` computes the architectures of a file, and `frontends/hf/families/FILE.py`, if
there is one, reads their folders. The steps of adding one are in docs/add-a-model.md.
"""

from __future__ import annotations

FILES = {
    "deepseek": {
        "deepseek2": "DeepseekV2ForCausalLM DeepseekV3ForCausalLM YoutuForCausalLM "
        "KimiVLForConditionalGeneration KimiK25ForConditionalGeneration "
        "Kimi_K25ForConditionalGeneration YoutuVLForConditionalGeneration",
        "deepseek2-ocr": "DeepseekOCRForCausalLM DeepseekOCR2ForCausalLM UnlimitedOCRForCausalLM "
        "DeepseekOcr2ForConditionalGeneration UnlimitedOcrForConditionalGeneration",
        "mistral4": "Mistral4ForCausalLM",
        "bailingmoe": "BailingMoeForCausalLM",
        "deepseek": "DeepseekForCausalLM",
        "bailingmoe2": "BailingMoeV2ForCausalLM",
        "sarvam": "SarvamMoEForCausalLM SarvamMoeForCausalLM "
        "modeling_sarvam_moe.SarvamMoEForCausalLM",
        "dots1": "Dots1ForCausalLM",
        "deepseek32": "DeepseekV32ForCausalLM",
        "glm-dsa": "GlmMoeDsaForCausalLM",
        "minicpm3": "MiniCPM3ForCausalLM",
        "plm": "PLMForCausalLM",
        "glm4_moe_lite": "Glm4MoeLiteForCausalLM",
    },
    "deepseek4": {"deepseek4": "DeepseekV4ForCausalLM", "hy_v4": "HYV4ForCausalLM"},
    "pooled": {
        "glm5-next": "Glm5NextForConditionalGeneration Glm5NextForCausalLM",
        "qwen4exp": "Qwen4ExpForConditionalGeneration Qwen4ExpForCausalLM",
    },
    "delta": {
        "qwen3next": "Qwen3NextForCausalLM",
        "qwen35": "Qwen3_5ForCausalLM Qwen3_5ForConditionalGeneration "
        "MiniCPMV4_6ForConditionalGeneration",
        "qwen35moe": "Qwen3_5MoeForCausalLM Qwen3_5MoeForConditionalGeneration",
        "kimi-linear": "KimiLinearForCausalLM KimiLinearModel",
        "bailingmoe3": "BailingMoeV3ForCausalLM BailingHybridForCausalLM "
        "BailingMoeV3VLForConditionalGeneration",
        "kimi-k3": "KimiK3ForConditionalGeneration KimiK3ForCausalLM",
    },
    "diffusion": {
        "dream": "DreamModel",
        "llada": "LLaDAModelLM",
        "llada-moe": "LLaDAMoEModel LLaDAMoEModelLM",
        "rnd1": "RND1",
    },
    "dots3": {
        "dots3note": "Dots3NoteForCausalLM Dots3NoteForConditionalGeneration "
        "Dots3NoteTextForCausalLM",
    },
    "drafters": {
        "eagle3": "LlamaForCausalLMEagle3 Eagle3LlamaForCausalLM Eagle3Speculator Eagle3DraftModel",
        "gemma4-assistant": "Gemma4AssistantForCausalLM Gemma4UnifiedAssistantForCausalLM",
        "dflash": "DFlashDraftModel",
    },
    "encoders": {
        "eurobert": "EuroBertModel JinaEmbeddingsV5Model",
        "gemma-embedding": "Gemma3TextModel",
        "llama-embed": "LlamaBidirectionalModel",
        "modern-bert": "ModernBertModel ModernBertForMaskedLM ModernBertForSequenceClassification",
        "neo-bert": "NeoBERT NeoBERTLMHead NeoBERTForSequenceClassification",
        "bert": "BertModel BertForMaskedLM BertForSequenceClassification CamembertModel",
        "jina-bert-v2": "JinaBertModel JinaBertForMaskedLM",
        "jina-bert-v3": "JinaEmbeddingsV3Model",
        "nomic-bert": "NomicBertModel",
        "nomic-bert-moe": "",
        "distilbert": "DistilBertModel DistilBertForMaskedLM DistilBertForSequenceClassification",
        "roberta": "RobertaModel RobertaForSequenceClassification",
        "xlm-roberta": "XLMRobertaModel XLMRobertaForSequenceClassification",
    },
    "gemma": {
        "gemma": "GemmaForCausalLM",
        "gemma2": "Gemma2ForCausalLM",
        "gemma3": "Gemma3ForCausalLM Gemma3ForConditionalGeneration",
        "gemma4": "Gemma4ForCausalLM Gemma4ForConditionalGeneration "
        "Gemma4UnifiedForConditionalGeneration",
        "gemma3n": "Gemma3nForCausalLM Gemma3nForConditionalGeneration",
    },
    "gpt": {
        "gpt2": "GPT2LMHeadModel",
        "starcoder": "GPTBigCodeForCausalLM",
        "bloom": "BloomForCausalLM BloomModel",
        "jais": "JAISLMHeadModel",
        "mpt": "MPTForCausalLM MptForCausalLM",
        "codeshell": "CodeShellForCausalLM",
        "starcoder2": "Starcoder2ForCausalLM",
        "falcon": "FalconForCausalLM RWForCausalLM",
        "gptneox": "GPTNeoXForCausalLM",
        "stablelm": "StableLmForCausalLM StableLMEpochForCausalLM LlavaStableLMEpochForCausalLM",
        "command-r": "CohereForCausalLM",
        "cohere2": "Cohere2ForCausalLM",
        "cohere2moe": "Cohere2MoeForCausalLM",
        "plamo": "PlamoForCausalLM",
        "phi2": "PhiForCausalLM",
        "phi3": "Phi3ForCausalLM Phi4ForCausalLMV",
        "phimoe": "PhiMoEForCausalLM PhimoeForCausalLM",
    },
    "grok": {
        "grok": "",
        "muse-glimmer": "MuseGlimmerForConditionalGeneration",
        "talkie": "TalkieForCausalLM",
    },
    "hybrid": {
        "granitehybrid": "GraniteMoeHybridForCausalLM",
        "jamba": "JambaForCausalLM",
        "falcon-h1": "FalconH1ForCausalLM",
        "bamba": "BambaForCausalLM",
        "nemotron": "NemotronForCausalLM",
        "plamo2": "Plamo2ForCausalLM PLaMo2ForCausalLM",
        "plamo3": "Plamo3ForCausalLM PLaMo3ForCausalLM",
        "nemotron_h": "NemotronHForCausalLM NemotronH_Omni_Reasoning_V3 NemotronH_Nano_VL_V2 "
        "NemotronH_Nano_Omni_Reasoning_V3",
        "nemotron_h_moe": "",
    },
    "llama": {
        "baichuan": "BaichuanForCausalLM BaiChuanForCausalLM",
        "internlm2": "InternLM2ForCausalLM",
        "llama": "LlamaForCausalLM LLaMAForCausalLM VLlama3ForCausalLM LlamaModel "
        "IQuestCoderForCausalLM JanusForConditionalGeneration",
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
        "bitnet-b1.58": "",
        "bitnet-25": "",
        "deci": "DeciLMForCausalLM",
        "nanbeige": "NanbeigeForCausalLM",
        "internlm3": "InternLM3ForCausalLM",
        "mistral": "MistralForCausalLM MinistralForCausalLM CwmForCausalLM "
        "LlavaForConditionalGeneration LlavaNextForConditionalGeneration "
        "VoxtralForConditionalGeneration "
        "Idefics3ForConditionalGeneration SmolVLMForConditionalGeneration",
        "mixtral": "MixtralForCausalLM",
        "ultravox": "UltravoxModel",
        "granite": "GraniteForCausalLM GraniteSpeechForConditionalGeneration "
        "Granite4VisionForConditionalGeneration",
        "granite_swa": "GraniteSWAForCausalLM GraniteMoeSWAForCausalLM",
        "granitemoe": "GraniteMoeForCausalLM GraniteMoeSharedForCausalLM",
        "minicpm": "MiniCPMForCausalLM",
        "chameleon": "ChameleonForConditionalGeneration ChameleonForCausalLM",
        "cogvlm": "CogVLMForCausalLM",
        "hrm_text": "HrmTextForCausalLM",
    },
    "mamba": {
        "mamba": "MambaForCausalLM MambaLMHeadModel FalconMambaForCausalLM",
        "mamba2": "Mamba2ForCausalLM",
        "lfm2": "Lfm2ForCausalLM LFM2ForCausalLM Lfm2VlForConditionalGeneration "
        "Lfm2AudioForConditionalGeneration",
        "lfm2moe": "Lfm2MoeForCausalLM",
    },
    "mixtures": {
        "arctic": "ArcticForCausalLM",
        "dbrx": "DbrxForCausalLM",
        "ernie4_5": "Ernie4_5ForCausalLM Ernie4_5_ForCausalLM",
        "ernie4_5-moe": "Ernie4_5_MoeForCausalLM",
        "paddleocr": "PaddleOCRVLForConditionalGeneration",
        "chatglm": "GlmForCausalLM ChatGLMModel ChatGLMForConditionalGeneration",
        "glm4": "Glm4ForCausalLM",
        "glm4moe": "Glm4MoeForCausalLM Glm4vMoeForConditionalGeneration",
        "hunyuan-dense": "HunYuanDenseV1ForCausalLM",
        "hunyuan-moe": "HunYuanMoEV1ForCausalLM",
        "hunyuan_vl": "HunYuanVLForConditionalGeneration",
        "hy_v3": "HYV3ForCausalLM",
        "maincoder": "MaincoderForCausalLM",
        "minimax-m2": "MiniMaxM2ForCausalLM",
        "glm4v": "Glm4vForConditionalGeneration GlmOcrForConditionalGeneration",
        "solar_open": "SolarOpenForCausalLM",
        "minimax-01": "MiniMaxText01ForCausalLM MiniMaxM1ForCausalLM MiniMaxForCausalLM",
        "grovemoe": "GroveMoeForCausalLM modeling_grove_moe.GroveMoeForCausalLM",
        "gpt-oss": "GptOssForCausalLM",
        "llama4": "Llama4ForCausalLM Llama4ForConditionalGeneration",
    },
    "minimax": {
        "minimax-m3": "MiniMaxM3SparseForCausalLM MiniMaxM3SparseForConditionalGeneration "
        "MiniMaxM3VLForConditionalGeneration MiniMaxM3VLForCausalLM",
    },
    "qwen": {
        "qwen": "QWenLMHeadModel",
        "qwen2": "Qwen2ForCausalLM Qwen2Model KORMoForCausalLM DotsOCRForCausalLM "
        "AudioFlamingo3ForConditionalGeneration",
        "pangu-embedded": "PanguEmbeddedForCausalLM",
        "qwen2vl": "Qwen2VLForConditionalGeneration Qwen2_5_VLForConditionalGeneration "
        "Qwen2VLModel Qwen2_5OmniModel Qwen2_5OmniForConditionalGeneration",
        "qwen2moe": "Qwen2MoeForCausalLM",
        "mellum": "MellumForCausalLM",
        "openelm": "OpenELMForCausalLM",
        "qwen3": "Qwen3ForCausalLM Qwen3Model StepVLForConditionalGeneration "
        "LightOnOcrForConditionalGeneration LightOnOCRForConditionalGeneration",
        "qwen3moe": "Qwen3MoeForCausalLM",
        "qwen3vl": "Qwen3VLForConditionalGeneration",
        "qwen3 heard": "Qwen3ASRForConditionalGeneration",
        "qwen3vlmoe": "Qwen3VLMoeForConditionalGeneration",
        "qwen3moe heard": "Qwen3OmniMoeForConditionalGeneration",
        "internvl": "InternVLForConditionalGeneration",
        "qwen2audio": "Qwen2AudioForConditionalGeneration",
    },
    "rwkv": {
        "rwkv6": "Rwkv6ForCausalLM",
        "rwkv6qwen2": "RWKV6Qwen2ForCausalLM",
        "rwkv7": "RWKV7ForCausalLM Rwkv7ForCausalLM",
        "arwkv7": "RwkvHybridForCausalLM",
    },
    "switch": {"graniteswitch": "GraniteSwitchForCausalLM"},
    "t5": {
        "t5": "T5ForConditionalGeneration T5WithLMHeadModel",
        "t5encoder": "T5EncoderModel",
        "mt5": "MT5ForConditionalGeneration UMT5ForConditionalGeneration UMT5Model",
    },
    "windowed": {
        "afmoe": "AfmoeForCausalLM",
        "laguna": "LagunaForCausalLM",
        "maple": "MapleForCausalLM",
        "mimo2": "MiMoV2FlashForCausalLM MiMoV2ForCausalLM",
        "smallthinker": "SmallThinkerForCausalLM",
        "spark2_5": "Spark2_5ForCausalLM",
        "step35": "Step3p5ForCausalLM Step3p7ForConditionalGeneration Step3p7ForCausalLM",
        "exaone": "ExaoneForCausalLM",
        "exaone4": "Exaone4ForCausalLM Exaone4_5_ForConditionalGeneration",
        "exaone-moe": "ExaoneMoEForCausalLM ExaoneMoeForCausalLM",
        "olmo": "OlmoForCausalLM OLMoForCausalLM",
        "olmo2": "Olmo2ForCausalLM",
        "olmoe": "OlmoeForCausalLM",
        "olmo3": "Olmo3ForCausalLM",
    },
}
"""For each file its kinds of models, which are architectures or names of `RELATED`, and the classes
of transformers whose folders are of a kind. A kind without classes has GGUF files only."""

APART = {
    "parakeet": {"parakeet": "ParakeetForCTC ParakeetForRNNT ParakeetForTDT"},
    "whisper": {"whisper": "WhisperForConditionalGeneration"},
    "pockettts": {
        "pockettts": "PocketTTSForConditionalGeneration",
        "pockettts original": "PocketTTSModel",
    },
    "wavtokenizer": {"wavtokenizer-dec": "WavTokenizerModel"},
}
"""The same for models that are not models of text; `llm/models/` has no file of them."""

RELATED = ("distilbert", "roberta", "xlm-roberta", "glm4_moe_lite", "bamba", "internlm3", "mistral",
           "mixtral", "olmo3", "glm4v", "sarvam", "internvl", "qwen2audio", "qwen3 heard",
           "qwen3moe heard", "solar_open", "mt5", "ultravox")  # fmt: skip
"""Kinds of folders whose models are of an architecture of another name."""
