"""Runs the golden op cases: each as a graph of one op, compiled and run on the chosen backend."""

from __future__ import annotations

import fnmatch
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tests.vectors.ops import BuiltCase, Case, build_case, iter_cases, measure, read_folder
from tests.vectors.result import Options, Result
from weft import _native, quants
from weft.backends import Backend, make_backend
from weft.compiler import compile
from weft.dtype import DType, find_dtype
from weft.errors import UnsupportedOpError, WeftError
from weft.execute import Session
from weft.program import Program

__all__ = ["run"]

COMPLETE = ("cpu", "reference")
"""Backends that must take every op; cases that others refuse are skipped with the sentence."""

Array = np.ndarray[Any, np.dtype[Any]]


def run(folder: Path, options: Options) -> Iterator[Result]:
    """Every op case and block-format case of the folder; with `planes`, those that have weights in
    planes."""
    backend = _backend(options)
    cases = (
        case
        for case in iter_cases(folder, options.filter)
        if options.ops is None or case["ggml_op"] in options.ops
    )
    for case in _sample(cases) if options.sample else cases:
        result = _run_op(case, backend, repack=options.planes)
        if result is not None:
            yield result
    if options.planes:
        return
    yield from _run_quants(folder, options)


def _sample(cases: Iterator[Case]) -> Iterator[Case]:
    """The same cases each time: one of each op, and one of each type that a leaf has."""
    seen: set[str] = set()
    mixed = sorted(cases, key=lambda case: zlib.crc32(case.id.encode()))
    for case in mixed:
        new = {case["op"], *(leaf["type"] for leaf in case["leaves"])} - seen
        if new:
            seen |= new
            yield case


def _backend(options: Options) -> Backend:
    if options.backend == "cpu":
        return make_backend("cpu", target=options.target, n_threads=2)
    backend = make_backend(options.backend, **({"planes": True} if options.planes else {}))
    backend.kind = "CPU"  # so that it may be the only device, and the case runs nowhere else
    return backend


def _run_op(case: Case, backend: Backend, repack: bool = False) -> Result | None:
    try:
        built = build_case(case, constants=repack)
        if backend.name not in COMPLETE:
            why = next((w for n in built.graph.nodes if not (w := backend.supports_op(n))), None)
            if why is not None:
                return Result(case.id, "skipped", why.why)
        program = compile(built.graph, [backend], repack=repack)
        if repack and all(t.layout == "rows" for t in program.tensors):
            return None
        got, base = _run_program(program, built)
        verdict = measure(case, got, base)
    except WeftError as error:
        return Result(case.id, "failed", f"{type(error).__name__}: {error}")
    return Result(case.id, "passed" if verdict.ok else "failed", verdict.message)


def compute(built: BuiltCase, backend: Backend) -> tuple[Array, Array | None]:
    """The case's result, and the whole memory it was written into where that is a leaf."""
    return _run_program(compile(built.graph, [backend]), built)


def _run_program(program: Program, built: BuiltCase) -> tuple[Array, Array | None]:
    session = Session(program)
    result = session.run(built.inputs)
    written = built.case["output"]["is_view_of"]
    if written is None:
        return result["out"], None
    spec = program.tensors[program.inputs[written]]
    start = spec.offset
    assert isinstance(start, int)
    nbytes = built.data[written].nbytes
    return result["out"], session.read_buffer(spec.buffer, start, nbytes)


def _run_quants(folder: Path, options: Options) -> Iterator[Result]:
    records, arrays = read_folder(folder)
    for record in records:
        if record["group"] != "quant" or not fnmatch.fnmatchcase(record["id"], options.filter):
            continue
        case = Case(record, arrays)
        dtype = find_dtype(record["type"])
        try:
            if options.backend == "cpu":
                message = _native_quant(case, dtype, options.target or _native.best_target())
            else:
                message = _numpy_quant(case, dtype)
        except UnsupportedOpError as error:
            yield Result(case.id, "skipped", str(error))
            continue
        yield Result(case.id, "failed" if message else "passed", message)


