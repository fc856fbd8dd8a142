"""Copies of the tree in which mistakes are made, with a Python and builds of their own.

A copy has the files that git knows and the new ones that it does not ignore, as they are on the
disk. It stays in `build/mutants`, so that a later run compiles only what has changed; what differs
from the tree is copied again, so no mistake of an earlier run stays.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
import venv
from pathlib import Path
from typing import Any

from tests.mutants.row import Mutant

__all__ = ["BuildError", "Processes", "Tree"]

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "mutants"
_LOG_LINES = 15
_IMPORTS = ("numpy", "pytest", "_pytest.pytester_assertions", "ml_dtypes", "jinja2")
"""What many tests import besides weft. Plugins of pytest are not among it: it changes them as they
are imported."""


class BuildError(Exception):
    """A build has failed."""


class Processes:
    """The processes of a run. Each leads a group of its own, so that its children end with it."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[Any]] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def run(
        self, command: list[str], cwd: Path, env: dict[str, str], seconds: float | None = None
    ) -> tuple[int | None, str]:
        """The exit code of a command and what it wrote; None as the code: it took longer than
        `seconds` and was ended."""
        with self._lock:
            if self._stopped:
                raise KeyboardInterrupt
            process = subprocess.Popen(
                command, cwd=cwd, env=env, text=True, errors="replace", start_new_session=True,
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            )  # fmt: skip
            self._running.add(process)
        code: int | None = None
        try:
            said, _ = process.communicate(timeout=seconds)
            code = process.returncode
        except subprocess.TimeoutExpired:
            _end(process)
            said, _ = process.communicate()
        finally:
            _end(process)
            with self._lock:
                self._running.discard(process)
        if self._stopped:
            raise KeyboardInterrupt
        return code, said

    def start(self, command: list[str], cwd: Path, env: dict[str, str]) -> subprocess.Popen[bytes]:
        """Starts a process that is asked and answers by lines."""
        with self._lock:
            if self._stopped:
                raise KeyboardInterrupt
            process = subprocess.Popen(
                command, cwd=cwd, env=env, start_new_session=True, bufsize=0,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            self._running.add(process)
        return process

    @property
    def stopped(self) -> bool:
        """Whether all was ended."""
        return self._stopped

    def stop(self) -> None:
        """Ends all processes; none can start any more."""
        with self._lock:
            self._stopped = True
            for process in self._running:
                _end(process)


def _end(process: subprocess.Popen[Any]) -> None:
    """Ends a process with all that it has started, also what was left when it ended by itself."""
    _end_group(process.pid)


def _end_group(leader: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


class Tree:
    """A copy of the tree."""

    def __init__(self, number: int, processes: Processes) -> None:
        """Makes the copy, or brings it up to date."""
        self.path = BUILD / f"tree-{number}" / "weft"
        self._processes = processes
        self._delegated = False
        self._core: Path | None = None
        self._warm: subprocess.Popen[bytes] | None = None
        self._answers = b""
        self.path.mkdir(parents=True, exist_ok=True)
        _copy_files(self.path)
        _link_shared(self.path.parent)
        _copy_built(self.path)
        self._python = _make_venv(self.path)

    @property
    def environment(self) -> dict[str, str]:
        """The environment of processes that run in the copy."""
        env = {**os.environ, "PYTHONPATH": "", "PYTHONDONTWRITEBYTECODE": ""}
        scripts = str(self._python.parent)
        env |= {"PATH": scripts + os.pathsep + env.get("PATH", ""), "VIRTUAL_ENV": ""}
        # nothing that a mistake has left there may answer for a later one
        env["WEFT_CACHE"] = str(self.path.parent / "cache")
        return env

    def write(self, file: str, text: str) -> None:
        """Replaces a file, and drops what Python has compiled of it."""
        path = self.path / file
        path.write_text(text)
        for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
            compiled.unlink()

    def revert(self, row: Mutant) -> None:
        """Takes a mistake back."""
        self.write(row.file, (ROOT / row.file).read_text())

    def test(self, tests: tuple[str, ...], seconds: float | None) -> tuple[int | None, str]:
        """Runs tests up to the first that fails; returns as `Processes.run` does."""
        shutil.rmtree(self.path.parent / "cache", ignore_errors=True)
        options = ["-x", "-q", "-p", "no:cacheprovider", "--no-header", "--tb=no", "-rfE"]
        output = self.path.parent / "said"
        if self._warm is None:
            command = [str(self._python), "-m", "tests.mutants.warm", *_IMPORTS]
            self._warm = self._processes.start(command, self.path, self.environment)
        assert self._warm.stdin is not None
        asked = {"arguments": [*options, *tests], "output": str(output)}
        self._warm.stdin.write(json.dumps(asked).encode() + b"\n")
        child = self._answer(None)
        if child is None:
            raise KeyboardInterrupt
        try:
            code = self._answer(seconds)
            if code is None and not self._processes.stopped:
                _end_group(child)
                self._answer(None)
        finally:
            _end_group(child)
        if self._processes.stopped:
            raise KeyboardInterrupt
        return code, output.read_text(errors="replace")

    def _answer(self, seconds: float | None) -> int | None:
        """The number in the next line; None where none came in so many seconds, or at the end."""
        assert self._warm is not None and self._warm.stdout is not None
        until = None if seconds is None else time.monotonic() + seconds
        while not self._processes.stopped and b"\n" not in self._answers:
            left = 0.5 if until is None else min(0.5, until - time.monotonic())
            if left <= 0:
                return None
            if select.select([self._warm.stdout], [], [], left)[0]:
                more = self._warm.stdout.read(64)
                if not more:
                    return None
                self._answers += more
        line, _, self._answers = self._answers.partition(b"\n")
        return int(line) if line else None

    def build(self, what: str) -> None:
        """Builds the native module or the delegate of the copy. Raises BuildError."""
        if what == "delegate":
            self._build_delegate()
        else:
            self._build_native()

    def _build_native(self) -> None:
        folder = BUILD / "native"
        if self._core is None:
            self._run(
                "cmake", "-S", self.path, "-B", folder, "-G", "Ninja", *_launcher(),
                "-DWEFT_TARGETS=native", "-DWEFT_BASELINE=OFF",
                f"-DPython_EXECUTABLE={self._python}", f"-Dnanobind_DIR={_nanobind()}",
                f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={folder / 'module'}",
            )  # fmt: skip
            self._core = folder / "native" / "libweft_core.a"
        self._run("cmake", "--build", folder, "--target", "_native")
        for module in (folder / "module").glob("_native*.so"):
            shutil.copy2(module, self.path / "src" / "weft" / module.name)

    def _build_delegate(self) -> None:
        folder = BUILD / "delegate"
        if not self._delegated:
            if self._core is None:
                self._build_native()
            self._run(
                "cmake", "-S", self.path / "executorch", "-B", folder, "-G", "Ninja",
                *_launcher(), f"-DPython_EXECUTABLE={self._python}", f"-DWEFT_CORE={self._core}",
                f"-DCMAKE_LIBRARY_OUTPUT_DIRECTORY={folder / 'library'}",
            )  # fmt: skip
            self._delegated = True
        self._run("cmake", "--build", folder, "--target", "weft_executorch")
        for library in (folder / "library").glob("*.so"):
            target = self.path / "executorch" / "src" / "weft_executorch" / library.name
            shutil.copy2(library, target)

    def _run(self, *command: str | Path) -> None:
        code, said = self._processes.run(list(map(str, command)), self.path, self.environment)
        if code != 0:
            raise BuildError("\n".join(said.splitlines()[-_LOG_LINES:]))


def _listed() -> list[str]:
    """The files of the tree: those that git knows, and new ones that it does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return [name for name in listed.split("\0") if name and (ROOT / name).is_file()]


def _copy_files(to: Path) -> None:
    listed = _listed()
    for name in listed:
        source, target = ROOT / name, to / name
        data = source.read_bytes()
        if not target.is_file() or target.read_bytes() != data:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(data)  # its time is now, so that it is compiled again
            target.chmod(source.stat().st_mode)
    known = set(listed)
    for folder in ("src", "native", "tests", "executorch"):
        for path in (to / folder).rglob("*"):
            stale = path.is_file() and path.suffix not in (".pyc", ".so")
            if stale and str(path.relative_to(to)) not in known:
                path.unlink()


def _link_shared(beside: Path) -> None:
    """Makes golden data that stand beside the tree stand beside the copy."""
    shared, link = ROOT.parent / "shared", beside / "shared"
    if shared.exists() and not link.exists():
        link.symlink_to(shared.resolve(), target_is_directory=True)


def _copy_built(to: Path) -> None:
    """Copies what was built in the tree: the native module, the delegate, chat templates."""
    native = importlib.util.find_spec("weft._native")
    assert native is not None and native.origin is not None
    shutil.copy2(native.origin, to / "src" / "weft" / Path(native.origin).name)
    for library in (ROOT / "executorch" / "src" / "weft_executorch").glob("*.so"):
        shutil.copy2(library, to / "executorch" / "src" / "weft_executorch" / library.name)
    templates = ROOT / "build" / "templates"
    if templates.is_dir():
        shutil.copytree(templates, to / "build" / "templates", dirs_exist_ok=True)


def _make_venv(tree: Path) -> Path:
    """A virtual environment with the packages of this one, but weft of the copy. Returns its
    Python."""
    folder = tree / ".venv"
    python = folder / "bin" / "python"
    if not python.exists():
        venv.create(folder, symlinks=True, with_pip=False)
    packages = [path for path in sys.path if path.endswith("site-packages")]
    own = [tree / "src", tree / "executorch" / "src"]
    (site,) = folder.glob("lib/python*/site-packages")
    (site / "weft_mutants.pth").write_text("".join(f"{path}\n" for path in [*own, *packages]))
    for script in Path(sys.executable).parent.iterdir():
        target = folder / "bin" / script.name
        if script.is_file() and not target.exists():
            _copy_script(script, target, python)
    return python


def _copy_script(script: Path, target: Path, python: Path) -> None:
    """Copies a command of a package, to be run by `python`; other programs are linked."""
    first, newline, rest = script.read_bytes().partition(b"\n")
    if first.startswith(b"#!") and b"python" in first:
        target.write_bytes(f"#!{python}".encode() + newline + rest)
        target.chmod(0o755)
    else:
        target.symlink_to(script)


def _launcher() -> list[str]:
    ccache = shutil.which("ccache")
    return [f"-DCMAKE_CXX_COMPILER_LAUNCHER={ccache}"] if ccache else []


def _nanobind() -> str:
    import nanobind

    return str(nanobind.cmake_dir())
