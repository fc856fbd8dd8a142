"""The phone path, on an emulated processor: programs exported here are run by ExecuTorch for ARM.

    python -m tests.arm.phone [--cpu NAME ...] [--sizes] [--wheel FILE]

The delegate and `examples/run_pte` are compiled for ARM with Debian's g++-aarch64-linux-gnu and
linked to the runtime of ExecuTorch's own wheel for ARM, which pip brings. For each model, a
delegate with the kernels of that model alone (`weft keep`), of the best target that the processor
has, and one with all of them run it under qemu; the numbers are held to PyTorch's or weft's own.
Delegates without what a model or a processor needs must say so. `--sizes` prints how large the
libraries are. `--wheel` runs the models by the delegate in a wheel of weft-executorch instead.
"""

from __future__ import annotations

import argparse
import sys
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.arm.machines import FOLDER, SOURCES, Machine, arm, here, missing, run

sys.path[:0] = [str(SOURCES / "executorch/src")]
STORIES = SOURCES.parent / "shared/vectors/models/stories260K"
PROCESSORS = {"cortex-a72": "neon", "cortex-a76": "dotprod"}
"""The kernel target of the small delegates that an emulated processor runs."""
TOLERANCE, ROUNDED = 1e-4, 3e-2
"""Of the largest number of a result, as in tests/delegate: without and with rounded activations."""
N_TOKENS = 24
KINDS = {
    "": (),
    "static": ("-DWEFT_EXECUTORCH_TYPE=STATIC", "-DWEFT_EVENT_TRACER=ON"),  # as the wheel's runtime
    "android": ("-DANDROID=ON",),  # all that this compiler can do of it
}
PAGE = 16384
"""Bytes of the pages that Android 15 asks for."""


# ---- models --------------------------------------------------------------------------------------


@dataclass(slots=True)
class Model:
    """A .pte file with the inputs of a call and what must come out."""

    name: str
    path: Path
    inputs: list[Path]
    want: NDArray[np.float32]
    """The first result."""
    tokens: list[int] = field(default_factory=list)
    """What `--generate` must print."""
    exact: bool = True
    """Whether activations are not rounded to blocks of bytes."""

    @property
    def arguments(self) -> list[str | Path]:
        """Those of `run_pte`, but for --output."""
        inputs: list[str | Path] = [word for path in self.inputs for word in ("--input", path)]
        generate = ["--generate", str(len(self.tokens))] if self.tokens else []
        return [self.path, *inputs, *generate]


def _saved(folder: Path, name: str, arrays: Sequence[NDArray[Any]]) -> list[Path]:
    paths = [folder / f"{name}.{i}.bin" for i in range(len(arrays))]
    for path, array in zip(paths, arrays, strict=True):
        path.write_bytes(array.tobytes())
    return paths


def language_model(source: Path, prompt: str, folder: Path) -> Model:
    """A GGUF model: its logits behind a prompt, and the tokens that `weft run` chooses."""
    import weft
    from weft_executorch.gguf import export_gguf

    llm = weft.LLM(source, n_ctx=128)
    prompt_tokens = list(llm.tokenize(prompt))
    n = len(prompt_tokens)
    path = folder / f"{source.stem}.pte"
    export_gguf(source, path, n_ctx=128, n_ubatch=n)
    want = llm.context.decode(prompt_tokens)[-1]
    chosen = [int(want.argmax())]
    while len(chosen) < N_TOKENS:
        chosen.append(int(llm.context.decode(chosen[-1:])[-1].argmax()))
    arrays = [np.asarray([prompt_tokens], np.int64), np.arange(n, dtype=np.int64)]
    exact = source.stem.endswith("F32")
    return Model(source.stem, path, _saved(folder, source.stem, arrays), want.copy(), chosen, exact)


def mobilenet(folder: Path) -> Model:
    """MobileNetV2 of width 1 with random weights, a picture of 224 x 224."""
    import torch
    from executorch.exir import to_edge_transform_and_lower

    from benchmarks.executorch_models import mobilenet as make
    from weft_executorch import WeftPartitioner

    torch.manual_seed(0)
    module, x = make().eval(), torch.randn(1, 3, 224, 224)
    with torch.no_grad():
        want = module(x).numpy()
        exported = torch.export.export(module, (x,))
        program = to_edge_transform_and_lower(exported, partitioner=[WeftPartitioner()])
        (folder / "mobilenet_v2.pte").write_bytes(program.to_executorch().buffer)
    inputs = _saved(folder, "mobilenet_v2", [x.numpy()])
    return Model("mobilenet_v2", folder / "mobilenet_v2.pte", inputs, want.reshape(-1))


