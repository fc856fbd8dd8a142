"""The visitors that build ops, keyed by the exact op object; no op has two."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import torch
from torch.fx import Node

from weft.errors import GraphError
from weft.frontends.fx.call import Call, aten_op, fake_of, moved_bytes, op_name
from weft.frontends.fx.decompositions import is_decomposed
from weft.frontends.fx.dtypes import STORED, refused_type
from weft.frontends.fx.layout import Value
from weft.frontends.fx.support import FROM_DATA, YES, Support
from weft.records import dataclass

if TYPE_CHECKING:
    from weft.frontends.fx.builder import Builder

Build: TypeAlias = "Callable[[Builder, Call], Value | list[Value | None]]"
"""Makes the result (a list where the op has several; None for one that must not be read)."""

Check: TypeAlias = Callable[[Call], str | None]
"""Returns the reason why a call cannot be built, as a sentence, or None; reads the node only."""


@dataclass(frozen=True, slots=True)
class Visitor:
    """The way to build one op, and its limits."""

    build: Build
    check: Check | None = None
    sizes: tuple[str, ...] = ()
    """Arguments of numbers that may be computed from sizes."""
    any_type: bool = False
    """The check covers types, too."""


VISITORS: dict[torch._ops.OpOverload, Visitor] = {}
"""Every op that weft converts."""


def visitor(
    *ops: Any, check: Check | None = None, sizes: tuple[str, ...] = ()
) -> Callable[[Build], Build]:
    """Registers a function for these ops; raises GraphError for one that has a visitor."""

    def register(build: Build) -> Build:
        for op in ops:
            if op in VISITORS:
                raise GraphError(f"op {op} has two visitors: {VISITORS[op].build} and {build}")
            VISITORS[op] = Visitor(build, check, sizes)
        return build

    return register


def visitor_by_name(
    *names: str, check: Check | None = None, any_type: bool = False
) -> Callable[[Build], Build]:
    """Registers a function for every overload of ops of packages that may not be there, by name."""

    def register(build: Build) -> Build:
        for name in names:
            if name in _BY_NAME:
                raise GraphError(f"op {name} has two visitors: {_BY_NAME[name].build} and {build}")
            _BY_NAME[name] = Visitor(build, check, any_type=any_type)
        return build

    return register


_BY_NAME: dict[str, Visitor] = {}


def find_visitor(target: Any) -> Visitor | None:
    """The visitor of a node's target, or None."""
    op = aten_op(target)
    if op is None:
        return None
    if op not in VISITORS:
        # ops of other packages exist once these are imported, so they are known by name
        same = _SAME_AS.get(op._schema.name)
        known = VISITORS[same] if same is not None else _BY_NAME.get(op._schema.name)
        if known is None:
            return None
        VISITORS[op] = known
    return VISITORS[op]


_SAME_AS = {
    "dim_order_ops::_to_dim_order_copy": torch.ops.aten._to_copy.default,
    "dim_order_ops::_clone_dim_order": torch.ops.aten.clone.default,
    "dim_order_ops::_empty_dim_order": torch.ops.aten.empty.memory_format,
}
"""Ops that differ in the order of dimensions in memory only: values are known by their shapes."""


def supports_call(node: Node) -> Support:
    """Whether a node that calls an op can be built: its op, its types, and the op's own rules."""
    visitor = find_visitor(node.target)
    if visitor is None:
        return Support(False, _no_conversion(node.target))
    call = Call(node)
    if "val" not in node.meta:
        return Support(False, "the exporter left no types and shapes on this node")
    why = None if visitor.any_type else _types(call) or _scalars(call, visitor.sizes)
    if why is None and visitor.check is not None:
        why = visitor.check(call)
    return YES if why is None else Support(False, why)


