"""OpenCL kernels: the sources that compilers of devices with more features get, enumerations by
name, and grids that a device only takes in pieces."""

from __future__ import annotations

import re
import subprocess
from dataclasses import replace
from functools import cache
from itertools import cycle
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.backends.opencl_device import opencl
from tests.compilers import clang
from weft import graph as g
from weft import quants
from weft.backends import Backend, make_backend
from weft.backends.cases import all_cases
from weft.backends.kernels import assembly
from weft.backends.kernels.enums import Elementwise
from weft.backends.kernels.launch import Launch, pieces
from weft.backends.kernels.ops.bytes import CODES
from weft.backends.kernels.ops.matmul import DECODED
from weft.backends.kernels.planes import FORMATS as PLANES
from weft.backends.opencl import builds
from weft.compiler import compile
from weft.dtype import find_dtype
from weft.execute import Session
from weft.execute.trial import disagreement, run_case

FILES = sorted(p.name for p in (Path(assembly.__file__).parent / "sources").glob("*.cl"))

# ---- enumerations --------------------------------------------------------------------------------


def test_kernels_read_enumerations_by_name() -> None:
    for path in (Path(assembly.__file__).parent / "sources").iterdir():
        assert not re.search(r"\bcase -?\d|\b(op|kind|mode) [<=>]+ \d", path.read_text()), path.name


def test_sources_have_the_members_that_programs_pass() -> None:
    source = assembly.source_of("unary.cl")
    assert all(f"{m.name} = {m.value}" in source for m in (*g.UnaryOp, *Elementwise))
    assert {m.value for m in g.UnaryOp}.isdisjoint(Elementwise)


# ---- syntax --------------------------------------------------------------------------------------

FEATURES = {"plain": (), "f16": ("NATIVE_HALF",)}
"""Defines for what devices have; PoCL has no f16, so nothing else compiles those lines."""
_TILED = ("LANES=1", "COLS=1", "TILE=64")
VARIANTS: dict[str, tuple[tuple[str, ...], ...]] = {
    "matmul.cl": (
        ("W=q4_K", "X=f16", "USE_q4_K", "USE_f16", "LANES=32", "COLS=4", "TILE=64"),
        (
            "W=f16",
            "X=f32",
            "USE_f16",
            "USE_f32",
            "LANES=1",
            "COLS=1",
            "WIDE",
            "W_ALIGNED",
            "X_ALIGNED",
        ),
        ("W=q6_K_planes", "X=f32", "PLANES", "USE_q6_K_planes", "USE_f32", "LANES=8", "COLS=1"),
        ("W=q4_0_planes", "X=f16", "PLANES", "USE_q4_0_planes", "USE_f16", *_TILED),
    ),
    "attention.cl": (
        ("K=f16", "V=f16", "USE_f16", "CELLS=64", "BY_ELEMENT", "CAP"),
        ("K=q8_0", "V=iq4_nl", "USE_q8_0", "USE_iq4_nl", "CELLS=64"),
    ),
    "flash.cl": (
        ("K=f16", "V=q8_0", "USE_f16", "USE_q8_0", "DK=72", "DV=96", "R=2", "CAP"),
        ("K=f32", "V=f32", "USE_f32", "DK=576", "DV=512", "R=1"),
    ),
    "gemv.cl": tuple(
        (f"CODES_{t}", "LANES=32", "COLS=2", "ROWS=2", *more)
        for t, more in zip(CODES, cycle(((), ("ADDED",))))
    ),
    "gemm.cl": tuple(
        (f"CODES_{t}", "TILE=64", "STEP=2", *more)
        for t, more in zip(CODES, cycle(((), ("EXPERTS",))))
    ),
    "copy.cl": tuple(
        (f"W={t}", f"USE_{t}", f"PUT={t}", f"PUT_{t}")
        for t in ("q8_0", "q4_0", "q4_1", "q5_0", "q5_1", "iq4_nl")
    ),
    "quantize.cl": (("TO_q8_0",), ("TO_q8_1", "ALL_F32"), ("TO_q8_K",)),
    "norm.cl": ((), ("TO_q8_0", "ALL_F32"), ("TO_q8_K",)),
    "glu.cl": ((), ("TO_q8_1",)),
    "outer.cl": ((), ("W=q6_K", "USE_q6_K")),
    "planes.cl": (("F=q6_K",),),
    "hyper.cl": (("K=f16", "USE_f16"),),
}
"""Defines that ops give, where a file is not complete without."""


