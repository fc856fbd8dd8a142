"""The arguments of `weft.from_torch` as an exported program: a module, a function, a program."""

from __future__ import annotations

import inspect
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch._decomp import decomposition_table, get_decompositions
from torch._subclasses.fake_tensor import is_fake
from torch.export import ExportedProgram
from torch.export._remove_effect_tokens_pass import _remove_effect_tokens
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from weft.errors import ProgramError
from weft.frontends.fx.decompositions import decompositions, is_drawing
from weft.frontends.fx.expand import expanded, without_identities
from weft.frontends.fx.registry import find_visitor


def exported(
    program: Any, example_inputs: Any, example_kwargs: Mapping[str, Any] | None, dynamic_shapes: Any
) -> ExportedProgram:
    """The program itself, or the export of a module or function.

    Raises ProgramError for other objects and for inputs that no program can have."""
    if isinstance(program, ExportedProgram):
        return program
    module = as_module(program)
    if example_inputs is None and example_kwargs is None:
        raise ProgramError("a module is exported with inputs; pass example_inputs=(tensor, ...)")
    args, kwargs = _examples(example_inputs, example_kwargs or {})
    if not isinstance(dynamic_shapes, torch.export.ShapesCollection):  # which knows its tensors
        args, kwargs = pytree.tree_map(_another, (args, kwargs))
    if isinstance(example_inputs, torch.Tensor) and _is_of_one_tensor(dynamic_shapes):
        dynamic_shapes = (dynamic_shapes,)
    with _without_cache(module, kwargs), _layers_of_any_length():
        try:
            return torch.export.export(module, args, kwargs, dynamic_shapes=dynamic_shapes)
        except RuntimeError as error:
            # PyTorch raises a plain RuntimeError for a result of an unknown class: nothing but the
            # text has the class
            if "transformers.cache_utils." not in str(error):
                raise
            raise ProgramError(
                "the module gives back a cache of transformers, which is not a tensor; pass "
                "example_kwargs={'use_cache': False} to get the logits alone"
            ) from error


def as_module(program: Any) -> torch.nn.Module:
    """A module or function as a module; raises ProgramError for other objects."""
    if isinstance(program, torch.jit.ScriptModule):
        raise ProgramError(
            "a module of torch.jit has no Python left to export; pass the module it was made of"
        )
    if isinstance(program, torch.nn.Module):
        return program
    if not callable(program):
        raise ProgramError(
            "from_torch takes a module, a function or an exported program, got "
            f"{type(program).__name__}; torch.export.load(path) reads a program from a file"
        )
    return _of_function(program)


def _of_function(function: Callable[..., Any]) -> torch.nn.Module:
    """A module that calls a function, under the names of its arguments."""
    holder = torch.nn.Module()
    cells = [c.cell_contents for c in getattr(function, "__closure__", None) or () if _is_full(c)]
    for i, held in enumerate([getattr(function, "__self__", None), *cells]):
        if isinstance(held, torch.nn.Module):
            holder.add_module(f"module{i}", held)  # so that its weights are the program's
    holder.forward = function if parameter_names(function) else _with_signature(function)
    return holder.eval() if not any(m.training for m in holder.children()) else holder


def _with_signature(function: Callable[..., Any]) -> Callable[..., Any]:
    """A wrapper of a function that can be asked for its parameters, unlike PyTorch's own in C++."""
    return lambda *args, **kwargs: function(*args, **kwargs)


