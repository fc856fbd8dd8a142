"""The devices, files of weights and memory that a worker lends, which its clients share."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends import Backend, make_backend
from weft.backends.memory import WeightBufferType
from weft.backends.remote.encode import op_numbered, params_of, whole
from weft.cluster.streams import Inlet
from weft.cluster.weights import WeightFiles
from weft.dtype import dtype_from_id
from weft.errors import DeviceError, OutOfMemoryError
from weft.flags import FLAGS
from weft.free_memory import available_bytes
from weft.graph.op_table import op_stamp
from weft.graph.params import pack
from weft.program import LAYOUTS, Layout


def worker_facts() -> dict[str, str]:
    """The facts that both ends of a link must have in common, besides weft's version."""
    return {"ops": op_stamp()}


class Device:
    """A device of this machine that is lent."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.name = backend.name
        self.lock = threading.RLock()
        """Locked while the device works: its threads and scratch memory serve one client at a
        time."""
        find = getattr(backend, "weight_memory", None)
        self.weights: Callable[[Layout], WeightBufferType] | None = find
        self._shared: weakref.WeakValueDictionary[tuple[int, int], NDArray[Any]] = (
            weakref.WeakValueDictionary()
        )

    def shared(self, data: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """One array for the same bytes, so that several clients share the results made of it."""
        return self._shared.setdefault((data.ctypes.data, data.nbytes), data)

    def left(self, worker: int | None) -> int | None:
        """The bytes that the device can lend if the worker has `worker` bytes left; None: not
        known."""
        most = [n for n in (worker, self.backend.memory_limit()) if n is not None]
        return min(most) if most else None

    def facts(self) -> dict[str, Any]:
        """The facts of the device that a client plans with."""
        backend = self.backend
        kind = self.name.partition(":")[0]
        facts: dict[str, Any] = {"name": self.name, "kind": kind}
        home = backend.buffer_type
        facts |= {"alignment": home.alignment, "max_size": home.max_size}
        if self.weights is not None:
            facts["layouts"] = list(getattr(backend, "layouts", ()))
        for name in ("target", "n_threads", "n_threads_batch", "activations"):
            value = getattr(backend, name, None)
            if value is not None:
                facts[name] = value
        return facts


class Lender:
    """The devices, files and memory that one process lends."""

    def __init__(
        self,
        devices: Sequence[str | Backend] = ("cpu",),
        model_dirs: Iterable[str | os.PathLike[str]] = (),
        cache_dir: str | os.PathLike[str] | None = None,
        key: bytes | None = None,
        memory: int | None = None,
    ) -> None:
        """`memory` is the most bytes that all clients may use (None: what is free now). Raises
        DeviceError for a device that this machine does not have."""
        made = [make_backend(d) if isinstance(d, str) else d for d in devices]
        self.devices = [Device(backend) for backend in made]
        self.weights = WeightFiles(model_dirs, cache_dir or os.path.join(FLAGS.cache, "worker"))
        self.key = key
        self.facts = worker_facts()
        self.memory = available_bytes() if memory is None else memory
        self.inlets: dict[str, Inlet] = {}
        """Streams that other workers may connect to, by their secret."""
        self._used = 0
        self._lock = threading.Lock()

    def charge(self, nbytes: int) -> None:
        """Counts bytes that a client takes, or gives back (below 0).

        Raises OutOfMemoryError where there is no room."""
        with self._lock:
            if nbytes > 0 and self.memory is not None and self._used + nbytes > self.memory:
                raise OutOfMemoryError(
                    f"this worker has {self.memory - self._used} of {self.memory} bytes left, but "
                    f"{nbytes} were requested; place fewer layers there, or use a smaller context"
                )
            self._used += nbytes

    @property
    def used(self) -> int:
        """Bytes that clients use."""
        return self._used

    @property
    def left(self) -> int | None:
        """The bytes that the worker may still lend; None: no limit is known."""
        return None if self.memory is None else max(0, self.memory - self._used)


# **** questions about kernels ****
#
# A client that has no such kernels itself asks about those of a worker:
#
#     refusal op dst [src, ..] [parameter, ..] layout -> a sentence or null
#     scratch_bytes op dst [src, ..] [parameter, ..] threads -> bytes
#     activation_type type -> type
#     interleaved_types, level_types, lookup_types -> [type, ..]
#
# A tensor is `[type, [ne, ..], [nb, ..]]`.


_TYPES = ("interleaved_types", "level_types", "lookup_types")
_MOST = 1 << 40


def answered(backend: Backend, question: object, values: Sequence[Any]) -> Any:
    """The answer of the kernels of a cpu. Raises DeviceError or ValueError for a question that they
    do not answer."""
    from weft.backends.cpu import CpuBackend
    from weft.native import _native

    if not isinstance(backend, CpuBackend):
        raise DeviceError(f"{backend.name} answers no questions about kernels")
    target = backend.target
    if question in _TYPES:
        return sorted(getattr(_native, str(question))(target))
    if question == "activation_type":
        (type_id,) = values
        return int(_native.activation_type(target, _type(type_id)))
    if question not in ("refusal", "scratch_bytes"):
        raise DeviceError(f"there is no question {str(question)[:40]!r}")
    number, dst, src, slots, last = values
    op = op_numbered(number)
    if op.is_view or not isinstance(src, list) or len(src) > op.max_src:
        raise ValueError(f"{op.name} is not asked about so")
    params = pack(params_of(op, slots)) if slots else []
    if not params and op.params is not None and not op.params_optional:
        raise ValueError(f"{op.name} has parameters")
    given = (target, op.number, _tensor(dst), [_tensor(s) for s in src], params)
    if question == "scratch_bytes":
        return int(_native.scratch_bytes(*given, whole(last, 1, 4096, "threads")))
    return _native.refusal(*given, layout=whole(last, 0, len(LAYOUTS) - 1, "a layout"))


def _type(value: object) -> int:
    number = whole(value, 0, 1 << 16, "a type")
    if dtype_from_id(number) is None:
        raise ValueError(f"there is no type {number}")
    return number


def _tensor(value: object) -> tuple[int, list[int], list[int]]:
    if not isinstance(value, list) or len(value) != 3:
        raise ValueError("a tensor is a type, sizes and strides")
    type_id, ne, nb = value
    if ne == [] and nb == []:
        return (0, [], [])
    sizes: list[list[int]] = []
    for part in (ne, nb):
        if not isinstance(part, list) or len(part) != 4:
            raise ValueError("a tensor has four sizes and strides")
        sizes.append([whole(n, 0, _MOST, "a size") for n in part])
    return (_type(type_id), sizes[0], sizes[1])
