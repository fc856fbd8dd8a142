"""Language models: from a GGUF file to text.

config.py         hyper-parameters from metadata
weights.py        names to tensors by table
models/           one file an architecture, put together from the parts of parts.py
model.py          a file as config, weights and graph
vocab.py          tokens and special tokens from metadata
tokenizer.py      text to tokens and back; a kind each in tokenizer_{spm,bpe,wpm,unigram}.py
pretokenizers.py  how byte-level vocabularies cut text into words; characters.py has the classes
recurrent.py      states of recurrent layers, one slot a sequence
cells.py          which cell of the cache holds what; window.py: of sliding-window layers
kv_cache.py       the cells' keys and values
options.py        what a context can be told; prepare.py: from that to its plan
batch.py          what one call computes, cut into ubatches
change.py         what a call changes in the cache, to be taken back when it fails
graphs.py         the compiled graphs of a context, and which one runs
context.py        tokens in, logits out; sequences.py: what is done with cached tokens
state.py          the cache as bytes and back
sampling/         logits to a token
memory.py         whether a plan fits
chat.py           messages to the text a model was trained on; chat_jinja.py runs the template
hub.py            `hf:` names to files
draft.py          one text as it grows: draws, end tokens, stop strings, limits
engine/           the writer of texts, and the thread that serves many
perplexity.py     how well a text is predicted
turns.py          which thread may use a context; side.py: contexts for embeddings and scores
llm.py            `LLM`, all of the above
"""

from typing import TYPE_CHECKING

from weft.lazy import imported_when_used

if TYPE_CHECKING:
    from weft.llm.batch import Batch
    from weft.llm.chat import ChatTemplate
    from weft.llm.config import ModelConfig
    from weft.llm.context import Context
    from weft.llm.llm import LLM, Stats
    from weft.llm.model import Model
    from weft.llm.perplexity import Perplexity
    from weft.llm.sampling import Sampler, SamplingParams, TokenLogprobs, token_logprobs
    from weft.llm.tokenizer import Tokenizer

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
    "weft.llm.batch": ("Batch",),
    "weft.llm.chat": ("ChatTemplate",),
    "weft.llm.config": ("ModelConfig",),
    "weft.llm.context": ("Context",),
    "weft.llm.llm": (
        "LLM",
        "Stats",
    ),
    "weft.llm.model": ("Model",),
    "weft.llm.perplexity": ("Perplexity",),
    "weft.llm.sampling": (
        "Sampler",
        "SamplingParams",
        "TokenLogprobs",
        "token_logprobs",
    ),
    "weft.llm.tokenizer": ("Tokenizer",),
}
__getattr__, __dir__ = imported_when_used(__name__, _HOMES)
