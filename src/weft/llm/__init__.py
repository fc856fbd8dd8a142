"""Language models: from a GGUF file to text.

config.py      hyper-parameters from metadata
weights.py     names to tensors by table
models/        one file an architecture, put together from the parts of parts.py
model.py       a file as config, weights and graph
tokenizers/    text to tokens and back; a kind of vocabulary a file
cache/         which cell holds what; keys, values, states; what is done with sequences
planning/      from what a caller says to the plan of a context, and whether it fits
compute/       tokens in, logits out: `Context`, batches, ubatches, graphs
sampling/      logits to a token
chat/          messages to the text that a model was trained on
answers/       what a model writes, taken apart: content, reasoning, calls of tools
engine/        the writer of texts, one or many, and the thread that serves many
hub.py         `hf:` names to files
llm.py         `LLM`, all of the above
"""

from typing import TYPE_CHECKING

from weft.lazy import imported_when_used

if TYPE_CHECKING:
    from weft.llm.chat.template import ChatTemplate
    from weft.llm.compute.batch import Batch
    from weft.llm.compute.context import Context
    from weft.llm.compute.perplexity import Perplexity
    from weft.llm.config import ModelConfig
    from weft.llm.llm import LLM, Stats
    from weft.llm.model import Model
    from weft.llm.sampling import Sampler, SamplingParams, TokenLogprobs, token_logprobs
    from weft.llm.tokenizers.tokenizer import Tokenizer

__all__ = [
    "LLM",
    "Batch",
    "ChatTemplate",
    "Context",
    "Model",
    "ModelConfig",
    "Perplexity",
    "Sampler",
    "SamplingParams",
    "Stats",
    "TokenLogprobs",
    "Tokenizer",
    "token_logprobs",
]

_HOMES = {
    "weft.llm.compute.batch": ("Batch",),
    "weft.llm.chat.template": ("ChatTemplate",),
    "weft.llm.config": ("ModelConfig",),
    "weft.llm.compute.context": ("Context",),
    "weft.llm.llm": (
        "LLM",
        "Stats",
    ),
    "weft.llm.model": ("Model",),
    "weft.llm.compute.perplexity": ("Perplexity",),
    "weft.llm.sampling": (
        "Sampler",
        "SamplingParams",
        "TokenLogprobs",
        "token_logprobs",
    ),
    "weft.llm.tokenizers.tokenizer": ("Tokenizer",),
}
__getattr__, __dir__ = imported_when_used(__name__, _HOMES)
