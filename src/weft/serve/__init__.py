"""`weft serve`: a model behind the OpenAI API. Needs the extra `weft[serve]`.

options.py      the options of a server
schema.py       the bodies of requests, with their checks
words.py        describes the errors of a body in sentences
sampling.py     turns fields of a body into sampling parameters
inputs.py       texts of a body, as strings or token ids
prompts.py      turns bodies into requests to the engine
chats.py        what a chat asks of the template and of the answer's form
texts.py        the texts of a request while the engine writes them
respond.py      what all handlers share: an answer that ends when the client leaves
answers.py      turns texts into the answers of chat and completions, whole or streamed
messages.py     content, reasoning and tool calls in these
logprobs.py     log-probabilities in the formats of the two APIs
embedder.py     embeddings, with a context of their own
service.py      a loaded model: engine, tokenizer, template
pieces.py       splits an answer into reasoning, text and calls, for APIs that number them
responses/      OpenAI's Responses API
anthropic/      Anthropic's API
forms.py        bodies with files
transcriptions.py  the endpoints for what is said in a sound
generation.py   the endpoints of chat and completions
embeddings.py   the endpoint of embeddings
ranking.py      the endpoint that ranks documents
routes.py       the application, with the other endpoints
guard.py        limits of bodies, and the API key
hosts.py        names by which requests may address the server
log.py          a line for each request
connections.py  the number of connections, and time limits
errors.py       errors in the format of the OpenAI API
metrics.py      counters and gauges in Prometheus' text format
run.py          runs all of it with uvicorn
"""

from weft.serve.options import ServeOptions
from weft.serve.routes import create_app
from weft.serve.run import run_server, take_address
from weft.serve.service import Service

__all__ = ["ServeOptions", "Service", "create_app", "run_server", "take_address"]
