"""Tests over the fake driver (driver.cpp), each in a process of its own.

    @with_fake(devices=2)
    def test_something(fake: Fake) -> None: ...

cuda-bindings is the real package, which finds the fake driver in the place of NVIDIA's. Kernels are
those of the shim, in streams that run late."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
import sys
from collections.abc import Callable
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.cuda_shim import compile_shim, compiler
from tests.cuda_shim.library import runtime_path
from weft.backends.cuda import bindings, devices
from weft.backends.cuda.assembly import source_of
from weft.backends.kernels.cache import cache_folder

ROOT = Path(__file__).parents[3]
SOURCE = Path(__file__).parent / "driver.cpp"
TIMEOUT = 600


class Fake:
    """The fake driver of this process."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.library = library
        library.weft_fake_complaint.restype = library.weft_fake_trace.restype = ctypes.c_char_p
        library.weft_fake_set.argtypes = [ctypes.c_char_p, ctypes.c_long]

    def set(self, **settings: int) -> None:
        """Changes what the driver or its machine are."""
        for name, value in settings.items():
            self.library.weft_fake_set(name.encode(), value)

    def break_at(self, kernel: str) -> None:
        """A kernel whose launch breaks its context; empty: none."""
        self.library.weft_fake_break(kernel.encode())

    @property
    def complaint(self) -> str:
        """The first call that the driver refused; empty: none."""
        return str(self.library.weft_fake_complaint().decode())

    def forget(self) -> None:
        """The refusals so far were meant."""
        self.library.weft_fake_forget()

    def trace(self) -> list[str]:
        """What ran since the last call, such as `1.0 kernel gemv` for device 1, stream 0."""
        return str(self.library.weft_fake_trace().decode()).splitlines()

    @property
    def calls(self) -> int:
        """The calls of the driver so far."""
        return int(self.library.weft_fake_calls())


def load(**settings: int) -> Fake:
    """Puts the fake driver in the place of NVIDIA's, for this process."""
    text = SOURCE.read_bytes()
    path = cache_folder("cuda-fake") / f"{sha256(text).hexdigest()}.so"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        made = path.with_suffix(f".{id(text)}")
        command = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", "-Wl,-soname,libcuda.so.1"]
        subprocess.run([*command, "-o", str(made), str(SOURCE), "-ldl"], check=True)
        made.replace(path)
    # the name inside makes it the library that cuda-bindings asks for
    fake = Fake(ctypes.CDLL(str(path), ctypes.RTLD_GLOBAL))
    fake.set(**settings)
    devices.nvrtc = lambda: None  # type: ignore[attr-defined]
    bindings.Builds.image = _image  # type: ignore[method-assign]
    return fake


def _image(self: bindings.Builds, file: str, defines: tuple[str, ...]) -> bytes:
    """A file as the fake driver loads it."""
    options = (*defines, f"SHIM_ARCH={10 * self.architecture}")
    kernels = compile_shim(source_of(file, defines), options, CHECKED)
    words = ("checks" if CHECKED else "plain", runtime_path(), kernels.path)
    return " ".join(words).encode() + b"\0"


CHECKED = False
"""Kernels check their accesses of memory: slow."""


def with_fake(**settings: int) -> Callable[[Callable[[Fake], None]], Callable[[], None]]:
    """The test runs in a process of its own, over a fake driver with these settings."""

    def decorate(function: Callable[[Fake], None]) -> Callable[[], None]:
        def test() -> None:
            module = function.__module__.rpartition(".")[2]
            words = (f"tests.backends.{module}", function.__name__, settings)
            code = f"from tests.backends.fake_cuda.load import inside; inside(*{words!r})"
            done = subprocess.run(
                [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True,
                timeout=TIMEOUT, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout + done.stderr

        test.__name__ = function.__name__
        test.__doc__ = function.__doc__
        test.inside = function  # type: ignore[attr-defined]
        for missing, why in (
            (compiler() is None, "needs g++, which compiles the driver and the kernels"),
            (find_spec("cuda") is None, "needs the package cuda-bindings"),
            (shutil.which("nvidia-smi") is not None, "there is a driver of NVIDIA's"),
        ):
            test = pytest.mark.skipif(missing, reason=why)(test)
        return test

    return decorate


def inside(module: str, name: str, settings: dict[str, Any]) -> None:
    """Runs a test in this process."""
    fake = load(**settings)
    import_module(module).__dict__[name].inside(fake)
    assert not fake.complaint, fake.complaint
