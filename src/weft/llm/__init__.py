"""Language models: from a GGUF file to text.

config.py      hyper-parameters from metadata
weights.py     names to tensors by table
models/        one file an architecture
tokenizer.py   text to tokens and back
kv_cache.py    which cell of the cache holds what
context.py     tokens in, logits out
sampling.py    logits to a token
llm.py         `LLM`, all of the above
"""
