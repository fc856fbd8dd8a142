"""The endpoints that llama.cpp's server has besides those of the OpenAI API.

Source of the format: the README of tools/server of llama.cpp.
"""
