"""Instructions per multiply-accumulate of weft's kernels on ARM, beside llama.cpp's, as Markdown.

    python benchmarks/arm/counts.py --peer PATH/llama.cpp [--targets dotprod ...] [--jobs N]

Both are compiled by Debian's g++-aarch64-linux-gnu for the same processor and run once under
qemu's user emulation with a plugin that counts (`count_instructions.c`), on one thread. Counts
include the conversion of activations. PATH is a checkout of llama.cpp; without it only weft's
counts are printed. With --ternary: weft's ways to multiply with ternary weights.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[1]
TOOLCHAIN = SOURCES / "native/cmake/aarch64-linux.cmake"
PREFIX = "aarch64-linux-gnu"

# target -> what its products are compiled for, as native/CMakeLists.txt has it
MARCH = {
    "neon": "armv8-a",
    "dotprod": "armv8.2-a+dotprod",
    "i8mm": "armv8.2-a+dotprod+i8mm+bf16",
}
# types of ternary weights and of their activations
TERNARY = {"tq1_0", "tq2_0", "i2_s", "q8_0", "q8_K"}
PEER_OPTIONS = {
    "GGML_NATIVE": "OFF",
    "GGML_OPENMP": "OFF",
    "BUILD_SHARED_LIBS": "OFF",
    "GGML_BUILD_TESTS": "OFF",
    "GGML_BUILD_EXAMPLES": "OFF",
}


def run(command: Sequence[str | Path]) -> str:
    """Runs a command and returns what it printed; raises SystemExit with its output."""
    words = [str(word) for word in command]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        said = (done.stdout + done.stderr)[-4000:]
        raise SystemExit(f"{' '.join(words)} failed ({done.returncode}):\n{said}")
    return done.stdout


def configure(source: Path, build: Path, options: dict[str, str]) -> None:
    """Cross-compiles `source` in `build`, with a compiler cache where there is one."""
    if shutil.which("ccache"):
        options |= {f"CMAKE_{language}_COMPILER_LAUNCHER": "ccache" for language in ("C", "CXX")}
    options |= {"CMAKE_TOOLCHAIN_FILE": str(TOOLCHAIN), "CMAKE_BUILD_TYPE": "Release"}
    run(["cmake", "-S", source, "-B", build, *(f"-D{k}={v}" for k, v in options.items())])


def compile_program(name: str, build: Path, arguments: Sequence[str | Path]) -> Path:
    """Builds HERE/`name`.cpp in `build` with these arguments."""
    program = build / name
    first: list[str | Path] = [
        f"{PREFIX}-g++",
        "-std=c++20",
        "-O2",
        "-static",
        HERE / f"{name}.cpp",
    ]
    run([*first, *arguments, "-pthread", "-o", program])
    return program


def make_weft(folder: Path, jobs: int) -> Path:
    """weft_kernels, from a build of the kernels that it runs (`weft keep`)."""
    types = sorted(set(re.findall(r'{"(\w+)", \d+}', (HERE / "kernels.h").read_text())) | TERNARY)
    lines = ["# weft keep 1", "op MUL_MAT", "op FLASH_ATTN_EXT"]
    lines += [f"{word} {name}" for word in ("read", "write") for name in types]
    kept, build = folder / "kept.txt", folder / "weft"
    text = "\n".join([*lines, ""])
    if not kept.exists() or kept.read_text() != text:
        kept.write_text(text)
    options = {"WEFT_PYTHON": "OFF", "WEFT_BASELINE": "OFF", "WEFT_KEEP": str(kept)}
    configure(SOURCES, build, {**options, "WEFT_TARGETS": ";".join(MARCH)})
    run(["cmake", "--build", build, "-j", str(jobs), "--target", "weft_core"])
    native = SOURCES / "native"
    include: list[str | Path] = ["-I", native / "include", "-I", native / "src"]
    return compile_program("weft_kernels", build, [*include, build / "native/libweft_core.a"])


def make_peer(folder: Path, sources: Path, target: str, jobs: int) -> Path:
    """ggml_kernels, with ggml compiled for that target."""
    ggml, build = sources / "ggml", folder / f"ggml-{target}"
    configure(ggml, build, {**PEER_OPTIONS, "GGML_CPU_ARM_ARCH": MARCH[target]})
    run(["cmake", "--build", build, "-j", str(jobs), "--target", "ggml"])
    libraries = [build / "src" / f"lib{name}.a" for name in ("ggml", "ggml-cpu", "ggml-base")]
    group: list[str | Path] = ["-Wl,--start-group", *libraries, "-Wl,--end-group", "-ldl"]
    return compile_program("ggml_kernels", build, ["-I", ggml / "include", *group])


@dataclass
class Count:
    """Instructions of one call, by kind."""

    name: str
    columns: int
    macs: int
    form: str
    loads: int
    stores: int
    byte_products: int
    float_products: int
    others: int

    @property
    def per_mac(self) -> float:
        """All instructions per multiply-accumulate."""
        kinds = self.loads + self.stores + self.byte_products + self.float_products + self.others
        return kinds / self.macs


def count(plugin: Path, program: Path, *arguments: str) -> list[Count]:
    """Runs a program of kernels under the plugin."""
    out = program.with_suffix(".counts")
    command = ["qemu-aarch64", "-cpu", "max", "-plugin", f"{plugin},out={out}"]
    said = run([*command, program, *arguments]).splitlines()
    numbers = out.read_text().splitlines()
    if len(said) != len(numbers):
        raise SystemExit(
            f"{program.name} announced {len(said)} calls and {len(numbers)} were counted"
        )
    counts = []
    for line, kinds in zip(said, numbers, strict=True):
        name, columns, macs, form = line.split()
        counts.append(Count(name, int(columns), int(macs), form, *map(int, kinds.split())))
    return counts


def table(ours: Sequence[Count], theirs: Sequence[Count]) -> str:
    """The counts beside each other, all per multiply-accumulate."""
    lines = [
        "| kernel | columns | weft | llama.cpp | ratio | llama.cpp's form "
        "| loads | products | stores | other |",
        "|---|--:|--:|--:|--:|---|--:|--:|--:|--:|",
    ]
    for i, one in enumerate(ours):
        peer = theirs[i] if theirs else None
        cells = [one.name, str(one.columns), f"{one.per_mac:.3f}"]
        if peer is None:
            cells += ["", "", ""]
        else:
            cells += [f"{peer.per_mac:.3f}", f"{one.per_mac / peer.per_mac:.2f}", peer.form]
        products = one.byte_products + one.float_products
        kinds = (one.loads, products, one.stores, one.others)
        cells += [f"{kind / one.macs:.4f}" for kind in kinds]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def ternary_table(counts: Sequence[Count]) -> str:
    """A row for each product, with the counts of rows, panels and lookups."""
    lines = ["| weights | columns | rows | panels | lookups |", "|---|--:|--:|--:|--:|"]
    for i in range(0, len(counts), 3):
        cells = [counts[i].name, str(counts[i].columns)]
        cells += [f"{one.per_mac:.3f}" for one in counts[i : i + 3]]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--peer", type=Path, help="a folder of llama.cpp's sources")
    parser.add_argument("--targets", nargs="+", default=["dotprod"], choices=list(MARCH))
    parser.add_argument("--folder", type=Path, default=SOURCES / "build/arm/counts")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--ternary", action="store_true")
    options = parser.parse_args()
    folder: Path = options.folder
    folder.mkdir(parents=True, exist_ok=True)
    plugin = folder / "libcount.so"
    run(["cc", "-shared", "-fPIC", "-O2", "-o", plugin, HERE / "count_instructions.c"])
    weft = make_weft(folder, options.jobs)
    for target in options.targets:
        if options.ternary:
            print(f"\n`{target}`:\n\n{ternary_table(count(plugin, weft, target, 'ternary'))}")
            continue
        theirs = []
        if options.peer is not None:
            theirs = count(plugin, make_peer(folder, options.peer, target, options.jobs))
        ours = count(plugin, weft, target)
        print(f"\n`{target}`, both compiled with -march={MARCH[target]}:\n")
        print(table(ours, theirs), flush=True)


if __name__ == "__main__":
    main()
