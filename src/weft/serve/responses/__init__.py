"""OpenAI's Responses API: `/v1/responses`.

Source of the format: https://platform.openai.com/docs/api-reference/responses
"""

from weft.serve.responses.endpoints import add_kept_responses, add_responses
from weft.serve.responses.store import KeptResponses

__all__ = ["KeptResponses", "add_kept_responses", "add_responses"]
