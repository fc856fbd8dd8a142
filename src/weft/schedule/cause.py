"""`Cause`, the reason why a tensor is where it is."""

from __future__ import annotations

from dataclasses import replace

from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class Cause:
    """The rule that placed a tensor, and the weight that decided where the rule is about
    weights."""

    rule: str
    """The pass and the rule, as the reference names it."""
    meaning: str
    weight: int | None = None
    """The source of the node that decided, for rules about weights."""

    @property
    def code(self) -> str:
        """The code that the reference prints: the rule, and the number of the source where a weight
        decided."""
        return f"{self.rule}{self.weight}" if self.rule == WEIGHT.rule else self.rule

    def by_source(self, index: int) -> Cause:
        """The same rule, decided by the weight that is source `index` of the node."""
        return replace(self, weight=index)


USER = Cause("usr", "assigned by the user")
DESTINATION = Cause("1.dst", "its memory is there")
INPUT = Cause("1.inp", "it is an input, which the last device holds")
OFFLOADED = Cause("1.off", "the device asked for it, although a weight is in host memory")
WEIGHT = Cause("1.wgt", "a weight is there")
NEIGHBOUR = Cause("2.sup", "a neighbour is there, and the device runs it")
BEST = Cause("3.best", "most of its sources can be read there")
UPGRADED = Cause("3.upg", "a higher device uses the same memory and runs it")
VIEWED = Cause("4.vsrc", "the tensor it views is there")
READER = Cause("4.cur", "the node that reads it is there")
COPY = Cause("4.cpy", "a copy for a split")
INPUT_COPY = Cause("6.cpy", "an input with several copies")
CHOSEN = Cause("cost", "the pass is predicted to take least time with it there")
PLANNED = Cause("plan", "the plan file says so")
OF_LAYER = Cause("layer", "its layer is there")
ADDED = Cause("opt", "its device adds it for the node that reads it")

_MEANINGS = {
    cause.rule: cause.meaning
    for cause in (
        *(USER, DESTINATION, INPUT, OFFLOADED, WEIGHT, NEIGHBOUR, BEST, UPGRADED, VIEWED, READER),
        *(COPY, INPUT_COPY, CHOSEN, PLANNED, OF_LAYER, ADDED),
    )
}


def code_meaning(code: str) -> str:
    """The meaning of a `Cause.code` in words; empty for an unknown code."""
    source = code.removeprefix(WEIGHT.rule)
    if source != code and source.isdigit():
        return f"{WEIGHT.meaning}: source {source} of the op"
    return _MEANINGS.get(code, "")
