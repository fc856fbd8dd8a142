"""Every golden op case builds through the constructors, with the recorded sizes and parameters."""

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.vectors import ops
from weft.backends.cases import all_cases
from weft.graph import check_graph, format_graph, parse_graph
from weft.graph import ops as p
from weft.graph.op import OPS
from weft.graph.params import Params, pack

FOLDER = Path(__file__).parents[3] / "shared/vectors/ops"

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="no golden vectors (shared/vectors beside the repository)"
)


def by_op() -> Iterator[Any]:
    """The cases grouped by op, one test an op."""
    if not FOLDER.is_dir():
        return
    cases = sorted(ops.iter_cases(FOLDER), key=lambda c: c["op"])
    for op, group in itertools.groupby(cases, key=lambda c: c["op"]):
        yield pytest.param(list(group), id=op)


BY_OP = list(by_op())


def raw_params(params: Params | None) -> list[float]:
    """The record in the order of ggml's op_params, floats as float32 bit patterns."""
    if params is None:
        return []
    v = pack(params)

    def f(x: float) -> int:
        return int(np.float32(x).view(np.int32))

    match params:
        case p.RopeParams():
            floats = (params.freq_base, params.freq_scale, params.ext_factor, params.attn_factor)
            betas = (params.beta_fast, params.beta_slow)
            whole = [0, params.n_dims, int(params.mode), 0, params.n_ctx_orig]
            return [*whole, *map(f, floats + betas), *params.sections, params.n_offset]
        case p.UnaryParams():
            return [int(params.op), *map(f, v[1:])]
        case p.GluParams():
            return [int(params.op), int(params.swapped), f(params.alpha), f(params.limit)]
        case p.GroupNormParams():
            return [params.n_groups, f(params.eps)]
        case p.HcPreParams():
            return [f(params.scale), int(params.gated)]
        case p.HcCombParams():
            return [f(params.eps), params.n_iter]
        case p.PadParams():
            pairs = itertools.chain(*zip(params.left, params.right, strict=True))
            return [*pairs, int(params.circular)]
        case p.UpscaleParams():
            return [int(params.mode) + 256 * params.align_corners + 512 * params.antialias]
        case p.ConvTranspose1dParams():
            return [params.stride, params.padding, params.dilation]
        case p.Im2Col3dParams():
            return [*v[1:], params.channels]
        case p.SolveTriParams() | p.TopKParams() | p.WinParams():
            return []  # not stored, or stored with numbers that the sizes give
        case (
            p.ArangeParams() | p.ScaleParams() | p.ClampParams() | p.FillParams()
            | p.LeakyReluParams() | p.EpsParams() | p.SoftMaxParams() | p.FlashAttnParams()
            | p.LinearAttnParams()
        ):  # fmt: skip
            return [f(x) for x in v]
    return v


@pytest.mark.parametrize("cases", BY_OP)
def test_case_builds(cases: list[ops.Case]) -> None:
    for case in cases:
        built = ops.build_case(case)
        out, want = built.output, case["output"]
        assert out.op is OPS[case["ggml_op"]], case.id
        assert list(out.ne) == want["ne"], case.id
        assert list(out.nb) == want["nb"], case.id
        assert out.dtype.name == want["type"], case.id
        assert out.view_offs == want["view_offs"], case.id
        assert out.is_contiguous == want["contiguous"], case.id
        assert (out.view_src.name if out.view_src else None) == want["is_view_of"], case.id
        for record in case["inputs"]:
            src = built.sources[record["role"]]
            assert out.src[record["src_index"]] is src, case.id
            assert (list(src.ne), list(src.nb)) == (record["ne"], record["nb"]), case.id
            assert src.view_offs == record["view_offs"], case.id
            assert src.is_contiguous == record["contiguous"], case.id
        raw = raw_params(out.params)
        assert raw == case["op_params_i32"][: len(raw)], case.id


@pytest.mark.parametrize("cases", BY_OP)
def test_case_is_legal_and_survives_text(cases: list[ops.Case]) -> None:
    for case in cases:
        graph = ops.build_case(case, constants=True).graph
        check_graph(graph)
        text = format_graph(graph)
        again = parse_graph(text)
        assert format_graph(again) == text
        for a, b in zip(graph.tensors, again.tensors, strict=True):
            assert (a.op, a.params, a.ne, a.nb) == (b.op, b.params, b.ne, b.nb), case.id
            assert (a.view_offs, a.flags, a.name) == (b.view_offs, b.flags, b.name), case.id


@pytest.mark.parametrize("cases", BY_OP)
def test_golden_output_passes_and_a_wrong_one_fails(cases: list[ops.Case]) -> None:
    for case in cases:
        golden = case.golden
        ok, message = ops.judge(case, golden, case.array(case["output"]["key"]))
        assert ok, f"{case.id}: {message}"
        if case["compare"].get("informative") or not golden.size:
            continue
        wrong = np.ascontiguousarray(golden).copy()
        wrong.reshape(-1).view(np.uint8)[:] ^= 0xA5
        ok, message = ops.judge(case, wrong)
        assert not ok, f"{case.id}: {message}"


def test_all_ops_of_the_table_have_cases_or_are_our_own() -> None:
    seen = {case["ggml_op"] for case in ops.iter_cases(FOLDER)}
    assert len(seen) == 82
    ours = {case.op for case in all_cases()} - seen
    views = {name for name, op in OPS.items() if op.is_view}
    assert set(OPS) - seen - ours == views - seen | {"NONE"}
