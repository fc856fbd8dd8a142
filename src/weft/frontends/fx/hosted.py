"""A region of a program (`regions.py`) as a host function that calls PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.fx import Graph, GraphModule, Node

from weft import graph as g
from weft.dtype import DTYPES, DType
from weft.errors import GraphError
from weft.frontends.fx.builder import Builder, constant_leaf
from weft.frontends.fx.call import op_name
from weft.frontends.fx.dtypes import STORED, refused_type, stored_type
from weft.frontends.fx.layout import Carried, Value, folded_ne, product
from weft.frontends.fx.regions import Region, part_of
from weft.frontends.fx.registry import is_from_data
from weft.frontends.fx.sizes import Sizes
from weft.graph.host import HostFunction, host_call
from weft.graph.node import leaf
from weft.graph.size import Size, evaluate, upper
from weft.graph.tensor import Buffer, Tensor
from weft.records import dataclass

I8 = DTYPES["i8"]
ALIGNMENT = 64
_WORD = 8


def _carried(fake: Any, sizes: Sizes) -> tuple[torch.dtype, tuple[Size, ...], bool, bool]:
    """Type, shape and the two flags that carry what the exporter says of a value. Raises
    GraphError for a value that has no bound."""
    if not isinstance(fake, torch.Tensor):
        if isinstance(fake, (bool, torch.SymBool)):
            return torch.bool, (), False, True
        whole = isinstance(fake, (int, torch.SymInt))
        return torch.int64 if whole else torch.float64, (), False, True
    if fake.layout is not torch.strided:
        raise GraphError(f"layout {fake.layout} is not supported as a result")
    if not any(is_from_data(n) for n in fake.shape):
        return fake.dtype, sizes.shape(fake.shape), False, False
    return fake.dtype, tuple(_bound(n, sizes) for n in fake.shape), True, False


def _bound(n: Any, sizes: Sizes) -> int:
    try:
        return upper(sizes.of(n))
    except GraphError as error:
        raise GraphError(
            "a size depends on data and has no bound to plan memory for; state one in the module, "
            "e.g. torch._check(x.shape[0] <= 1000)"
        ) from error


def carried_input(fake: torch.Tensor, sizes: Sizes, name: str) -> tuple[Tensor, Carried]:
    """The leaf of an input of a type that weft has not, and its value."""
    shape = sizes.shape(fake.shape)
    nbytes = product(shape) * fake.dtype.itemsize
    leaf = g.leaf(I8, folded_ne((nbytes,)), name, frozenset({"input"}))
    return leaf, Carried(leaf, fake.dtype, shape)


def carried_constant(tensor: torch.Tensor, name: str) -> Carried:
    """The value of a constant of a type that weft has not. Raises GraphError for memory that the
    processor cannot read."""
    _require_readable(name, tensor)
    shape = tuple(int(n) for n in tensor.shape)
    return Carried(constant_leaf(array_of(tensor), I8, name), tensor.dtype, shape)


@dataclass(frozen=True, slots=True)
class _Port:
    """A tensor of the graph that a region reads: the way to a tensor of PyTorch."""

    dtype: torch.dtype
    shape: tuple[Size, ...]
    counted: bool = False
    is_number: bool = False
    as_bytes: bool = False

    def read(self, array: NDArray[Any], values: Mapping[str, int]) -> Any:
        """The tensor (or number), over the same memory where the types are the same."""
        if self.as_bytes:
            tensor = unpacked(array, self.dtype, self.shape, self.counted, values)
            return tensor.item() if self.is_number else tensor
        tensor = torch.from_numpy(array)
        if tensor.dtype is torch.uint16 and self.dtype is torch.bfloat16:
            tensor = tensor.view(torch.bfloat16)
        return tensor.to(self.dtype).reshape([evaluate(n, values) for n in self.shape])

    def is_in_place(self, array: NDArray[Any], read: Any) -> bool:
        """Whether what was read of an array is a tensor over its memory, whatever that holds."""
        return (
            not (self.counted or self.is_number)
            and isinstance(read, torch.Tensor)
            and read.data_ptr() == array.ctypes.data
        )


def unpacked(
    array: NDArray[Any],
    dtype: torch.dtype,
    shape: Sequence[Size],
    counted: bool,
    values: Mapping[str, int],
) -> torch.Tensor:
    """A tensor over the bytes that carry it."""
    raw = array.reshape(-1).view(np.uint8)
    sizes = [evaluate(n, values) for n in shape]
    head = 0
    if counted:
        head = _WORD * len(shape)
        sizes = [int(n) for n in raw[:head].view(np.int64)]
    nbytes = math.prod(sizes) * dtype.itemsize
    return torch.from_numpy(raw[head : head + nbytes]).view(dtype).reshape(sizes)


@dataclass(frozen=True, slots=True)
class _Place:
    """A result in the bytes that a region fills."""

    offset: int
    nbytes: int
    dtype: torch.dtype
    stored: DType | None
    """The type of the tensor that reads it; None: it is carried."""
    shape: tuple[Size, ...]
    counted: bool
    is_number: bool

    def tensor(self, out: NDArray[np.uint8], values: Mapping[str, int]) -> torch.Tensor | None:
        """The tensor that lies here; None where the memory has another type, or its sizes."""
        if self.counted or self.is_number or self.dtype is torch.uint8:
            return None
        sizes = [evaluate(n, values) for n in self.shape]
        end = self.offset + math.prod(sizes) * self.dtype.itemsize
        return torch.from_numpy(out[self.offset : end]).view(self.dtype).reshape(sizes)

    def write(self, result: Any, out: NDArray[np.uint8]) -> None:
        """Puts a result of PyTorch here."""
        tensor = torch.as_tensor(result, dtype=self.dtype) if self.is_number else result
        tensor = tensor.resolve_conj().resolve_neg().contiguous()
        if tensor.dim() != len(self.shape) or tensor.dtype != self.dtype:
            raise ValueError(
                f"torch.export said that a result has {len(self.shape)} dimensions and type "
                f"{self.dtype}, but PyTorch returned {list(tensor.shape)} of {tensor.dtype}"
            )
        at = self.offset
        if self.counted:
            head = np.array(tensor.shape, np.int64).view(np.uint8)
            out[at : at + head.nbytes] = head
            at += head.nbytes
        if self.stored is not None:
            data = array_of(tensor).reshape(-1).view(np.uint8)
        else:
            data = tensor.reshape(-1).view(torch.uint8).numpy()
        if at + data.nbytes > self.offset + self.nbytes:
            raise ValueError(f"a result of shape {list(tensor.shape)} is larger than its bound")
        out[at : at + data.nbytes] = data


def add_region(
    builder: Builder,
    region: Region,
    constants: Mapping[Node, torch.Tensor],
    results: Sequence[Node],
    after: Tensor | None = None,
    *,
    why: str,
) -> dict[Node, Value | Carried]:
    """The values of `results`, the nodes of a region that are read elsewhere.

    `constants` are tensors that it reads in PyTorch's memory. `after` is a tensor that must be
    computed before, `why` says why no other device computes them."""
    module, ports, sources = _module(builder, region, constants, results)
    places = _places(builder, results)
    if after is not None:
        sources.append(after)
    first = next(n for n in region.nodes if n.op == "call_function")
    name = op_name(first.target) + (f" and {n} more" if (n := len(region.nodes) - 1) else "")
    found: dict[Node, Value | Carried] = {}
    if len(places) == 1 and places[0].stored is not None:
        [place] = places
        assert place.stored is not None
        function = HostFunction(name, _function(module, ports, places), why)
        tensor = host_call(function, place.stored, folded_ne(place.shape), *sources)
        return {results[0]: Value.whole(tensor, place.dtype, place.shape)}
    total = max((p.offset + p.nbytes for p in places), default=0)
    function = HostFunction(name, _function(module, ports, places), why)
    packed = host_call(function, I8, (max(total, 1),), *sources)
    for node, place in zip(results, places, strict=True):
        part = HostFunction(f"{node.name} of {name}", _part(place), why)
        if place.stored is not None:
            tensor = host_call(part, place.stored, folded_ne(place.shape), packed)
            found[node] = Value.whole(tensor, place.dtype, place.shape)
        else:
            tensor = packed if len(places) == 1 else host_call(part, I8, (place.nbytes,), packed)
            found[node] = Carried(tensor, place.dtype, place.shape, place.counted, place.is_number)
    return found


def _module(
    builder: Builder,
    region: Region,
    constants: Mapping[Node, torch.Tensor],
    results: Sequence[Node],
) -> tuple[GraphModule, list[Any], list[Tensor]]:
    """The region as a module, and its arguments: a port for each tensor (`sources`), or a size."""
    inside = set(region.nodes)
    copied: dict[Node, Node] = {}
    graph = Graph()
    ports: list[Any] = []
    sources: list[Tensor] = []
    holder = torch.nn.Module()
    outside = dict.fromkeys(s for n in region.nodes for s in n.all_input_nodes if s not in inside)
    for i, node in enumerate(outside):
        if node in constants:
            setattr(holder, f"constant{i}", constants[node])
            continue
        part = part_of(node)
        if part is not None:
            setattr(holder, f"part{i}", part)
            continue
        copied[node] = graph.placeholder(f"source{i}")
        value = builder.values.get(node)
        fake = node.meta.get("val")
        if isinstance(value, Value):
            sources.append(builder.dense(value, stored=True))
            ports.append(_Port(value.dtype, value.shape))
        elif isinstance(value, Carried):
            sources.append(value.tensor)
            port = _Port(value.dtype, value.shape, value.counted, value.is_number, as_bytes=True)
            ports.append(port)
        elif not isinstance(fake, torch.Tensor) and fake is not None:
            ports.append(_number(fake, builder.sizes))
        else:
            raise GraphError(f"{node.name} is a result that weft does not compute")
    for i, node in enumerate(outside):
        if node in constants or part_of(node) is not None:
            copied[node] = graph.get_attr(f"constant{i}" if node in constants else f"part{i}")
    for node in region.nodes:
        copied[node] = graph.node_copy(node, copied.__getitem__)
    graph.output(tuple(copied[n] for n in results))
    return GraphModule(holder, graph), ports, sources


def _number(fake: Any, sizes: Sizes) -> Callable[[Mapping[str, int]], Any]:
    """A number that is computed from sizes, as a function of the symbols' values."""
    if isinstance(fake, torch.SymFloat):
        size, function = sizes.function(fake)
        return lambda values: float(function(np.array([evaluate(size, values)]))[0])
    if isinstance(fake, torch.SymInt):
        whole = sizes.of(fake)
        return lambda values: evaluate(whole, values)
    return lambda values: fake


