"""`weft.from_torch`: a PyTorch program that runs on weft's devices, tensors in and out.

Needs the extra `weft[torch]`; importing weft does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from threading import RLock
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils import _pytree as pytree

from weft.backends.registry import device_list, require_known
from weft.compiler import compile, require_compile_options
from weft.errors import ProgramError, warn
from weft.execute import Session
from weft.execute.bound import BoundProgram
from weft.execute.values import check_values, solve_size
from weft.free_memory import available_bytes
from weft.frontends.fx import Converted, Output, convert
from weft.frontends.fx.arguments import (
    addresses,
    check_kind,
    copier,
    how_to_vary,
    is_plain,
    signature,
    tensor_over,
)
from weft.frontends.fx.converted import (
    bound_arguments,
    flattener,
    n_flat,
    positional_names,
)
from weft.frontends.fx.dtypes import STORED
from weft.frontends.fx.export import (
    core_program,
    dim_names,
    exported,
    parameter_names,
    quiet,
)
from weft.frontends.fx.hosted import array_of, unpacked
from weft.frontends.fx.training import in_training, unlike_evaluation
from weft.graph.graph import Graph
from weft.graph.size import Expr, evaluate
from weft.native import _native
from weft.notebook import in_notebook
from weft.records import dataclass

__all__ = ["TorchModule", "from_torch"]

_CONVERSIONS = RLock()
"""One conversion at a time: PyTorch's exporter keeps its state for the whole process."""


def from_torch(
    program: torch.export.ExportedProgram | torch.nn.Module | Callable[..., Any],
    example_inputs: torch.Tensor | Sequence[Any] | Mapping[str, Any] | None = None,
    *,
    example_kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    devices: str | Sequence[Any] = ("cpu",),
    host: bool = True,
    **options: Any,
) -> TorchModule:
    """Converts a PyTorch module, function or exported program to a `TorchModule`, which is called
    with tensors like the original and runs on weft's devices.

        n = torch.export.Dim("n", max=64)
        f = weft.from_torch(module.eval(), x, dynamic_shapes=({0: n},))
        y = f(x)

    A module or function is exported with `example_inputs`, `example_kwargs` and `dynamic_shapes`,
    as `torch.export.export` takes them: `dynamic_shapes` has an entry for each argument, in order
    or by the names that the arguments have in `forward`. Put a module into evaluation mode first.
    `example_inputs` is a tuple of positional arguments, a single tensor, or a mapping of keyword
    arguments. Tensors among `options` are keyword arguments too. Models of `transformers` are
    exported without the cache that they would return.

    Weights stay in the memory of the module, so do not change or free them. Those that only matrix
    products read are copied once into the order that their kernels read fastest, if a copy of all
    weights takes at most half of the free memory; `repack=False` saves that memory. Buffers that
    the program writes (KV caches) have memory of their own and keep their values between calls.

    `devices` (names or backends, the preferred one first) and `options` go to `weft.compile` at the
    first call. If a device has memory of its own, as in `devices=["opencl", "cpu"]`, weights and
    written buffers are sent there, and it runs the ops that it has kernels for; `offload=False`
    leaves them in host memory.

    Ops that weft has no kernels for run in PyTorch, on the `host` device (docs/torch.md);
    `host=False` refuses them instead.

    Raises ArgumentError for an option that there is not; DeviceError for a name in `devices` that
    no backend has; UnsupportedOpError, which lists every node that weft cannot convert and why;
    GraphError for a dimension without an upper bound; ProgramError if `program` is not a program or
    the inputs do not fit it; and whatever `torch.export` raises."""
    tensors = {name: options.pop(name) for name in list(options) if _is_tensor(options[name])}
    own = ("example_kwargs", "dynamic_shapes", "devices", "host")
    require_compile_options("from_torch", options, own)
    devices = device_list(devices)
    for device in devices:
        if isinstance(device, str):
            require_known(device)
    if tensors:
        example_kwargs = {**(example_kwargs or {}), **tensors}
    with _CONVERSIONS, quiet():
        whole = exported(program, example_inputs, example_kwargs, dynamic_shapes)
        core = core_program(whole, host=host)
        converted = convert(core, names=dim_names(whole), host=host)
    differences = unlike_evaluation(whole) if in_training(program) else ()
    if differences:
        warn(
            f"the module is in training mode, so that {' and '.join(differences)}; call eval() on "
            "the module before from_torch"
        )
    return TorchModule(converted, devices, options, parameters=parameter_names(program))


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)


