"""`weft bench -npl` measures several sequences at a time, as llama-batched-bench does: a prompt for
each, then a token of each in every step."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from time import perf_counter

import numpy as np

from weft.cli.bench_table import Output
from weft.cli.console import StatusLine
from weft.cli.loading import Loading, context_arguments, open_with
from weft.errors import ContextError
from weft.llm import Context, Model
from weft.records import dataclass

_COLUMNS = {
    "PP": "pp", "TG": "tg", "B": "pl", "N_KV": "n_kv", "T_PP s": "t_pp", "S_PP t/s": "speed_pp",
    "T_TG s": "t_tg", "S_TG t/s": "speed_tg", "T s": "t", "S t/s": "speed",
}  # fmt: skip
"""The columns of the table, and the fields of JSON, by llama-batched-bench's names."""
_WARM_UP = (16, 4)
"""Numbers of tokens of a prompt and of generated tokens of the run that does not count."""


@dataclass(frozen=True, slots=True)
class BatchedTests:
    """Which numbers of tokens and sequences are measured."""

    n_prompt: Sequence[int]
    n_gen: Sequence[int]
    n_seqs: Sequence[int]
    shared: bool
    """True if all sequences have one prompt, which is computed once."""

    def n_cells(self, n_prompt: int, n_gen: int, n_seqs: int) -> int:
        """The number of tokens in the cache at the end of a test."""
        return n_prompt * (1 if self.shared else n_seqs) + n_gen * n_seqs


def bench_batched(
    models: Sequence[Path], load: Sequence[Loading], tests: BatchedTests, n_batch: int, out: Output
) -> None:
    """Measures and prints each test at once."""
    if out not in (Output.md, Output.jsonl):
        raise ContextError(f"-o {out}: bench -npl writes md and jsonl")
    if min((*tests.n_seqs, *tests.n_prompt)) < 1:
        raise ContextError("-npl and -npp must be at least 1")
    if out is Output.md:
        print("| " + " | ".join(f"{name:>9}" for name in _COLUMNS) + " |")
        print("| --------: " * len(_COLUMNS) + "|")
    for path in models:
        model = open_with(path, dict(load[0].arguments))
        for one in load:
            _bench_setting(path, model, one, tests, n_batch, out)


def _bench_setting(
    path: Path, model: Model, load: Loading, tests: BatchedTests, n_batch: int, out: Output
) -> None:
    """Measures and prints the tests of a model with one combination of options."""
    sizes = list(product(tests.n_prompt, tests.n_gen, tests.n_seqs))
    n_seqs = max(tests.n_seqs)
    n_cells = max(tests.n_cells(*size) for size in [*sizes, (*_WARM_UP, n_seqs)])
    options = context_arguments(load.arguments) | {"n_ctx": n_cells, "n_seq_max": n_seqs}
    context = Context(model, n_outputs=n_seqs, **options)
    about = {
        "model_filename": str(path), "n_kv_max": context.n_ctx, "n_batch": n_batch,
        "n_ubatch": context.n_ubatch, "is_pp_shared": int(tests.shared),
        "n_threads": load.typed["n_threads"], "n_threads_batch": load.typed["n_threads_batch"],
    }  # fmt: skip
    _measure(context, tests.shared, *_WARM_UP, n_seqs, n_batch)
    for n_prompt, n_gen, n in sizes:
        with StatusLine() as status:
            status(f"measuring {n} sequences of {n_prompt} and {n_gen} tokens")
            t_pp, t_tg = _measure(context, tests.shared, n_prompt, n_gen, n, n_batch)
        read, written = n_prompt * (1 if tests.shared else n), n_gen * n
        row = {
            "pp": n_prompt, "tg": n_gen, "pl": n, "n_kv": read + written, "t_pp": t_pp,
            "speed_pp": read / t_pp, "t_tg": t_tg, "speed_tg": written / t_tg if t_tg else 0.0,
            "t": t_pp + t_tg, "speed": (read + written) / (t_pp + t_tg),
        }  # fmt: skip
        if out is Output.jsonl:
            print(json.dumps(about | row), flush=True)
        else:
            print(_line(row), flush=True)


def _line(row: dict[str, float]) -> str:
    cells = []
    for field in _COLUMNS.values():
        value = row[field]
        digits = 0 if isinstance(value, int) else 2 if field.startswith("speed") else 3
        cells.append(f"{value:>9.{digits}f}")
    return "| " + " | ".join(cells) + " |"


def _measure(
    context: Context, shared: bool, n_prompt: int, n_gen: int, n_seqs: int, n_batch: int
) -> tuple[float, float]:
    """The seconds for the prompts and for the generated tokens."""
    cache = context.cache
    cache.clear()
    draw = np.random.default_rng(1)
    n_vocab = context.model.config.n_vocab
    owners = [[0] if shared else [seq] for seq in range(1 if shared else n_seqs)]
    seqs = [owner for owner in owners for _ in range(n_prompt)]
    tokens = draw.integers(0, n_vocab, len(seqs))
    start = perf_counter()
    for first in range(0, len(seqs), n_batch):
        part = slice(first, first + n_batch)
        context.decode(tokens[part], seqs=seqs[part])
    if shared:
        for seq in range(1, n_seqs):
            cache.seq_cp(0, seq)
    between = perf_counter()
    each = [[seq] for seq in range(n_seqs)]
    for _ in range(n_gen):
        context.decode(draw.integers(0, n_vocab, n_seqs), seqs=each, outputs="all")
    return between - start, perf_counter() - between if n_gen else 0.0