def _places(builder: Builder, results: Sequence[Node]) -> list[_Place]:
    places: list[_Place] = []
    offset = 0
    for node in results:
        fake = node.meta["val"]
        dtype, shape, counted, is_number = _carried(fake, builder.sizes)
        is_typed = dtype in STORED and not (counted or is_number)
        stored = stored_type(dtype) if is_typed else None
        itemsize = stored.bytes if stored is not None else dtype.itemsize
        nbytes = upper(product(shape)) * itemsize + _WORD * len(shape) * counted
        nbytes = max(nbytes, 1)
        places.append(_Place(offset, nbytes, dtype, stored, shape, counted, is_number))
        offset += -(-nbytes // ALIGNMENT) * ALIGNMENT
    return places


def _function(module: GraphModule, ports: Sequence[Any], places: Sequence[_Place]) -> Any:
    last: list[_Bound] = []

    def compute(
        sources: Sequence[NDArray[Any]], out: NDArray[Any], values: Mapping[str, int]
    ) -> None:
        bound = last[0] if last else None
        if bound is None or not bound.is_of(sources, out, values):
            bound = _Bound(module, ports, places, sources, out, values)
            last[:] = [bound]
        bound.run()

    return compute


class _Bound:
    """A region over the memory that it reads and writes; runs there share the tensors."""

    def __init__(
        self,
        module: GraphModule,
        ports: Sequence[Any],
        places: Sequence[_Place],
        sources: Sequence[NDArray[Any]],
        out: NDArray[Any],
        values: Mapping[str, int],
    ) -> None:
        self._of = sources, out
        self._values = dict(values)
        self._forward = module.forward
        self._raw = out.view(np.uint8)
        self._args: list[Any] = []
        self._changing: list[tuple[int, _Port, NDArray[Any]]] = []
        """Arguments that each run makes anew, because the memory has another type, or sizes."""
        given = iter(sources)
        for number, port in enumerate(ports):
            if not isinstance(port, _Port):
                self._args.append(port(values))
                continue
            array = next(given)
            self._args.append(port.read(array, values))
            if not port.is_in_place(array, self._args[-1]):
                self._changing.append((number, port, array))
        self._places = [(place, place.tensor(self._raw, values)) for place in places]

    def is_of(
        self, sources: Sequence[NDArray[Any]], out: NDArray[Any], values: Mapping[str, int]
    ) -> bool:
        """Whether this is the memory of these arguments, with these values of symbols."""
        return self._of[0] is sources and self._of[1] is out and self._values == values

    def run(self) -> None:
        """Calls PyTorch once."""
        args = list(self._args)
        for number, port, array in self._changing:
            args[number] = port.read(array, self._values)
        with torch.no_grad():
            results = self._forward(*args)
            for (place, tensor), result in zip(self._places, results, strict=True):
                if tensor is None or not _looks_alike(tensor, result):
                    place.write(result, self._raw)
                else:
                    tensor.copy_(result)


def _looks_alike(a: torch.Tensor, b: Any) -> bool:
    return isinstance(b, torch.Tensor) and a.dtype == b.dtype and a.shape == b.shape


def _part(place: _Place) -> Any:
    def compute(
        sources: Sequence[NDArray[Any]], out: NDArray[Any], values: Mapping[str, int]
    ) -> None:
        raw = out.view(np.uint8)
        raw[:] = sources[0].view(np.uint8)[place.offset : place.offset + raw.nbytes]

    return compute


_AS_INTEGERS = {torch.bfloat16: torch.uint16, torch.bool: torch.int8}


def array_of(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor's memory as an array of its stored type (see `dtypes.STORED`), with the same
    strides.

    It copies only uint8; the array keeps the memory alive. Other types are flat bytes."""
    plain = tensor.detach()
    if plain.dtype is torch.uint8:
        # not by PyTorch, whose threads would take the processors of the call that follows
        return np.asarray(plain.numpy(force=True).astype(np.int16))
    if plain.dtype not in STORED:
        whole = plain.resolve_conj().resolve_neg().contiguous()
        return np.asarray(whole.reshape(-1).view(torch.int8).numpy())
    if plain.dtype in _AS_INTEGERS:
        plain = plain.view(_AS_INTEGERS[plain.dtype])
    return np.asarray(plain.numpy(force=True))  # also of views that negate


def _require_readable(name: str, tensor: torch.Tensor) -> None:
    if tensor.layout is not torch.strided:
        raise GraphError(f"constant {name!r}: layout {tensor.layout} is not supported")
    if tensor.device.type != "cpu":
        raise GraphError(
            f"constant {name!r} is on {tensor.device}; move the module to the cpu first"
        )


class Weights:
    """Leaves for the constant tensors of a program; tensors that share memory share a leaf."""

    def __init__(self) -> None:
        self._leaves: dict[tuple[int, torch.dtype, int], Tensor] = {}

    def value(self, name: str, tensor: torch.Tensor) -> Value:
        """A constant in place: weights keep their memory of the module.

        A tensor whose elements do not fill a range of memory is copied. Raises GraphError for a
        type that weft cannot store, and for memory that the processor cannot read."""
        if tensor.dtype not in STORED:
            raise GraphError(f"constant {name!r}: {refused_type(tensor.dtype)}")
        _require_readable(name, tensor)
        order = sorted(range(tensor.dim()), key=lambda d: -tensor.stride(d))
        packed = tensor.permute(order)
        if not packed.is_contiguous():
            packed, order = tensor.contiguous(), list(range(tensor.dim()))
        key = (packed.data_ptr(), tensor.dtype, tensor.numel())
        if key not in self._leaves or tensor.numel() == 0:
            array = np.ascontiguousarray(array_of(packed)).reshape(packed.shape)
            self._leaves[key] = constant_leaf(array, stored_type(tensor.dtype), name)
        shape = tuple(int(n) for n in tensor.shape)
        whole = Value.whole(self._leaves[key], tensor.dtype, [int(n) for n in packed.shape])
        strides = [whole.strides[order.index(d)] for d in range(tensor.dim())]
        return whole.viewed(shape, strides)


def state_leaf(name: str, tensor: torch.Tensor) -> Tensor:
    """A leaf with memory of its own that starts with the values of `tensor`."""
    array = np.array(array_of(tensor.contiguous()), order="C", copy=True)
    ne = folded_ne(tensor.shape)
    return leaf(stored_type(tensor.dtype), ne, name, buffer=Buffer("any", data=array))


def initial_values(tensor: torch.Tensor) -> torch.Tensor:
    """A copy of a buffer's values; zeros, with which caches start, take no memory."""
    plain = tensor.detach()
    if plain.numel() and not bool(plain.count_nonzero()):
        return torch.zeros((), dtype=plain.dtype).expand(plain.shape)
    return plain.clone()
