"""OpenCL C as WGSL: macros, types, pointers, and what is refused with its place."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.backends.webgpu_device import webgpu
from weft.backends.kernels import assembly
from weft.backends.kernels.assembly import source_of
from weft.backends.kernels.launch import Local
from weft.backends.webgpu.driver import Driver

pytest.importorskip("pycparser")

from weft.backends.webgpu.builds import stored, translated
from weft.backends.webgpu.translation import TranslationError, translate
from weft.backends.webgpu.translation.helpers import C_NAMES, HELPERS
from weft.backends.webgpu.translation.preprocess import Preprocessor


def test_macros() -> None:
    source = """#define JOIN_(a, b) a##b
#define JOIN(a, b) JOIN_(a, b)
#define TWICE(x) ((x) + (x))
#ifdef W
JOIN(unit_, W)(TWICE(f(1, 2)))
#else
no
#endif
#if LANES > 1 && !defined(NONE) /* a comment
over lines */
TWICE(
  3)
#elif 1
no
#endif
#define SELF SELF + 1
SELF"""
    text = Preprocessor(["W=q4_0", "LANES=8"]).process(source)
    lines = text.split("\n")
    assert len(lines) == len(source.split("\n"))
    assert lines[4] == "unit_q4_0(((f(1, 2)) + (f(1, 2))))"
    assert lines[10].replace(" ", "") == "((3)+(3))" and lines[16] == "SELF + 1"
    assert "no" not in text.split()
    with pytest.raises(TranslationError, match="#include"):
        Preprocessor([]).process('#include "x.h"')


COMMON = source_of("unary.cl").split("static inline float apply")[0]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("switch (n) { case 1: n = 2; case 2: n = 3; }", "case goes on"),
        ("float4 v; n = v == v;", "vectors are compared"),
        ("n = mad24(n, n, n);", "function mad24"),
        ("bytes_t p = a; p = b;", "points into two buffers"),
        ("goto x; x: n = 1;", "Goto is not known"),
        ("n = nobody;", "nobody is not known"),
    ],
)
def test_what_is_not_known_is_refused_with_its_place(body: str, said: str) -> None:
    source = f'#line 1 "one.cl"\n__kernel void f(bytes_t a, bytes_t b, int n) {{ {body} }}'
    with pytest.raises(TranslationError, match=said):
        translate(COMMON + source, (), "f", (8,), 0)


@pytest.mark.parametrize("wide", [False, True])
def test_numbers_of_64_bits_made_of_what_is_in_their_place(wide: bool) -> None:
    """Both words of a result are those of the value that was there before."""
    driver = webgpu().driver
    if wide and not driver.device.has_wide:
        pytest.skip("the device has no integers of 64 bits")
    source = """__kernel void f(__global long* x, LOCAL(long) tmp) {
      const int l = get_local_id(0);
      tmp[l] = -5;
      tmp[l] = tmp[l] + tmp[l] + 20;
      x[2 * l] = tmp[l];
      x[2 * l] = x[2 * l] - 11;
      x[2 * l + 1] = l;
    }"""
    out = run(driver, source, 4, Local(32), wide=wide).view(np.int64)
    assert out.tolist() == [-1, 0, -1, 1, -1, 2, -1, 3]


def test_sixteen_numbers_from_vectors_of_words() -> None:
    """Floats, halves and words of 16 bits that begin at multiples of 16 bytes."""
    driver, rng = webgpu().driver, np.random.default_rng(4)
    source = """__kernel void f(__global float* to, const __global uint4* from, int at) {
      bytes_t p = (bytes_t)from + at;
      float16 a = vload16(1, (const __global float*)p);
      float16 b = vload_half16(2, (const __global half*)p);
      float16 c = convert_float16(vload16(1, (const __global ushort*)p));
      vstore16(a, 0, to); vstore16(b, 1, to); vstore16(c, 2, to);
    }"""
    data = rng.standard_normal(64).astype(np.float16).repeat(2)
    buffer = driver.create(data.nbytes)
    driver.write(buffer, 0, data.view(np.uint8))
    got = run(driver, source, 1, buffer, (16).to_bytes(4, "little"), nbytes=192).view(np.float32)
    behind = data[8:]
    np.testing.assert_array_equal(got[:16], behind.view(np.float32)[16:32])
    np.testing.assert_array_equal(got[16:32], behind[32:48].astype(np.float32))
    np.testing.assert_array_equal(got[32:], behind.view(np.uint16)[16:32].astype(np.float32))


def run(
    driver: Driver,
    source: str,
    n: int,
    *args: Any,
    wide: bool = False,
    nbytes: int = 0,
    stored: dict[str, int] | None = None,
) -> np.ndarray:
    """Runs `f` of a source over n items; the first argument is the result, 16 bytes for each."""
    import weft.backends.webgpu.pipelines as module

    nbytes = nbytes or 16 * n
    out = driver.create(nbytes)
    kernel = driver.kernel(f"{source} {wide}", (), "f")
    kernel.bind([out, *args])
    code = translate(COMMON + source, (), "f", (n,), 64, wide=wide, stored=stored)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "translated", lambda *_: code)
        driver.launch(*driver.prepared(kernel, (1,), (n,), None))
    return driver.read_bytes(out, 0, nbytes)


@pytest.fixture(scope="module")
def driver() -> Driver:
    return webgpu().driver


def test_integers_wrap_as_in_c(driver: Driver) -> None:
    source = """__kernel void f(__global uchar* out, int n) {
  const int i = get_global_id(0);
  uchar8 v = (uchar8)(200), w = v << (uchar)1;
  __global int* to = (__global int*)out + 4 * i;
  to[0] = (char)(i + n) + (uchar)(-1) - (short)40000;
  to[1] = w.s3 + (uchar)(v.s0 + v.s1);
  to[2] = -7 / 2 * 100 + -7 % 3 + ((uint)-8 >> 28) + (-8 >> 1);
  to[3] = (i > 1) + (i == 2 ? 10 : 20) + !i;
}"""
    got = run(driver, source, 4, np.int32(126).tobytes()).view(np.int32).reshape(4, 4)
    for i in range(4):
        want = [
            (i + 126 if i < 2 else i - 130) + 255 - (40000 - 65536),
            144 + 144, -300 - 1 + 15 - 4, (i > 1) + (10 if i == 2 else 20) + (i == 0),
        ]  # fmt: skip
        assert got[i].tolist() == want


def test_constants() -> None:
    """Decimal and hexadecimal, as `common.h` and the formats write them."""
    source = """__kernel void f(__global float* out) {
  out[0] = 0x1p-10f + 0x1.8P3 + 2.5e-3f + 1.f; out[1] = 0x7fu + 3;
}"""
    code = translate(COMMON + source, (), "f", (8,), 0)
    for constant in ("0.0009765625f", "12.0f", "0.0025f", "1.0f", "127u"):
        assert constant in code


def test_constant_arrays_in_a_buffer(driver: Driver) -> None:
    """They begin at a word of the buffer behind those of the kernel."""
    source = """static inline uint second(int i) { return LATER[i]; }
