"""Mistakes of one line, and the tests that must notice each: `make mutants` (docs/mutants.md).

`table/AREA.toml` has the mistakes, `row.py` reads them, `tree.py` keeps the copies of the tree that
they are made in, `run.py` makes them one by one and runs the tests.
"""
