"""Chooses a token from logits.

    sampler = Sampler(SamplingParams(temperature=0.7, seed=1), tokenizer)
    sampler.start(prompt)        # the tokens that penalties look back at
    token = sampler.sample(row)  # row: float32 [n_vocab]
    sampler.accept(token)

params.py      every option, checked, and the order of the chain
sampler.py     `Sampler`, the chain over one text's state
candidates.py  the tokens that samplers have left, and fast selection among them;
               log-probabilities of the model, before sampling
cuts.py        samplers that remove tokens: top-k, top-p, min-p, typical, top-n-sigma, XTC;
               temperature, fixed or by entropy, mirostat and adaptive-p
history.py     the last tokens, and the penalties for repeating them and sequences of them (DRY)
constraint.py  grammar, JSON schema, regular expression
"""

from weft.llm.sampling.candidates import TokenLogprobs, token_logprobs
from weft.llm.sampling.params import (
    BREAKERS,
    SAMPLERS,
    SAMPLING_OPTIONS,
    SamplingOptions,
    SamplingParams,
)
from weft.llm.sampling.sampler import Sampler

__all__ = ["BREAKERS", "SAMPLERS", "SAMPLING_OPTIONS", "Sampler", "SamplingOptions",
           "SamplingParams", "TokenLogprobs", "token_logprobs"]  # fmt: skip
