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
timings.py      numbers and times of a text while it is written
answers.py      turns texts into the answers of chat and completions, whole or streamed
messages.py     content, reasoning and tool calls in these
logprobs.py     log-probabilities in the formats of the two APIs
embedder.py     embeddings, with a context of their own
service.py      a loaded model: engine, tokenizer, template
pieces.py       splits an answer into reasoning, text and calls, for APIs that number them
cards.py        what the file of a model says about it
sizes.py        opens the files of a model and decides the sizes of its contexts
memory.py       bytes of plans together
responses/      OpenAI's Responses API
ollama/         Ollama's API
llama/          the endpoints of llama.cpp's server
many/           several models under one server
replicas/       one model on several machines under one server
anthropic/      Anthropic's API
forms.py        bodies with files
transcriptions.py  the endpoints for what is said in a sound
generation.py   the endpoints of chat and completions
embeddings.py   the endpoint of embeddings
ranking.py      the endpoint that ranks documents
page/           the page to talk to the model, for browsers
routes.py       the application, with the other endpoints
guard.py        limits of bodies, API keys and their limits, usage
open_paths.py   what needs no key: the page for browsers, and links with a ticket
hosts.py        names by which requests may address the server
log.py          a line for each request, as text or JSON
users.py        keys with their limits and usage
batches/        files of clients and their batches
record.py       what is noted of a request for the log, usage and traces
watch.py        ids of requests; logs, counts and traces each
traces.py       spans by OpenTelemetry
shared.py       what all requests of a server share: keys, counts, traces
inside.py       requests of this process to its own application
connections.py  the number of connections, and time limits
errors.py       errors in the format of the OpenAI API
metrics.py      counters, gauges and histograms in Prometheus' text format
http_metrics.py counts of requests by path and status
tls.py          the certificate and its key
house.py        what a server has besides models: keys, TLS, log; read again at SIGHUP
run.py          runs all of it with uvicorn
"""

from weft.serve.house import House
from weft.serve.options import ServeOptions
from weft.serve.routes import create_app
from weft.serve.run import run_server, take_address
from weft.serve.service import Service

__all__ = ["House", "ServeOptions", "Service", "create_app", "run_server", "take_address"]
