"""Builds weft for ARM and holds it to the exam on emulated processors, which says right or wrong,
not how fast.

    python -m tests.arm [--cpu NAME ...] [--quick] [--parts NAME ...] [--jobs N]
                        [--python ARGUMENTS ...]

For each processor: the kernel targets that it offers; every golden op on each of them; block
formats, attention, products and columns of `tests/native_kernels`; golden models; `weft doctor`; a
text of the demo model, which is to be this machine's; and whether `weft doctor` notices a module
whose kernel of products was emptied. `--quick` leaves all but the targets, ops and the text away;
`--parts` takes only parts whose name begins with one of the names; `--jobs` examines so many
processors at a time. `--python` runs the emulated Python with these arguments instead. Vectors
beside the checkout are used where they are, else the sample in tests/data.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.arm.emptied import empty_products
from tests.arm.root import NAME, build, install, make_root, make_site

SOURCES = Path(__file__).resolve().parents[2]
FOLDER = SOURCES / "build/arm"
SHARED = SOURCES.parent / "shared/vectors"

# processor -> the targets beside the baseline that it can run, the best one last
PROCESSORS = {
    "cortex-a72": ["neon"],
    "neoverse-n1": ["neon", "dotprod"],
    "a64fx": ["neon"],
    "max": ["neon", "dotprod", "i8mm"],
}
DEMO = ["-m", "weft", "run", "examples/weft-demo.gguf", "-p", "What is 17 + 25?", "-n", "8"]
FEW_MODELS = ("llama", "qwen2", "gemma2", "mamba", "qwen3moe")


class Emulated:
    """Python on an emulated processor."""

    def __init__(self, cpu: str, package: Path) -> None:
        self.cpu = cpu
        self._path = f"{package}:{FOLDER / 'site'}:{SOURCES}"

    def run(self, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
        """Runs Python with these arguments, from the folder of the sources."""
        root = FOLDER / "root"
        command = ["qemu-aarch64", "-cpu", self.cpu, "-L", str(root)]
        command += [str(root / "usr/bin/python3.11"), *arguments]
        more = {"PYTHONPATH": self._path, "PYTHONDONTWRITEBYTECODE": "1"}
        more["XDG_CACHE_HOME"] = str(FOLDER / "cache" / self.cpu)  # what the doctor has found
        return subprocess.run(
            command, cwd=SOURCES, env=os.environ | more | env, capture_output=True, text=True
        )


def targets(python: Emulated) -> list[str]:
    """The targets that the emulated processor can run, best last; raises SystemExit where they are
    not the expected ones."""
    code = "import json; from weft.native import _native as n; print(json.dumps(n.targets()))"
    done = python.run("-c", code)
    if done.returncode != 0:
        raise SystemExit(f"{python.cpu}: weft does not start ({done.returncode}):\n{done.stderr}")
    scored = {name: score for name, score in json.loads(done.stdout) if score > 0}
    found = sorted(scored, key=lambda name: scored[name])
    expected = ["baseline", *PROCESSORS.get(python.cpu, [])]
    if python.cpu in PROCESSORS and found != expected:
        raise SystemExit(f"{python.cpu} offers {found}, and should offer {expected}")
    return found


def vectors(kind: str) -> Path:
    """The folder of golden vectors."""
    return SHARED / kind if SHARED.is_dir() else SOURCES / "tests/data/vectors" / kind


def text_here() -> str:
    """What this machine's weft prints for the demo model."""
    command = [sys.executable, *DEMO, "--temp", "0"]
    return subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, check=True).stdout


