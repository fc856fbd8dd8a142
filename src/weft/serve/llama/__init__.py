"""The endpoints that llama.cpp's server has besides those of the OpenAI API.

schema.py      the bodies of requests
prompts.py     prompts of texts and ids, and of code with a gap
params.py      the parameters of a text, as these endpoints show them
written.py     turns texts into the answers of /completion and /infill
state.py       /props and /slots
tokens.py      /tokenize, /detokenize, /apply-template and /embedding
completion.py  /completion and /infill
metrics.py     the names of metrics that its users know

Source of the format: the README of tools/server of llama.cpp.
"""

from weft.serve.llama.endpoints import add_completion, add_state, add_tokens

__all__ = ["add_completion", "add_state", "add_tokens"]
