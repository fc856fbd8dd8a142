r"""Mixtures larger than memory: budgets and policies beside plain mapping, in one table.

    python benchmarks/make_model.py MOE.gguf --format q4_K_M --n-embd 2048 --n-layer 24 \
        --n-head 16 --n-head-kv 4 --n-ff 768 --n-expert 64 --n-expert-used 8 [--expert-skew 1.5]
    python benchmarks/experts.py MOE.gguf [--limit 3G] [--shares 10,25,50] [--policies lru,lfu]

Each row is a process of its own: a prompt, then single tokens, all of random ids. Before it the
system drops what it caches of the file. With --limit (root only) it runs in a control group with so
much memory, page cache included; `mapped` is weft without a budget and with weights used in place
(where f32 weights, such as routers, are summed in another order than in panels).
Tokens/s are by the clock, because reading is what is measured; rows take turns over --repeats, and
the medians are shown. Along a text, random weights choose much the same experts again and again,
because attention averages random tokens. With --fresh each token stands in an empty context, and
experts are chosen nearly evenly, the worst case for a cache; --expert-skew of make_model.py makes
some of them lead.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from time import perf_counter, process_time
from typing import Any

import numpy as np

from weft.schedule.profile import parse_size
from weft.tables import text_table

V1, V2 = Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")
BESIDE = 700 << 20  # what a process needs beside experts
COLUMNS = (
    "memory",
    "policy",
    "pp t/s",
    "tg t/s",
    "hits",
    "GB read",
    "waited s",
    "cpu s",
    "same bits",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--limit", type=parse_size, help="memory of each process, e.g. 3G")
    parser.add_argument(
        "--shares", default="10,25,50,100", help="budgets in percent of all experts"
    )
    parser.add_argument("--policies", default="lru,lfu,predict,auto")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--fresh", action="store_true", help="each token in an empty context")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--record", type=Path, help="write the routing for `weft experts`")
    parser.add_argument("--row", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.row:
        print(json.dumps(measure(args, json.loads(args.row))))
        return
    total = expert_bytes(args.model)
    rows: list[dict[str, Any]] = [
        {"name": "all loaded, no limit", "policy": "", "limit": None},
        {"name": "mapped", "policy": "", "limit": args.limit},
    ]
    for share in args.shares.split(","):
        for policy in args.policies.split(","):
            budget = int(total * float(share) / 100)
            fits = args.limit is None or budget + BESIDE < args.limit
            name = f"{share}%" if fits else f"{share}%, no limit"
            limit = args.limit if fits else None
            rows.append({"name": name, "policy": policy, "budget": budget, "limit": limit})
    results: list[list[dict[str, Any]]] = [[] for _ in rows]
    for _ in range(args.repeats):
        for row, seen in zip(rows, results, strict=True):
            seen.append(run_row(args, row))
            print(row, seen[-1], file=sys.stderr)
    limit = "" if args.limit is None else f", {args.limit / 2**30:.2f} GiB of memory"
    print(f"{args.model.name}: experts of {total / 1e9:.2f} GB{limit}, {args.threads} threads\n")
    digest = results[0][0].get("digest")
    cells = [cells_of(row, seen, digest) for row, seen in zip(rows, results, strict=True)]
    print("\n".join(text_table(COLUMNS, cells, COLUMNS[2:8])))


def cells_of(row: dict[str, Any], seen: list[dict[str, Any]], digest: object) -> list[str]:
    """The cells of a row: medians, and whether all runs gave the bits of the first row."""
    if any("error" in s for s in seen):
        return [row["name"], row["policy"], "killed", *[""] * 6]
    mid = {key: median(s[key] for s in seen) for key in seen[0] if key not in ("digest",)}
    same = all(s["digest"] == digest for s in seen)
    hits = f"{mid['hits']:.1%}" if "budget" in row else ""
    read = f"{mid['read'] / 1e9:.2f}" if "budget" in row else ""
    waited = f"{mid['waited']:.2f}" if "budget" in row else ""
    return [row["name"], row["policy"], f"{mid['pp']:.1f}", f"{mid['tg']:.2f}", hits, read, waited,
            f"{mid['cpu']:.1f}", "yes" if same else "NO"]  # fmt: skip


def expert_bytes(path: Path) -> int:
    """The bytes of all experts of a model."""
    from weft.frontends.gguf import open_gguf

    with open_gguf(path) as file:
        return sum(t.nbytes for name, t in file.tensors.items() if "_exps.weight" in name)


def run_row(args: argparse.Namespace, row: dict[str, Any]) -> dict[str, Any]:
    """Measures a row in a process of its own, with nothing of the file in the page cache."""
    descriptor = os.open(args.model, os.O_RDONLY)
    os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    os.close(descriptor)
    command = [sys.executable, __file__, *sys.argv[1:], "--row", json.dumps(row)]
    with control_group(row["limit"]) as group:

        def enter() -> None:
            if group is not None:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        done = subprocess.run(command, stdout=subprocess.PIPE, preexec_fn=enter, check=False)
    if done.returncode:
        return {"error": done.returncode}
    result: dict[str, Any] = json.loads(done.stdout)
    return result


@contextmanager
def control_group(limit: int | None) -> Iterator[Path | None]:
    """A control group with so much memory; None: none."""
    if limit is None:
        yield None
        return
    v1 = (V1 / "memory.limit_in_bytes").exists()
    group = (V1 if v1 else V2) / f"weft-experts-{os.getpid()}"
    group.mkdir()
    try:
        name = "memory.limit_in_bytes" if v1 else "memory.max"
        (group / name).write_text(str(limit))
        yield group
    finally:
        group.rmdir()


def measure(args: argparse.Namespace, row: dict[str, Any]) -> dict[str, Any]:
    """Runs the prompt and the tokens; the first tokens are not timed."""
    from hashlib import sha256

    from weft.llm import Context, Model

    options: dict[str, Any] = {"repack": row["name"] != "mapped"}
    if "budget" in row:
        options = {"expert_budget": row["budget"], "expert_policy": row["policy"]}
    ids = np.random.default_rng(1).integers(300, 30000, args.prompt + 16 + args.tokens)
    context = Context(Model.open(args.model), len(ids), n_threads=args.threads, **options)
    arena = context.plan.experts
    digest = sha256()
    if args.record is not None and arena is not None:
        arena.record()
    start = perf_counter()
    digest.update(context.decode(ids[: args.prompt]).tobytes())
    pp = args.prompt / (perf_counter() - start)

    def decode(token: int) -> bytes:
        if args.fresh:
            context.clear()
        return context.decode([token]).tobytes()

    for token in ids[args.prompt : args.prompt + 16]:
        decode(int(token))
    before = None if arena is None else arena.stats
    start, cpu = perf_counter(), process_time()
    for token in ids[args.prompt + 16 :]:
        digest.update(decode(int(token)))
    result = {"pp": pp, "tg": args.tokens / (perf_counter() - start), "cpu": process_time() - cpu,
              "digest": digest.hexdigest()}  # fmt: skip
    if arena is not None and before is not None:
        done = arena.stats - before
        result |= {"hits": done.hit_rate, "read": done.nbytes, "waited": done.waited}
        if args.record is not None:
            arena.recorded().save(args.record)
    return result


if __name__ == "__main__":
    main()
