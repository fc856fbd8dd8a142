"""Anthropic's API: `/v1/messages`, which agents such as Claude Code speak.

schema.py     the bodies of requests
translate.py  turns their messages into those of chats
written.py    turns a text into a message, whole or as events
errors.py     errors in its format
endpoints.py  the endpoints

Source of the format: https://docs.anthropic.com/en/api/messages
"""

from weft.serve.anthropic.endpoints import add_anthropic

__all__ = ["add_anthropic"]
