"""Ollama's API: `/api/chat`, `/api/generate`, `/api/embed` and what its clients ask about models.

schema.py       the bodies of requests
options.py      turns its options into fields of the OpenAI API's bodies
translate.py    turns its messages and bodies into those of the OpenAI API
written.py      turns texts into its answers, whole or as lines of JSON
about.py        models as it lists and shows them
route.py        bodies without a content type, and errors
endpoints.py    the endpoints

Source of the format: https://github.com/ollama/ollama/blob/main/docs/api.md
"""

from weft.serve.ollama.endpoints import add_ollama

__all__ = ["add_ollama"]
