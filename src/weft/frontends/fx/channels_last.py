"""The choice of convolutions that get their channels innermost in memory.

CONV_2D_LAST is faster than CONV_ND, but data in planes must be copied before it, and results that
must be planes after it. Values keep their order in memory (`layout.py`) through the ops of
`KEEPING`, so convolutions that are connected through these ops are decided together: channels last
where that takes fewer copies than there are convolutions, less the copies that planes would
take.
"""

from __future__ import annotations

import operator
from collections.abc import Collection, Iterator
from dataclasses import field

import torch
from torch.fx import Graph, Node

from weft.frontends.fx.call import Call, aten_op
from weft.frontends.fx.layout import channels_last
from weft.frontends.fx.sizes import is_static
from weft.records import dataclass

KEEPING = frozenset(
    "relu relu6 hardtanh clamp clip clamp_min clamp_max sigmoid silu hardswish hardsigmoid gelu "
    "tanh leaky_relu elu mish softplus neg abs exp sqrt rsqrt square pow add sub mul div maximum "
    "minimum where _prelu_kernel dropout native_dropout clone alias detach lift_fresh_copy "
    "_native_batch_norm_legit_no_training max_pool1d max_pool2d max_pool1d_with_indices "
    "max_pool2d_with_indices avg_pool1d avg_pool2d cat concat constant_pad_nd upsample_nearest1d "
    "upsample_nearest2d upsample_linear1d upsample_bilinear2d slice slice_copy split split_copy "
    "split_with_sizes split_with_sizes_copy chunk _clone_dim_order".split()
)
"""Ops whose result has the order in memory of their sources."""

_REDUCING = frozenset(
    "mean sum amax amin adaptive_avg_pool1d adaptive_avg_pool2d _adaptive_avg_pool2d".split()
)
"""Ops that read any order, and whose result is too small to count."""

_VIEWS = frozenset(
    "view view_copy _unsafe_view flatten reshape clone alias _clone_dim_order".split()
)
_PERMUTING = frozenset("permute permute_copy transpose transpose_copy".split())


@dataclass(slots=True)
class _Part:
    """Connected convolutions, and the other nodes that connect them."""

    nodes: set[Node] = field(default_factory=set)
    convolutions: set[Node] = field(default_factory=set)


def channels_last_nodes(graph: Graph, constants: Collection[Node]) -> frozenset[Node]:
    """The convolutions of a program to build as CONV_2D_LAST. `constants`: weights."""
    nodes: set[Node] = set()
    for part in _parts(graph, constants):
        copies, saved = _borders(part, constants)
        if copies < saved + len(part.convolutions):
            nodes |= part.convolutions
    return frozenset(nodes)


def _parts(graph: Graph, constants: Collection[Node]) -> list[_Part]:
    of: dict[Node, _Part] = {}
    for node in graph.nodes:
        is_convolution = _is_eligible(node, constants)
        if not is_convolution and not _keeps(node, of):
            continue
        part = _Part({node}, {node} if is_convolution else set())
        of[node] = part
        for source in _sources(node, constants):
            other = of.get(source)
            if other is None or other is of[node] or not _is_image(source):
                continue
            part = of[node]
            part.nodes |= other.nodes
            part.convolutions |= other.convolutions
            of.update(dict.fromkeys(other.nodes, part))
    unique = {id(part): part for part in of.values() if part.convolutions}
    return list(unique.values())


def _name(node: Node) -> str:
    op = aten_op(node.target) if node.op == "call_function" else None
    return "" if op is None else op._schema.name.rpartition("::")[2]