def models(folder: Path) -> list[Model]:
    """The models of the exam; stories260K only where the golden vectors are."""
    folder.mkdir(parents=True, exist_ok=True)
    demo = SOURCES / "examples/weft-demo.gguf"
    made = [language_model(demo, "What is 17 + 25?", folder)]
    if STORIES.is_dir():
        for name in ("stories260K-Q4_0.gguf", "stories260K-F32.gguf"):
            made.append(language_model(STORIES / name, "Once upon a time", folder))
    return [*made, mobilenet(folder)]


# ---- the exam ------------------------------------------------------------------------------------


def result_of(printed: str, output: Path) -> tuple[NDArray[np.float32], list[int]]:
    """The first result that `run_pte` wrote, and the tokens that it printed."""
    lines = [line for line in printed.splitlines() if line.startswith("tokens:")]
    tokens = [int(word) for word in lines[0].split()[1:]] if lines else []
    return np.fromfile(f"{output}.0", np.float32), tokens


def difference(model: Model, got: tuple[NDArray[np.float32], list[int]]) -> str:
    """What is wrong with a result, as a sentence; empty if it is right."""
    numbers, tokens = got
    if numbers.shape != model.want.shape:
        return f"{numbers.size} numbers came out, not {model.want.size}"
    off = float(np.abs(numbers - model.want).max() / np.abs(model.want).max())
    most = TOLERANCE if model.exact else ROUNDED
    if not off <= most:
        return f"a number is off by {off:.2g} of the largest, more than {most:g}"
    if tokens != model.tokens:
        return f"the tokens {tokens} came out, not {model.tokens}"
    return ""


def keep_list_of(models: Sequence[Model], name: str) -> Path:
    """The list of the kernels of these models, written as `weft keep` does."""
    from weft_executorch.keep import keep_list

    path = FOLDER / "phone" / f"{name}.keep"
    text = keep_list([model.path for model in models])
    if not path.exists() or path.read_text() != text:  # else all would be compiled again
        path.write_text(text)
    return path


def small(machine: Machine, model: Model, target: str, kind: str = "") -> Path:
    """A delegate of one kernel target with the kernels of one model."""
    return machine.delegate(
        f"{model.name}-{target}" + (f"-{kind}" if kind else ""),
        f"-DWEFT_KEEP={keep_list_of([model], model.name)}",
        *one_target(target),
        *KINDS[kind],
    )


def one_target(target: str) -> tuple[str, ...]:
    """The options of a build for one kernel target."""
    return f"-DWEFT_TARGETS={target}", "-DWEFT_BASELINE=OFF"


def examine(made: Sequence[Model], cpus: Sequence[str]) -> bool:
    """Runs every model by a delegate with its kernels alone and by a whole one, on emulated
    processors and on this machine, and prints a line for each; whether all results were right."""
    machines = ((arm(), cpus), (here(), ("",)))
    good = True
    for machine, processors in machines:
        for cpu in processors:
            target = default_target(cpu)
            for model in made:
                good &= right(machine, cpu, model, small(machine, model, target), f"its {target}")
    good &= refused(made)
    static = small(arm(), made[0], "dotprod", "static")
    good &= right(arm(), "cortex-a76", made[0], static, "its dotprod in the program")
    good &= has_large_pages(small(arm(), made[0], "dotprod", "android"))
    for machine, processors in machines:
        whole = machine.whole()
        for cpu in processors:
            for model in made:
                good &= right(machine, cpu, model, whole, "all kernels")
    return good


def examine_wheel(made: Sequence[Model], wheel: Path, cpus: Sequence[str]) -> bool:
    """Runs every model by the delegate in a wheel, on emulated processors where it is for ARM, and
    prints a line for each; whether all results were right."""
    machine = arm() if wheel.stem.endswith("aarch64") else here()
    with zipfile.ZipFile(wheel) as packed:
        name = "weft_executorch/libweft_executorch.so"
        delegate = Path(packed.extract(name, FOLDER / "phone" / wheel.stem))
    processors = cpus if machine.name == "arm" else ("",)
    return all([right(machine, cpu, model, delegate, "the wheel")
                for cpu in processors for model in made])  # fmt: skip


