"""The op table: one row per op, with ggml's name.

A row states the sources (how many at least and at most), whether the result is a view of its first
source, whether it may be computed in place over a source's memory, and the parameter record. The
order of the rows numbers the ops for the native core, which checks its own list against this one.
"""

from __future__ import annotations

from dataclasses import dataclass

from weft.errors import GraphError
from weft.graph import params as p
from weft.graph import params_product as pp
from weft.graph import params_tensor as pt

__all__ = ["NONE", "OPS", "Op", "find_op"]


@dataclass(frozen=True, slots=True, eq=False)
class Op:
    """One row of the op table; compared by identity."""

    name: str
    number: int
    min_src: int
    max_src: int
    is_view: bool = False
    can_inplace: bool = False
    params: type | None = None
    params_optional: bool = False
    """Whether a node may be without the record."""

    def takes(self, params: object) -> bool:
        """Whether a node may have this parameter record, or None for none."""
        if params is None:
            return self.params is None or self.params_optional
        return type(params) is self.params

    def __repr__(self) -> str:
        return self.name


def _table() -> dict[str, Op]:
    rows: dict[str, Op] = {}

    def op(
        name: str,
        min_src: int,
        max_src: int | None = None,
        *,
        view: bool = False,
        inplace: bool = False,
        params: type | None = None,
        optional: bool = False,
    ) -> None:
        if name in rows:
            raise GraphError(f"op {name} is in the table twice")
        most = min_src if max_src is None else max_src
        rows[name] = Op(name, len(rows), min_src, most, view, inplace, params, optional)

    # A leaf has op NONE.
    op("NONE", 0, 10)
    # Views: no work, the result shares its source's memory.
    op("RESHAPE", 1, view=True)
    op("VIEW", 1, view=True)
    op("PERMUTE", 1, view=True)
    op("TRANSPOSE", 1, view=True)
    # Copies and conversions.
    op("DUP", 1)
    op("CPY", 2)
    op("CONT", 1)
    op("SET", 2, params=p.AccParams)
    op("ACC", 2, params=p.AccParams)
    op("CONCAT", 2, params=p.ConcatParams)
    op("REPEAT", 1)
    op("REPEAT_BACK", 1)
    op("GET_ROWS", 2)
    op("GET_ROWS_BACK", 2, 3)
    op("SET_ROWS", 3)
    op("PAD", 1, params=p.PadParams)
    op("PAD_REFLECT_1D", 1, params=p.PadReflectParams)
    op("ROLL", 1, params=p.RollParams)
    # Elementwise.
    op("ADD", 2, inplace=True)
    op("SUB", 2, inplace=True)
    op("MUL", 2, inplace=True)
    op("DIV", 2, inplace=True)
    op("ADD1", 2, inplace=True)
    op("ADD_ID", 3, inplace=True)
    op("SCALE", 1, inplace=True, params=p.ScaleParams)
    op("SQR", 1, inplace=True)
    op("SQRT", 1, inplace=True)
    op("LOG", 1, inplace=True)
    op("SIN", 1)
    op("COS", 1)
    op("CLAMP", 1, inplace=True, params=p.ClampParams)
    op("FILL", 1, inplace=True, params=p.FillParams)
    op("LEAKY_RELU", 1, params=p.LeakyReluParams)
    op("UNARY", 1, inplace=True, params=p.UnaryParams)
    op("GLU", 1, 2, params=p.GluParams)
    # Reductions, sorting, generators.
    op("SUM", 1)
    op("SUM_ROWS", 1)
    op("CUMSUM", 1)
    op("MEAN", 1)
    op("ARGMAX", 1)
    op("COUNT_EQUAL", 2)
    op("ARGSORT", 1, params=p.ArgsortParams)
    op("TOP_K", 1, params=p.TopKParams)
    op("ARANGE", 0, params=p.ArangeParams)
    op("TIMESTEP_EMBEDDING", 1, params=p.TimestepParams)
    op("TRI", 1, params=p.TriParams)
    op("DIAG", 1)
    op("DIAG_MASK_INF", 1, inplace=True, params=p.DiagMaskParams)
    op("DIAG_MASK_ZERO", 1, inplace=True, params=p.DiagMaskParams)
    op("CROSS_ENTROPY_LOSS", 2)
    op("UPSCALE", 1, params=p.UpscaleParams)
    # Normalisation.
    op("NORM", 1, params=p.EpsParams)
    op("RMS_NORM", 1, inplace=True, params=p.EpsParams)
    op("L2_NORM", 1, params=p.EpsParams)
    op("GROUP_NORM", 1, params=p.GroupNormParams)
    # Matrix products.
    op("MUL_MAT", 2, 3, params=pp.ActivationParams, optional=True)
    op("MUL_MAT_ID", 3)
    op("OUT_PROD", 2)
    op("SOLVE_TRI", 2, params=p.SolveTriParams)
    # Attention and positions.
    op("SOFT_MAX", 1, 3, inplace=True, params=p.SoftMaxParams)
    op("FLASH_ATTN_EXT", 3, 5, params=p.FlashAttnParams)
    op("ROPE", 2, 3, inplace=True, params=p.RopeParams)
    op("ROPE_BACK", 2, 3, inplace=True, params=p.RopeParams)
    op("LIGHTNING_INDEXER", 4)
    op("DSV4_HC_COMB", 3, params=p.HcCombParams)
    op("DSV4_HC_PRE", 2, params=p.HcPreParams)
    op("DSV4_HC_POST", 3, 4)
    # Convolution, pooling, windows.
    op("IM2COL", 2, params=p.Im2ColParams)
    op("IM2COL_3D", 2, params=p.Im2Col3dParams)
    op("CONV_2D", 2, params=p.ConvParams)
    op("CONV_2D_DW", 2, params=p.ConvParams)
    op("CONV_3D", 2, params=p.Conv3dParams)
    op("CONV_TRANSPOSE_1D", 2, params=p.ConvTranspose1dParams)
    op("CONV_TRANSPOSE_2D", 2, params=p.ConvTranspose2dParams)
    op("COL2IM_1D", 1, params=p.Col2ImParams)
    op("POOL_1D", 1, params=p.Pool1dParams)
    op("POOL_2D", 1, params=p.Pool2dParams)
    op("WIN_PART", 1, params=p.WinParams)
    op("WIN_UNPART", 1, params=p.WinParams)
    op("GET_REL_POS", 1)
    # State-space and linear-attention recurrences.
    op("SSM_CONV", 2)
    op("SSM_SCAN", 7, params=p.SsmScanParams)
    op("RWKV_WKV6", 6)
    op("RWKV_WKV7", 7)
    op("GATED_LINEAR_ATTN", 5, params=p.LinearAttnParams)
    op("GATED_DELTA_NET", 6, params=p.DeltaNetParams)
    # weft's own: activations turned into blocks once, for every matmul that reads them.
    op("QUANTIZE", 1)
    op("NORM_SCALE", 2, 4, params=p.NormScaleParams)
    op("GLU_QUANTIZE", 1, 2, params=p.GluParams)
    op("ROPE_SET_ROWS", 4, 5, params=p.RopeParams)
    # Plain tensors, as PyTorch programs use them.
    op("BINARY", 2, inplace=True, params=pt.BinaryParams)
    op("MAP", 1, inplace=True, params=pt.MapParams)
    op("WHERE", 3, inplace=True)
    op("CONVERT", 1, inplace=True, params=pt.ConvertParams)
    op("REDUCE", 1, params=pt.ReduceParams)
    op("ARG_REDUCE", 1, params=pt.ArgReduceParams)
    op("CUMULATE", 1, params=pt.CumulateParams)
    op("GATHER", 2, params=pt.AxisParams)
    op("SCATTER", 3, params=pt.ScatterParams)
    op("INDEX", 2, 5, params=pt.IndexParams)
    op("INDEX_PUT", 3, 6, params=pt.IndexPutParams)
    op("SORT_INDICES", 1, params=pt.SortIndicesParams)
    op("PAD_ND", 1, params=pt.PadNdParams)
    op("CONV_ND", 2, 3, params=pt.ConvNdParams)
    op("POOL_ND", 1, params=pt.PoolNdParams)
    op("INTERPOLATE", 1, params=pt.InterpolateParams)
    op("CONV_2D_LAST", 2, 4, params=pt.ConvLastParams)
    return rows


OPS: dict[str, Op] = _table()
NONE: Op = OPS["NONE"]


def find_op(name: str) -> Op:
    """The row called `name`; raises GraphError when the table has none."""
    found = OPS.get(name)
    if found is None:
        raise GraphError(f"unknown op {name!r}; known ops: {', '.join(OPS)}")
    return found
