"""GGUF files: a validating, memory-mapped reader, a writer and a summary.

reader.py    opens a file or a set of shards: metadata, tensors, typed getters
metadata.py  the key-value section, decoded on demand
tensors.py   the tensor table and its checks
filemap.py   one mapped file, a cursor that never reads past its end, and what a file is that is
             not GGUF
format.py    the layout, the value types and the limits
writer.py    `write_gguf` (import it from there)
describe.py  what `weft inspect` shows (import it from there)
shards.py    cuts models into several files, joins them, and checks the values of tensors

Quantizing (import from the modules):

quantize.py      writes files with tensors in other types; loads models so
mixes.py         which tensor gets which type (mix_table.py)
imatrix_file.py  reads and writes importance matrices, and chooses the part for a file's tensors
pruned.py        models without some layers
resumable.py     files that a later run goes on with
"""

from weft.frontends.gguf.filemap import FileMap
from weft.frontends.gguf.format import RawValue, ValueType
from weft.frontends.gguf.metadata import Metadata, Value
from weft.frontends.gguf.reader import GGUFFile, open_gguf
from weft.frontends.gguf.tensors import TensorInfo

__all__ = ["FileMap", "GGUFFile", "Metadata", "RawValue", "TensorInfo", "Value", "ValueType",
           "open_gguf"]  # fmt: skip
