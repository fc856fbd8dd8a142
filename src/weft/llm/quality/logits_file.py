"""Files of log-probabilities of a base model, as `llama-perplexity --save-all-logits` writes them.

Little endian: the 8 bytes `_logits_`, i32 tokens of a chunk, i32 tokens of the vocabulary, i32
chunks, i32 ids of all tokens [n_chunks, n_ctx], and then for each chunk a row (`pack`) for each
scored token: those at n_ctx // 2 + 1 to n_ctx - 1. Such files are large: 2 bytes for each
token of the vocabulary and each scored token of the text.

Source: tools/perplexity/perplexity.cpp in llama.cpp.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError, FormatError
from weft.files import replacing
from weft.tables import size_text

MAGIC = b"_logits_"
_HEADER = 20
_MOST_TOKENS = 1 << 28
_MOST_VOCAB = 1 << 24


def file_bytes(n_ctx: int, n_vocab: int, n_chunks: int) -> int:
    """The size of a file."""
    return _HEADER + n_chunks * (4 * n_ctx + 2 * n_packed(n_vocab) * (n_ctx - 1 - n_ctx // 2))


class LogitsWriter:
    """Adds rows to a file."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def add(self, logits: Rows) -> None:
        """Adds the rows of the next scored tokens, f32 [n_rows, n_vocab]."""
        self._file.write(pack(logits).astype("<u2", copy=False).tobytes())


@contextmanager
def writing_logits(
    path: str | os.PathLike[str], chunks: NDArray[np.int64], n_vocab: int
) -> Iterator[LogitsWriter]:
    """Writes a file for the tokens `chunks` [n_chunks, n_ctx]; the block adds all rows in order.

    The file appears as a whole at the end of the block. Raises FormatError if it cannot be written,
    and, before anything is computed, if it is larger than what is free."""
    n_chunks, n_ctx = chunks.shape
    size = file_bytes(n_ctx, n_vocab, n_chunks)
    folder = Path(os.path.realpath(path)).parent
    free = shutil.disk_usage(folder).free if folder.is_dir() else size
    if size > free:
        raise FormatError(
            f"{os.fspath(path)!r} would have {size_text(size)} for {n_chunks} chunks, but "
            f"{size_text(free)} are free there; give fewer chunks with `n_chunks`, or another "
            "folder"
        )
    with replacing(path) as file:
        file.write(MAGIC + np.array([n_ctx, n_vocab, n_chunks], "<i4").tobytes())
        file.write(chunks.astype("<i4").tobytes())
        yield LogitsWriter(file)
        if file.tell() != size:
            raise FormatError(
                f"{os.fspath(path)!r} has {file.tell()} bytes of {size}; not every token was scored"
            )


