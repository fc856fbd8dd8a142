"""The parameter record of each op that has one, and the enumerations they use.

Records are frozen; `pack` flattens one into numbers, a slot per field in the order written here
(tuples take a slot per element). The native kernels read parameters by slot, so the order is part
of the contract between this file and the kernels in `native/src/kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from enum import IntEnum
from typing import TypeAlias

from weft.graph.params_product import ActivationParams
from weft.graph.params_tensor import TensorParams

__all__ = [
    "AccParams",
    "ArangeParams",
    "ArgsortParams",
    "ClampParams",
    "Col2ImParams",
    "ConcatParams",
    "Conv3dParams",
    "ConvParams",
    "ConvTranspose1dParams",
    "ConvTranspose2dParams",
    "DeltaNetParams",
    "DiagMaskParams",
    "EpsParams",
    "FillParams",
    "FlashAttnParams",
    "GluOp",
    "GluParams",
    "GroupNormParams",
    "HcCombParams",
    "HcPreParams",
    "Im2Col3dParams",
    "Im2ColParams",
    "LeakyReluParams",
    "LinearAttnParams",
    "NormScaleParams",
    "PadParams",
    "PadReflectParams",
    "Params",
    "Pool1dParams",
    "Pool2dParams",
    "PoolOp",
    "RollParams",
    "RopeMode",
    "RopeParams",
    "ScaleMode",
    "ScaleParams",
    "SoftMaxParams",
    "SolveTriParams",
    "SortOrder",
    "SsmScanParams",
    "TimestepParams",
    "TopKParams",
    "TriKind",
    "TriParams",
    "UnaryOp",
    "UnaryParams",
    "UpscaleParams",
    "WinParams",
    "pack",
]


class UnaryOp(IntEnum):
    """Elementwise functions of the UNARY op, in ggml's order."""

    ABS = 0
    SGN = 1
    NEG = 2
    STEP = 3
    TANH = 4
    ELU = 5
    RELU = 6
    SIGMOID = 7
    GELU = 8
    GELU_QUICK = 9
    SILU = 10
    HARDSWISH = 11
    HARDSIGMOID = 12
    EXP = 13
    EXPM1 = 14
    SOFTPLUS = 15
    GELU_ERF = 16
    XIELU = 17
    FLOOR = 18
    CEIL = 19
    ROUND = 20
    TRUNC = 21


class GluOp(IntEnum):
    """Gated activations of the GLU op."""

    REGLU = 0
    GEGLU = 1
    SWIGLU = 2
    SWIGLU_OAI = 3
    GEGLU_ERF = 4
    GEGLU_QUICK = 5
    SWIGLU_CLAMP = 6


class PoolOp(IntEnum):
    """Pooling kinds."""

    MAX = 0
    AVG = 1


class SortOrder(IntEnum):
    """Order of ARGSORT."""

    ASC = 0
    DESC = 1


class ScaleMode(IntEnum):
    """Interpolation of UPSCALE."""

    NEAREST = 0
    BILINEAR = 1
    BICUBIC = 2


class TriKind(IntEnum):
    """Which triangle TRI keeps; the numbers are ggml's."""

    UPPER_DIAG = 0
    UPPER = 1
    LOWER_DIAG = 2
    LOWER = 3


class RopeMode(IntEnum):
    """Pairing and position layout of ROPE; the numbers are ggml's mode flags."""

    NORMAL = 0
    NEOX = 2
    MROPE = 8
    VISION = 24
    IMROPE = 40


@dataclass(frozen=True, slots=True)
class UnaryParams:
    """`op` and, for XIELU only, its four numbers as stored (after softplus)."""

    op: UnaryOp
    alpha_n: float = 0.0
    alpha_p: float = 0.0
    beta: float = 0.0
    eps: float = 0.0


@dataclass(frozen=True, slots=True)
class GluParams:
    """`swapped`: the second half (fused form) is activated. `alpha`, `limit`: OAI, CLAMP forms."""

    op: GluOp
    swapped: bool = False
    alpha: float = 0.0
    limit: float = 0.0