def _is_full(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _examples(inputs: Any, kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments; one tensor is one argument, a mapping holds keywords."""
    if isinstance(inputs, torch.Tensor):
        inputs = (inputs,)
    elif isinstance(inputs, Mapping):
        inputs, kwargs = (), {**inputs, **kwargs}
    elif inputs is not None and not isinstance(inputs, (tuple, list)):
        raise ProgramError(
            f"example_inputs must be a tensor or a tuple of arguments, got {type(inputs).__name__}"
        )
    args = tuple(inputs or ())
    for leaf in pytree.tree_leaves((args, dict(kwargs))):
        if isinstance(leaf, np.ndarray):
            raise ProgramError("an example input is a NumPy array; pass torch.from_numpy(array)")
    return args, dict(kwargs)


def _another(value: Any) -> Any:
    """A tensor of the same memory instead of a tensor; other values as they are.

    The exporter takes a tensor that it meets twice, as two arguments or as an argument and a
    buffer, for one."""
    if type(value) is not torch.Tensor:
        return value
    made = value.detach().requires_grad_(value.requires_grad)
    vars(made).update(vars(value))
    return made


def _is_of_one_tensor(dynamic_shapes: Any) -> bool:
    """Whether these are the dimensions of a tensor, instead of one entry for each argument."""
    return isinstance(dynamic_shapes, Mapping) and all(isinstance(d, int) for d in dynamic_shapes)


@contextmanager
def _without_cache(module: torch.nn.Module, kwargs: Mapping[str, Any]) -> Iterator[None]:
    """Makes models of `transformers` return no cache, unless the arguments ask for it.

    A cache is not a tensor, so that no exported program can return it."""
    configs = {id(c): c for m in module.modules() if (c := getattr(m, "config", None)) is not None}
    cache_arguments = kwargs.keys() & {"use_cache", "past_key_values"}
    changed = [
        c for c in configs.values() if getattr(c, "use_cache", None) is True and not cache_arguments
    ]
    for config in changed:
        config.use_cache = False
    try:
        yield
    finally:
        for config in changed:
            config.use_cache = True


@contextmanager
def quiet() -> Iterator[None]:
    """Silences PyTorch's warnings about its own deprecated features."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def parameter_names(program: Any) -> tuple[str, ...]:
    """The parameters of a module or function that may be positional, in order; empty for an
    exported program, which does not keep them."""
    if isinstance(program, ExportedProgram):
        return ()
    function = program.forward if isinstance(program, torch.nn.Module) else program
    by_position = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):
        return ()
    return tuple(p.name for p in parameters if p.kind in by_position)


def dim_names(program: ExportedProgram) -> dict[str, str]:
    """The names of `torch.export.Dim` that symbols were declared with, by PyTorch's name for the
    symbol (`s77`).

    Empty for sizes without a name (`Dim.AUTO`) and for a program that was read from a file."""
    names: dict[str, str] = {}
    for size in _symbolic_sizes(program):
        env, symbol = size.node.shape_env, size.node.expr
        for part in sorted(symbol.free_symbols, key=str):
            for source in getattr(env, "var_to_sources", {}).get(part, ()):
                declared = getattr(env, "source_name_to_debug_name", {})
                place = source.name() if callable(source.name) else source.name
                name = declared.get(place, place)
                if name.isidentifier() and name not in names.values():
                    names.setdefault(str(part), name)
    return names


def _symbolic_sizes(program: ExportedProgram) -> Iterator[torch.SymInt]:
    """The sizes of the arguments of a program that are not numbers."""
    for node in program.graph.nodes:
        fake = node.meta.get("val") if node.op == "placeholder" else None
        if isinstance(fake, torch.Tensor):
            yield from (n for n in fake.shape if isinstance(n, torch.SymInt))


_LAYERS = (torch.ops.aten.lstm.input, torch.ops.aten.gru.input, torch.ops.aten.rnn_tanh.input,
           torch.ops.aten.rnn_relu.input)  # fmt: skip


@contextmanager
def _layers_of_any_length() -> Iterator[None]:
    """Tells PyTorch's tracer the shapes of recurrent layers.

    It would find them by walking through all steps, which takes seconds, and for a fixed number of
    steps alone."""
    kernels = {op: op.py_kernels.copy() for op in _LAYERS}
    taken_apart = {op: decomposition_table[op] for op in _LAYERS}
    for op in _LAYERS:
        for key, kernel in kernels[op].items():
            op.py_kernels[key] = partial(_shapes_of_layer, kernel)
        decomposition_table[op] = partial(_shapes_of_layer, taken_apart[op])
        op._dispatch_cache.clear()
    try:
        yield
    finally:
        decomposition_table.update(taken_apart)
        for op in _LAYERS:
            op.py_kernels.clear()
            op.py_kernels.update(kernels[op])
            op._dispatch_cache.clear()


def _shapes_of_layer(kernel: Any, x: Any, hx: Any, params: Any, *rest: Any) -> Any:
    """Results of a recurrent layer without values, where its tensors have none: outputs, and as
    many last states as first ones."""
    if not is_fake(x):
        return kernel(x, hx, params, *rest)
    *_, bidirectional, batch_first = rest
    states = list(hx) if isinstance(hx, (list, tuple)) else [hx]
    width = states[0].shape[-1] * (1 + bool(bidirectional))
    outputs = x.new_empty((*x.shape[:2], width))
    if batch_first:
        outputs = x.new_empty((x.shape[1], x.shape[0], width)).transpose(0, 1)
    return (outputs, *(torch.empty_like(s) for s in states))


_NOT_CORE = (torch.ops.aten._batch_norm_with_update_functional.default,
             torch.ops.aten._native_batch_norm_legit.no_stats,
             torch.ops.aten._native_batch_norm_legit_functional.default,
             torch.ops.aten.dist.default, torch.ops.aten.grid_sampler_2d.default,
             torch.ops.aten.ldexp.Tensor, torch.ops.aten.max_pool2d_with_indices_backward.default,
             torch.ops.aten.native_group_norm_backward.default,
             torch.ops.aten.native_layer_norm_backward.default, torch.ops.aten.tril_indices.default,
             torch.ops.aten.triu_indices.default)  # fmt: skip
"""Ops that PyTorch leaves whole, although it can decompose them."""

_FASTER_WHOLE = (torch.ops.aten.grid_sampler_2d.default,)
"""Ops of `_NOT_CORE` that PyTorch computes faster than what they decompose into is computed."""


def kept_whole() -> list[torch._ops.OpOverload]:
    """Ops that PyTorch would decompose and that weft builds whole: `linear`, attention, norms,
    activations.

    They are also for `ops_to_not_decompose` of a partitioner."""
    return [op for op in decompositions() if find_visitor(op) is not None]


def _staying(table: Mapping[Any, Any]) -> Callable[[torch.fx.Node], bool]:
    """A function that says whether decomposing by `table` would leave a node as it is."""
    whole = decompositions().keys() - table.keys()

    def stays(node: torch.fx.Node) -> bool:
        if is_traceable_wrapper_subclass(node.meta.get("val")):
            return False  # a quantized weight is taken apart
        if node.op != "call_function" or node.target is operator.getitem:
            return str(node.op) != "get_attr"
        op = node.target
        if not isinstance(op, torch._ops.OpOverload) or op in table or op._schema.is_mutable:
            return False
        composite: bool = op.has_kernel_for_dispatch_key(
            torch._C.DispatchKey.CompositeImplicitAutograd
        )
        return find_visitor(op) is not None and (op in whole or not composite)

    return stays


def core_program(program: ExportedProgram, *, host: bool = False) -> ExportedProgram:
    """The program without in-place ops, in core ops and the ops of `kept_whole`; with `host`, what
    PyTorch computes faster stays whole, too."""
    table = dict(decompositions())
    for op in table.keys() & {*kept_whole(), *filter(is_drawing, table)}:
        del table[op]
    table.update(
        get_decompositions([op for op in _NOT_CORE if not host or op not in _FASTER_WHOLE])
    )
    stays = _staying(table)
    if all(map(stays, program.graph.nodes)):
        return program

    def decomposed(whole: ExportedProgram) -> ExportedProgram:
        with _layers_of_any_length():
            core = whole.run_decompositions(dict(table))
        if any(n.target is torch.ops.higher_order.with_effects for n in core.graph.nodes):
            core = _remove_effect_tokens(core)
        return core

    core = expanded(program, stays, decomposed)
    return decomposed(without_identities(program)) if core is None else core
