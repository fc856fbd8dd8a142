"""The golden op cases: reading them, replaying them as weft graphs, judging a result.

A folder holds `index.json` and one `.npz` a group; its FORMAT.md is the authority. Typical use:

    for case in iter_cases(folder, "mul_mat/*"):
        built = build_case(case)           # a graph with the case's leaves and its one op
        got = run(built)                   # the value of built.output, shape ne[::-1]
        ok, message = judge(case, got)
"""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft import graph as g
from weft import quants
from weft.dtype import DType, find_dtype
from weft.graph import Graph, Tensor
from weft.graph.node import leaf

__all__ = [
    "BuiltCase",
    "Case",
    "Verdict",
    "build_case",
    "iter_cases",
    "judge",
    "logical",
    "measure",
    "nmse",
]

Array = NDArray[Any]


# -- reading ---------------------------------------------------------------------------------------


class Arrays:
    """The arrays of a folder, by file and key; each is read once, and cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files: dict[str, Any] = {}
        self._arrays: dict[tuple[str, str], Array] = {}

    def load(self, file: str, key: str) -> Array:
        if file not in self._files:
            self._files[file] = np.load(self.folder / file)
        if (file, key) not in self._arrays:
            array: Array = self._files[file][key]
            array.setflags(write=False)
            self._arrays[file, key] = array
        return self._arrays[file, key]


@cache
def read_folder(folder: Path) -> tuple[list[Mapping[str, Any]], Arrays]:
    """The records of a folder and their arrays, the same for every kernel target that is tried."""
    index = json.loads((folder / "index.json").read_text(encoding="utf-8"))
    return index["cases"], Arrays(folder)


@dataclass(frozen=True)
class Case:
    """One record of `index.json`; `case["output"]` reads a field."""

    record: Mapping[str, Any]
    arrays: Arrays

    def __getitem__(self, field: str) -> Any:
        return self.record[field]

    def __repr__(self) -> str:
        return f"<Case {self.id}>"

    @property
    def id(self) -> str:
        return str(self.record["id"])

    @property
    def params(self) -> Mapping[str, Any]:
        params: Mapping[str, Any] = self.record["params"]
        return params

    def array(self, key: str) -> Array:
        """The stored array `key`, as it lies in the file."""
        return self.arrays.load(self.record["file"], key)

    @cached_property
    def dtype(self) -> DType:
        """The result's type."""
        return find_dtype(self.record["output"]["type"])

    @property
    def golden(self) -> Array:
        """The result of the reference, in the storage of its type (see `logical`)."""
        return logical(self, self.array(self.record["output"]["key"]))

    @property
    def ref_f64(self) -> Array | None:
        """The float64 reference result, shape ne[::-1], where there is one."""
        key = self.record.get("ref_f64_key")
        return None if key is None else self.array(key)


def iter_cases(folder: str | Path, pattern: str = "*") -> Iterator[Case]:
    """The op cases of `folder` (not those of the group `quant`) whose id matches the glob."""
    records, arrays = read_folder(Path(folder))
    for record in records:
        if record.get("group") != "quant" and fnmatch.fnmatchcase(record["id"], pattern):
            yield Case(record, arrays)


def logical(case: Case, base: Array) -> Array:
    """The result's elements out of its whole base memory (`base`, as stored or as bytes).

    Shape ne[::-1] in the storage of the type (bf16: uint16); block types: [ne3, ne2, ne1, bytes of
    a row] uint8."""
    out, dtype = case["output"], case.dtype
    ne, nb = out["ne"], out["nb"]
    raw = np.ascontiguousarray(base).reshape(-1).view(np.uint8)
    item = dtype.storage.itemsize
    blocks, per_block = ne[0] // dtype.block, dtype.bytes // item
    shape = (ne[3], ne[2], ne[1], blocks, per_block)
    strides = (nb[3], nb[2], nb[1], nb[0], item)
    if 0 in shape:
        return np.zeros((*shape[:3], blocks * per_block), dtype.storage)
    last = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + item
    if out["view_offs"] + last > raw.nbytes:
        raise ValueError(f"{case.id}: the result leaves its base of {raw.nbytes} bytes")
    view: Array = np.ndarray(shape, dtype.storage, raw.data, out["view_offs"], strides)
    return np.ascontiguousarray(view).reshape(*shape[:3], blocks * per_block)