class TorchModule:
    """A converted program, called like the module that it comes from, by one thread at a time.

    `converted` describes its inputs, outputs and states. `weft.compile` takes this object or its
    `graph`."""

    def __init__(
        self,
        converted: Converted,
        devices: Sequence[Any],
        options: Mapping[str, Any],
        *,
        parameters: Sequence[str] = (),
    ) -> None:
        """`parameters`: names of positional arguments, for calls that give them by keyword."""
        self.converted = converted
        self._parameters = tuple(parameters) or positional_names(converted)
        self._devices = devices
        self._options = dict(options)
        self._session: Session | None = None
        self._flattened = None if converted.in_spec is None else flattener(converted.in_spec)
        self._n_flat = n_flat(converted)
        self._is_single = converted.out_spec is not None and converted.out_spec.is_leaf()
        self._calls: dict[tuple[Any, ...], _Call] = {}
        self._last: _Call | None = None
        """The steps of the call before."""
        self._calls_of: BoundProgram | None = None
        """The memory that the calls write to."""

    @property
    def graph(self) -> Graph:
        """The graph that is computed."""
        return self.converted.graph

    @property
    def session(self) -> Session:
        """The session that runs the program, compiled when it is first used. Raises the errors of
        `weft.compile`."""
        if self._session is None:
            options = {"offload": True, "repack": self._has_room()} | self._options
            by_name = [d for d in self._devices if isinstance(d, str)]
            if self.converted.exact_activations and any(d.startswith("cpu") for d in by_name):
                options.setdefault("activations", "f32")
            self._session = Session(compile(self.graph, self._devices, **options))
        return self._session

    def _has_room(self) -> bool:
        """Whether a copy of all weights takes at most half of the memory that is free."""
        leaves = self.graph.leaves
        weights = [t for t in leaves if t.buffer is not None and t.buffer.usage == "weights"]
        free = available_bytes()
        return free is None or 2 * sum(t.max_bytes for t in weights) <= free

    def explain(self, width: int | None = None) -> str:
        """Describes where each op runs and why, and the memory of each device, as
        `Program.explain` does. Compiles the program if it was not used before."""
        return self.session.explain(width)

    def __reduce_ex__(self, protocol: object) -> Any:
        raise TypeError(
            "a TorchModule cannot be copied or pickled, because it uses the memory of its module; "
            "call from_torch again, or keep the program with torch.export.save"
        )

    def __repr__(self) -> str:
        ins, outs = (
            ", ".join(f"{v.name} {str(v.dtype)[6:]} ({', '.join(map(str, v.shape))})" for v in each
                      if v.dtype is not None) or "nothing"
            for each in (self.converted.inputs, self.converted.outputs)
        )  # fmt: skip
        state = "not compiled yet" if self._session is None else "compiled"
        return f"<TorchModule {ins} -> {outs}; {len(self.graph.nodes)} nodes; {state}>"

    def _repr_html_(self) -> str:
        return in_notebook(self, self.session.program.html("TorchModule"))

    def reset(self) -> None:
        """Resets the buffers that the program writes to the values they had at the export."""
        for state in self.converted.states:
            buffer = state.tensor.buffer
            assert buffer is not None
            np.copyto(buffer.data, array_of(state.initial))
            if self._session is not None:
                self._session.send_bound(buffer.data)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program once. Tensors must have the types and shapes that it was exported for;
        dynamic dimensions take their sizes from them. The results are new tensors on the cpu.

        Raises ProgramError, which names the argument, for one that does not fit."""
        flat: Sequence[Any] = args
        if kwargs or len(args) != self._n_flat:
            flat = self._flatten(args, kwargs)
        call, sources = self._last, None
        if call is not None and call.plain is not None and self._calls_of is self.session.bound:
            sources = addresses(flat, call.plain)
        if call is None or sources is None:
            call = self._call_with(self._flatten(args, kwargs) if flat is args else flat)
        session = self.session
        if sources is None:
            for number, memory in call.writes:
                np.copyto(memory, array_of(flat[number]))
            for name in call.uploads:
                session.upload(name)
        else:
            _native.copy_bytes(call.targets, sources, call.sizes)
        session.clear_abort()
        session.execute(call.values)
        results = []
        for read, mutates in call.reads:
            if mutates is None:
                results.append(read())
            else:
                flat[mutates].copy_(read())
        if self._is_single:
            return results[0]
        spec = self.converted.out_spec
        return results if spec is None else pytree.tree_unflatten(results, spec)

    def _call_with(self, flat: Sequence[Any]) -> _Call:
        """The steps of a call with arguments of these types and shapes, kept for the next one."""
        key = signature(flat)
        if self._session is not None and self._calls_of is self._session.bound:
            known = self._calls.get(key)
            if known is not None:
                self._last = known
                return known
        values = self._sizes(flat)
        session = self.session
        check_values(session.program, values)
        call = _Call(values)
        for number, (port, arg) in enumerate(zip(self.converted.inputs, flat, strict=True)):
            if port.tensor is not None:
                shape = array_of(arg).shape
                memory = session.input_view(port.name)[: math.prod(shape)].reshape(shape)
                call.writes.append((number, memory))
                if session.needs_upload(port.name):
                    call.uploads.append(port.name)
        for out in self.converted.outputs:
            call.reads.append((self._reader(out, values), out.mutates))
        if self._calls_of is not session.bound or len(self._calls) >= _MAX_CALLS:
            self._calls.clear()
        if not call.uploads and all(is_plain(port) for port in self.converted.inputs):
            memories = dict(call.writes)
            for number in range(len(flat)):
                place = memories.get(number)
                call.targets.append(0 if place is None else place.ctypes.data)
                call.sizes.append(0 if place is None else place.nbytes)
            call.plain = tuple((tuple(arg.shape), arg.dtype) for arg in flat)
        self._calls_of, self._calls[key], self._last = session.bound, call, call
        return call

    def _flatten(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Any]:
        in_spec = self.converted.in_spec
        if self._flattened is not None:
            known = self._flattened((args, kwargs))
            if known is not None:
                return known
        if in_spec is not None:
            args, kwargs = bound_arguments(self.converted, self._parameters, args, kwargs)
        flat, spec = pytree.tree_flatten((args, kwargs))
        names = ", ".join(port.name for port in self.converted.inputs)
        if len(flat) != len(self.converted.inputs):
            raise ProgramError(
                f"the program was exported for the arguments {names}, got {len(flat)} of them"
            )
        if in_spec is not None and spec != in_spec:
            raise ProgramError(
                f"arguments do not nest as the program was exported: it takes {names} "
                f"({in_spec}), got {spec}"
            )
        return list(flat)

    def _sizes(self, flat: Sequence[Any]) -> dict[str, int]:
        """Solves for the value of every symbol; raises ProgramError for a wrong type or shape."""
        values: dict[str, int] = {}
        for port, arg in zip(self.converted.inputs, flat, strict=True):
            check_kind(port, arg)
            actual = list(arg.shape) if port.is_tensor else [arg]
            sizes = port.shape if port.is_tensor else (port.size,)
            for d, (size, n) in enumerate(zip(sizes, actual, strict=True)):
                solved = solve_size(size, n) if isinstance(size, Expr) else None
                if solved is not None:
                    symbol, value = solved
                    values.setdefault(symbol.name, value)
                    if not symbol.min <= value <= symbol.max:
                        at = f"dimension {d} of argument " if port.is_tensor else "argument "
                        raise ProgramError(
                            f"{at}{port.name} is {n}, so that symbol {symbol.name} is {value}; "
                            f"the program was planned for {symbol.min}..{symbol.max}"
                        )
        for port, arg in zip(self.converted.inputs, flat, strict=True):
            if port.is_tensor:
                want = tuple(evaluate(n, values) for n in port.shape)
                if want != tuple(arg.shape):
                    names = ", ".join(str(n) for n in port.shape)
                    now = "" if port.shape == want else f", now {want}"
                    raise ProgramError(
                        f"argument {port.name} has shape {tuple(arg.shape)}, wants ({names}){now}"
                        f"{how_to_vary(port, arg)}"
                    )
        return values

    def _reader(self, out: Output, values: Mapping[str, int]) -> Callable[[], Any]:
        """A function that makes a result after a run with these values of symbols."""
        if out.tensor is None:
            found = out.constant if out.size is None else evaluate(out.size, values)
            return lambda: found
        name, dtype, output = out.name, out.dtype, self.session.output
        assert dtype is not None
        if dtype not in STORED or out.counted or out.is_number:

            def carried() -> Any:
                tensor = unpacked(output(name, values), dtype, out.shape, out.counted, values)
                return tensor.item() if out.is_number else copier(tensor)()

            return carried
        sizes = [evaluate(n, values) for n in out.shape]
        in_place = self.session.output_in_place(name, values)
        if in_place is None:
            return lambda: copier(tensor_over(output(name, values).reshape(sizes), dtype))()
        in_place = in_place.reshape(sizes)
        if dtype is torch.uint8:
            return lambda: copier(tensor_over(in_place, dtype))()
        lying = tensor_over(in_place, dtype)
        return copier(lying)


_MAX_CALLS = 16


@dataclass(slots=True)
class _Call:
    """The steps that all calls with arguments of the same types and shapes share."""

    values: dict[str, int]
    """The values of symbols."""
    writes: list[tuple[int, NDArray[Any]]] = field(default_factory=list)
    """The numbers of arguments, and the memory that each is copied to."""
    uploads: list[str] = field(default_factory=list)
    """The names of inputs that are sent to a device then."""
    reads: list[tuple[Callable[[], Any], int | None]] = field(default_factory=list)
    """Functions that make the results, and the number of the argument that a result replaces."""
    plain: tuple[tuple[tuple[int, ...], torch.dtype], ...] | None = None
    """The shape and the type of each argument, where all of them are tensors whose bytes are copied
    to memory of this process; None where one is not."""
    targets: list[int] = field(default_factory=list)
    """The address that the bytes of each argument of `plain` are copied to."""
    sizes: list[int] = field(default_factory=list)
    """The number of bytes that are copied of each argument of `plain`; 0 for one that no node
    reads."""
