"""The parts of `gpu.py`: op cases on a device, and tokens per second of a model there.

Each part is a generator of records for JSON, one as soon as it is known, so that what a time limit
cuts off costs nothing of what was found before.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from benchmarks.make_model import Shape, make_model
from weft.backends import make_backend
from weft.backends.cases import Case, all_cases
from weft.cli.bench_tests import BenchTest, Runner
from weft.errors import WeftError
from weft.execute.trial import disagreement, run_case
from weft.llm import Batch, Context, Model

Record = dict[str, Any]


# ---- the exam ------------------------------------------------------------------------------------


def in_turns(cases: Sequence[Case]) -> list[Case]:
    """The first case of every op, then the second of every op, and so on: a time limit leaves each
    op with some cases."""
    seen: dict[str, int] = {}
    turns = []
    for number, case in enumerate(cases):
        turns.append((seen.get(case.op, 0), number))
        seen[case.op] = turns[-1][0] + 1
    return [cases[number] for _, number in sorted(turns)]


def exam(device: str, cases: Sequence[Case] | None = None) -> Iterator[Record]:
    """A record for each case: what NumPy computes, too (`ok`), is refused (`refused`), or what is
    wrong."""
    backend, reference = make_backend(device), make_backend("reference")
    backend.kind = "CPU"  # so that it may be the only device, and cases run nowhere else
    for case in in_turns(all_cases() if cases is None else cases):
        node = case.node()
        if not backend.supports_op(node):
            yield {"case": case.name, "op": case.op, "result": "refused"}
            continue
        try:
            want = run_case(case, reference)
            how = disagreement(run_case(case, backend), want, node.dtype, case.limit)
        except WeftError as error:
            how = f"fails: {error}"
        yield {"case": case.name, "op": case.op, "result": how or "ok"}


# ---- speeds --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Speeds:
    """What is measured of a model; numbers are of tokens."""

    n_prompt: int = 512
    n_gen: int = 64
    n_long: int = 4096
    """The length of a long prompt, and of the text before tokens that are generated late."""
    texts: tuple[int, ...] = (1, 4, 16)
    """The numbers of texts that are written at once."""
    n_steps: int = 32
    """The number of tokens of each of these texts."""
    repetitions: int = 3
    llama_bench: Path | None = None
    """The executable of llama.cpp that runs the same tests on the same file."""

    @property
    def tests(self) -> list[BenchTest]:
        """The tests of one text, the shortest first."""
        return [
            BenchTest(0, self.n_gen),
            BenchTest(self.n_prompt, 0),
            BenchTest(0, self.n_gen, self.n_long),
            BenchTest(self.n_long, 0),
        ]


def model_file(folder: Path, format: str, shape: Shape) -> Path:
    """A file of random weights, which is made if it is not there."""
    path = folder / f"gpu-{shape.label}-{shape.n_ctx}-{format}.gguf"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        make_model(path, format, shape)
    return path


def speeds(path: Path, device: str, bandwidth: float, wanted: Speeds) -> Iterator[Record]:
    """A record for each test: tokens per second (median), the share of `bandwidth` (bytes per
    second; 0: not known) that reading weights and cache takes, and llama.cpp's tokens per
    second."""
    model = Model.open(path)
    n_ctx = wanted.n_long + max(wanted.n_gen, wanted.n_prompt)
    context = Context(model, n_ctx, devices=[device, "cpu"])
    runner = Runner(context, context.n_batch, lambda text: None)
    for test in wanted.tests:
        times = [runner.run(test) for _ in range(wanted.repetitions + 1)][1:]
        speed = test.n_tokens * 1e9 / statistics.median(times)
        row: Record = {"test": test.name, "speed": speed}
        if test.n_gen and bandwidth:
            depth = test.n_depth + test.n_gen // 2
            row["share"] = speed * (weight_bytes(model) + cache_bytes(model, depth)) / bandwidth
        if wanted.llama_bench:
            row["peer"] = peer(wanted.llama_bench, path, test, wanted.repetitions)
        yield row
    del runner, context
    for n in wanted.texts:
        yield {"test": f"{n} texts", "speed": together(model, device, n, wanted)}


def weight_bytes(model: Model) -> float:
    """The bytes of weights that a token reads."""
    used = model.file.get_int("llama.expert_used_count", 1)
    total = 0.0
    for tensor in model.file.tensors.values():
        if tensor.name != "token_embd.weight":
            total += tensor.nbytes * (used / tensor.ne[2] if tensor.n_dims == 3 else 1)
    return total


def cache_bytes(model: Model, depth: int) -> float:
    """The bytes of keys and values in 16 bits that a token reads."""
    c = model.config
    heads = sum(c.n_head_kv(il) for il in range(c.n_layer))
    return 2.0 * 2 * depth * heads * (c.n_embd // c.n_head())


def together(model: Model, device: str, n_texts: int, wanted: Speeds) -> float:
    """Tokens per second of several texts of which each step writes one token."""
    context = Context(
        model, n_texts * 2 * wanted.n_steps, devices=[device, "cpu"], n_seq_max=n_texts,
        n_outputs=n_texts,
    )  # fmt: skip
    rng = np.random.default_rng(0)
    times = []
    for _ in range(wanted.repetitions + 1):
        context.clear()
        start = perf_counter()
        for step in range(wanted.n_steps):
            context.decode(
                Batch(
                    rng.integers(0, model.config.n_vocab, n_texts),
                    positions=[step] * n_texts,
                    seqs=[[i] for i in range(n_texts)],
                    outputs=[True] * n_texts,
                )
            )
        times.append(perf_counter() - start)
    return n_texts * wanted.n_steps / statistics.median(times[1:])


def peer(llama_bench: Path, path: Path, test: BenchTest, repetitions: int) -> float:
    """llama-bench's tokens per second; ends the process with its message where it says none."""
    sizes = ["-p", str(test.n_prompt), "-n", str(test.n_gen), "-d", str(test.n_depth)]
    command = [str(llama_bench), "-m", str(path), *sizes, "-ngl", "99", "-fa", "1"]
    done = subprocess.run(
        [*command, "-r", str(repetitions), "-o", "json"], capture_output=True, text=True
    )
    try:
        return float(json.loads(done.stdout)[-1]["avg_ts"])
    except (ValueError, LookupError):
        sys.exit(f"{' '.join(command)} said no speed: {done.stderr.strip()[-300:]}")
