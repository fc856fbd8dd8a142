"""OpenBLAS from the PyPI package `scipy-openblas32`, called through ctypes.

The package's symbols begin with `scipy_`, so that they do not clash with another BLAS in the
process. A call through ctypes holds no lock of Python's while it runs.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import scipy_openblas32

from weft.errors import DeviceError

# CBLAS enumerations
_ROW_MAJOR = 101
_NO_TRANS, _TRANS = 111, 112


class OpenBlas:
    """The library. Raises DeviceError when it cannot be loaded or lacks a function."""

    def __init__(self) -> None:
        path = Path(scipy_openblas32.get_lib_dir()) / scipy_openblas32.get_library(fullname=True)
        try:
            library = ctypes.CDLL(str(path))
            sgemm = library.scipy_cblas_sgemm
            self._set_threads = library.scipy_openblas_set_num_threads
            config = library.scipy_openblas_get_config
            corename = library.scipy_openblas_get_corename
        except (OSError, AttributeError) as error:
            raise DeviceError(
                f"OpenBLAS cannot be used ({error}); install scipy-openblas32 again"
            ) from error
        integer, pointer, real = ctypes.c_int, ctypes.c_void_p, ctypes.c_float
        sgemm.argtypes = (
            integer, integer, integer, integer, integer, integer, real, pointer, integer, pointer,
            integer, real, pointer, integer,
        )  # fmt: skip
        sgemm.restype = None
        self._sgemm = sgemm
        self._set_threads.argtypes = (integer,)
        self._set_threads.restype = None
        config.restype = corename.restype = ctypes.c_char_p
        words = (config() or b"").decode().split()
        self.config = f"{' '.join(words[:2])} on {(corename() or b'?').decode()} kernels"
        self._threads = 0

    def use_threads(self, n: int) -> None:
        """Sets the number of threads of later calls, for the whole process."""
        if n != self._threads:
            self._set_threads(n)
            self._threads = n

    def multiply(
        self,
        shape: tuple[int, int, int],
        a: tuple[int, int, bool],
        b: tuple[int, int, bool],
        c: tuple[int, int],
    ) -> None:
        """C = A B in row-major float32, for `shape` (m, n, k): A [m, k], B [k, n], C [m, n].

        A matrix is its address, its leading dimension (in elements), and for A and B whether it is
        stored transposed, as [k, m] or [n, k]."""
        m, n, k = shape
        transposed = [_TRANS if x[2] else _NO_TRANS for x in (a, b)]
        self._sgemm(_ROW_MAJOR, *transposed, m, n, k, 1.0, *a[:2], *b[:2], 0.0, *c)


OPENBLAS = OpenBlas()