def _is_eligible(node: Node, constants: Collection[Node]) -> bool:
    """Whether CONV_2D_LAST can compute a node: one or two dimensions, f32, constant weights, no
    groups or one for each channel; of transposed ones those whose outputs see one tap each."""
    if _name(node) != "convolution":
        return False
    call = Call(node)
    x, w = call.fake("input"), call.fake("weight")
    names = ("weight", "bias") if call.has("bias") else ("weight",)
    if any(call.args[n] not in constants for n in names):
        return False
    if any(call.fake(n).dtype is not torch.float32 for n in ("input", *names)):
        return False
    if w.dim() not in (3, 4) or x.dim() != w.dim():
        return False
    channels, groups = x.shape[1], call.raw("groups", 1)
    if call.raw("transposed", False):
        return bool(groups == 1 and _spreads(call, w.dim() - 2))
    return bool(groups == 1 or groups == channels == w.shape[0])


def _spreads(call: Call, dims: int) -> bool:
    """Whether a transposed convolution makes a block of outputs of each input, side by side."""

    def numbers(name: str, default: int) -> tuple[int, ...]:
        values = tuple(call.numbers(name)) or (default,)
        return values * dims if len(values) == 1 else values

    plain = {"padding": 0, "output_padding": 0, "dilation": 1}
    taps = tuple(call.fake("weight").shape[2:])
    return numbers("stride", 1) == taps and all(
        set(numbers(name, default)) == {default} for name, default in plain.items()
    )


def _keeps(node: Node, of: Collection[Node]) -> bool:
    if node.target is operator.getitem:
        return node.args[0] in of
    return _name(node) in KEEPING


def _sources(node: Node, constants: Collection[Node]) -> Iterator[Node]:
    """The sources of a node whose order matters."""
    data = node.args[:1] if _name(node) == "convolution" else node.all_input_nodes
    for source in data:
        if isinstance(source, Node) and source not in constants:
            yield source


def _is_image(node: Node) -> bool:
    """Whether the order of a value in memory matters, which it does not for single pixels."""
    fake = node.meta.get("val")
    if isinstance(fake, (list, tuple)):
        return True
    if not isinstance(fake, torch.Tensor) or fake.dim() < 3:
        return False
    inside = fake.shape[2:]
    return not (is_static(inside) and all(n == 1 for n in inside))


def _borders(part: _Part, constants: Collection[Node]) -> tuple[int, int]:
    """The copies that channels last takes at the border of a part, and those that planes would
    take."""
    entered: set[Node] = set()
    left: set[Node] = set()
    permuted: set[Node] = set()
    for node in part.nodes:
        for source in _sources(node, constants):
            if source in part.nodes or not _is_image(source):
                continue
            (permuted if _comes_last(source) else entered).add(source)
        if not _is_image(node):
            continue
        for user in node.users:
            if user in part.nodes or _name(user) in _REDUCING or user.target is operator.getitem:
                continue
            (permuted if _goes_last(user) else left).add(node)
    return len(entered) + len(left), len(permuted)


def _moves(node: Node, from_last: bool) -> bool:
    """Whether a permutation makes channels last of planes, or planes of channels last."""
    fake = node.meta.get("val")
    if _name(node) not in _PERMUTING or not isinstance(fake, torch.Tensor) or fake.dim() < 3:
        return False
    call = Call(node)
    rank = fake.dim()
    if "dims" in call.args:
        order = tuple(int(d) % rank for d in call.args["dims"])
    else:
        i, j = (int(call.args[n]) % rank for n in ("dim0", "dim1"))
        order = tuple({i: j, j: i}.get(d, d) for d in range(rank))
    last = channels_last(rank)
    return order == (last if not from_last else tuple(last.index(d) for d in range(rank)))


def _goes_last(user: Node) -> bool:
    """Whether a reader of planes needs the channels last: a permutation, perhaps behind a view."""
    while _name(user) in _VIEWS and len(user.users) == 1:
        user = next(iter(user.users))
    return _moves(user, False)


def _comes_last(source: Node) -> bool:
    """Whether planes are a view of a value that has channels last."""
    while _name(source) in _VIEWS:
        source = source.all_input_nodes[0]
    return _moves(source, True)