# -- replaying -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class BuiltCase:
    """A case as a graph. `data` holds what each leaf contains before the op, in storage form."""

    case: Case
    output: Tensor
    """The op's node, called `out` and flagged as output."""
    sources: dict[str, Tensor]
    """The op's sources by role: leaves or views of leaves."""
    leaves: dict[str, Tensor]
    data: dict[str, Array]

    @property
    def graph(self) -> Graph:
        """The graph of `output`."""
        return Graph(self.output)

    @property
    def inputs(self) -> dict[str, Array]:
        """Data of the leaves that the graph takes as inputs, by name."""
        return {name: self.data[name] for name, t in self.graph.inputs.items()}


def build_case(case: Case, *, constants: bool = False) -> BuiltCase:
    """Replays leaves, view chains and the op through the constructors.

    Leaves are inputs; with `constants`, those that the op only reads are weights instead. Raises
    GraphError where a constructor refuses, KeyError on an op or parameter unknown here."""
    written = case["output"]["is_view_of"]
    leaves: dict[str, Tensor] = {}
    data: dict[str, Array] = {}
    for record in case["leaves"]:
        name, dtype = record["name"], find_dtype(record["type"])
        data[name] = case.array(record["key"])
        if constants and name != written:
            leaves[name] = g.constant(data[name], name, dtype)
        else:
            leaves[name] = leaf(dtype, record["ne"], name, frozenset({"input"}))
    sources = {}
    for record in case["inputs"]:
        tensor = leaves[record["leaf"]]
        for step in record["view_chain"]:
            tensor = _replay(tensor, step)
        sources[record["role"]] = tensor
    output = OPS[case["op"]](case, sources).as_output("out")
    return BuiltCase(case, output, sources, leaves, data)


def _replay(x: Tensor, step: Mapping[str, Any]) -> Tensor:
    kind = step["op"]
    if kind == "PERMUTE":
        return g.permute(x, *step["axes"])
    if kind == "TRANSPOSE":
        return g.transpose(x)
    if kind == "RESHAPE":
        return g.reshape(x, *step["ne"])
    if kind == "VIEW":
        return g.view(x, step["ne"], step["nb"], step["offset"])
    raise KeyError(f"unknown view step {kind!r}")


Sources = dict[str, Tensor]
Build = Callable[[Case, Sources], Tensor]


def _call(function: Callable[..., Tensor], *names: str, **keywords: str) -> Build:
    """A Build that passes the sources in order, then the parameters `names`.

    `keywords` map an argument of the constructor to a parameter of the case."""

    def build(case: Case, src: Sources) -> Tensor:
        p = case.params
        kw = {argument: p[name] for argument, name in keywords.items() if name in p}
        if p.get("inplace"):
            kw["inplace"] = True
        return function(*src.values(), *(p[name] for name in names), **kw)

    return build


def _unary(case: Case, src: Sources) -> Tensor:
    return g.unary(case.params["unary_op"], src["a"], inplace=bool(case.params.get("inplace")))


def _glu(case: Case, src: Sources) -> Tensor:
    p = case.params
    limits = {name: p[name] for name in ("alpha", "limit") if name in p}
    return g.glu(p["glu_op"], src["a"], src.get("b"), p["swapped"], **limits)


def _rope(function: Callable[..., Tensor]) -> Build:
    fields = (
        *("mode", "n_dims", "n_ctx_orig", "freq_base", "freq_scale", "ext_factor", "attn_factor"),
        *("beta_fast", "beta_slow", "n_offset", "sections", "inplace"),
    )

    def build(case: Case, src: Sources) -> Tensor:
        kw = {name: case.params[name] for name in fields if name in case.params}
        return function(src["a"], src["pos"], src.get("freq_factors"), **kw)

    return build


