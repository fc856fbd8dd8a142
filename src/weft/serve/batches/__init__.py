"""Files of clients and their batches: `/v1/files` and `/v1/batches`, with `--files-dir DIR`.

store.py      files and batches in a folder, described in an SQLite file
runner.py     runs batches beside requests, which go first; goes on after a restart
room.py       when there is room for a line of a batch
files.py      the endpoints of files
endpoints.py  the endpoints of batches

The rows of a batch are written by `weft.batch`, in a journal of the same folder.
"""

from weft.serve.batches.endpoints import add_batches, add_files
from weft.serve.batches.runner import BatchRunner
from weft.serve.batches.store import FileStore

__all__ = ["BatchRunner", "FileStore", "add_batches", "add_files"]