def exams(found: Sequence[str], quick: bool) -> list[tuple[str, list[str], str | None]]:
    """Name, arguments of Python and, where it is known, the output of each part."""
    parts: list[tuple[str, list[str], str | None]] = []
    for target in found:
        arguments = ["tests/vectors/run.py", "ops", str(vectors("ops")), "--target", target]
        parts.append((f"golden ops, {target}", arguments, None))
    parts.append(("a text", [*DEMO, "--temp", "0"], text_here()))
    if quick:
        return parts
    for target in found[1:]:
        parts.append((f"doctor, {target}", ["-m", "weft", "doctor", "--target", target], None))
    if (SHARED / "models").is_dir():
        for name in FEW_MODELS:
            arguments = ["tests/vectors/run.py", "models", str(vectors("models"))]
            parts.append((f"golden models, {name}", [*arguments, "--filter", f"*{name}*"], None))
    tests = ["-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--part", "all"]
    tests.append("tests/native_kernels")
    parts.append(("kernel tests", tests, None))  # the longest
    return parts


def examine(python: Emulated, quick: bool, only: Sequence[str]) -> bool:
    """Runs the parts whose name begins with one of `only`, printing a line of each; whether all
    passed."""
    found, good = targets(python), True
    print(f"{python.cpu}: targets {', '.join(found)}", flush=True)
    parts = exams(found, quick)
    for wish in only:
        if not any(name.startswith(wish) for name, *_ in parts):
            names = ", ".join(name for name, *_ in parts)
            raise SystemExit(f"--parts {wish!r} is the beginning of no part: {names}")
    for name, arguments, output in parts:
        if not name.startswith(tuple(only)):
            continue
        start = time.monotonic()
        done = python.run(*arguments)
        lines = [line for line in done.stdout.splitlines() if line.strip()] or ["(no output)"]
        passed = done.returncode == 0 and output in (None, done.stdout)
        took = time.monotonic() - start
        said = f"{python.cpu}: {'ok  ' if passed else 'FAIL'} {name}: {lines[-1]}"
        print(f"{said} ({took:.0f} s)", flush=True)
        if not passed:
            good = False
            print("\n".join((done.stdout + done.stderr).splitlines()[-40:]), flush=True)
            if output not in (None, done.stdout):
                print(f"where this machine prints\n{output}", flush=True)
    return good


def notices_emptied_kernel(cpu: str, module: Path) -> bool:
    """Whether the doctor fails the best target of the processor when its products do nothing."""
    target = PROCESSORS[cpu][-1]
    package = install(FOLDER, SOURCES, module, "emptied")
    (package / "weft" / NAME).write_bytes(empty_products(module, target))
    cache = {"XDG_CACHE_HOME": str(package / "cache")}
    done = Emulated(cpu, package).run("-m", "weft", "doctor", "--target", target, **cache)
    noticed = done.returncode == 1 and "MUL_MAT" in done.stdout
    said = "ok  " if noticed else "FAIL"
    print(f"{cpu}: {said} doctor, {target} with emptied products", flush=True)
    if not noticed:
        print("\n".join((done.stdout + done.stderr).splitlines()[-40:]), flush=True)
    return noticed


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cpu", nargs="+", action="extend", help="of qemu's names")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--parts", nargs="+", default=[""], help="how the names of parts begin")
    parser.add_argument("--jobs", type=int, default=1, help="processors at a time")
    parser.add_argument("--python", nargs=argparse.REMAINDER, help="run this instead")
    options = parser.parse_args()
    cpus = options.cpu or list(PROCESSORS)
    make_root(FOLDER)
    make_site(FOLDER)
    module = build(FOLDER, SOURCES)
    package = install(FOLDER, SOURCES, module, "package")
    if options.python:
        done = Emulated(cpus[-1], package).run(*options.python)
        print(done.stdout + done.stderr, end="")
        return done.returncode
    with ThreadPoolExecutor(options.jobs) as pool:
        work = (Emulated(cpu, package) for cpu in cpus)
        results = list(pool.map(lambda one: examine(one, options.quick, options.parts), work))
    if not options.quick and options.parts == [""]:
        results += [notices_emptied_kernel(cpu, module) for cpu in cpus[-1:]]
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