@cache
def compiler() -> str:
    """A compiler that reads OpenCL with its built-in functions; skips where there is none."""
    return clang(
        "clang", 13, lambda path: not _errors(path, "__kernel void f(__global half* p) {}")
    )


def _errors(path: str, source: str, defines: tuple[str, ...] = (), standard: str = "CL1.2") -> str:
    command = [path, "-x", "cl", f"-cl-std={standard}", "-Xclang", "-finclude-default-header"]
    command += ["-target", "spir64", "-fsyntax-only", "-Wall", "-Werror", "-Wno-unused-function"]
    command += [*(f"-D{d}" for d in defines), "-"]
    process = subprocess.run(command, input=source.encode(), capture_output=True, check=False)
    return process.stderr.decode() if process.returncode else ""


@pytest.mark.parametrize("features", FEATURES)
@pytest.mark.parametrize("file", FILES)
def test_every_file_compiles(file: str, features: str) -> None:
    for variant in VARIANTS.get(file, ((), ("ALL_F32",))):
        defines = (*FEATURES[features], *variant)
        source = assembly.tables(defines) + assembly.source_of(file)
        assert not _errors(compiler(), source, defines)


@pytest.mark.parametrize("features", FEATURES)
def test_every_format_compiles(features: str) -> None:
    for t in DECODED:
        defines = (*FEATURES[features], f"W={t}", f"USE_{t}")
        source = assembly.tables(defines) + assembly.source_of("copy.cl")
        assert not _errors(compiler(), source, defines), t
    planes = (*FEATURES[features], "PLANES", "W=q4_0_planes", *(f"USE_{t}_planes" for t in PLANES))
    assert not _errors(compiler(), assembly.source_of("copy.cl"), planes)


@pytest.mark.parametrize(
    "file", [f for f in FILES if "ITEM" in assembly.source_of(f).split(f'"{f}"')[1]]
)
def test_files_with_subgroups_compile(file: str) -> None:
    """PoCL has none, so nothing else compiles those lines for OpenCL."""
    defines = (*VARIANTS.get(file, ((),))[0], "SUBGROUPS")
    source = assembly.tables(defines) + assembly.source_of(file)
    assert not _errors(compiler(), source, defines, "CL3.0")


@pytest.mark.parametrize("features", [("subgroups",), ("subgroups", "shuffles")])
def test_who_has_subgroups(features: tuple[str, ...]) -> None:
    """A device whose items exchange numbers of any other item; programs belong to OpenCL C 3.0."""
    device = replace(opencl().device, features=features)
    assert device.has_subgroups == ("shuffles" in features)


def test_the_check_finds_errors() -> None:
    """A name that is only missing with f16 is found."""
    source = assembly.source_of("unary.cl").replace("convert_half_rte", "convert_half_rounded")
    assert not _errors(compiler(), source, ())
    assert "convert_half_rounded" in _errors(compiler(), source, ("NATIVE_HALF",))


