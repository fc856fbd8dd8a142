"""A package of an extra that is missing: commands end at once, with how to install it."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.serve.in_process import DEMO, ROOT, Server
from weft.extras import how_to_install

HIDE = """
import os, sys
from importlib.machinery import PathFinder

HIDDEN = os.environ["HIDDEN"]

class Finder(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name == HIDDEN or name.startswith(HIDDEN + ".")
        return None if hidden else super().find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = Finder
"""
"""A sitecustomize.py that hides a package, as if it were not installed."""
FOLDER = ROOT / "tests/data/hf/qwen3-tiny-moe"
SHAPES = ROOT / "examples/shapes"
RUN = ["run", DEMO, "-p", "a", "-n", "1"]
SERVE = ["serve", DEMO, "--port", "0"]
SEE = ["run", SHAPES / "weft-shapes.gguf", "--mmproj", SHAPES / "mmproj-weft-shapes.gguf",
       "--image", SHAPES / "star-and-square.png", "-p", "a"]  # fmt: skip
CASES: dict[str, tuple[list[str | Path], str]] = {
    "scipy_openblas32": ([*RUN, "--devices", "blas"], "blas"),
    "wgpu": ([*RUN, "--devices", "webgpu"], "gpu"),
    "pycparser": ([*RUN, "--devices", "webgpu"], "gpu"),
    "pyopencl": ([*RUN, "--devices", "opencl"], "opencl"),
    "cuda": ([*RUN, "--devices", "cuda"], "cuda"),
    "llguidance": ([*RUN, "--json-schema", "{}"], "grammar"),
    "huggingface_hub": (["run", "hf:owner/name", "-p", "a"], "hub"),
    "gguf": (["convert", FOLDER, "out.gguf"], "hf"),
    "PIL": (SEE, "vision"),
    "fastapi": (SERVE, "serve"),
    "pydantic": (SERVE, "serve"),
    "starlette": (SERVE, "serve"),
    "uvicorn": (SERVE, "serve"),
    "h11": (SERVE, "serve"),
    "scipy": (["quantize", DEMO, "out.gguf", "--fit", "1MiB"], "fit"),
    "ray": ([*SERVE, "--ray"], "ray"),
    "opentelemetry.sdk": ([*SERVE, "--otel"], "otel"),
    "opentelemetry.exporter": ([*SERVE, "--otel"], "otel"),
}
"""Packages, commands that need them, and their extras. The other packages are only needed by a
request (below), by a model that is not here, or by Python (`weft.from_torch`)."""
QUICK = ("uvicorn",)


@pytest.mark.parametrize(
    "package", [*QUICK, *(pytest.param(name, marks=pytest.mark.part("faults"))
                          for name in CASES if name not in QUICK)]
)  # fmt: skip
def test_a_command_names_the_extra_and_ends(package: str, tmp_path: Path) -> None:
    if find_spec(package.partition(".")[0]) is None:
        pytest.skip(f"{package} is not installed")
    words, extra = CASES[package]
    (tmp_path / "sitecustomize.py").write_text(HIDE)
    ended = subprocess.run(
        [sys.executable, "-m", "weft", *map(str, words)], capture_output=True, text=True,
        timeout=120, stdin=subprocess.DEVNULL, check=False, cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "HIDDEN": package},
    )  # fmt: skip
    assert ended.returncode == 1, ended.stdout + ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith("error: ") and how_to_install(extra) in last


def test_a_server_says_it_to_the_requests_that_need_a_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    monkeypatch.setattr("weft.serve.request_body.find_spec", lambda name: None)
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    asked = {"messages": [{"role": "user", "content": "a"}], "response_format": schema}
    form = {"Content-Type": "multipart/form-data; boundary=x"}
    with Server(DEMO, "-t", 1) as server:
        status, _, answer = server.call("POST", "/v1/chat/completions", asked)
        assert status == 501 and how_to_install("grammar") in answer["error"]["message"]
        status, _, answer = server.call("POST", "/v1/audio/transcriptions", b"--x--", **form)
        assert status == 501 and how_to_install("serve") in answer["error"]["message"]
