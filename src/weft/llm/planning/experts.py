"""The experts of a model that stay in its file, as far as a budget does not hold them.

It follows the choice of layouts: experts have the layout that they would be repacked to.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from weft.backends.cpu import CpuBackend
from weft.backends.cpu.experts import ExpertArena, ExpertBufferType, ExpertStack, expert_arena
from weft.compiler import Plan, of_one_op
from weft.errors import ContextError
from weft.graph.op import OPS
from weft.graph.size import upper
from weft.graph.tensor import Tensor
from weft.llm.model import Model
from weft.llm.planning.options import ContextOptions
from weft.program import Layout

__all__ = ["with_experts"]

_PRODUCT = OPS["MUL_MAT_ID"]


def with_experts(
    model: Model, plans: Sequence[Plan], options: ContextOptions
) -> tuple[list[Plan], ExpertArena | None]:
    """The plans with an arena for experts, if the options have a budget for them.

    Raises ContextError for a model without experts that the cpu reads, and for a budget that is too
    small for a token."""
    if options.expert_budget is None:
        return list(plans), None
    layouts = dict(plans[0].layouts)
    readers = of_one_op([plan.schedule for plan in plans], _PRODUCT)
    layers = _layers(plans[0])
    stacks: list[ExpertStack] = []
    leaves: list[Tensor] = []
    numbers: dict[int, int] = {}
    for leaf, (layer, n_used) in layers.items():
        backend = readers[leaf][0] if leaf in readers else None
        info = model.file.tensors.get(leaf.name)
        in_file = info is not None and info.offset >= 0
        if not isinstance(backend, CpuBackend) or not in_file or leaf.dtype.tail:
            continue
        assert leaf.buffer is not None and info is not None
        # what is read from the file is put in order on the way, not made anew
        in_order = leaf in layouts and layouts[leaf].layout == "interleaved"
        layout: Layout = "interleaved" if in_order else "rows"
        ne = (upper(leaf.ne[0]), upper(leaf.ne[1]), upper(leaf.ne[2]))
        number = numbers.setdefault(layer, len(numbers))
        stacks.append(
            ExpertStack(
                leaf.name, leaf.buffer.data, info.path.absolute(), info.offset, leaf.dtype, ne,
                layout, number, n_used,
            )
        )  # fmt: skip
        leaves.append(leaf)
    if not stacks:
        raise ContextError(
            "is for mixtures of experts on the cpu, and "
            f"{model.file.path.name} has {_what_it_has(model)}; leave it out",
            argument="expert_budget",
        )
    arena = expert_arena(stacks, options.expert_budget, options.expert_policy)
    types: dict[Layout, ExpertBufferType] = {}
    for leaf, stack in zip(leaves, stacks, strict=True):
        layouts[leaf] = types.setdefault(stack.layout, ExpertBufferType(arena, stack.layout))
    return [replace(plan, layouts=layouts) for plan in plans], arena


def _layers(plan: Plan) -> dict[Tensor, tuple[int, int]]:
    """For each stack of experts, in the order of the nodes that read them: a number that stacks
    with the same ids share, and the experts of a token."""
    layers: dict[Tensor, tuple[int, int]] = {}
    by_ids: dict[Tensor, int] = {}
    for split in plan.schedule.splits:
        for node in split.nodes:
            if node.op is not _PRODUCT:
                continue
            experts, ids = node.src[0], node.src[2]
            assert experts is not None and ids is not None
            base = ids.view_src or ids
            layers.setdefault(experts, (by_ids.setdefault(base, len(by_ids)), upper(ids.ne[0])))
    return layers


def _what_it_has(model: Model) -> str:
    return "no experts" if model.config.moe is None else "none that only the cpu reads"
