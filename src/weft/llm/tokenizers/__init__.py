"""Converts text to token ids and back; each kind of vocabulary has a file."""
