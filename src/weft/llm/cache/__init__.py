"""The cache of a context: the table of its cells, their keys and values, and recurrent states."""