__kernel void f(__global uint* out, int k) {
  const int i = get_global_id(0);
  out[i] = EARLY[k - i] + second(i);
}"""
    words = np.arange(8, dtype=np.uint32) ** 2
    buffer = driver.table(words.tobytes())
    three = (3).to_bytes(4, "little")
    got = run(driver, source, 4, three, buffer, stored={"EARLY": 0, "LATER": 4})
    assert got.view(np.uint32)[:4].tolist() == [9 + 16, 4 + 25, 1 + 36, 0 + 49]


@pytest.mark.parametrize("name", assembly._CODEBOOKS)
def test_codebooks_are_in_a_buffer(name: str) -> None:
    """Constant arrays of hundreds of words would fill the registers of each item."""
    defines = (f"USE_{name}", f"W={name}", "X=f32", "USE_f32", "LANES=1", "COLS=8")
    code = translated("matmul.cl", defines, "columns", (8, 1, 1), 64, False)
    assert "stored: array<u32>" in code
    assert all(int(n) <= 16 for n in re.findall(r"const \w+ = array<\w+, (\d+)>", code))
    array, codes = next(iter(assembly.codebooks(defines).items()))
    assert array in assembly.source_of("matmul.cl")
    np.testing.assert_array_equal(np.frombuffer(stored(defines), "<u4"), codes)


def test_numbers_of_64_bits(driver: Driver) -> None:
    source = """__kernel void f(__global uchar* out, bytes_t in) {
  const int i = get_global_id(0);
  long x = ((const __global long*)in)[i];
  __global long* to = (__global long*)(out + 16 * i);
  to[0] = x * 3 - (x >> 2);
  to[1] = x == LONG_MAX ? LONG_MIN : (long)(int)x;
}"""
    values = np.array([1 << 40, -(1 << 50) - 5, (1 << 63) - 1, -3], np.int64)
    if "shader-int64" not in driver.device.features:
        pytest.skip("the device has no numbers of 64 bits")
    data = driver.table(values.tobytes())
    got = run(driver, source, 4, data, wide=True).view(np.int64).reshape(4, 2)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(got[:, 0], values * 3 - (values >> 2))
    assert got[:, 1].tolist() == [0, -5, -(1 << 63), -3]
    # without them, the nearest number of 32 bits
    source = source.replace("LONG_MIN", "x").replace("to[0] = x * 3 - (x >> 2)", "to[0] = x")
    got = run(driver, source, 4, data).view(np.int64).reshape(4, 2)
    assert got[:, 0].tolist() == [(1 << 31) - 1, -(1 << 31), (1 << 31) - 1, -3]


def test_pointers_into_several_buffers(driver: Driver) -> None:
    source = """typedef struct { bytes_t at; int n; } row_t;
