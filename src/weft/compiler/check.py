"""The rules of a legal program, checked before any device sees it."""

from __future__ import annotations

from weft.errors import ProgramError
from weft.graph.size import lower, upper
from weft.program import Program, TensorSpec


def check_program(program: Program) -> None:
    """Raises ProgramError naming the tensor or step that breaks a rule.

    Every tensor lies in its buffer at the symbols' maxima; steps, copies, inputs, outputs and
    states name tensors that exist; stages cover the steps of their split in order."""
    for t in program.tensors:
        _check_tensor(program, t)
    n = len(program.tensors)
    for number, split in enumerate(program.splits):
        where = f"split {number} on {split.device}"
        for copy in split.copies:
            src, dst = program.tensors[copy.src], program.tensors[copy.dst]
            if (src.dtype, src.ne, src.nb) != (dst.dtype, dst.ne, dst.nb):
                raise ProgramError(f"{where} copies {src.name} to {dst.name}, of another shape")
        for step in split.steps:
            if not 0 <= step.dst < n or any(not -1 <= s < n for s in step.src):
                raise ProgramError(f"{where}: {step.op} names a tensor that does not exist")
        next_step = 0
        for begin, end in split.stages:
            if begin != next_step or end <= begin:
                raise ProgramError(f"{where}: stages do not cover the steps in order")
            next_step = end
        if next_step != len(split.steps):
            raise ProgramError(f"{where}: stages end before the last step")
    for what, names in (
        ("input", program.inputs),
        ("output", program.outputs),
        ("state", program.states),
    ):
        for name, index in names.items():
            if not 0 <= index < n:
                raise ProgramError(f"{what} {name!r} is not a tensor of the program")


def _check_tensor(program: Program, t: TensorSpec) -> None:
    if not 0 <= t.buffer < len(program.buffers):
        raise ProgramError(f"tensor {t.name} is in buffer {t.buffer}, which does not exist")
    if lower(t.offset) < 0 or any(lower(n) < 0 for n in t.ne):
        raise ProgramError(f"tensor {t.name} has a negative size or offset")
    sizes = [upper(n) for n in t.ne]
    end, size = t.extent[1], program.buffers[t.buffer].size
    if 0 not in sizes and end > size:
        raise ProgramError(
            f"tensor {t.name} {t.dtype.name}{sizes} ends at byte {end} of a buffer of {size} bytes"
        )
