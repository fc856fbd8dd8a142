"""Reads the tensors of PyTorch's checkpoints (`pytorch_model.bin`), and runs nothing of them.

Such a file is a zip archive. `data.pkl` in it is a program for Python's stack machine that makes a
dictionary of tensors, and `data/0`, `data/1`, ... are the bytes of their storages as they are. A
pickle may call any function. Here a stack machine of a few instructions reads it, which calls none:
it knows the names that `torch.save` writes for tensors, and refuses every other.
"""

from __future__ import annotations

import pickletools
import zipfile
from math import prod
from typing import Any

from weft.bounds import PICKLE_BYTES, PICKLE_STEPS, TENSOR_AXES
from weft.errors import FormatError
from weft.frontends.gguf.filemap import FileMap, quoted
from weft.records import dataclass

KINDS = {
    "FloatStorage": "F32", "HalfStorage": "F16", "BFloat16Storage": "BF16", "DoubleStorage": "F64",
    "LongStorage": "I64", "IntStorage": "I32", "ShortStorage": "I16", "CharStorage": "I8",
    "ByteStorage": "U8", "BoolStorage": "BOOL",
}  # fmt: skip
"""The types of tensors, as safetensors names them, by PyTorch's names of storages."""
_ITEM = {"F64": 8, "I64": 8, "F32": 4, "I32": 4, "F16": 2, "BF16": 2, "I16": 2}
_TENSOR = "torch._utils _rebuild_tensor_v2"
_PARAMETER = "torch._utils _rebuild_parameter"
_ORDERED = "collections OrderedDict"
_AGAIN = "download or copy it again"
_SAVE = "save the model with save_pretrained(..., safe_serialization=True)"
_PUSHED = ("BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "BINUNICODE", "SHORT_BINUNICODE")


@dataclass(frozen=True, slots=True)
class Pickled:
    """A tensor of a checkpoint: where its bytes are in the file."""

    kind: str
    shape: tuple[int, ...]
    offset: int
    nbytes: int


@dataclass(frozen=True, slots=True)
class _Named:
    """A function or class that the pickle names; nothing is imported."""

    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    kind: str
    key: str


@dataclass(frozen=True, slots=True)
class _Tensor:
    storage: _Storage
    start: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


def read_pickled(file: FileMap) -> dict[str, Pickled]:
    """The tensors of a mapped checkpoint, by name and in order of names.

    Raises FormatError, which names the file, for one that is damaged, that PyTorch before 1.6
    wrote, or that has anything but tensors."""
    try:
        with zipfile.ZipFile(file.path) as archive:
            members = {info.filename: info for info in archive.infolist()}
            program = [name for name in members if name.endswith("/data.pkl")]
            if len(program) != 1:
                raise file.error(f"not a checkpoint of PyTorch: no data.pkl in it; {_AGAIN}")
            root = program[0].removesuffix("data.pkl")
            order = _bytes(file, members.get(f"{root}byteorder"))
            if order not in (b"", b"little"):
                raise file.error(f"the checkpoint has numbers in another order of bytes; {_SAVE}")
            made = _run(file, _bytes(file, members[program[0]]))
    except (zipfile.BadZipFile, NotImplementedError, OSError, UnicodeDecodeError) as error:
        raise file.error(f"a pickle of PyTorch before 1.6, or damaged ({error}); {_SAVE}") from None
    out: dict[str, Pickled] = {}
    for name, tensor in made.items():
        if isinstance(tensor, _Tensor) and isinstance(name, str):
            out[name] = _placed(file, name, tensor, members, root)
    if not out:
        raise file.error(f"the pickle has no tensors by name; {_SAVE}")
    return dict(sorted(out.items()))


def _place(file: FileMap, info: zipfile.ZipInfo) -> int:
    """The byte at which a member begins."""
    at = info.header_offset
    head = bytes(file.buffer[at : at + 30])
    begin = at + 30 + int.from_bytes(head[26:28], "little") + int.from_bytes(head[28:30], "little")
    if head[:4] != b"PK\3\4" or begin + info.file_size > file.size:
        raise file.error(f"{quoted(info.filename)} reaches behind the end of the file; {_AGAIN}")
    if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
        raise file.error(f"{quoted(info.filename)} is compressed; {_SAVE}")
    return begin


def _bytes(file: FileMap, info: zipfile.ZipInfo | None) -> bytes:
    """The bytes of a small member; none if there is not one."""
    if info is None:
        return b""
    if info.file_size > PICKLE_BYTES:
        raise file.error(
            f"{quoted(info.filename)} has {info.file_size} bytes; weft reads up to {PICKLE_BYTES}"
        )
    begin = _place(file, info)
    return bytes(file.buffer[begin : begin + info.file_size])


def _placed(
    file: FileMap, name: str, t: _Tensor, members: dict[str, zipfile.ZipInfo], root: str
) -> Pickled:
    info = members.get(f"{root}data/{t.storage.key}")
    if info is None:
        raise file.error(f"the storage of tensor {quoted(name)} is missing; {_AGAIN}")
    counts = (*t.sizes, *t.strides, t.start)
    if not all(type(n) is int and 0 <= n < 1 << 62 for n in counts):
        raise file.error(f"the pickle describes tensor {quoted(name)} wrongly; {_AGAIN}")
    item = _ITEM.get(t.storage.kind, 1)
    wanted = 1
    for size, stride in zip(reversed(t.sizes), reversed(t.strides), strict=True):
        if size > 1 and stride != wanted:
            raise file.error(f"the numbers of tensor {quoted(name)} are not in order; {_SAVE}")
        wanted *= size
    nbytes = item * prod(t.sizes)
    if item * t.start + nbytes > info.file_size:
        raise file.error(f"tensor {quoted(name)} reaches behind its storage; {_AGAIN}")
    return Pickled(t.storage.kind, t.sizes, _place(file, info) + item * t.start, nbytes)


def _run(file: FileMap, data: bytes) -> dict[Any, Any]:
    """The dictionary that the pickle makes."""
    try:
        made = _Machine(file).run(data)
    except FormatError:
        raise
    except (ValueError, IndexError, KeyError, TypeError, UnicodeError, OverflowError):
        raise file.error(f"the pickle is damaged; {_AGAIN}") from None
    if not isinstance(made, dict):
        raise file.error(f"the pickle is not a dictionary of tensors; {_SAVE}")
    return made


class _Machine:
    """The part of Python's stack machine that `torch.save` uses."""

    def __init__(self, file: FileMap) -> None:
        self.file = file
        self.stack: list[Any] = []
        self.marks: list[int] = []
        self.memo: dict[int, Any] = {}

    def run(self, data: bytes) -> object:
        for n, (code, arg, _) in enumerate(pickletools.genops(data)):
            if n > PICKLE_STEPS:
                raise self.file.error(
                    f"the pickle has more than {PICKLE_STEPS} instructions, which is the maximum"
                )
            if code.name == "STOP":
                return self.stack.pop()
            self.step(code.name, arg)
        raise ValueError

    def refuse(self, what: str) -> FormatError:
        return self.file.error(
            f"the pickle asks for {quoted(what)}, and weft reads tensors only; {_SAVE}"
        )

    def marked(self) -> list[Any]:
        """The values that were pushed since the last mark."""
        at = self.marks.pop()
        values = self.stack[at:]
        del self.stack[at:]
        return values

    def step(self, name: str, arg: Any) -> None:
        stack = self.stack
        if name in ("PROTO", "FRAME"):
            return
        if name in _PUSHED:
            stack.append(arg)
        elif name == "GLOBAL":
            stack.append(_Named(arg))
        elif name == "STACK_GLOBAL":
            attribute, module = stack.pop(), stack.pop()
            if type(attribute) is not str or type(module) is not str:
                raise TypeError
            stack.append(_Named(f"{module} {attribute}"))
        elif name in ("BINPUT", "LONG_BINPUT", "MEMOIZE"):
            self.memo[len(self.memo) if arg is None else arg] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET"):
            stack.append(self.memo[arg])
        elif name == "MARK":
            self.marks.append(len(stack))
        elif name in ("NONE", "NEWTRUE", "NEWFALSE"):
            stack.append({"NONE": None, "NEWTRUE": True, "NEWFALSE": False}[name])
        elif name in ("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE"):
            stack.append({} if name == "EMPTY_DICT" else [] if name == "EMPTY_LIST" else ())
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            n = int(name[-1])
            stack[-n:] = [tuple(stack[-n:])]
        elif name == "TUPLE":
            stack.append(tuple(self.marked()))
        elif name in ("SETITEM", "SETITEMS"):
            values = self.marked() if name == "SETITEMS" else [stack.pop(), stack.pop()][::-1]
            self.set_items(values)
        elif name in ("APPEND", "APPENDS"):
            values = self.marked() if name == "APPENDS" else [stack.pop()]
            if not isinstance(stack[-1], list):
                raise TypeError
            stack[-1].extend(values)
        elif name == "BINPERSID":
            stack.append(self.storage(stack.pop()))
        elif name == "REDUCE":
            args, made = stack.pop(), stack.pop()
            stack.append(self.called(made, args))
        elif name == "BUILD":  # the attributes of an OrderedDict, which say nothing of tensors
            stack.pop()
            if not isinstance(stack[-1], dict):
                raise self.refuse("attributes")
        else:
            raise self.refuse(name)

    def set_items(self, values: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(values) % 2:
            raise TypeError
        for key, value in zip(values[::2], values[1::2], strict=True):
            if type(key) not in (str, int):
                raise TypeError
            target[key] = value

    def storage(self, about: Any) -> _Storage:
        what, kind, key = about[:3]
        if what != "storage" or not isinstance(kind, _Named) or type(key) is not str:
            raise TypeError
        module, _, name = kind.name.partition(" ")
        if module != "torch" or name not in KINDS:
            raise self.refuse(kind.name)
        return _Storage(KINDS[name], key)

    def called(self, made: Any, args: Any) -> Any:
        if not isinstance(made, _Named) or type(args) is not tuple:
            raise TypeError
        if made.name == _ORDERED and not args:
            return {}
        if made.name == _PARAMETER and isinstance(args[0], _Tensor):
            return args[0]
        if made.name == _TENSOR:
            storage, start, sizes, strides = args[:4]
            if not isinstance(storage, _Storage) or type(sizes) is not tuple:
                raise TypeError
            if type(strides) is not tuple or len(sizes) != len(strides):
                raise TypeError
            if len(sizes) > TENSOR_AXES:  # many tensors may share one long tuple of the memo
                raise self.file.error(
                    f"a tensor of the pickle has {len(sizes)} axes; weft reads up to {TENSOR_AXES}"
                )
            return _Tensor(storage, start, sizes, strides)
        raise self.refuse(made.name)