static inline row_t row(bytes_t p, int n) { row_t r = {p + 4 * n, n}; return r; }
static inline int first(row_t r) { return *(const __global int*)r.at + 1000 * r.n; }
static inline void add(int* to, bytes_t p) { *to += *(const __global int*)p; }
__kernel void f(__global uchar* out, bytes_t a, bytes_t b) {
  const int i = get_global_id(0);
  __global int* to = (__global int*)out + 4 * i;
  bytes_t one = i % 2 ? a + 4 * i : b + 4 * i;
  int sum = 0;
  add(&sum, one);
  to[0] = first(row(a, i));
  to[1] = first(row(b, 1));
  to[2] = *(const __global int*)one;
  to[3] = sum;
}"""
    a, b = (driver.table(np.arange(k, k + 4, dtype=np.int32).tobytes()) for k in (10, 20))
    got = run(driver, source, 4, a, b).view(np.int32).reshape(4, 4)
    for i in range(4):
        each = 10 + i if i % 2 else 20 + i
        assert got[i].tolist() == [10 + i + 1000 * i, 1021, each, each]


def test_functions_at_their_limits(driver: Driver) -> None:
    """Infinities, NaNs, large angles and numbers too small to be normal give what C's do."""
    x = np.array([0, -0.0, 1e-42, -1e-40, 0.3, -0.7, 1, -1, 2.5, 30, -90, 1e4, 3e7, 1e38, np.inf,
                  -np.inf, np.nan], np.float32)  # fmt: skip
    names = {"sin": np.sin, "cos": np.cos, "log": np.log, "log2": np.log2, "log1p": np.log1p,
             "expm1": np.expm1, "atan": np.arctan, "asin": np.arcsin, "acos": np.arccos,
             "sinh": np.sinh, "cosh": np.cosh, "tanh": np.tanh, "asinh": np.arcsinh,
             "acosh": np.arccosh, "atanh": np.arctanh, "exp": np.exp}  # fmt: skip
    assert set(C_NAMES.values()) <= set(HELPERS)
    data = driver.table(x.tobytes())
    for name, function in names.items():
        source = f"""__kernel void f(__global uchar* out, bytes_t in) {{
  const int i = get_global_id(0);
  ((__global float*)out)[4 * i] = {name}(((const __global float*)in)[i]);
}}"""
        got = run(driver, source, len(x), data).view(np.float32).reshape(-1, 4)[:, 0]
        with np.errstate(all="ignore"):
            want = function(x.astype(np.float64)).astype(np.float32)
        np.testing.assert_allclose(got, want, rtol=3e-5, atol=1e-6, err_msg=name)


def test_more_groups_than_a_dimension_has(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second part of a grid knows its groups as the first does."""
    import weft.backends.webgpu.pipelines as module

    source = """__kernel void f(__global uchar* out) {
  ((__global int*)out)[get_global_id(0)] = get_group_id(0) * 10 + get_local_id(0);
}"""
    code = translate(COMMON + source, (), "f", (2,), 0)
    monkeypatch.setattr(module, "translated", lambda *_: code)
    n = 66_000
    out, kernel = driver.create(8 * n), driver.kernel("groups", (), "f")
    kernel.bind([out])
    driver.launch(*driver.prepared(kernel, (n,), (2,), None))
    got = driver.read_bytes(out, 0, 8 * n).view(np.int32).reshape(n, 2)
    np.testing.assert_array_equal(got[:, 0], np.arange(n) * 10)
    np.testing.assert_array_equal(got[:, 1], np.arange(n) * 10 + 1)