def _soft_max(case: Case, src: Sources) -> Tensor:
    p = case.params
    return g.soft_max(
        src["a"],
        src.get("mask"),
        src.get("sinks"),
        p["scale"],
        p["max_bias"],
        inplace=bool(p.get("inplace")),
    )


def _flash_attn_ext(case: Case, src: Sources) -> Tensor:
    kw = {name: case.params[name] for name in ("scale", "max_bias", "logit_softcap")}
    q, k, v = src["q"], src["k"], src["v"]
    return g.flash_attn_ext(q, k, v, src.get("mask"), src.get("sinks"), **kw)


def _get_rows_back(case: Case, src: Sources) -> Tensor:
    return g.get_rows_back(src["a"], src["ids"], src.get("c", case["output"]["ne"]))


def _hc_pre(case: Case, src: Sources) -> Tensor:
    p = case.params
    x, weights = src.values()
    return g.dsv4_hc_pre(x, weights, gated=p["gated"], scale=p.get("scale", 1.0))


_CONV = ("stride", "padding", "dilation")

OPS: dict[str, Build] = {
    **{name: _unary for name in g.UnaryOp.__members__ if name != "XIELU"},
    **{name: _glu for name in g.GluOp.__members__},
    "XIELU": _call(g.xielu, "alpha_n", "alpha_p", "beta", "eps"),
    "ADD": _call(g.add),
    "SUB": _call(g.sub),
    "MUL": _call(g.mul),
    "DIV": _call(g.div),
    "ADD1": _call(g.add1),
    "ADD_ID": _call(g.add_id),
    "ADD_CAST": _call(g.add_cast, "type"),
    "ACC": _call(g.acc, "nb1", "nb2", "nb3", "offset"),
    "SET": _call(g.set, "nb1", "nb2", "nb3", "offset"),
    "SCALE": _call(g.scale, "s", "b"),
    "SQR": _call(g.sqr),
    "SQRT": _call(g.sqrt),
    "LOG": _call(g.log),
    "SIN": _call(g.sin),
    "COS": _call(g.cos),
    "CLAMP": _call(g.clamp, "min", "max"),
    "FILL": _call(g.fill, "c"),
    "LEAKY_RELU": _call(g.leaky_relu, "negative_slope"),
    "SUM": _call(g.sum),
    "SUM_ROWS": _call(g.sum_rows),
    "CUMSUM": _call(g.cumsum),
    "MEAN": _call(g.mean),
    "ARGMAX": _call(g.argmax),
    "COUNT_EQUAL": _call(g.count_equal),
    "REPEAT": _call(g.repeat, "ne"),
    "REPEAT_BACK": _call(g.repeat_back, "ne"),
    "CONCAT": _call(g.concat, "dim"),
    "ARGSORT": _call(g.argsort, "order"),
    "TOP_K": _call(g.top_k, "k"),
    "ARANGE": _call(g.arange, "start", "stop", "step"),
    "TIMESTEP_EMBEDDING": _call(g.timestep_embedding, "dim", "max_period"),
    "TRI": _call(g.tri, "type"),
    "DIAG": _call(g.diag),
    "DIAG_MASK_INF": _call(g.diag_mask_inf, "n_past"),
    "DIAG_MASK_ZERO": _call(g.diag_mask_zero, "n_past"),
    "ROLL": _call(g.roll, "shift"),
    "PAD": _call(g.pad, "left", "right", circular="circular"),
    "PAD_REFLECT_1D": _call(g.pad_reflect_1d, "p0", "p1"),
    "CROSS_ENTROPY_LOSS": _call(g.cross_entropy_loss),
    "UPSCALE": _call(g.upscale, "ne", "mode", align_corners="align_corners", antialias="antialias"),
    "NORM": _call(g.norm, "eps"),
    "RMS_NORM": _call(g.rms_norm, "eps"),
    "L2_NORM": _call(g.l2_norm, "eps"),
    "GROUP_NORM": _call(g.group_norm, "n_groups", "eps"),
    "CPY": _call(g.cpy),
    "CAST": _call(g.cast, "type"),
    "CONT": _call(g.cont),
    "CONT_4D": lambda case, src: g.cont(src["a"], *case.params["ne"]),
    "DUP": _call(g.dup),
    "GET_ROWS": _call(g.get_rows),
    "GET_ROWS_BACK": _get_rows_back,
    "SET_ROWS": lambda case, src: g.set_rows(src["dst"], src["src"], src["ids"]),
    "MUL_MAT": _call(g.mul_mat),
    "MUL_MAT_ID": _call(g.mul_mat_id),
    "OUT_PROD": _call(g.out_prod),
    "SOLVE_TRI": _call(g.solve_tri, left="left", lower="lower", uni="uni"),
    "SOFT_MAX": _soft_max,
    "ROPE": _rope(g.rope),
    "ROPE_BACK": _rope(g.rope_back),
    "FLASH_ATTN_EXT": _flash_attn_ext,
    "LIGHTNING_INDEXER": _call(g.lightning_indexer),
    "DSV4_HC_COMB": _call(g.dsv4_hc_comb, eps="eps", n_iter="n_iter"),
    "DSV4_HC_PRE": _hc_pre,
    "DSV4_HC_POST": _call(g.dsv4_hc_post),
    "IM2COL": _call(g.im2col, *_CONV, is_2d="is_2D", dtype="dst_type"),
    "IM2COL_3D": _call(g.im2col_3d, "IC", *_CONV, dtype="dst_type"),
    "CONV_2D": _call(g.conv_2d, *_CONV),
    "CONV_2D_DW": _call(g.conv_2d_dw, *_CONV),
    "CONV_3D": _call(
        g.conv_3d,
        *_CONV,
        n_channels="n_channels",
        n_batch="n_batch",
        n_channels_out="n_channels_out",
    ),
    "CONV_TRANSPOSE_1D": _call(
        g.conv_transpose_1d, "stride", padding="padding", dilation="dilation"
    ),
    "CONV_TRANSPOSE_2D": _call(g.conv_transpose_2d, "stride"),
    "COL2IM_1D": _call(g.col2im_1d, stride="stride", oc="oc", padding="padding"),
    "POOL_1D": _call(g.pool_1d, "pool", "k0", "s0", "p0"),
    "POOL_2D": _call(g.pool_2d, "pool", "k0", "k1", "s0", "s1", "p0", "p1"),
    "WIN_PART": _call(g.win_part, "w"),
    "WIN_UNPART": _call(g.win_unpart, "w0", "h0", "w"),
    "GET_REL_POS": _call(g.get_rel_pos, "qh", "kh"),
    "SSM_CONV": _call(g.ssm_conv),
    "SSM_SCAN": _call(g.ssm_scan, k="K"),
    "RWKV_WKV6": _call(g.rwkv_wkv6),
    "RWKV_WKV7": _call(g.rwkv_wkv7),
    "GATED_LINEAR_ATTN": _call(g.gated_linear_attn, scale="scale"),
    "GATED_DELTA_NET": _call(g.gated_delta_net, n_states="K"),
}
"""How each op of the format is built: the case and its sources by role (in slot order)."""


