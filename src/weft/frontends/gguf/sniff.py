"""Names the format of a file that is not GGUF, and says how to make a GGUF of it."""

from __future__ import annotations

import string

__all__ = ["HEAD_BYTES", "describe_other"]

HEAD_BYTES = 512
"""Number of bytes at a file's beginning that `describe_other` reads."""

_CONVERT = "convert the model with llama.cpp's convert_hf_to_gguf.py"
_OLD = "convert the original model again with llama.cpp's convert_hf_to_gguf.py"
_UNPACK = "unpack it first"
_AGAIN = "download the file itself"

_MAGIC: tuple[tuple[int, bytes, str, str], ...] = (
    # offset, bytes, what it is, what to do
    (0, b"FUGG", "a GGUF file with swapped bytes", "convert it with gguf-convert-endian"),
    (0, b"lmgg", "an unversioned ggml model (before GGUF)", _OLD),
    (0, b"fmgg", "a ggmf model (before GGUF)", _OLD),
    (0, b"tjgg", "a ggjt model (before GGUF)", _OLD),
    (0, b"algg", "a ggla adapter (before GGUF)", "convert it with convert_lora_to_gguf.py"),
    (0, b"PK\x03\x04", "a zip archive, such as a PyTorch .pt/.bin checkpoint", _CONVERT),
    (0, b"version https://git-lfs", "a git-lfs pointer, not the file itself", "run `git lfs pull`"),
    (0, b"\x1f\x8b", "a gzip archive", _UNPACK),
    (0, b"BZh", "a bzip2 archive", _UNPACK),
    (0, b"\xfd7zXZ\x00", "an xz archive", _UNPACK),
    (0, b"\x28\xb5\x2f\xfd", "a zstd archive", _UNPACK),
    (0, b"7z\xbc\xaf\x27\x1c", "a 7z archive", _UNPACK),
    (257, b"ustar", "a tar archive", _UNPACK),
    (0, b"\x89HDF\r\n", "an HDF5 file, such as a Keras model", _CONVERT),
    (0, b"\x93NUMPY", "a NumPy array", "write it into a GGUF as a tensor"),
    (0, b"\x7fELF", "a program or shared library", "give the path of a model"),
    (4, b"TFL3", "a TensorFlow Lite model", "start from the original model; " + _CONVERT),
    (4, b"ET12", "an ExecuTorch program (.pte)", "run it with ExecuTorch"),
)

_TEXT = frozenset(string.printable.encode())


def describe_other(head: bytes) -> str:
    """The apparent format of a file that begins with `head` (up to HEAD_BYTES), and a remedy.

    The head must not begin with the GGUF magic. The result completes "not a GGUF file: "."""
    for offset, magic, what, remedy in _MAGIC:
        if head[offset : offset + len(magic)] == magic:
            return f"it looks like {what}; {remedy}"
    text = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return f"it looks like a web page or a server's reply; {_AGAIN}"
    if head[8:9] == b"{" and int.from_bytes(head[:8], "little") < 1 << 32:
        return f"it looks like a safetensors file; {_CONVERT}"
    if head[:1] == b"\x80" and head[1:2] <= b"\x05":
        return f"it looks like a Python pickle, such as an old PyTorch checkpoint; {_CONVERT}"
    if head[:1] == b"\x08" and head[2:3] in (b"\x12", b"\x1a", b"\x3a"):
        # protobuf: field 1 (ir_version, a varint), then a length-delimited field of ModelProto
        return f"it looks like an ONNX model; start from the original model and {_CONVERT}"
    if not any(head):
        return "it begins with zeros, as an unfinished download does; download it again"
    if all(c in _TEXT for c in head):
        return f"it looks like text ({head[:24].decode('ascii')!r}...); {_AGAIN}"
    return f"it begins with {head[:4]!r} instead of b'GGUF'; {_CONVERT}"
