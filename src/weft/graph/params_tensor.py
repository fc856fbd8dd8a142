"""Parameter records of the ops on plain tensors, which PyTorch programs need beside ggml's.

The numbers of the enumerations and the order of the fields are read by the native kernels. `axes`
is a mask: bit d stands for dimension d, innermost first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import TypeAlias

__all__ = [
    "ArgReduceParams",
    "AxisParams",
    "BinaryOp",
    "BinaryParams",
    "ConvLastParams",
    "ConvNdParams",
    "ConvertParams",
    "CumulateOp",
    "CumulateParams",
    "IndexParams",
    "IndexPutParams",
    "InterpolateMode",
    "InterpolateParams",
    "MapOp",
    "MapParams",
    "PadMode",
    "PadNdParams",
    "PoolKind",
    "PoolNdParams",
    "ReduceOp",
    "ReduceParams",
    "ScatterMode",
    "ScatterParams",
    "SortIndicesParams",
    "TensorParams",
]


class BinaryOp(IntEnum):
    """Functions of two numbers. From EQ to LOGICAL_XOR the result is 0 or 1, as i8."""

    ADD = 0
    SUB = 1
    MUL = 2
    DIV = 3
    FLOOR_DIV = 4
    TRUNC_DIV = 5
    REMAINDER = 6
    FMOD = 7
    POW = 8
    MIN = 9
    MAX = 10
    ATAN2 = 11
    EQ = 12
    NE = 13
    LT = 14
    LE = 15
    GT = 16
    GE = 17
    LOGICAL_AND = 18
    LOGICAL_OR = 19
    LOGICAL_XOR = 20
    BIT_AND = 21
    BIT_OR = 22
    BIT_XOR = 23
    SHIFT_LEFT = 24
    SHIFT_RIGHT = 25

    @property
    def is_test(self) -> bool:
        """Whether the result is 0 or 1, as i8."""
        return BinaryOp.EQ <= self <= BinaryOp.LOGICAL_XOR


class MapOp(IntEnum):
    """Functions of one number and up to three parameters a, b, c, as PyTorch defines them: a NaN
    stays a NaN. From LOGICAL_NOT on the result is 0 or 1, as i8."""

    ABS = 0
    NEG = 1
    SIGN = 2
    BIT_NOT = 3
    CLAMP = 4
    """Limited to a..b."""
    ROUND_EVEN = 5
    """Halves to the even neighbour."""
    EXP2 = 6
    LOG2 = 7
    LOG10 = 8
    LOG1P = 9
    RSQRT = 10
    RECIPROCAL = 11
    TAN = 12
    ASIN = 13
    ACOS = 14
    ATAN = 15
    SINH = 16
    COSH = 17
    ASINH = 18
    ACOSH = 19
    ATANH = 20
    ERF = 21
    ERFC = 22
    ELU = 23
    """x b above 0, else a b (exp(c x) - 1)."""
    SOFTPLUS = 24
    """log(1 + exp(a x)) / a, and x itself where a x > b."""
    SOFTSHRINK = 25
    """x moved towards 0 by a."""
    HARDSHRINK = 26
    """0 where |x| <= a."""
    THRESHOLD = 27
    """x above a, else b."""
    HARDSIGMOID = 28
    MISH = 29
    LOG_SIGMOID = 30
    LEAKY_RELU = 31
    """a x below 0."""
    POW = 32
    """x to the power a."""
    GELU = 33
    """Through erf."""
    GELU_TANH = 34
    LOGICAL_NOT = 35
    IS_NAN = 36
    IS_INF = 37
    IS_FINITE = 38

    @property
    def is_test(self) -> bool:
        """Whether the result is 0 or 1, as i8."""
        return self >= MapOp.LOGICAL_NOT


class ReduceOp(IntEnum):
    """What REDUCE makes of the elements along its axes."""

    SUM = 0
    MEAN = 1
    MAX = 2
    MIN = 3
    PROD = 4
    ANY = 5
    ALL = 6


class CumulateOp(IntEnum):
    """Running sum or product."""

    SUM = 0
    PROD = 1


class ScatterMode(IntEnum):
    """What SCATTER does with the element that is there."""

    SET = 0
    ADD = 1


class PadMode(IntEnum):
    """What PAD_ND puts outside."""

    CONSTANT = 0
    REFLECT = 1
    REPLICATE = 2
    CIRCULAR = 3


class PoolKind(IntEnum):
    """What POOL_ND makes of a window. MAX_INDEX: where its largest element is, as i64."""

    AVG = 0
    MAX = 1
    MAX_INDEX = 2


class InterpolateMode(IntEnum):
    """How INTERPOLATE reads between samples."""

    NEAREST = 0
    NEAREST_EXACT = 1
    LINEAR = 2
    CUBIC = 3


@dataclass(frozen=True, slots=True)
class BinaryParams:
    """The function of BINARY."""

    op: BinaryOp


@dataclass(frozen=True, slots=True)
class MapParams:
    """The function of MAP and its parameters."""

    op: MapOp
    a: float = 0.0
    b: float = 0.0
    c: float = 0.0


@dataclass(frozen=True, slots=True)
class ConvertParams:
    """`boolean`: 1 where the element is not 0."""

    boolean: bool = False


@dataclass(frozen=True, slots=True)
class ReduceParams:
    """What is computed, and the mask of axes that become 1."""

    op: ReduceOp
    axes: int


@dataclass(frozen=True, slots=True)
class ArgReduceParams:
    """`axis` -1: the position among all elements."""

    largest: bool
    axis: int


@dataclass(frozen=True, slots=True)
class CumulateParams:
    """Sum or product, and the axis that it runs along."""

    op: CumulateOp
    axis: int


@dataclass(frozen=True, slots=True)
class AxisParams:
    """The axis of GATHER."""

    axis: int


@dataclass(frozen=True, slots=True)
class ScatterParams:
    """The axis of SCATTER, and what it does with the element that is there."""

    axis: int
    mode: ScatterMode = ScatterMode.SET


@dataclass(frozen=True, slots=True)
class IndexParams:
    """The mask of axes that have an index tensor (in this order among the sources), how many
    dimensions the indices have together, and the dimension of the result where these begin."""

    axes: int
    rank: int
    first: int


@dataclass(frozen=True, slots=True)
class IndexPutParams:
    """As of INDEX; `accumulate`: values are added to what is there."""

    axes: int
    rank: int
    first: int
    accumulate: bool = False


@dataclass(frozen=True, slots=True)
class SortIndicesParams:
    """The axis to sort along, and which end comes first."""

    axis: int
    descending: bool = False


@dataclass(frozen=True, slots=True)
class PadNdParams:
    """Elements added (below 0: taken away) before and after each dimension."""

    left: tuple[int, int, int, int]
    right: tuple[int, int, int, int]
    mode: PadMode = PadMode.CONSTANT
    value: float = 0.0


@dataclass(frozen=True, slots=True)
class ConvNdParams:
    """`dims` spatial dimensions (1 to 3); triples are (w, h, d). `channels`: those of the input,
    which share ne[3] with the batch where there are three dimensions."""

    dims: int
    channels: int
    groups: int
    stride: tuple[int, int, int] = (1, 1, 1)
    padding: tuple[int, int, int] = (0, 0, 0)
    dilation: tuple[int, int, int] = (1, 1, 1)
    output_padding: tuple[int, int, int] = (0, 0, 0)
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class ConvLastParams:
    """Pairs are (w, h). `groups`: 1, or as many as channels. `low` and `high` are the bounds of
    the result, both inclusive."""

    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)
    dilation: tuple[int, int] = (1, 1)
    groups: int = 1
    low: float = float("-inf")
    high: float = float("inf")


@dataclass(frozen=True, slots=True)
class PoolNdParams:
    """`dims` spatial dimensions (1 to 3); triples are (w, h, d). `adaptive`: windows follow from
    the sizes, kernel and the rest do not count. `divisor` 0: the size of the window."""

    kind: PoolKind
    dims: int
    kernel: tuple[int, int, int] = (1, 1, 1)
    stride: tuple[int, int, int] = (1, 1, 1)
    padding: tuple[int, int, int] = (0, 0, 0)
    dilation: tuple[int, int, int] = (1, 1, 1)
    count_include_pad: bool = True
    divisor: int = 0
    adaptive: bool = False


@dataclass(frozen=True, slots=True)
class InterpolateParams:
    """`dims` spatial dimensions (1 to 3). Scales are output by input size; 0: that of the sizes."""

    mode: InterpolateMode
    dims: int
    align_corners: bool = False
    scale_w: float = 0.0
    scale_h: float = 0.0
    scale_d: float = 0.0


TensorParams: TypeAlias = (
    BinaryParams
    | MapParams
    | ConvertParams
    | ReduceParams
    | ArgReduceParams
    | CumulateParams
    | AxisParams
    | ScatterParams
    | IndexParams
    | IndexPutParams
    | SortIndicesParams
    | PadNdParams
    | ConvNdParams
    | ConvLastParams
    | PoolNdParams
    | InterpolateParams
)