# -- judging ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Verdict:
    """What `measure` found. Numbers are None where they do not apply."""

    ok: bool
    message: str
    nmse: float | None = None
    """Against the reference's own output."""
    nmse_f64: float | None = None
    """Against the float64 result."""
    tight: bool = True
    """Whether `nmse` is within the advisory `tight_nmse`, too."""
    informative: bool = False
    """The case is recorded, not judged: `ok` is True whatever came out."""


def judge(case: Case, got: Array, base: Array | None = None) -> tuple[bool, str]:
    """Whether `got` passes the case, and a sentence. Arguments as `measure`."""
    verdict = measure(case, got, base)
    return verdict.ok, verdict.message


def measure(case: Case, got: Array, base: Array | None = None) -> Verdict:
    """Judges the result `got` by the case's compare mode.

    `got`: the op's result in storage form, shape ne[::-1] (leading ones may be missing); block
    types: uint8 rows. `base`, where given, is the whole memory that the op wrote into: what lies
    around the result must equal the golden memory, too."""
    compare = case["compare"]
    golden = case.golden
    if got.size != golden.size or got.dtype.itemsize != golden.dtype.itemsize:
        return Verdict(
            False,
            f"got {got.dtype}{list(got.shape)}, expected {golden.dtype}{list(golden.shape)} for "
            f"{case.dtype.name} ne {case['output']['ne']}",
        )
    got = np.ascontiguousarray(got).reshape(golden.shape).view(golden.dtype)
    verdict = _MODES[compare["mode"]](case, golden, got)
    if base is not None:
        around = _around(case, base)
        if around:
            verdict = Verdict(False, f"{verdict.message}; {around}", verdict.nmse)
    if compare.get("informative"):
        return Verdict(True, f"informative: {verdict.message}", verdict.nmse, informative=True)
    return verdict


