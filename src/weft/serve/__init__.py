"""`weft serve`: a model behind the OpenAI API. Needs the extra `weft[serve]`.

options.py    what a server is started with
schema.py     bodies of requests, checked
words.py      what is wrong with a body, in sentences
sampling.py   fields of a body to sampling parameters
prompts.py    bodies to requests of the engine
answers.py    events of the engine to the bodies of answers, whole or streamed
messages.py   content, reasoning and calls of tools in them
logprobs.py   log-probabilities as the two APIs write them
embedder.py   embeddings, over a context of their own
service.py    a loaded model: engine, tokenizer, template
routes.py     the endpoints
guard.py      limits on bodies, API keys
hosts.py      names by which requests may call the server
log.py        a line for each request
connections.py  how many there are, and how long each may take
errors.py     errors as the OpenAI API words them
metrics.py    numbers in Prometheus' text format
run.py        uvicorn around it
"""

from weft.serve.options import ServeOptions
from weft.serve.routes import create_app
from weft.serve.run import run_server, take_address
from weft.serve.service import Service

__all__ = ["ServeOptions", "Service", "create_app", "run_server", "take_address"]