def _rows_equal(case: Case, want: Array, got: Array, what: str) -> str:
    if case.record.get("overflow"):
        return ""  # inputs whose scales overflow are recorded, not judged
    same = (
        (want == got) | (np.isnan(want) & np.isnan(got))
        if want.dtype.kind == "f"
        else (want == got)
    )
    rows = np.flatnonzero(~same.reshape(len(want), -1).all(1))
    if not len(rows):
        return ""
    kinds = case.record.get("row_kinds")
    names = [kinds[r] if kinds else str(r) for r in rows[:5]]
    return f"{what}: {len(rows)} of {len(want)} rows differ ({', '.join(names)})"


def _numpy_quant(case: Case, dtype: DType) -> str:
    kind, k = case["kind"], case["k"]
    if kind == "activation":
        x = case.array(case["x_key"])
        return _activation_equal(case, dtype, quants.encode_activation(x, dtype))
    q = case.array(case["q_key"])
    problem = _rows_equal(case, case.array(case["d_key"]), quants.decode(q, dtype, k), "decode")
    if kind == "quantize" and not problem:
        if not quants.can_encode(dtype):
            raise UnsupportedOpError(f"no encoder for {dtype.name} (decoding was checked)")
        encoded = quants.encode(case.array(case["x_key"]), dtype)
        problem = _rows_equal(case, q, np.asarray(encoded).view(np.uint8), "encode")
    return problem


def _native_quant(case: Case, dtype: DType, target: str) -> str:
    kind, k = case["kind"], case["k"]
    if kind == "activation":
        return _activation_equal(case, dtype, _encode(case, dtype, target))
    q = np.ascontiguousarray(case.array(case["q_key"]))
    out = np.empty(len(q) * k, np.float32)
    _native.dequantize(target, dtype.id, q.reshape(-1).view(np.uint8), out)
    problem = _rows_equal(case, case.array(case["d_key"]), out.reshape(-1, k), "decode")
    if kind == "quantize" and not problem:
        if not quants.can_encode(dtype):
            raise UnsupportedOpError(f"no encoder for {dtype.name} (decoding was checked)")
        # the run-time converter, which may differ from the file's quantizer
        want = case.array(case.record.get("q_cpu_key", case["q_key"]))
        got = _encode(case, dtype, target)
        if dtype.name == "iq4_nl":
            # the reference leaves the codes of blocks whose scale is zero undefined
            want, got = _without_empty_blocks(want, got, dtype)
        problem = _rows_equal(case, want, got, "encode")
    return problem


def _without_empty_blocks(want: Array, got: Array, dtype: DType) -> tuple[Array, Array]:
    blocks = [a.reshape(-1, dtype.bytes).copy() for a in (want, got)]
    empty = (blocks[0][:, :2] == 0).all(1)
    for b in blocks:
        b[empty, 2:] = 0
    return blocks[0].reshape(want.shape), blocks[1].reshape(got.shape)


def _encode(case: Case, dtype: DType, target: str) -> Array:
    x = np.ascontiguousarray(case.array(case["x_key"]), np.float32)
    out = np.empty((len(x), dtype.row_bytes(case["k"])), np.uint8)
    _native.quantize(target, dtype.id, x.reshape(-1), out.reshape(-1))
    return out


def _activation_equal(case: Case, dtype: DType, got: Array) -> str:
    want = case.array(case["q_key"])
    got = np.asarray(got).view(np.uint8).reshape(want.shape)
    if dtype.name == "q8_K":
        # the sums of an all-zero block are left unwritten by the reference
        parts = [a.reshape(-1, dtype.bytes).copy() for a in (want, got)]
        zero = (parts[0][:, :4] == 0).all(1)
        for p in parts:
            p[zero, 260:] = 0
        want, got = parts[0].reshape(want.shape), parts[1].reshape(got.shape)
    return _rows_equal(case, want, got, "activation")