def _exact(case: Case, golden: Array, got: Array) -> Verdict:
    if case.dtype.is_quantized:
        return _count(golden.view(np.uint8) != got.view(np.uint8), "bytes")
    a, b = _values(case.dtype, golden), _values(case.dtype, got)
    differ = a != b
    if a.dtype.kind == "f":
        differ &= ~(np.isnan(a) & np.isnan(b))
    return _count(differ, "elements")


def _count(differ: Array, what: str) -> Verdict:
    n = int(np.count_nonzero(differ))
    if not n:
        return Verdict(True, f"all {differ.size} {what} equal")
    first = np.unravel_index(int(np.argmax(differ)), differ.shape)
    return Verdict(False, f"{n} of {differ.size} {what} differ, first at {[int(i) for i in first]}")


def _nmse(case: Case, golden: Array, got: Array) -> Verdict:
    a, b = _decoded(case, golden), _decoded(case, got)
    keep = ~_unwritten(case, a)
    error, why = nmse(a[keep], b[keep])
    limit, tight = case["compare"]["max_nmse"], case["compare"].get("tight_nmse")
    message = f"nmse {error:.3g} (limit {limit:.3g})"
    ok = not why and error <= limit
    if why:
        message += f"; {why}"
    error64: float | None = None
    ref = case.ref_f64
    if ref is not None:
        error64, why = nmse(ref.reshape(a.shape)[keep], b[keep])
        ok = ok and not why and error64 <= limit
        message += f", against float64 {error64:.3g}{'; ' + why if why else ''}"
    is_tight = tight is None or error <= tight
    if not is_tight:
        message += f", above the advisory {tight:.3g}"
    return Verdict(ok, message, error, error64, is_tight)


def nmse(want: Array, got: Array) -> tuple[float, str]:
    """sum((want - got)^2) / sum(want^2) over entries finite in both, and "" or what is wrong with
    the others: infinities and NaNs must agree in kind, sign and place."""
    want, got = want.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(want) & np.isfinite(got)
    w, x = want[~finite], got[~finite]
    wrong = int(np.count_nonzero(~((w == x) | (np.isnan(w) & np.isnan(x)))))
    total = float(np.sum(np.square(want[finite])))
    error = float(np.sum(np.square(want[finite] - got[finite])))
    ratio = error / total if total > 0 else (0.0 if error == 0 else float("inf"))
    return ratio, f"{wrong} infinities or NaNs differ" if wrong else ""


def _set_per_row(case: Case, golden: Array, got: Array) -> Verdict:
    return _count(np.sort(golden, axis=-1) != np.sort(got, axis=-1), "elements of sorted rows")


