"""OpenAI's Responses API: `/v1/responses`.

Source of the format: https://platform.openai.com/docs/api-reference/responses
"""
