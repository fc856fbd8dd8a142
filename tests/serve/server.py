"""A server in a process of its own, as a user starts it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import urlsplit

from openai import OpenAI

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "weft-demo.gguf"
SAMPLE = ROOT / "tests" / "data" / "vectors" / "models" / "archs" / "llama3.gguf"


def words_of(model: Path, options: Sequence[str | int | Path], several: bool) -> list[str]:
    """The command line of a server at any free port, without the name of the program."""
    what = ("--models", model) if several else (model,)
    return [str(word) for word in ("serve", *what, "--port", 0, *options)]


class Reached:
    """What clients do with a server, wherever it runs."""

    def __init__(self, key: str | None) -> None:
        """`key` is what requests are sent with."""
        self.key = key
        self.lines: list[str] = []
        """What it wrote to stderr."""
        self._url: queue.Queue[str] = queue.Queue()

    def take_line(self, line: str) -> None:
        """Takes a line that the server wrote; an empty one says that it writes no more."""
        if not line:
            self._url.put("")
            return
        self.lines.append(line)
        if " at http" in line:
            self._url.put(line.split(" at ")[1].split(";")[0].removesuffix("/v1"))

    def reach(self) -> None:
        """Waits until the server listens."""
        self.url = self._url.get(timeout=300)
        assert self.url, self.lines
        self.client = OpenAI(
            base_url=f"{self.url}/v1", api_key=self.key or "none", max_retries=0, timeout=60
        )

    def leave(self) -> None:
        """Closes the client."""
        self.client.close()

    def check_lines(self) -> None:
        """Fails if something went wrong that the server had not foreseen."""
        assert not any("Traceback" in line for line in self.lines), "".join(self.lines)

    def connect(self) -> HTTPConnection:
        """A plain connection."""
        return HTTPConnection(urlsplit(self.url).netloc, timeout=60)

    def call(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, dict[str, str], Any]:
        """Status, headers and body (decoded where it is JSON) of a request; `body` is sent as JSON
        unless it is bytes."""
        connection = self.connect()
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} | headers
        if self.key is not None:
            sent.setdefault("Authorization", f"Bearer {self.key}")
        try:
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            text = answer.read().decode()
        finally:
            connection.close()
        kind = answer.headers.get("Content-Type", "")
        return (
            answer.status,
            {name.lower(): value for name, value in answer.getheaders()},
            json.loads(text) if kind.startswith("application/json") else text,
        )

    def metrics(self) -> dict[str, float]:
        """The numbers of `/metrics`."""
        status, _, text = self.call("GET", "/metrics")
        assert status == 200
        rows = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return {name.removeprefix("weft_"): float(value) for name, value in rows}


class Server(Reached):
    """Started by `with`; stopped, and its exit status checked, at the end."""

    def __init__(
        self,
        model: Path,
        *options: str | int | Path,
        key: str | None = None,
        sent_key: str | None = None,
        environ: dict[str, str] | None = None,
        several: bool = False,
        files: int | None = None,
    ) -> None:
        """`key` is the server's only key, `sent_key` one of several that requests are sent with.
        With `several`, `model` is a folder of models; `files`: how many it may open."""
        super().__init__(sent_key or key)
        more = environ or {}
        command = [sys.executable, "-m", "weft", *words_of(model, options, several)]
        if files is not None:  # by a shell: this process may have more open already
            command = ["sh", "-c", f'ulimit -S -n {files} && exec "$0" "$@"', *command]
        environ = {k: v for k, v in os.environ.items() if k != "WEFT_API_KEY"} | more
        if key is not None:
            environ["WEFT_API_KEY"] = key
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @classmethod
    def many(cls, folder: Path, *options: str | int | Path) -> Server:
        """A server of all models of a folder."""
        return cls(folder, *options, several=True)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.take_line(line)
        self.take_line("")

    def __enter__(self) -> Server:
        self.reach()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.leave()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGINT)
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self._reader.join()
            self.process.wait()
            assert self.process.stderr is not None
            self.process.stderr.close()
        self.check_lines()
