"""Every op of the table with the types it should take: one table of cases.

`weft devices --ops` asks every device about it, `weft doctor` and the tests run it.

    for case in all_cases():
        sources = Sources(seed=1)
        node = case.build(sources)     # its inputs hold sources.data
"""

from functools import cache

from weft.backends.cases.attention import attention_cases
from weft.backends.cases.case import Case, Sources, random_blocks
from weft.backends.cases.conv_last import conv_last_cases
from weft.backends.cases.elementwise import elementwise_cases
from weft.backends.cases.formats import FORMATS, format_cases
from weft.backends.cases.fused import fused_cases
from weft.backends.cases.moves import move_cases
from weft.backends.cases.state import state_cases
from weft.backends.cases.tensor_edges import tensor_edge_cases
from weft.backends.cases.tensor_windows import tensor_window_cases
from weft.backends.cases.tensors import tensor_cases
from weft.backends.cases.windows import window_cases

__all__ = ["FORMATS", "SOME_FORMATS", "Case", "Sources", "all_cases", "random_blocks", "some_cases"]

SOME_FORMATS = ("f32", "f16", "q8_0", "q4_K", "iq3_s")
"""These are a format of each kind: floats of 32 and 16 bits, blocks, blocks of blocks, and codes of
a table."""


@cache
def all_cases() -> tuple[Case, ...]:
    """Every case, in the order of the ladder of files above."""
    return (
        *format_cases(),
        *elementwise_cases(),
        *move_cases(),
        *attention_cases(),
        *window_cases(),
        *state_cases(),
        *fused_cases(),
        *tensor_cases(),
        *tensor_edge_cases(),
        *tensor_window_cases(),
        *conv_last_cases(),
    )


@cache
def some_cases() -> tuple[Case, ...]:
    """The cases of `SOME_FORMATS` (attention: f16) of ops that take formats, and all of other ops.

    They are for devices that compile a kernel for each format, which can take seconds."""
    return tuple(case for case in all_cases() if case.format in _of_op(case.op))


def _of_op(op: str) -> tuple[str, ...]:
    return ("f16", "") if op == "FLASH_ATTN_EXT" else (*SOME_FORMATS, "")
