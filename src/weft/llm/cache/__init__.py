"""The cache of a context: which cell holds what, its keys, values and states."""
