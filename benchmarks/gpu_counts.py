"""What a GPU could do, by counting: bytes and operations of each kernel, beside published peaks.

    python benchmarks/gpu_counts.py [MODEL.gguf ...] [--machines mac-m2,...] [--n-prompt 512]

Without a model it counts two llamas on paper, of 1 and 8 billion weights. Every node that the plan
puts on the GPU counts, by the declaration of its op. A kernel takes at least
`max(bytes / bandwidth, operations / rate)`; machines are profiles as `weft explain --machine` reads
them. Prints the tables of docs/gpu.md; nothing is measured.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.make_model import SHAPES, Shape, head_of
from weft.graph.tensor import Tensor
from weft.llm.opening import Opening
from weft.llm.planning.explain import plan_for
from weft.llm.planning.plan import ContextPlan
from weft.schedule.machine import paper_devices
from weft.schedule.profile import DeviceProfile, Profile, load_profile
from weft.schedule.timing import work

MACHINES = ("mac-m2", "laptop-780m", "laptop-arc140v", "desktop-rtx4060")
PAPER = {
    "1B, q4_0": (replace(SHAPES["1b"], n_vocab=128256), "q4_0"),
    "8B, q4_K_M": (replace(SHAPES["8b"], n_vocab=128256), "q4_K_M"),
}
"""Models of the shapes of Llama 3.2 1B and Llama 3.1 8B: name -> shape, format."""
N_CTX = 4096
N_CELLS = 512
"""The number of cells that attention of a token reads, and of a prompt."""
_GPU = "gpu"


@dataclass(frozen=True)
class Kernel:
    """All nodes of a pass that share an op and the type of its weight."""

    op: str
    weight: str
    """The type of the weight of a product, or of the cache of attention; else empty."""
    is_product: bool
    n: int
    nbytes: float
    """Bytes that are read and written."""
    flops: float

    @property
    def name(self) -> str:
        """The op and the type, such as `MUL_MAT q4_K`."""
        return f"{self.op} {self.weight}".rstrip()

    def memory_seconds(self, device: DeviceProfile) -> float:
        """Seconds at the memory's bandwidth."""
        return self.nbytes / device.bandwidth

    def flops_seconds(self, device: DeviceProfile) -> float:
        """Seconds at the peak of operations."""
        return self.flops / device.rate(self.op, self.is_product, self.weight)

    def seconds(self, device: DeviceProfile) -> float:
        """The larger of the two."""
        return max(self.memory_seconds(device), self.flops_seconds(device))


@dataclass(frozen=True)
class Counts:
    """The kernels of a model on a GPU, those with the most bytes first."""

    name: str
    token: tuple[Kernel, ...]
    """Kernels of a step of one token."""
    prompt: tuple[Kernel, ...]
    """Kernels of a prompt."""
    n_prompt: int


def counted(name: str, path: Path, n_prompt: int = N_CELLS) -> Counts:
    """The counts of a model file, of which the beginning is enough, with all layers on a GPU."""
    plan = plan_on(path, load_profile(MACHINES[0]), n_prompt)
    token, prompt = (kernels(plan, n, N_CELLS) for n in (1, n_prompt))
    return Counts(name, token, prompt, n_prompt)


def on_paper(name: str, n_prompt: int = N_CELLS) -> Counts:
    """The counts of a model of `PAPER`."""
    shape, format = PAPER[name]
    with tempfile.TemporaryDirectory() as folder:
        return counted(name, paper_file(Path(folder), shape, format), n_prompt)


def paper_file(folder: Path, shape: Shape, format: str) -> Path:
    """The beginning of a file of such a model: metadata and the list of tensors."""
    path = folder / "paper.gguf"
    path.write_bytes(head_of(path, format, shape))
    return path


def plan_on(path: Path, profile: Profile, n_prompt: int) -> ContextPlan:
    """The plan of a context with every layer on the first device of a profile."""
    opening = Opening(path, whole=False)
    *_, plan = opening.plans(
        must_fit=False, devices=paper_devices(profile), profile=profile, n_gpu_layers=999,
        n_ctx=max(N_CTX, n_prompt), n_ubatch=n_prompt,
    )  # fmt: skip
    return plan


def kernels(plan: ContextPlan, n_tokens: int, n_cells: int) -> tuple[Kernel, ...]:
    """What the GPU computes in a pass of `n_tokens` tokens, with `n_cells` cells in use."""
    regime = plan_for(plan, n_tokens)
    known = {"n_tokens": n_tokens, "n_kv": max(n_cells, n_tokens), "n_outputs": 1}
    symbols = regime.graph.symbols.values()
    values = {s.name: min(known.get(s.name, s.max), s.max) for s in symbols}
    found: dict[tuple[str, str], Kernel] = {}
    for node in _nodes(plan, regime.plan.schedule):
        one = _kernel(node, values)
        key = one.op, one.weight
        if key in found:
            old = found[key]
            one = replace(
                old, n=old.n + 1, nbytes=old.nbytes + one.nbytes, flops=old.flops + one.flops
            )
        found[key] = one
    return tuple(sorted(found.values(), key=lambda kernel: -kernel.nbytes))


def _nodes(plan: ContextPlan, schedule: Any) -> Iterator[Tensor]:
    for split in schedule.splits:
        if schedule.backends[split.backend].name == _GPU:
            nodes = schedule.graph.nodes[split.start : split.end]
            yield from (node for node in nodes if not node.op.is_view)


