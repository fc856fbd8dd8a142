"""Mixtures of experts: the part of an offloaded weight that a run needs.

A host weight [n, m, n_expert] that only MUL_MAT_ID nodes read on a device is copied there before a
split. The ids name the experts that those nodes use, so only these are copied; a batch of one token
with 8 of 128 experts copies a sixteenth. The rest of the copy keeps old bytes that no node
reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from weft.backends.memory import Memory
from weft.execute.values import extent, read_array
from weft.graph.size import upper
from weft.program import CopySpec, Program, TensorSpec
from weft.records import dataclass

__all__ = ["ExpertIds", "expert_ids", "used_runs"]


@dataclass(frozen=True, slots=True)
class ExpertIds:
    """The tensors of the program, each i32, that hold the ids when the copy is made."""

    tensors: tuple[int, ...]


def expert_ids(program: Program, split: int, copy: CopySpec) -> ExpertIds | None:
    """The ids that decide which part of `copy` (made before `split`) is read.

    None means all of it, because it is no weight, because something else reads it too, or because
    the ids are not known by then."""
    source = program.tensors[copy.src]
    buffer = program.buffers[source.buffer]
    if buffer.usage != "weights" or source.dtype.tail or not _is_plain(source):
        return None
    id_tensors: list[int] = []
    source_of = {c.dst: c.src for c in program.splits[split].copies}
    written: list[int] = []
    for number in range(split, len(program.splits)):
        spec = program.splits[number]
        if number > split:
            written += (c.dst for c in spec.copies)
        for step in spec.steps:
            if copy.dst in step.src:
                if step.op.name != "MUL_MAT_ID" or step.src.count(copy.dst) > 1:
                    return None
                if step.src[0] != copy.dst:
                    return None
                ids = source_of.get(step.src[2], -1)
                if ids < 0:
                    ids = step.src[2]
                    if any(_overlap(program.tensors[ids], program.tensors[w]) for w in written):
                        return None  # computed after the copy
                if ids not in id_tensors:
                    id_tensors.append(ids)
            written.append(step.dst)
    return ExpertIds(tuple(id_tensors)) if id_tensors else None


def used_runs(
    ids: ExpertIds,
    program: Program,
    memories: Sequence[Memory],
    values: Mapping[str, int],
    n_expert: int,
) -> list[tuple[int, int]]:
    """Half-open ranges of consecutive experts that the ids name, in order.

    Ids outside 0..n_expert-1 are skipped here; the kernel refuses them."""
    used = np.zeros(n_expert, np.bool_)
    for index in ids.tensors:
        spec = program.tensors[index]
        named = read_array(spec, memories[spec.buffer], values).reshape(-1)
        used[named[(named >= 0) & (named < n_expert)]] = True
    edges = np.flatnonzero(np.diff(used, prepend=False, append=False)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _is_plain(spec: TensorSpec) -> bool:
    """Whether experts lie one after the other."""
    sizes = (*spec.ne, *spec.nb, spec.offset)
    if not all(isinstance(n, int) for n in sizes) or spec.ne[3] != 1:
        return False
    return upper(spec.nb[2]) >= upper(spec.nb[1]) * upper(spec.ne[1])


def _overlap(a: TensorSpec, b: TensorSpec) -> bool:
    """Whether two tensors may share bytes."""
    if a.buffer != b.buffer:
        return False
    (a_low, a_high), (b_low, b_high) = extent(a), extent(b)
    return a_low < b_high and b_low < a_high