_LARGEST_STEP = {
    **dict.fromkeys(("q8_0", "q8_1", "q8_K"), 2 / 254),
    **dict.fromkeys(("q6_K",), 2 / 62),
    **dict.fromkeys(("q5_0", "q5_1", "q5_K"), 2 / 30),
    **dict.fromkeys(("q4_0", "q4_1", "q4_K"), 2 / 14),
    **dict.fromkeys(("iq4_nl", "iq4_xs"), 24 / 113),
    **dict.fromkeys(("mxfp4", "nvfp4"), 2 / 6),
    **dict.fromkeys(("q3_K",), 2 / 6),
    **dict.fromkeys(("q2_K", "q2_0", "tq1_0", "tq2_0"), 1.0),
    "q1_0": 2.0,
}
"""Largest distance of neighbouring codes, as a part of the largest value of a block."""


def _quant(case: Case, golden: Array, got: Array) -> Verdict:
    dtype = case.dtype
    a, b = (x.reshape(-1, dtype.bytes) for x in (golden, got))
    differ = (a != b).any(axis=1)
    equal = 1 - differ.mean() if differ.size else 1.0
    least = case["compare"]["min_equal_block_fraction"]
    message = f"{differ.size - int(differ.sum())} of {differ.size} blocks equal (least {least:.0%})"
    if equal < least:
        return Verdict(False, message)
    if differ.any():
        # codes may differ by one, where a tie is rounded the other way
        x, y = (quants.decode(v[differ], dtype) for v in (a, b))
        step = _LARGEST_STEP.get(dtype.name, 2.0) * np.abs(x).max(axis=1, keepdims=True)
        beyond = int(np.count_nonzero(~(np.abs(x - y) <= 1.01 * step)))
        if beyond:
            return Verdict(False, f"{message}; {beyond} values are off by more than one code")
    return Verdict(True, message)


_MODES: dict[str, Callable[[Case, Array, Array], Verdict]] = {
    "exact": _exact,
    "nmse": _nmse,
    "quant": _quant,
    "set_per_row": _set_per_row,
}


def _values(dtype: DType, stored: Array) -> Array:
    """Stored elements as numbers: bf16 bit patterns become float32."""
    if dtype.name == "bf16":
        return (stored.astype(np.uint32) << 16).view(np.float32)
    return stored


def _decoded(case: Case, stored: Array) -> Array:
    dtype = case.dtype
    if not dtype.is_quantized:
        return _values(dtype, stored)
    return np.asarray(quants.decode(stored, dtype, case["output"]["ne"][0]))


def _unwritten(case: Case, golden: Array) -> Array:
    """Elements that the reference leaves unset: state snapshots from before the first token.

    They lie behind the outputs of the tokens, and are zero because its buffers were cleared."""
    p = case.params
    mask = np.zeros(golden.shape, bool)
    if case["ggml_op"] == "SSM_SCAN":
        tokens, outputs = p["n_seq_tokens"], p["head_dim"] * p["n_head"] * p["n_seq_tokens"]
        outputs *= p["n_seqs"]
    elif case["ggml_op"] == "GATED_DELTA_NET":
        tokens, outputs = p["n_tokens"], p["head_size"] * p["n_head_v"] * p["n_tokens"]
        outputs *= p["n_seqs"]
    else:
        return mask
    if p.get("K", 1) > tokens:
        mask.reshape(-1)[outputs:] = golden.reshape(-1)[outputs:] == 0
    return mask


def _around(case: Case, base: Array) -> str:
    """ "" or how the memory around the result differs from the golden one."""
    stored = case.array(case["output"]["key"])
    want = np.ascontiguousarray(stored).reshape(-1).view(np.uint8)
    have = np.ascontiguousarray(base).reshape(-1).view(np.uint8)
    if want.nbytes != have.nbytes:
        return f"the base has {have.nbytes} bytes, not {want.nbytes}"
    out, dtype = case["output"], case.dtype
    ne, nb = out["ne"], out["nb"]
    inside = np.zeros(want.nbytes, bool)
    shape = (ne[3], ne[2], ne[1], ne[0] // dtype.block, dtype.bytes)
    if 0 not in shape:
        strides = (nb[3], nb[2], nb[1], nb[0], 1)
        np.ndarray(shape, bool, inside.data, out["view_offs"], strides)[:] = True
    n = int(np.count_nonzero((want != have) & ~inside))
    return f"{n} bytes around the result differ" if n else ""
