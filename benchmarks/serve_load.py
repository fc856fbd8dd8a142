"""The load of `serve.py`: the same HTTP requests to any server with `/v1/completions`, and how
long their tokens take. Prompts are token ids, so that no tokenizer stands between two servers.
"""

from __future__ import annotations

import http.client
import json
import os
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter, sleep

import numpy as np

__all__ = ["Job", "Server", "Timing", "crowd", "mixed", "percentiles", "run_jobs"]

START_SECONDS = 120.0
SHORT, LONG = 24, 384
"""Prompt tokens of a chat, and of a document that arrives while others stream."""


@dataclass(frozen=True, slots=True)
class Job:
    """A request: what a client sends, one after the other's end or at a time of its own."""

    prompt: list[int]
    n: int
    """Tokens to draw."""
    at: float = 0.0
    """Seconds after the start of the load."""
    reuse: bool = False
    """True if the server may take over tokens of the prompt from its cache."""


@dataclass(slots=True)
class Timing:
    """When the pieces of an answer came."""

    sent: float
    at: list[float] = field(default_factory=list)
    n_generated: int = 0
    is_long: bool = False

    @property
    def first(self) -> float:
        """Seconds to the first token."""
        return self.at[0] - self.sent

    @property
    def between(self) -> list[float]:
        """Seconds between tokens."""
        return [b - a for a, b in zip(self.at, self.at[1:], strict=False)]


class Server:
    """A server's process, which sleeps while others are measured."""

    def __init__(self, name: str, command: Sequence[str], port: int) -> None:
        """Raises RuntimeError if it does not answer in time."""
        self.name, self.port = name, port
        self._process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            self._wait(command)
        except BaseException:  # SIGTERM, too: nobody else knows the process yet
            self.close()
            raise

    def _wait(self, command: Sequence[str]) -> None:
        ends = perf_counter() + START_SECONDS
        while not self._ready():
            if self._process.poll() is not None or perf_counter() > ends:
                raise RuntimeError(f"{shlex.join(command)} did not start to serve")
            sleep(0.2)

    def _ready(self) -> bool:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
            connection.request("GET", "/health")
            return connection.getresponse().status == 200
        except (OSError, http.client.HTTPException):
            return False

    def sleep(self) -> None:
        """Takes no processor until `wake`."""
        self._process.send_signal(signal.SIGSTOP)

    def wake(self) -> None:
        """Goes on."""
        self._process.send_signal(signal.SIGCONT)

    def cpu_seconds(self) -> float:
        """Processor time of the process so far."""
        fields = Path(f"/proc/{self._process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def close(self) -> None:
        """Ends the process."""
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def weft_server(
    model: str, streams: int, cells: int, threads: int, options: Sequence[str] = ()
) -> Server:
    """`weft serve`, without drafting: texts of random weights repeat themselves."""
    port = free_port()
    command = [sys.executable, "-m", "weft", "serve", model, "--port", port, "-np", streams,
               "-c", cells, "-t", threads, "--quiet", "--spec-type", "none", *options]  # fmt: skip
    return Server("weft", [str(word) for word in command], port)


def llama_server(
    name: str, path: str, model: str, streams: int, cells: int, threads: int
) -> Server:
    """llama-server with a slot for each stream, cells shared, and its defaults else."""
    port = free_port()
    command = [*shlex.split(path), "-m", model, "--port", port, "-np", streams, "-c", cells,
               "-t", threads, "-tb", threads, "-kvu", "--no-ui"]  # fmt: skip
    return Server(name, [str(word) for word in command], port)


def even(n_vocab: int, streams: int, n_prompt: int, n: int, seed: int) -> list[Job]:
    """A request of each stream, all at once."""
    random = np.random.default_rng(seed)
    rows = random.integers(n_vocab // 2, n_vocab, (streams, n_prompt)).tolist()
    return [Job(row, n) for row in rows]


def mixed(
    n_vocab: int, streams: int, n: int, seed: int, every: float, long: int = LONG
) -> list[Job]:
    """Short chats, all at once, and a long prompt in place of every fourth, `every` seconds after
    one another, while the chats stream."""
    random = np.random.default_rng(seed)
    n_long = max(1, streams // 4)

    def prompt(length: int) -> list[int]:
        return random.integers(n_vocab // 2, n_vocab, length).tolist()

    chats = [Job(prompt(SHORT), n) for _ in range(max(1, streams - n_long))]
    return chats + [Job(prompt(long), n // 4, every * (i + 1)) for i in range(n_long)]


def crowd(n_vocab: int, clients: int, seed: int, system: int) -> list[Job]:
    """A request of each client, all at once: a shared system prompt of `system` tokens, 32 to 512
    tokens of its own, and 16 to 64 drawn."""
    random = np.random.default_rng(seed)
    shared = random.integers(n_vocab // 2, n_vocab, system).tolist()
    own = random.integers(32, 513, clients).tolist()
    drawn = random.integers(16, 65, clients).tolist()
    return [
        Job(shared + random.integers(n_vocab // 2, n_vocab, k).tolist(), n, reuse=True)
        for k, n in zip(own, drawn, strict=True)
    ]


def run_jobs(server: Server, jobs: Sequence[Job]) -> tuple[list[Timing], float]:
    """Sends all jobs, a thread each, and returns their timings and the seconds of the whole.
    Raises RuntimeError for an answer that is not whole."""
    timings = [Timing(0.0, is_long=job.at > 0) for job in jobs]
    errors: list[Exception] = []
    start = perf_counter()

    def one(job: Job, timing: Timing) -> None:
        try:
            sleep(max(0.0, start + job.at - perf_counter()))
            _stream(server, job, timing)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=one, args=pair)
               for pair in zip(jobs, timings, strict=True)]  # fmt: skip
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise RuntimeError(f"{server.name}: {errors[0]}") from errors[0]
    return timings, perf_counter() - start


def _stream(server: Server, job: Job, timing: Timing) -> None:
    body = json.dumps({
        "prompt": job.prompt, "max_tokens": job.n, "temperature": 0, "stream": True,
        "ignore_eos": True, "cache_prompt": job.reuse, "stream_options": {"include_usage": True},
    })  # fmt: skip
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=600)
    timing.sent = perf_counter()
    connection.request("POST", "/v1/completions", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    if response.status != 200:
        raise RuntimeError(f"status {response.status}: {response.read(500)!r}")
    for line in response:
        if not line.startswith(b"data: ") or line.startswith(b"data: [DONE]"):
            continue
        now = perf_counter()
        event = json.loads(line[6:])
        if event.get("usage"):
            timing.n_generated = event["usage"]["completion_tokens"]
        if any(choice.get("text") for choice in event.get("choices", ())):
            timing.at.append(now)
    connection.close()
    if timing.n_generated != job.n or not timing.at:
        raise RuntimeError(f"{timing.n_generated} tokens of {job.n} came")


def percentiles(values: Sequence[float]) -> tuple[float, float]:
    """The 50th and the 99th percentile in milliseconds."""
    if not values:
        return float("nan"), float("nan")
    p50, p99 = np.percentile(values, (50, 99))
    return float(p50) * 1e3, float(p99) * 1e3
