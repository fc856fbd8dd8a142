"""OpenAI's Responses API: `/v1/responses`.

schema.py     the bodies of requests
translate.py  turns items into messages of chats
written.py    turns a text into a response, whole or as events
kept.py       the responses that are kept
endpoints.py  the endpoints that write responses or count their tokens
kept_endpoints.py  the endpoints about responses that are kept

Source of the format: https://platform.openai.com/docs/api-reference/responses
"""

from weft.serve.responses.endpoints import add_kept_responses, add_responses
from weft.serve.responses.store import KeptResponses

__all__ = ["KeptResponses", "add_kept_responses", "add_responses"]
