"""Elementwise ops, norms, attention, rope, reductions, sorting: against the golden cases.

Every target that this machine can run, with one thread and with three.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from golden import Case, all_pass, array, judge, needs_vectors, nmse, op_cases, operands
from harness import Operand, run_op
from numpy.typing import NDArray

from tests.targets import BUT_PRODUCTS
from weft.graph import ops as p
from weft.graph.params import Params, pack

OPS = [
    *("ADD", "SUB", "MUL", "DIV", "ADD1", "ADD_ID", "SCALE", "SQR", "SQRT", "LOG", "SIN", "COS"),
    *("CLAMP", "FILL", "LEAKY_RELU", "UNARY", "GLU", "SUM", "SUM_ROWS", "CUMSUM", "MEAN", "ARGMAX"),
    *("COUNT_EQUAL", "ARGSORT", "TOP_K", "ARANGE", "TIMESTEP_EMBEDDING", "TRI", "DIAG"),
    *("DIAG_MASK_INF", "DIAG_MASK_ZERO", "CROSS_ENTROPY_LOSS", "PAD", "PAD_REFLECT_1D", "ROLL"),
    *("UPSCALE", "NORM", "RMS_NORM", "L2_NORM", "GROUP_NORM", "SOFT_MAX", "FLASH_ATTN_EXT"),
    *("ROPE", "ROPE_BACK"),
]


def _softplus(x: float) -> float:
    return x if x > 20 else math.log1p(math.exp(x))


def _record(op: str, values: dict[str, Any]) -> Params | None:
    """The parameter record of a case."""
    v = values
    match op:
        case "UNARY" if "alpha_n" in v:
            alpha_n = v["beta"] + _softplus(v["alpha_n"])
            return p.UnaryParams(
                p.UnaryOp.XIELU, alpha_n, _softplus(v["alpha_p"]), v["beta"], v["eps"]
            )
        case "UNARY":
            return p.UnaryParams(p.UnaryOp[v["unary_op"]])
        case "GLU":
            limits = (v.get("alpha", 0.0), v.get("limit", 0.0))
            return p.GluParams(p.GluOp[v["glu_op"]], v["swapped"], *limits)
        case "SCALE":
            return p.ScaleParams(v["s"], v["b"])
        case "CLAMP":
            return p.ClampParams(v["min"], v["max"])
        case "FILL":
            return p.FillParams(v["c"])
        case "LEAKY_RELU":
            return p.LeakyReluParams(v["negative_slope"])
        case "NORM" | "RMS_NORM" | "L2_NORM":
            return p.EpsParams(v["eps"])
        case "GROUP_NORM":
            return p.GroupNormParams(v["n_groups"], v["eps"])
        case "ARGSORT":
            return p.ArgsortParams(p.SortOrder[v["order"].upper()])
        case "TOP_K":
            return p.TopKParams(v["k"])
        case "ARANGE":
            return p.ArangeParams(v["start"], v["stop"], v["step"])
        case "TIMESTEP_EMBEDDING":
            return p.TimestepParams(v["dim"], v["max_period"])
        case "TRI":
            return p.TriParams(p.TriKind[v["type_name"].upper()])
        case "DIAG_MASK_INF" | "DIAG_MASK_ZERO":
            return p.DiagMaskParams(v["n_past"])
        case "ROLL":
            return p.RollParams(tuple(v["shift"]))
        case "PAD":
            return p.PadParams(tuple(v["left"]), tuple(v["right"]), v["circular"])
        case "PAD_REFLECT_1D":
            return p.PadReflectParams(v["p0"], v["p1"])
        case "UPSCALE":
            mode = p.ScaleMode[v["mode"].upper()]
            return p.UpscaleParams(mode, v["align_corners"], v["antialias"])
        case "SOFT_MAX":
            return p.SoftMaxParams(v["scale"], v["max_bias"])
        case "FLASH_ATTN_EXT":
            return p.FlashAttnParams(v["scale"], v["max_bias"], v["logit_softcap"])
        case "ROPE" | "ROPE_BACK":
            names = ("n_dims", "n_ctx_orig", "freq_base", "freq_scale", "ext_factor")
            names += ("attn_factor", "beta_fast", "beta_slow", "n_offset")
            sections = tuple(v.get("sections", (0, 0, 0, 0)))
            return p.RopeParams(
                p.RopeMode(v["mode_id"]), **{n: v[n] for n in names}, sections=sections
            )
    return None


def run_golden(case: Case, target: str, n_threads: int) -> NDArray[Any]:
    """Runs a case; sources keep their slots, so optional ones may be missing in between."""
    dst, present = operands(case)
    slots = sorted(i["src_index"] for i in case["inputs"])
    sources: list[Operand | None] = [None] * (max(slots, default=-1) + 1)
    for slot, source in zip(slots, present, strict=True):
        sources[slot] = source
    op = case["ggml_op"]
    return run_op(op, dst, sources, pack(_record(op, case["params"])), target, n_threads)


@needs_vectors
@pytest.mark.parametrize("target", BUT_PRODUCTS)
@pytest.mark.parametrize("op", OPS)
def test_golden(op: str, target: str) -> None:
    def check(case: Case) -> None:
        got = run_golden(case, target, 3)
        judge(case, got)
        if "ref_f64_key" in case:
            ref = array(case["file"], case["ref_f64_key"])
            assert nmse(got, ref.reshape(got.shape)) <= case["compare"]["max_nmse"], "float64"

    all_pass(op_cases(op), check)