class LogitsFile:
    """A file that is read from its start to its end, a few rows at a time."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Reads the head and the tokens.

        Raises FormatError, naming the file, if it cannot be read, is not such a file, or has
        another length than its head states."""
        self.path = Path(path)
        try:
            self._file = open(path, "rb")
            try:
                self._read_head(os.fstat(self._file.fileno()).st_size)
            except BaseException:
                self._file.close()
                raise
        except OSError as error:
            raise FormatError(f"{path}: {error.strerror or error}") from None

    def _read_head(self, size: int) -> None:
        head = self._file.read(_HEADER)
        if len(head) < _HEADER or not head.startswith(MAGIC):
            raise FormatError(
                f"{self.path} is not a file of log-probabilities: it does not begin with "
                f"{MAGIC.decode()!r}; write one with `weft perplexity --kl-base FILE`"
            )
        self.n_ctx, self.n_vocab, self.n_chunks = map(int, np.frombuffer(head[8:], "<i4"))
        """Number of tokens in a chunk, of tokens in the vocabulary, and of chunks."""
        if (
            not 4 <= self.n_ctx <= _MOST_TOKENS
            or not 1 <= self.n_vocab <= _MOST_VOCAB
            or not 1 <= self.n_chunks <= _MOST_TOKENS // self.n_ctx
        ):
            raise FormatError(
                f"{self.path} has {self.n_chunks} chunks of {self.n_ctx} tokens of a vocabulary of "
                f"{self.n_vocab}, which cannot be; the file is damaged: write it again"
            )
        want = file_bytes(self.n_ctx, self.n_vocab, self.n_chunks)
        if size != want:
            raise FormatError(
                f"{self.path} has {size} bytes, but {want} are needed for {self.n_chunks} chunks "
                f"of {self.n_ctx} tokens of a vocabulary of {self.n_vocab}; it was not written to "
                "its end, or is damaged: write it again"
            )
        raw = self._file.read(4 * self.n_chunks * self.n_ctx)
        tokens = np.frombuffer(raw, "<i4").astype(np.int64)
        if tokens.size != self.n_chunks * self.n_ctx:
            raise FormatError(f"{self.path} became shorter while it was read")
        if tokens.min() < 0 or tokens.max() >= self.n_vocab:
            worst = int(tokens.min() if tokens.min() < 0 else tokens.max())
            raise FormatError(
                f"{self.path} has token {worst} of a vocabulary of {self.n_vocab}; the file is "
                "damaged: write it again"
            )
        self.chunks: NDArray[np.int64] = tokens.reshape(self.n_chunks, self.n_ctx)
        """The ids of the text, [n_chunks, n_ctx]."""

    def read(self, n_rows: int) -> Rows:
        """The log-probabilities of the next scored tokens, f32 [n_rows, n_vocab].

        Raises FormatError at the end of the file, and for values that are not log-probabilities."""
        wide = n_packed(self.n_vocab)
        try:
            raw = self._file.read(2 * wide * n_rows)
        except OSError as error:
            raise FormatError(f"{self.path}: {error.strerror or error}") from None
        if len(raw) != 2 * wide * n_rows:
            raise FormatError(f"{self.path} became shorter while it was read")
        packed = np.frombuffer(raw, "<u2").reshape(n_rows, wide)
        head = np.ascontiguousarray(packed[:, :4]).view("<f4")
        with np.errstate(over="ignore", invalid="ignore"):
            top = head[:, 1] + head[:, 0] * packed[:, 4:].max(axis=1)
            good = np.isfinite(head).all() and (head[:, 0] >= 0).all() and (top < 0.01).all()
        if not good:
            raise FormatError(
                f"{self.path} has rows that are not log-probabilities; it is damaged: "
                "write it again"
            )
        return unpack(packed, self.n_vocab)

    def require_vocab(self, n_vocab: int, model: str) -> None:
        """Raises ContextError if the file is of another vocabulary than `model`."""
        if n_vocab != self.n_vocab:
            raise ContextError(
                f"{self.path} is of a vocabulary of {self.n_vocab} tokens, but {model} has "
                f"{n_vocab}; only models with one vocabulary can be compared"
            )

    def require_text(self, tokens: NDArray[np.int64], text: str) -> None:
        """Raises ContextError if `tokens` [n], of `text`, do not begin with the tokens of the
        file."""
        own = self.chunks.ravel()
        n = min(len(own), len(tokens))
        differ = np.flatnonzero(own[:n] != tokens[:n])
        if len(differ):
            at = int(differ[0])
            raise ContextError(
                f"{self.path} is of another text than {text}: token {at} is {own[at]} there and "
                f"{tokens[at]} here; leave out the text (the file has it) or write the file again"
            )
        if len(tokens) < len(own):
            raise ContextError(
                f"{self.path} is of another text than {text}: it has {len(own)} tokens, and this "
                f"text {len(tokens)}; leave out the text (the file has it) or write the file again"
            )

    def close(self) -> None:
        """Closes the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


# Logarithms of probabilities from logits, and the 16 bits that llama.cpp's files keep of each.
#
# A row of a file is `n_packed(n_vocab)` uint16: an f32 step, the f32 least log p, and for each
# token the number of steps above that (an odd vocabulary has one more, 0). Logits of more than 16
# below the largest are kept as 16 below. Steps and sums are rounded as llama-perplexity does:
# exponentials and differences in f32, sums in f64.

Rows = NDArray[np.float32]
"""f32 [n_rows, n_vocab]: logits, or natural logarithms of probabilities."""

DEPTH = 16.0
"""Difference to the largest logit beyond which logits are not told apart in a file."""

_STEPS = 65535
_NUMBERS = 1 << 18
"""Number of values in a block of rows that is processed at once: 1 MiB, which caches hold."""


def n_packed(n_vocab: int) -> int:
    """The uint16 of a row of a file."""
    return 2 * ((n_vocab + 1) // 2) + 4


def some_rows(n_rows: int, n_vocab: int) -> Iterator[slice]:
    """Cuts `n_rows` rows into blocks that fit into caches."""
    step = max(1, _NUMBERS // max(n_vocab, 1))
    return (slice(at, min(at + step, n_rows)) for at in range(0, n_rows, step))


def log_sums(logits: Rows) -> tuple[Rows, Rows]:
    """The largest logit of each row, and the log of the sum of exp(logit - largest), f32 [n, 1].

    Raises ContextError for infinite logits and such that are not numbers."""
    top = logits.max(axis=1, keepdims=True)
    if not np.isfinite(top).all():
        raise ContextError("logits are infinite or not a number; the file may be damaged")
    sums = np.exp(logits - top).sum(axis=1, dtype=np.float64, keepdims=True)
    return top, np.log(sums).astype(np.float32)


def log_probs(logits: Rows) -> Rows:
    """log softmax of each row, f32. Raises ContextError as `log_sums`."""
    top, log_sum = log_sums(logits)
    return logits - (top + log_sum)


def pack(logits: Rows) -> NDArray[np.uint16]:
    """Rows as a file keeps them, uint16 [n_rows, n_packed(n_vocab)]. Raises as `log_sums`."""
    n_rows, n_vocab = logits.shape
    packed = np.zeros((n_rows, n_packed(n_vocab)), np.uint16)
    for part in some_rows(n_rows, n_vocab):
        some = logits[part]
        top, log_sum = log_sums(some)
        least = np.maximum(some.min(axis=1, keepdims=True), top - np.float32(DEPTH))
        step = (top - least) / np.float32(_STEPS)
        packed[part, :4] = np.hstack((step, least - top - log_sum)).view(np.uint16)
        per_step = np.divide(1, step, out=np.zeros_like(step), where=step > 0)
        packed[part, 4 : 4 + n_vocab] = np.rint(per_step * np.maximum(some - least, 0))
    return packed


def unpack(packed: NDArray[np.uint16], n_vocab: int) -> Rows:
    """The logarithms of probabilities that `packed` rows of `n_vocab` tokens keep."""
    head = np.ascontiguousarray(packed[:, :4]).view(np.float32)
    rows = packed[:, 4 : 4 + n_vocab].astype(np.float32)
    rows *= head[:, :1]
    rows += head[:, 1:]
    return rows
