"""Files of clients and their batches: `/v1/files` and `/v1/batches`, with `--files-dir DIR`.

The rows of a batch are written by `weft.batch`, in a journal of the same folder.
"""