def right(machine: Machine, cpu: str, model: Model, delegate: Path, about: str) -> bool:
    """Runs a model and prints a line; whether its numbers are right."""
    output = model.path.with_suffix(f".{machine.name}")
    said = machine.output(cpu, delegate, *model.arguments, "--output", output)
    wrong = difference(model, result_of(said, output))
    what = f"{cpu or machine.name}, {model.name}, {about}"
    print(f"FAIL {what}: {wrong}" if wrong else f"ok   {what}", flush=True)
    return not wrong


def refused(made: Sequence[Model]) -> bool:
    """Whether delegates with the kernels of the first model say what they lack: those of the last
    model, and those of an older processor."""
    first, last = made[0], made[-1]
    of_build = ("no kernel for CONV_2D_LAST", "WEFT_KEEP")
    of_cpu = ("this processor can run none of the kernel targets",)
    cases = (
        (here(), "", "avx2", last, of_build),
        (arm(), "cortex-a76", "dotprod", last, of_build),
        (arm(), "cortex-a72", "dotprod", first, of_cpu),
    )
    return all([refuses(machine, cpu, small(machine, first, target), model, words)
                for machine, cpu, target, model, words in cases])  # fmt: skip


def refuses(machine: Machine, cpu: str, delegate: Path, model: Model, words: Sequence[str]) -> bool:
    """Whether a delegate says these words instead of running a model; prints a line."""
    about = f"{cpu or machine.name}, {model.name} is refused by {delegate.parent.name}"
    try:
        said = machine.output(cpu, delegate, *model.arguments)
    except RuntimeError as error:
        said = str(error)
    told = all(word in said for word in words)
    print(f"ok   {about}" if told else f"FAIL {about}:\n{said}", flush=True)
    return told


def has_large_pages(library: Path) -> bool:
    """Whether the parts of a library begin at pages of 16 KB; prints a line."""
    said = run(["aarch64-linux-gnu-readelf", "-lW", library]).stdout
    found = {int(line.split()[-1], 16) for line in said.splitlines() if line.startswith("  LOAD")}
    good = bool(found) and all(bytes % PAGE == 0 for bytes in found)
    about = f"{library.parent.name} begins at pages of {sorted(found)} bytes"
    print(f"{'ok  ' if good else 'FAIL'} {about}", flush=True)
    return good


def default_target(cpu: str) -> str:
    """The kernel target of a small delegate for a processor; every one of ARM has NEON."""
    return PROCESSORS.get(cpu, "neon") if cpu else "avx2"


# ---- sizes ---------------------------------------------------------------------------------------


def size_of(machine: Machine, library: Path) -> str:
    """KB of a library without symbols that no loader needs, and of the code and data in it."""
    prefix = "" if machine.name == "here" else "aarch64-linux-gnu-"
    copy = library.with_suffix(".stripped")
    run([f"{prefix}strip", "-o", copy, library])
    code, data = run([f"{prefix}size", copy]).stdout.splitlines()[1].split()[:2]
    return f"{copy.stat().st_size / 1000:,.0f} ({(int(code) + int(data)) / 1000:,.0f})"


def sizes(made: Sequence[Model]) -> list[str]:
    """The rows of a table in Markdown: what is built, and how many KB it has on each machine."""
    columns = [(here(), "avx2"), *((arm(), target) for target in PROCESSORS.values())]
    heads = [f"{'x86_64' if m.name == 'here' else 'aarch64'}, {target}" for m, target in columns]
    rows = [f"| kernels of | {' | '.join(heads)} |", "|---|" + "---|" * len(columns)]
    for model in made:
        built = [size_of(m, small(m, model, target)) for m, target in columns]
        rows.append(f"| {model.name} | {' | '.join(built)} |")
    whole = [size_of(m, m.whole()) for m in (here(), arm())]
    return [*rows, f"every op, every target: {whole[0]} on x86_64, {whole[1]} on aarch64"]


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--cpu", nargs="+", action="extend", help="of qemu's names")
    parser.add_argument("--sizes", action="store_true", help="print sizes instead")
    parser.add_argument("--wheel", type=Path, help="run the delegate in this wheel instead")
    options = parser.parse_args()
    if (lacks := missing()) is not None:
        raise SystemExit(f"the phone path is not tried: {lacks}")
    try:
        made = models(FOLDER / "phone")
        if options.sizes:
            print("\n".join(sizes(made)))
            return 0
        cpus = options.cpu or list(PROCESSORS)
        if options.wheel:
            return 0 if examine_wheel(made, options.wheel, cpus) else 1
        return 0 if examine(made, cpus) else 1
    except RuntimeError as error:
        raise SystemExit(str(error)) from None


if __name__ == "__main__":
    raise SystemExit(main())
