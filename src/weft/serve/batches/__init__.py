"""Files of clients and their batches: `/v1/files` and `/v1/batches`, with `--files-dir DIR`.

The rows of a batch are written by `weft.batch`, in a journal of the same folder.
"""

from weft.serve.batches.endpoints import add_batches, add_files
from weft.serve.batches.runner import BatchRunner
from weft.serve.batches.store import FileStore

__all__ = ["BatchRunner", "FileStore", "add_batches", "add_files"]