@dataclass(frozen=True, slots=True)
class ScaleParams:
    """`s * a + b`."""

    s: float
    b: float = 0.0


@dataclass(frozen=True, slots=True)
class ClampParams:
    """Bounds, both inclusive."""

    min: float
    max: float


@dataclass(frozen=True, slots=True)
class FillParams:
    """The value written everywhere."""

    c: float


@dataclass(frozen=True, slots=True)
class LeakyReluParams:
    """Slope of the negative side."""

    negative_slope: float


@dataclass(frozen=True, slots=True)
class EpsParams:
    """Epsilon of NORM, RMS_NORM and L2_NORM."""

    eps: float


@dataclass(frozen=True, slots=True)
class NormScaleParams:
    """Epsilon of NORM_SCALE, and whether it is NORM (`centred`) or RMS_NORM that is scaled."""

    eps: float
    centred: bool = False


@dataclass(frozen=True, slots=True)
class GroupNormParams:
    """Groups over ne[2], and epsilon."""

    n_groups: int
    eps: float


@dataclass(frozen=True, slots=True)
class AccParams:
    """Byte strides and byte offset of the region of `a` that ACC and SET write."""

    nb1: int
    nb2: int
    nb3: int
    offset: int


@dataclass(frozen=True, slots=True)
class ConcatParams:
    """Dimension (ggml order) along which the sources are joined."""

    dim: int


@dataclass(frozen=True, slots=True)
class ArgsortParams:
    """Sort order."""

    order: SortOrder


@dataclass(frozen=True, slots=True)
class TopKParams:
    """Number of indices kept per row."""

    k: int


@dataclass(frozen=True, slots=True)
class ArangeParams:
    """Half-open range."""

    start: float
    stop: float
    step: float


@dataclass(frozen=True, slots=True)
class TimestepParams:
    """Embedding length and longest period."""

    dim: int
    max_period: int


@dataclass(frozen=True, slots=True)
class TriParams:
    """Which triangle is kept."""

    kind: TriKind


@dataclass(frozen=True, slots=True)
class DiagMaskParams:
    """Row i keeps columns up to n_past + i."""

    n_past: int


@dataclass(frozen=True, slots=True)
class RollParams:
    """Shift per dimension, ggml order."""

    shift: tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class PadParams:
    """Elements added before and after each dimension (ggml order); `circular` wraps around."""

    left: tuple[int, int, int, int]
    right: tuple[int, int, int, int]
    circular: bool = False


@dataclass(frozen=True, slots=True)
class PadReflectParams:
    """Elements reflected before and after dimension 0."""

    p0: int
    p1: int


@dataclass(frozen=True, slots=True)
class UpscaleParams:
    """Interpolation to the shape of the result."""

    mode: ScaleMode
    align_corners: bool = False
    antialias: bool = False


@dataclass(frozen=True, slots=True)
class SolveTriParams:
    """Only left, lower, non-unit systems are defined."""

    left: bool = True
    lower: bool = True
    uni: bool = False


@dataclass(frozen=True, slots=True)
class SoftMaxParams:
    """softmax(a * scale + slope(max_bias) * mask)."""

    scale: float = 1.0
    max_bias: float = 0.0


@dataclass(frozen=True, slots=True)
class FlashAttnParams:
    """Attention scale, ALiBi bias and soft cap (0 = none)."""

    scale: float
    max_bias: float = 0.0
    logit_softcap: float = 0.0


@dataclass(frozen=True, slots=True)
class RopeParams:
    """Rotary embedding; the fields are ggml_rope_ext's. `n_offset`: first rotated dimension."""

    mode: RopeMode
    n_dims: int
    n_ctx_orig: int = 0
    freq_base: float = 10000.0
    freq_scale: float = 1.0
    ext_factor: float = 0.0
    attn_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    n_offset: int = 0
    sections: tuple[int, int, int, int] = (0, 0, 0, 0)