@pytest.mark.parametrize("features", [(), ("fp16", "fp64")])
def test_the_device_decides_how_f16_is_read(
    features: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    device = opencl()
    programs = builds.Programs(device.driver.context, replace(device.device, features=features))
    given: list[str] = []

    def build(self: object, file: str, source: str, options: list[str]) -> None:
        given.extend(options)
        raise weft.DeviceError("seen")

    monkeypatch.setattr(builds, "cache_folder", lambda: tmp_path)
    monkeypatch.setattr(builds.Programs, "build", build)
    with pytest.raises(weft.DeviceError, match="seen"):
        programs.get("unary.cl", ("ALL_F32",))
    assert "-DALL_F32" in given
    assert ("-DNATIVE_HALF" in given) == ("fp16" in features)


def test_codebooks() -> None:
    """The arrays that formats are built with hold the vectors of the codebooks."""
    for name, (bits, levels) in assembly._CODEBOOKS.items():
        text = assembly.tables((f"W={name}", f"USE_{name}"))
        codes = np.array([int(n) for n in re.findall(r"[{,](\d+)", text)])
        want = quants.grid(name)
        assert len(codes) == len(want) and codes.max() < 1 << 16
        places = codes[:, None] >> (bits * np.arange(want.shape[1])) & (1 << bits) - 1
        np.testing.assert_array_equal(np.array(levels)[places], want)
    assert assembly.tables(("W=q4_0", "USE_q4_0")) == ""


# ---- grids ---------------------------------------------------------------------------------------


def test_pieces() -> None:
    """Every group is in one piece, and none is larger than allowed."""

    def cut(grid: tuple[int, ...], group: tuple[int, ...], most: int) -> list[tuple[int, ...]]:
        seen = []
        for part, start in pieces(Launch("f.cl", (), "f", (), grid, group), most):
            assert all(n <= most for n in part[1:]) and part[0] == grid[0]
            first = start or (0,) * len(grid)
            assert all(at % m == 0 for at, m in zip(first, group, strict=True))
            corner = [at // m for at, m in zip(first, group, strict=True)]
            seen += [tuple(c + i for c, i in zip(corner, k, strict=True)) for k in np.ndindex(part)]
        return seen

    for grid, group, most in (
        ((3, 2, 2), (4, 1, 1), 2),
        ((2, 7, 5), (8, 4, 1), 3),
        ((9,), (4,), 2),
        ((1, 5), (4, 2), 1),
    ):
        seen = cut(grid, group, most)
        assert sorted(seen) == list(np.ndindex(grid))
    (whole,) = pieces(Launch("f.cl", (), "f", (), (3, 2, 2), (4, 1, 1)), 2)
    assert whole == ((3, 2, 2), None)


def test_more_rows_than_a_grid() -> None:
    """More rows than most hardware counts to, elementwise and with a group a row."""
    rows = 65_535 + 300
    device = opencl()
    device.kind = "CPU"
    x = weft.input("x", (rows, 4))
    planes = weft.input("p", (rows, 1, 3))
    graph = weft.Graph(
        g.add(x, x).as_output("sum"),
        g.rms_norm(x, 1e-5).as_output("norm"),
        g.cont(g.permute(planes, 0, 2, 1, 3)).as_output("turned"),
        g.scale(planes, 3.0).as_output("planes"),
        g.cumulate("sum", x, 0).as_output("running"),
    )
    session = Session(compile(graph, [device]))
    session.fill_arenas(0xFF)
    rng = np.random.default_rng(0)
    a = rng.standard_normal((rows, 4)).astype(np.float32)
    b = rng.standard_normal((rows, 1, 3)).astype(np.float32)
    got = session.run({"x": a, "p": b})
    np.testing.assert_array_equal(got["sum"].reshape(a.shape), 2 * a)
    want = a / np.sqrt(np.square(a).mean(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(got["norm"].reshape(a.shape), want, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got["turned"].reshape(-1), b.reshape(-1))
    np.testing.assert_array_equal(got["planes"].reshape(b.shape), 3 * b)
    running = np.cumsum(a, -1, dtype=np.float64)
    np.testing.assert_allclose(got["running"].reshape(a.shape), running, rtol=1e-5, atol=1e-5)


SMALL_GRIDS = (
    "ADD", "CONT", "GET_ROWS", "SET_ROWS", "PAD", "RMS_NORM", "GROUP_NORM", "SOFT_MAX", "SUM_ROWS",
    "CUMSUM", "ARGSORT", "ROPE", "MUL_MAT", "MUL_MAT_ID", "SOLVE_TRI", "FLASH_ATTN_EXT",
    "LIGHTNING_INDEXER", "SSM_CONV", "SSM_SCAN", "GATED_DELTA_NET", "IM2COL", "POOL_2D", "UPSCALE",
    "BINARY", "GATHER", "SORT_INDICES",
)  # fmt: skip
"""An op for every way that kernels find their place."""


@pytest.fixture(scope="module")
def limited() -> Backend:
    """A device that takes few groups at once, as the only one."""
    device = opencl(limits={"max_groups": 3})
    device.kind = "CPU"
    return device


@pytest.mark.parametrize("op", SMALL_GRIDS)
def test_ops_in_pieces(limited: Backend, op: str) -> None:
    cases = [c for c in all_cases() if c.op == op]
    # the plain ones, or what comes nearest
    chosen = [c for c in cases if {"", "f32"} & set(c.variant.split(" "))] or cases
    for case in chosen[:4]:
        assert limited.supports_op(case.node()), case.name
        want = run_case(case, make_backend("reference"))
        problem = disagreement(run_case(case, limited), want, case.node().dtype, case.limit)
        assert not problem, f"{case.name}: {problem}"


def test_tiles_in_pieces() -> None:
    """Groups of two dimensions begin at a multiple of their size."""
    device = opencl(limits={"max_groups": 1, "tile": 32})
    device.kind = "CPU"
    w, x = weft.input("w", (70, 64)), weft.input("x", (75, 64))
    session = Session(compile(weft.Graph(g.mul_mat(w, x).as_output("y")), [device]))
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal((n, 64)).astype(np.float32) for n in (70, 75))
    got = session.run({"w": a, "x": b})["y"].reshape(75, 70)
    np.testing.assert_allclose(got, b @ a.T, rtol=1e-4, atol=1e-4)


# ---- faults --------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", ["i8", "i64"])
def test_whole_numbers_at_the_edge(t: str) -> None:
    """The smallest number by -1 wraps around (processors trap); by 0 is an error with a name."""
    device = opencl()
    device.kind = "CPU"
    dtype = find_dtype(t)
    least = np.iinfo(dtype.storage).min
    x, y = weft.input("x", (2,), t), weft.input("y", (2,), t)
    for op in ("FLOOR_DIV", "TRUNC_DIV", "REMAINDER", "FMOD"):
        session = Session(compile(weft.Graph(g.binary(op, x, y).as_output("z")), [device]))
        a = np.array([least, 7], dtype.storage)
        z = session.run({"x": a, "y": np.array([-1, 2], dtype.storage)})["z"].reshape(-1)
        assert z.tolist() == ([least, 3] if op.endswith("DIV") else [0, 1]), op
        with pytest.raises(
            weft.DeviceError, match=r"BINARY\(x, y\) -> z: an integer is divided by 0"
        ):
            session.run({"x": a, "y": np.array([1, 0], dtype.storage)})
        assert session.run({"x": a, "y": a})["z"].reshape(-1).tolist()[1] in (0, 1)


def test_indices_from_the_end() -> None:
    device = opencl()
    device.kind = "CPU"
    x, i = weft.input("x", (5,)), weft.input("i", (2,), "i64")
    session = Session(compile(weft.Graph(g.gather(x, i, 0).as_output("y")), [device]))
    data = np.arange(5, dtype=np.float32)
    got = session.run({"x": data, "i": np.array([-1, -5])})["y"].reshape(-1)
    assert got.tolist() == [4, 0]
    for bad in (5, -6):
        with pytest.raises(weft.DeviceError, match=rf"index {bad} is outside -5 \.\. 4"):
            session.run({"x": data, "i": np.array([0, bad])})


def test_numbers_of_64_bits_are_refused() -> None:
    """Not every device computes with f64; moving them needs no arithmetic."""
    x, i = weft.input("x", (4, 4), "f64"), weft.input("i", (4, 4), "i32")
    support = opencl().supports_op(g.convert(x, "f32"))
    assert not support
    assert support.why == "CONVERT on opencl: no kernel computes with f64"
    assert opencl().supports_op(g.gather(x, i, 0))


def test_too_many_indices_are_refused() -> None:
    """Values are looked for, not written: a sentence says where that ends."""
    x, i = weft.input("x", (9, 8)), weft.input("i", (5000,), "i64")
    node = g.index_put(x, [None, i], weft.input("v", (5000, 8)))
    support = opencl().supports_op(node)
    assert not support
    assert support.why == (
        "INDEX_PUT on opencl: up to 5000 indices at once; every element looks at all of them, so "
        "4096 is most"
    )