_WHY_NOT = {
    r"aten\.(nonzero|unique|_unique|masked_select|bincount|repeat_interleave\.)": FROM_DATA,
    r"aten\.(rand|bernoulli|normal|multinomial|poisson|uniform|exponential)": (
        "weft draws no random numbers; draw them outside and pass them in"
    ),
    r"aten\._native_batch_norm_legit_functional": (
        "a batch norm of a module that is trained; call eval() on it before it is exported"
    ),
    r"aten\.(_fft|view_as_complex|view_as_real|complex|polar|real|imag)": (
        "complex numbers are not supported; keep the real and the imaginary part as two tensors"
    ),
    r"(cond|while_loop)$": (
        "which ops run depends on data; torch.where chooses between results that are both computed"
    ),
    r"(scan|associative_scan|map_impl)$": (
        "weft has no op that runs a part of the program once for each slice; write the steps out "
        "as a loop of Python, which torch.export unrolls"
    ),
    r"wrap\w*$": "weft runs no functions of functions; call the function itself",
    r"auto_functionalized": (
        "a custom op that writes its arguments (mutates_args); write one that returns its result"
    ),
}
"""Reasons why ops have no visitor, by parts of their names."""


@cache
def _no_conversion(target: Any) -> str:
    name = op_name(target)
    if is_decomposed(target):
        return (
            f"{name} is made of core ops; ask of the nodes of weft.frontends.fx.core_program("
            "program), which has these instead"
        )
    for pattern, why in _WHY_NOT.items():
        if re.match(pattern, name):
            return why
    return f"weft has no conversion of {name}"


def _types(call: Call) -> str | None:
    for fake in (*call.fakes(), *call.outs):
        if not isinstance(fake, torch.Tensor):
            continue
        if fake.dtype not in STORED:
            return refused_type(fake.dtype)
        if any(is_from_data(n) for n in fake.shape):
            return FROM_DATA
        if fake.layout is not torch.strided:
            return f"layout {fake.layout} is not supported"
    return _bytes(call)


BYTES = frozenset(
    f"aten::{name}"
    for name in (
        "_to_copy", "alias", "alias_copy", "cat", "clone", "eq", "expand", "expand_copy", "flip",
        "gather", "ge", "gt", "index_select", "le", "lt", "ne", "permute", "permute_copy", "repeat",
        "select", "select_copy", "slice", "slice_copy", "split", "split_copy", "split_with_sizes",
        "split_with_sizes_copy", "squeeze", "squeeze_copy", "stack", "t", "t_copy", "transpose",
        "transpose_copy", "unbind", "unsqueeze", "unsqueeze_copy", "view", "view_copy", "where",
    )
) | {"dim_order_ops::_to_dim_order_copy", "dim_order_ops::_clone_dim_order"}  # fmt: skip
"""Ops that take uint8, because they only move or compare values."""


def _bytes(call: Call) -> str | None:
    """The reason why a call cannot take uint8, or None."""
    fakes = [f for f in (*call.fakes(), *call.outs) if isinstance(f, torch.Tensor)]
    if all(f.dtype is not torch.uint8 for f in fakes):
        return None
    if call.op._schema.name not in BYTES:
        return "uint8 is not computed with; convert it first, e.g. x.float()"
    is_cast = call.op._schema.name.endswith(("::_to_copy", "::_to_dim_order_copy"))
    if is_cast and call.out.dtype is torch.uint8 and moved_bytes(call.args.get("self")) is None:
        if all(f.dtype in _TO_BYTES for f in fakes):
            return None
        return "integers that become uint8 wrap at 256; convert floats or booleans"
    other = call.raw("other")
    if isinstance(other, (int, float)) and not 0 <= other <= 255:
        return f"uint8 is compared with {other}"
    return None


_TO_BYTES = (torch.uint8, torch.bool, torch.float32, torch.float16, torch.bfloat16)


def is_from_data(size: Any) -> bool:
    """Whether a number has symbols that no shape of an input determines (PyTorch's u0, u1, zuf0 and
    so on)."""
    if not isinstance(size, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return False
    return any(str(s).startswith(("u", "zuf")) for s in size.node.expr.free_symbols)


def _scalars(call: Call, allowed: tuple[str, ...]) -> str | None:
    """The reason why an argument may not be a number computed at run time, or None.

    Numbers computed from sizes are possible in few arguments, numbers read out of tensors in
    none."""
    for argument in call.op._schema.arguments:
        if is_from_data(fake_of(call.args.get(argument.name))):
            return f"argument {argument.name} is a number that is read out of a tensor"
        if argument.name not in allowed and str(argument.type) in (
            "number",
            "float",
            "Optional[number]",
            "Optional[float]",
        ):
            value = fake_of(call.args.get(argument.name))
            if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                return f"argument {argument.name} is a number that depends on sizes"
    return None