def _kernel(node: Tensor, values: Mapping[str, int]) -> Kernel:
    todo = work(node, values)
    of = node.src[1] if node.op.name == "FLASH_ATTN_EXT" else node.src[0] if node.src else None
    typed = todo.is_product or node.op.name == "FLASH_ATTN_EXT"
    weight = of.dtype.name if typed and of is not None else ""
    return Kernel(node.op.name, weight, todo.is_product, 1, todo.nbytes, todo.flops)


# ---- tables --------------------------------------------------------------------------------------


def speed_table(counts: Sequence[Counts], machines: Sequence[str]) -> str:
    """A row for each machine: its peaks, and the most tokens per second of each model."""
    heads = [f"{c.name}: {what}" for c in counts for what in ("tokens/s", "prompt tokens/s")]
    lines = _head(["machine (`--machine`)", "GB/s", "TFLOPS", *heads])
    for machine in machines:
        gpu = _gpu(machine)
        cells = [f"`{machine}`", f"{gpu.bandwidth / 1e9:g}", f"{gpu.flops['default'] / 1e12:.1f}"]
        for c in counts:
            token = sum(kernel.seconds(gpu) for kernel in c.token)
            prompt = sum(kernel.seconds(gpu) for kernel in c.prompt)
            cells += [_three(1 / token), _three(c.n_prompt / prompt)]
        lines.append(_row(cells))
    return "\n".join(lines) + "\n"


def kernel_table(counts: Counts, machines: Sequence[str]) -> str:
    """A row for each kernel: its share of bytes and operations, and where operations limit it."""
    lines = _head(
        [
            "kernel", "of a token: launches", "MB", "million operations",
            f"of {counts.n_prompt} tokens: MB", "billion operations", "operations of a byte",
            "limited by operations on",
        ]
    )  # fmt: skip
    gpus = {machine: _gpu(machine) for machine in machines}
    token = {kernel.name: kernel for kernel in counts.token}
    few = [kernel for kernel in counts.prompt if not _counts(kernel, counts)]
    for kernel in (k for k in counts.prompt if _counts(k, counts)):
        lines.append(_row(_cells(kernel.name, token.get(kernel.name), kernel, gpus)))
    if few:
        beside = [token[k.name] for k in few if k.name in token]
        lines.append(_row(_cells(f"{len(few)} others", _joined(beside), _joined(few), gpus)))
    total = _cells("all", _joined(counts.token), _joined(counts.prompt), gpus)
    lines.append(_row([*total[:-1], ""]))
    return "\n".join(lines) + "\n"


def _counts(kernel: Kernel, counts: Counts) -> bool:
    """Whether a kernel has a row of its own: a fiftieth of the bytes or operations of a prompt."""
    return kernel.nbytes >= 0.02 * sum(k.nbytes for k in counts.prompt) or kernel.flops >= (
        0.02 * sum(k.flops for k in counts.prompt)
    )


def _joined(kernels: Sequence[Kernel]) -> Kernel:
    return Kernel(
        "all", "", False, sum(k.n for k in kernels), sum(k.nbytes for k in kernels),
        sum(k.flops for k in kernels),
    )  # fmt: skip


def _cells(
    name: str, token: Kernel | None, prompt: Kernel, gpus: Mapping[str, DeviceProfile]
) -> list[str]:
    of_token = ["", "", ""]
    if token is not None:
        of_token = [str(token.n), _three(token.nbytes / 1e6), _three(token.flops / 1e6)]
    per_byte = prompt.flops / prompt.nbytes if prompt.nbytes else 0.0
    bound = [m for m, gpu in gpus.items() if prompt.flops_seconds(gpu) > prompt.memory_seconds(gpu)]
    where = "all" if len(bound) == len(gpus) else ", ".join(bound) or "none"
    of_prompt = [_three(prompt.nbytes / 1e6), _three(prompt.flops / 1e9), _three(per_byte)]
    return [name, *of_token, *of_prompt, where]


def _gpu(machine: str) -> DeviceProfile:
    device = load_profile(machine).device(_GPU)
    if device is None:
        sys.exit(f"machine profile {machine} has no device {_GPU!r}; choose one that has")
    return device


def _three(number: float) -> str:
    """Three digits, such as `0.42`, `17.3` and `2,150`."""
    if number < 100:
        return f"{number:.3g}"
    digits = 10 ** max(len(str(int(number))) - 3, 0)
    return f"{round(number / digits) * digits:,}"


def _head(names: Sequence[str]) -> list[str]:
    return [_row(names), "|" + "---|" * len(names)]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def page_tables() -> str:
    """The tables of docs/gpu.md."""
    every = [on_paper(name) for name in PAPER]
    text = speed_table(every, MACHINES)
    for counts in every[-1:]:
        text += f"\nThe kernels of {counts.name}:\n\n{kernel_table(counts, MACHINES)}"
    return text


def main() -> None:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", type=Path, help="default: two llamas on paper")
    parser.add_argument("--machines", default=",".join(MACHINES), help="profiles: names or files")
    parser.add_argument("--n-prompt", "-p", type=int, default=N_CELLS)
    args = parser.parse_args()
    if args.n_prompt < 2:
        parser.error(f"--n-prompt is {args.n_prompt}; it must be 2 or more")
    machines = args.machines.split(",")
    every = [counted(path.name, path, args.n_prompt) for path in args.models]
    every = every or [on_paper(name, args.n_prompt) for name in PAPER]
    print(speed_table(every, machines))
    for counts in every:
        print(f"{counts.name}\n\n{kernel_table(counts, machines)}")


if __name__ == "__main__":
    main()