@dataclass(frozen=True, slots=True)
class Im2ColParams:
    """Stride, padding, dilation for (dim0, dim1)."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    is_2d: bool = True


@dataclass(frozen=True, slots=True)
class Im2Col3dParams:
    """Input channels, then stride, padding, dilation as (w, h, d)."""

    channels: int
    stride: tuple[int, int, int]
    padding: tuple[int, int, int]
    dilation: tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class ConvParams:
    """Stride, padding, dilation for (dim0, dim1) of CONV_2D and CONV_2D_DW."""

    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Conv3dParams:
    """Stride, padding, dilation as (w, h, d); channels and batch are folded in ne[3]."""

    stride: tuple[int, int, int]
    padding: tuple[int, int, int]
    dilation: tuple[int, int, int]
    n_channels: int
    n_batch: int
    n_channels_out: int


@dataclass(frozen=True, slots=True)
class ConvTranspose1dParams:
    """Stride, padding, dilation; padding 0 and dilation 1 are the only ones defined."""

    stride: int
    padding: int = 0
    dilation: int = 1


@dataclass(frozen=True, slots=True)
class ConvTranspose2dParams:
    """One stride for both dimensions, no padding."""

    stride: int


@dataclass(frozen=True, slots=True)
class Col2ImParams:
    """Stride, output channels, padding of COL2IM_1D."""

    stride: int
    oc: int
    padding: int


@dataclass(frozen=True, slots=True)
class Pool1dParams:
    """Kernel, stride, padding along dimension 0."""

    op: PoolOp
    k0: int
    s0: int
    p0: int


@dataclass(frozen=True, slots=True)
class Pool2dParams:
    """Kernel, stride, padding along dimensions 0 and 1."""

    op: PoolOp
    k0: int
    k1: int
    s0: int
    s1: int
    p0: int
    p1: int


@dataclass(frozen=True, slots=True)
class WinParams:
    """Window width of WIN_PART and WIN_UNPART."""

    w: int


@dataclass(frozen=True, slots=True)
class LinearAttnParams:
    """Scale of GATED_LINEAR_ATTN."""

    scale: float


@dataclass(frozen=True, slots=True)
class SsmScanParams:
    """Number of state snapshots kept, newest first."""

    k: int = 1


@dataclass(frozen=True, slots=True)
class DeltaNetParams:
    """Number of state snapshots kept, newest first."""

    k: int = 1


@dataclass(frozen=True, slots=True)
class HcCombParams:
    """Epsilon and iterations of DSV4_HC_COMB."""

    eps: float
    n_iter: int


@dataclass(frozen=True, slots=True)
class HcPreParams:
    """Whether src1 is a gate (instead of weights), and its scale."""

    gated: bool = False
    scale: float = 1.0


Params: TypeAlias = (
    UnaryParams
    | GluParams
    | ScaleParams
    | ClampParams
    | FillParams
    | LeakyReluParams
    | EpsParams
    | NormScaleParams
    | GroupNormParams
    | AccParams
    | ConcatParams
    | ArgsortParams
    | TopKParams
    | ArangeParams
    | TimestepParams
    | TriParams
    | DiagMaskParams
    | RollParams
    | PadParams
    | PadReflectParams
    | UpscaleParams
    | SolveTriParams
    | SoftMaxParams
    | FlashAttnParams
    | RopeParams
    | Im2ColParams
    | Im2Col3dParams
    | ConvParams
    | Conv3dParams
    | ConvTranspose1dParams
    | ConvTranspose2dParams
    | Col2ImParams
    | Pool1dParams
    | Pool2dParams
    | WinParams
    | LinearAttnParams
    | SsmScanParams
    | DeltaNetParams
    | HcCombParams
    | HcPreParams
    | ActivationParams
    | TensorParams
)


def pack(params: Params | None) -> list[float]:
    """The record as numbers, one per slot; integers stay exact up to 2**53."""
    if params is None:
        return []
    slots: list[float] = []
    for field in fields(params):
        value = getattr(params, field.name)
        slots.extend(float(v) for v in (value if isinstance(value, tuple) else (value,)))
    return slots
