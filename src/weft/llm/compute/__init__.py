"""Computes logits from tokens: cuts a batch into ubatches and runs the graphs of a context."""
