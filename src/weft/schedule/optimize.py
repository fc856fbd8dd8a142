"""`optimize_splits`: each split's backend may rewrite its nodes before memory is planned, named
rewrites fuse those that it has kernels for, and ops that it generalizes get their general form."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

from weft.backends.base import Backend, RewritesSplits
from weft.errors import ScheduleError
from weft.graph.node import describe
from weft.graph.rewrite import chosen_rewrites, rewrite
from weft.graph.rewrite.general import general_form, replace_by
from weft.graph.tensor import Tensor
from weft.schedule.collector import collector_paused
from weft.schedule.finalize import clone
from weft.schedule.result import Schedule, Split
from weft.schedule.split import build_plan_lists


@collector_paused()
def optimize_splits(
    schedule: Schedule, rewrites: Collection[str] | None = None, keep: Collection[Tensor] = ()
) -> Schedule:
    """A schedule whose splits are as `RewritesSplits.optimize` wants them, with nodes fused by
    those of `rewrites` (default: WEFT_REWRITES, or all) that the backend names, and in their
    general form where it `generalizes` their op; unchanged where no backend has any of these.
    `keep` are tensors of the graph that no rewrite may hide.

    A backend gets the final nodes of one split, in order, and returns the nodes to run. The nodes
    are its own copies: it may change their `src`, `op` and `params`, leave nodes out, reorder them,
    and add new ones. What other splits copy or read, and what is an output, must stay in the list.
    Raises ScheduleError, naming backend and tensor, where something needed is gone."""
    names = chosen_rewrites() if rewrites is None else frozenset(rewrites)
    if not any(_changes(schedule.backends[s.backend], names) for s in schedule.splits):
        return schedule
    private = _privatize(schedule)
    for split in private.splits:
        backend = private.backends[split.backend]
        if isinstance(backend, RewritesSplits):
            before = split.nodes
            split.nodes = list(backend.optimize(list(before)))
            _forget(private, before, split.nodes)
    for split in private.splits:
        wanted = names.intersection(private.backends[split.backend].rewrites)
        if wanted:
            _fuse(private, split, wanted, keep)
    for split in private.splits:
        _generalize(private, split)
    _check_sources(private)
    private.added = _added(private)
    build_plan_lists(private)
    return private


def _added(schedule: Schedule) -> dict[Tensor, Tensor]:
    """Nodes that are not of the graph, each with the first node that reads it."""
    added: dict[Tensor, Tensor] = {}
    for split in schedule.splits:
        new = {node for node in split.nodes if node not in schedule.origin}
        for node in split.nodes if new else ():
            for src in node.src:
                if src in new and src not in added:
                    added[src] = node
    return added


def _fuse(
    schedule: Schedule, split: Split, names: Collection[str], keep: Collection[Tensor]
) -> None:
    backend = schedule.backends[split.backend]
    before = split.nodes
    split.nodes, done = rewrite(
        before,
        names,
        _read_elsewhere(schedule, split).union(schedule.final_of(t) for t in keep),
        lambda node: backend.supports_op(node).ok,
    )
    _forget(schedule, before, split.nodes)
    schedule.rewritten += done


def _generalize(schedule: Schedule, split: Split) -> None:
    """Gives nodes the form that the backend has kernels for; each stays the tensor that it is."""
    ops = schedule.backends[split.backend].generalizes
    nodes: list[Tensor] = []
    for node in split.nodes:
        op = node.op
        *before, form = general_form(node, ops)
        if form is not node:
            nodes += before
            replace_by(node, form)
            work = before[-1] if form.op.is_view else node
            schedule.generalized.append((op.name, work.op.name))
            if form.op.is_view:
                _rebase(schedule, node)
        nodes.append(node)
    split.nodes = nodes


def _rebase(schedule: Schedule, node: Tensor) -> None:
    """Views of a node that became a view itself share the memory of what it views."""
    base = node.view_src
    assert base is not None
    base.flags |= node.flags & {"output"}  # its memory is the output's
    views = [t for split in schedule.splits for t in split.nodes] + schedule.plan_leaves
    for t in views:
        if t.view_src is node:
            t.view_src, t.view_offs = base, t.view_offs + node.view_offs


def _read_elsewhere(schedule: Schedule, split: Split) -> set[Tensor]:
    """Tensors that must be there after `split`, because others read, copy or keep them."""
    read: set[Tensor] = set()
    for other in schedule.splits:
        read.update(schedule.final.get(t, t) for t in other.inputs)
        read.update(source for source, _ in other.copies)
        if other is not split:
            for node in other.nodes:
                read.update(t for t in (*node.src, node.view_src) if t is not None)
    for node, kept in schedule.keep.items():
        read.update(schedule.final.get(t, t) for t in (node, *kept))
    read.update(schedule.copies.values())
    return read


def _changes(backend: Backend, names: Collection[str]) -> bool:
    rewrites = isinstance(backend, RewritesSplits) or bool(backend.generalizes)
    return rewrites or not frozenset(names).isdisjoint(backend.rewrites)


def _privatize(schedule: Schedule) -> Schedule:
    """The same schedule with every node copied, so that nothing of the graph can be changed."""
    fresh = {node: clone(node) for split in schedule.splits for node in split.nodes}
    for leaf in schedule.plan_leaves:
        if leaf.view_src in fresh and leaf not in fresh:
            fresh[leaf] = clone(leaf)
    for new in fresh.values():
        new.src = tuple(None if s is None else fresh.get(s, s) for s in new.src)
        if new.view_src is not None:
            new.view_src = fresh.get(new.view_src, new.view_src)
    final = {old: fresh.get(new, new) for old, new in schedule.final.items()}
    for old, new in fresh.items():
        if old not in schedule.origin:
            final[old] = new
    return replace(
        schedule,
        final=final,
        origin={new: old for old, new in final.items()},
        splits=[
            Split(s.backend, s.start, s.end, list(s.inputs), [fresh[n] for n in s.nodes])
            for s in schedule.splits
        ],
    )


def _forget(schedule: Schedule, before: Sequence[Tensor], after: Sequence[Tensor]) -> None:
    """Drops nodes that a backend left out from the maps."""
    if len(after) != len(set(after)):
        raise ScheduleError("a backend's optimize() returned a node twice")
    for gone in set(before).difference(after):
        old = schedule.origin.pop(gone, None)
        if old is not None:
            del schedule.final[old]


def _check_sources(schedule: Schedule) -> None:
    """Every source is a leaf, a copy, or computed earlier; outputs and split inputs exist."""
    made = set(schedule.plan_leaves)
    made.update(schedule.copies.values())
    bases = {leaf.view_src for leaf in made if leaf.view_src is not None}
    for split in schedule.splits:
        name = schedule.backends[split.backend].name
        for tensor in split.inputs:
            found = schedule.final.get(tensor, tensor)
            # a view computes nothing, so it may be listed behind the copy of it
            if found not in made and found.view_src not in made:
                raise ScheduleError(
                    f"{name} reads {describe(tensor)} of an earlier split, which the optimize() "
                    "of its backend left out"
                )
        for node in split.nodes:
            for src in (*node.src, node.view_src):
                if src is None or src is node or src in made or src in bases or src.buffer:
                    continue
                raise ScheduleError(
                    f"optimize() of {name}: {describe(node)} reads {describe(src)}, which is "
                    "computed later or not at all"
                )
            made.add(node)
    for node in schedule.graph.nodes:
        if "output" in node.flags and schedule.final.get(node, node) not in made:
            raise ScheduleError(f"optimize() left out the output {describe(node)}")
