"""Text to token ids and back; a kind of vocabulary a file."""
