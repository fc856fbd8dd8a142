"""Rows and weights of which `tests/data/encoded.json` has the checksums of the reference's bytes.

    python tests/quants/encoded_input.py PATH/libggml-base.so > tests/data/encoded.json

makes that file, by `ggml_quantize_chunk` of llama.cpp (here: of llama-cpp-python 0.3.36), which is
compiled without flags for a processor, so that it fuses no multiplications and additions.
"""

from __future__ import annotations

import ctypes
import json
import sys
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from weft.dtype import DTYPES

TYPES = (
    "f16", "bf16", "q4_0", "q4_1", "q5_0", "q5_1", "q8_0", "q2_K", "q3_K", "q4_K", "q5_K", "q6_K",
    "iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s", "iq4_nl", "iq4_xs",
    "tq1_0", "tq2_0", "mxfp4", "nvfp4", "q1_0", "q2_0",
)  # fmt: skip
NEED_WEIGHTS = ("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs")
COLUMNS = 768


def rows() -> NDArray[np.float32]:
    """`[29, 768]`: usual rows, and those in which searches end early or have equals."""
    random = np.random.RandomState(11)
    x = random.standard_normal((29, COLUMNS)).astype(np.float32) * np.float32(0.02)
    x[4:8] = random.standard_t(3, (4, COLUMNS))
    x[8:12] = np.round(x[8:12] * 100) / 50
    x[12] = 0
    x[13, ::3] = 0
    x[14] = np.abs(x[14])
    x[15] = -np.abs(x[15])
    x[16] *= np.float32(1e-20)
    x[17] *= np.float32(1e-12)
    x[18] = 1
    x[19] *= np.float32(1e4)
    x[20, :256] = 1e-9
    x[21] = np.where(x[21] > 0, np.float32(1), np.float32(-1))
    x[22, ::256] = 50
    return x


def weights() -> NDArray[np.float32]:
    """`[768]`, a few of them zero."""
    random = np.random.RandomState(12)
    w = random.standard_normal(COLUMNS).astype(np.float32) ** 2
    w *= np.repeat(np.float32([0.01, 1, 10]), COLUMNS // 3)
    w[::61] = 0
    return w


def checksum(data: NDArray[np.uint8]) -> str:
    return sha256(np.ascontiguousarray(data).tobytes()).hexdigest()[:24]


def main() -> None:
    quantize = ctypes.CDLL(sys.argv[1]).ggml_quantize_chunk
    quantize.restype = ctypes.c_size_t
    quantize.argtypes = [ctypes.c_int, *[ctypes.c_void_p] * 2, *[ctypes.c_int64] * 3,
                         ctypes.c_void_p]  # fmt: skip
    x, w = rows(), weights()
    sums: dict[str, dict[str, str]] = {}
    for name in TYPES:
        sums[name] = {}
        for kind, given in (("plain", None), ("weighted", w)):
            if given is None and name in NEED_WEIGHTS:
                continue
            out = np.zeros(len(x) * DTYPES[name].row_bytes(COLUMNS), np.uint8)
            pointer = None if given is None else given.ctypes.data
            quantize(DTYPES[name].id, x.ctypes.data, out.ctypes.data, 0, *x.shape, pointer)
            sums[name][kind] = checksum(out)
    json.dump(sums, sys.stdout, indent=1)


if __name__ == "__main__":
    main()
