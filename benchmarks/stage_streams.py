"""Many texts over two stages beside one: tokens per second, each stage on a core of its own.

    python benchmarks/stage_streams.py [--streams 16] [--tokens 48] [--rounds 5] [--n-layer 8]

The model is that of `make_model.py` with few layers. A worker has one thread and one core; all
layers are on one worker, or on two, in turns. The program that samples has the last core. Besides
throughput, the processor time of each worker is counted: a stage is idle for the rest of the time.
On a machine where other work runs, `of own cores` says what throughput the processor times allow:
tokens per second of the busiest stage's processor time.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

from make_model import add_shape_options, make_model, shape_of

from weft.llm import Context, Model, SamplingParams, Tokenizer
from weft.llm.engine import Done, Engine, Event, Request

_CODE = """
import os, sys
core, cache, folder = sys.argv[1:]
os.sched_setaffinity(0, [int(core)])
from weft.backends import make_backend
from weft.cluster.lent import Lender, worker_facts
from weft.cluster.running import serve_devices
from weft.links import Listener
listener = Listener("127.0.0.1", 0, facts=worker_facts())
print(listener.address.port, flush=True)
serve_devices(listener, Lender([make_backend("cpu", n_threads=1)], [folder], cache))
"""


class Worker:
    """A worker with one thread, on one core."""

    def __init__(self, core: int, folder: Path) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _CODE, str(core), str(folder / f"cache{core}"), str(folder)],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        self.address = f"127.0.0.1:{int(self.process.stdout.readline())}"

    def seconds(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Side:
    """An engine over some workers."""

    def __init__(self, path: Path, workers: Sequence[Worker], args: argparse.Namespace) -> None:
        self.workers = workers
        model = Model.open(path)
        options: dict[str, Any] = {"n_copies": args.copies} if args.copies else {}
        self.context = Context(
            model, args.streams * (args.tokens + 64), n_seq_max=args.streams, n_ubatch=64,
            n_outputs=args.streams, machines=[w.address for w in workers], n_threads=1, **options,
        )  # fmt: skip
        self.engine = Engine(self.context, Tokenizer.from_gguf(model.file))
        self.rates: list[float] = []
        self.work: list[list[float]] = []

    def round(self, streams: int, tokens: int) -> None:
        """Writes texts of the same length, and measures from the first token of the last one on."""
        ended = threading.Semaphore(0)

        def on_event(event: Event) -> None:
            if isinstance(event, Done):
                if event.error is not None:
                    raise event.error
                ended.release()

        tickets = []
        for i in range(streams):
            prompt = tuple((7 * i + 11 * j) % 200 + 3 for j in range(16))
            request = Request(
                prompt, max_tokens=tokens, ignore_eos=True, reuse=False,
                sampling=SamplingParams(temperature=0),
            )  # fmt: skip
            tickets.append(self.engine.submit(request, on_event))
        while not all(ticket.times.first for ticket in tickets):
            sleep(0.01)
        start, done = perf_counter(), sum(t.growth.n_drawn for t in tickets)
        work = [worker.seconds() for worker in self.workers]
        for _ in range(streams):
            ended.acquire()
        seconds = perf_counter() - start
        drawn = sum(t.growth.n_drawn for t in tickets) - done
        self.rates.append(drawn / seconds)
        self.work.append(
            [(w.seconds() - before) / drawn for w, before in zip(self.workers, work, strict=True)]
        )

    @property
    def rate(self) -> float:
        """Tokens per second, the median of all rounds."""
        return statistics.median(self.rates)

    @property
    def own_cores(self) -> float:
        """Tokens per second of the busiest worker's processor time, the median of all rounds."""
        return statistics.median(1 / max(work) for work in self.work)

    def line(self) -> str:
        """The results in words."""
        idle = [
            1
            - statistics.median(
                work[i] * rate for work, rate in zip(self.work, self.rates, strict=True)
            )
            for i in range(len(self.workers))
        ]
        shares = ", ".join(f"{share:.0%}" for share in idle)
        layers = [str(split.device) for split in self.context.program.splits]
        return (
            f"{len(self.workers)} stage{'s' * (len(self.workers) > 1)}: {self.rate:.1f} tokens/s, "
            f"idle {shares}; of own cores {self.own_cores:.1f} tokens/s; splits {layers}"
        )


def main() -> None:
    """Prints medians of both sides and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--copies", type=int, default=0, help="groups of texts (0: the default)")
    parser.add_argument("--format", default="q4_0")
    parser.add_argument("--dir", type=Path, help="where the model is kept (default: nowhere)")
    add_shape_options(parser)
    parser.set_defaults(n_layer=8)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.dir or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{shape_of(args).label}-{args.format}.gguf"
        if not path.exists():
            make_model(path, args.format, shape_of(args))
        cores = sorted(os.sched_getaffinity(0))
        workers = [Worker(core, folder) for core in cores[:2]]
        os.sched_setaffinity(0, [cores[-1]])
        try:
            sides = [Side(path, workers[:n], args) for n in (1, 2)]
            for number in range(args.rounds + 1):
                for side in sides:
                    side.round(args.streams, args.tokens)
                    if not number:  # warms up
                        side.rates.clear()
                        side.work.clear()
            for side in sides:
                print(side.line())
                side.engine.close()
            one, two = sides
            ratios = [b / a for a, b in zip(one.rates, two.rates, strict=True)]
            print(
                f"{args.streams} streams, two stages over one: {statistics.median(ratios):.2f} "
                f"(rounds {', '.join(f'{r:.2f}' for r in ratios)}); of own cores "
                f"{two.own_cores / one.own_cores:.2f}"
            )
        finally:
            for worker in workers:
                worker.process.kill()
                worker.process.wait()


if __name__ == "__main__":
    main()
