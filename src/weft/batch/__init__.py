"""Batches: a file of requests becomes a file of answers, in OpenAI's batch format.

lines.py    reads and checks the lines of the file of requests, one at a time
journal.py  the file of answers: appended, forced to disk, gone on with after a kill
run.py      many lines under way, with back-pressure; who answers them is an argument

Nothing here knows a model, HTTP or a cluster: `run_batch` is given a function that answers a line.
"""

from weft.batch.journal import Journal
from weft.batch.lines import Line, Problem, read_lines
from weft.batch.run import Answer, Counts, StoppedError, run_batch

__all__ = [
    "Answer",
    "Counts",
    "Journal",
    "Line",
    "Problem",
    "StoppedError",
    "read_lines",
    "run_batch",
]
