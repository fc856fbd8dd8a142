"""`weft serve`: a model behind the OpenAI API and others. Needs the extra `weft[serve]`.

A request passes `middleware.py` and `guard.py` and comes to a handler of the folder of its API:
`openai/`, `responses/`, `anthropic/`, `ollama/` or `llama/`. There `schema.py` checks its body and
`translate.py` makes a chat of the OpenAI API of it. `prompts.py` makes requests to the engine,
`texts.py` waits for their texts, and `format.py` writes the answer. `endpoints.py` is the table of
all paths, `service.py` the loaded model, `resources.py` what a server has besides, `routes.py` the
application, `run.py` the process. `many/` serves several models, `replicas/` one model on several
machines, `batches/` files of requests, and `page/` the page for browsers. pyproject.toml has the
order of all modules, as a ladder.
"""

from weft.serve.options import ServeOptions
from weft.serve.resources import Resources
from weft.serve.routes import create_app
from weft.serve.run import run_server, take_address
from weft.serve.service import Service

__all__ = ["Resources", "ServeOptions", "Service", "create_app", "run_server", "take_address"]
