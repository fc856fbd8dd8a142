"""`serve.py --http`: `weft serve` beside other servers under the same load, in turns.

Each server is a process that is stopped while another is measured. Two loads: even (a request of
every stream at once) for tokens per second, and mixed (short chats, and long prompts that arrive
while they stream) for the time to the first token and between tokens. With --clients a third load
in place of both: so many clients at once, more than the server has slots, whose prompts of many
lengths share a beginning.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import subprocess
import sys
from dataclasses import dataclass, field

import numpy as np
from serve_load import (
    LONG,
    SHORT,
    Server,
    crowd,
    even,
    llama_server,
    mixed,
    percentiles,
    run_jobs,
    weft_server,
)

__all__ = ["compare", "compare_crowds"]


@dataclass(slots=True)
class Samples:
    """What was measured of one server at one number of streams."""

    speeds: list[float] = field(default_factory=list)
    """Tokens drawn per second of the even load."""
    cpu: list[float] = field(default_factory=list)
    """Tokens drawn per second of processor time, even load."""
    mixed: list[float] = field(default_factory=list)
    """Tokens drawn per second of the mixed load."""
    first: list[float] = field(default_factory=list)
    """Seconds to the first token of chats, mixed load."""
    first_long: list[float] = field(default_factory=list)
    """The same of long prompts."""
    between: list[float] = field(default_factory=list)
    """Seconds between tokens of chats, mixed load."""


def compare(args: argparse.Namespace, n_vocab: int) -> None:
    """Measures all servers and prints the tables. Raises RuntimeError if a server fails."""
    cells = max(args.streams) * (SHORT + args.tokens) + max(1, max(args.streams) // 4) * LONG
    cells = -(-max(cells, max(args.streams) * (args.prompt + args.tokens)) // 256) * 256
    threads = args.threads or 2
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    servers: list[Server] = []
    try:
        servers.append(weft_server(args.model, max(args.streams), cells, threads))
        servers[-1].sleep()
        for peer in args.peer:
            name, _, path = peer.partition("=")
            servers.append(llama_server(name, path, args.model, max(args.streams), cells, threads))
            servers[-1].sleep()
        samples = _measure(args, servers, n_vocab)
    finally:
        for server in servers:
            server.close()
    batched = {path: _batched(path, args, cells, threads) for path in args.peer_batched}
    _print_even(args, samples, batched)
    _print_mixed(args, samples)


def compare_crowds(args: argparse.Namespace, n_vocab: int) -> None:
    """Measures all servers under `args.clients` clients and prints a line of each. Raises
    RuntimeError if a server fails."""
    slots, threads = max(args.streams), args.threads or 2
    cells = -(-slots * (args.system + 512 + 64) // 256) * 256
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    servers: list[Server] = []
    try:
        options = ["--max-queue", str(args.clients), *args.serve]
        servers.append(weft_server(args.model, slots, cells, threads, options))
        servers[-1].sleep()
        for peer in args.peer:
            name, _, path = peer.partition("=")
            servers.append(llama_server(name, path, args.model, slots, cells, threads))
            servers[-1].sleep()
        print(f"{args.clients} clients at once, {slots} slots: {args.system} shared and 32 to 512 "
              "own prompt tokens, 16 to 64 drawn; s")  # fmt: skip
        print(f"{'server':>14} {'first p50':>9} {'p90':>7} {'p99':>7} {'between p50':>11} "
              f"{'p99':>7} {'whole':>7} {'tokens/s':>9}")  # fmt: skip
        for turn in range(args.rounds):
            jobs = crowd(n_vocab, args.clients, turn, args.system)
            for server in servers:
                server.wake()
                timings, seconds = run_jobs(server, jobs)
                server.sleep()
                first = np.percentile([t.first for t in timings], (50, 90, 99))
                between = np.percentile([b for t in timings for b in t.between], (50, 99))
                drawn = sum(t.n_generated for t in timings) / seconds
                print(f"{server.name:>14} {first[0]:9.2f} {first[1]:7.2f} {first[2]:7.2f} "
                      f"{between[0]:11.3f} {between[1]:7.3f} {seconds:7.1f} {drawn:9.1f}",
                      flush=True)  # fmt: skip
    finally:
        for server in servers:
            server.close()


def _measure(
    args: argparse.Namespace, servers: list[Server], n_vocab: int
) -> dict[tuple[str, int], Samples]:
    samples = {(s.name, n): Samples() for n in args.streams for s in servers}
    for turn in range(-1, args.rounds):  # the first is a warm-up
        for n in args.streams if turn >= 0 else args.streams[:1]:
            order = servers if turn % 2 else servers[::-1]
            for server in order:
                server.wake()
                found = Samples() if turn < 0 else samples[server.name, n]
                _sample(args, server, n, n_vocab, turn, found)
                server.sleep()
    return samples


def _sample(
    args: argparse.Namespace, server: Server, n: int, n_vocab: int, turn: int, found: Samples
) -> None:
    before = server.cpu_seconds()
    jobs = even(n_vocab, n, args.prompt, args.tokens, 1000 * turn + n + 1000)
    _, seconds = run_jobs(server, jobs)
    found.speeds.append(n * args.tokens / seconds)
    found.cpu.append(n * args.tokens / max(server.cpu_seconds() - before, 0.01))
    jobs = mixed(n_vocab, n, args.tokens, 2000 * turn + n + 5000, args.every, args.long)
    timings, seconds = run_jobs(server, jobs)
    found.mixed.append(sum(t.n_generated for t in timings) / seconds)
    for timing in timings:
        if timing.is_long:
            found.first_long.append(timing.first)
        else:
            found.first.append(timing.first)
            found.between += timing.between


def _batched(path: str, args: argparse.Namespace, cells: int, threads: int) -> dict[int, float]:
    """Tokens per second by streams, as llama-batched-bench counts: no server, no sampling."""
    command = [path, "-m", args.model, "-c", cells, "-npp", args.prompt, "-ntg", args.tokens,
               "-npl", ",".join(map(str, args.streams)), "-t", threads, "-tb", threads,
               "--output-format", "jsonl"]  # fmt: skip
    run = subprocess.run([str(w) for w in command], capture_output=True, text=True, check=True)
    rows = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return {row["pl"]: row["pl"] * row["tg"] / row["t"] for row in rows}


def _print_even(
    args: argparse.Namespace,
    samples: dict[tuple[str, int], Samples],
    batched: dict[str, dict[int, float]],
) -> None:
    print(f"\n{args.prompt} prompt tokens and {args.tokens} drawn, all at once: tokens/s, "
          "and per second of processor time")  # fmt: skip
    names = list(dict.fromkeys(name for name, _ in samples))
    heads = [f"{name:>14} {'/cpu s':>8}" for name in names]
    ratios = [f"/ {name}" for name in names[1:]]
    more = [f"batched-bench {i + 1}" for i in range(len(batched))]
    print("streams " + " ".join(heads + [f"{h:>16}" for h in ratios + more]))
    for n in args.streams:
        rows = [samples[name, n] for name in names]
        speeds = [statistics.median(row.speeds) for row in rows]
        cells = [f"{speed:14.1f} {statistics.median(row.cpu):8.1f}"
                 for speed, row in zip(speeds, rows, strict=True)]  # fmt: skip
        cells += [f"{speeds[0] / speed:15.2f}x" for speed in speeds[1:]]
        cells += [f"{found.get(n, float('nan')):16.1f}" for found in batched.values()]
        print(f"{n:7} " + " ".join(cells))


def _print_mixed(args: argparse.Namespace, samples: dict[tuple[str, int], Samples]) -> None:
    print(f"\nmixed: chats of {SHORT} prompt tokens, and a prompt of {args.long} for every fourth "
          f"stream, {args.every:g} s apart; ms, p50 / p99")  # fmt: skip
    print(f"streams {'server':>14} {'first token':>17} {'between tokens':>17} "
          f"{'first of long':>17} {'tokens/s':>9}")  # fmt: skip
    for (name, n), found in samples.items():
        pairs = (percentiles(v) for v in (found.first, found.between, found.first_long))
        cells = " ".join(f"{f'{p50:.0f} / {p99:.0f}':>17}" for p50, p99 in pairs)
        print(f"{n:7} {name:>14} {cells} {statistics.median(found.mixed):9.1f}")
