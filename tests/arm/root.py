"""A folder with a Python for ARM, what weft needs and what its tests need: no system is changed.

Debian's packages are unpacked into `root`, wheels into `site`; qemu's user emulation runs them.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

PACKAGES = ("python3.11", "libpython3.11-dev", "libstdc++6", "libgomp1")
WHEELS = ("numpy", "sentencepiece", "typer", "rich", "jinja2", "pytest", "hypothesis", "gguf",
          "tokenizers", "pytest-xdist")  # fmt: skip
NAME = "_native.cpython-311-aarch64-linux-gnu.so"
PLATFORMS = ("manylinux_2_28_aarch64", "manylinux_2_27_aarch64", "manylinux2014_aarch64", "any")


def run(command: Sequence[str], **more: str) -> None:
    """Runs a command with `more` in its environment; raises SystemExit with its output."""
    done = subprocess.run(command, env=os.environ | more, capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-2000:]
        raise SystemExit(f"{' '.join(command)} failed ({done.returncode}):\n{said}")


def make_root(
    folder: Path, architecture: str = "arm64", packages: Sequence[str] = PACKAGES
) -> Path:
    """Debian's packages and what they need, Python unless told, for an architecture below
    `folder`/root; made once."""
    root, apt, made = folder / "root", folder / "apt", folder / "made"
    if made.exists() and made.read_text() == " ".join(packages):
        return root
    for part in ("state/lists/partial", "cache/archives/partial"):
        (apt / part).mkdir(parents=True, exist_ok=True)
    (apt / "status").touch()
    (apt / "apt.conf").write_text(
        f'APT::Architecture "{architecture}"; APT::Architectures {{ "{architecture}"; }};\n'
        f'Dir::State "{apt}/state"; Dir::State::status "{apt}/status"; Dir::Cache "{apt}/cache";\n'
    )
    env = {"APT_CONFIG": str(apt / "apt.conf")}
    run(["apt-get", "update"], **env)
    options = ["-y", "--no-install-recommends", "--download-only"]
    run(["apt-get", "install", *options, *packages], **env)
    for package in sorted((apt / "cache/archives").glob("*.deb")):
        run(["dpkg-deb", "-x", str(package), str(root)])
    made.write_text(" ".join(packages))
    return root


def make_site(folder: Path) -> Path:
    """The wheels for ARM below `folder`/site; made once."""
    site, wheels = folder / "site", folder / "wheels"
    if (site / "numpy").exists():
        return site
    platforms = [option for p in PLATFORMS for option in ("--platform", p)]
    command = [sys.executable, "-m", "pip", "-q", "--disable-pip-version-check", "download"]
    wanted = ["--only-binary", ":all:", "--python-version", "3.11", *platforms]
    run([*command, *wanted, "-d", str(wheels), *WHEELS])
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(site)
    return site


def build(folder: Path, sources: Path) -> Path:
    """The native module for ARM with its symbols, compiled anew where sources changed."""
    include = folder / "include/aarch64-linux-gnu"
    include.mkdir(parents=True, exist_ok=True)
    headers = folder / "root/usr/include"
    if not (include / "python3.11").exists():
        (include / "python3.11").symlink_to(headers / "aarch64-linux-gnu/python3.11")
    tools, made = Path(sys.executable).parent, folder / "build"
    nanobind = subprocess.check_output(
        [sys.executable, "-m", "nanobind", "--cmake_dir"], text=True
    ).strip()
    launcher = shutil.which("ccache") or ""
    run([
        str(tools / "cmake"), "-S", str(sources), "-B", str(made), "-G", "Ninja",
        f"-DCMAKE_MAKE_PROGRAM={tools / 'ninja'}", "-DCMAKE_BUILD_TYPE=None",
        f"-DCMAKE_TOOLCHAIN_FILE={sources}/native/cmake/aarch64-linux.cmake",
        f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}",
        f"-DCMAKE_CXX_FLAGS=-O2 -DNDEBUG -isystem {include.parent}", "-DWEFT_WERROR=ON",
        f"-DPython_EXECUTABLE={sys.executable}", f"-Dnanobind_DIR={nanobind}",
        f"-DPython_INCLUDE_DIR={headers}/python3.11",
    ])  # fmt: skip
    run([str(tools / "cmake"), "--build", str(made), "--target", "_native"])
    return next((made / "native").glob("_native*.so"))


def install(folder: Path, sources: Path, module: Path, name: str) -> Path:
    """Links weft's Python files below `folder`/`name` and copies the module; that folder."""
    package = folder / name
    weft = package / "weft"
    run(["rm", "-rf", str(package)])
    package.mkdir(parents=True)
    run(["cp", "-rs", str((sources / "src/weft").resolve()), str(weft)])
    for built in weft.glob("_native*.so"):  # one of this machine
        built.unlink()
    (weft / NAME).write_bytes(module.read_bytes())
    return package
