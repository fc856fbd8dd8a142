"""Tokens in, logits out: a batch in ubatches, by the graphs of a context."""
