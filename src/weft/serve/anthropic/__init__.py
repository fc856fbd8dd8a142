"""Anthropic's API: `/v1/messages`, which agents such as Claude Code speak.

Source of the format: https://docs.anthropic.com/en/api/messages
"""
