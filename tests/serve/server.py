"""A server in a process of its own, as a user starts it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from http.client import HTTPConnection
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

from openai import OpenAI

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "weft-demo.gguf"
SAMPLE = ROOT / "tests" / "data" / "vectors" / "models" / "archs" / "llama3.gguf"


class Reached:
    """What clients do with a server, wherever it runs: started by `with`; stopped, and its end
    checked, behind it."""

    def __init__(
        self,
        model: Path,
        *options: str | int | Path,
        key: str | None = None,
        sent_key: str | None = None,
        environ: dict[str, str] | None = None,
        several: bool = False,
    ) -> None:
        """`key` is the server's only key, `sent_key` one of several that requests are sent with.
        With `several`, `model` is a folder of models."""
        self.key = sent_key or key
        what = ("--models", model) if several else (model,)
        self.words = [str(word) for word in ("serve", *what, "--port", 0, *options)]
        """The command line of a server at any free port, without the name of the program."""
        self.environ = (environ or {}) | ({} if key is None else {"WEFT_API_KEY": key})
        self.lines: list[str] = []
        """What it wrote to stderr."""
        self._url: queue.Queue[str] = queue.Queue()

    @classmethod
    def many(cls, folder: Path, *options: str | int | Path) -> Self:
        """A server of all models of a folder."""
        return cls(folder, *options, several=True)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.close()
        self.end()
        assert not any("Traceback" in line for line in self.lines), "".join(self.lines)

    def start(self) -> None:
        """Starts the server, and waits until it listens."""
        raise NotImplementedError

    def end(self) -> None:
        """Stops the server, and waits for its end."""
        raise NotImplementedError

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
    """A process, which begins at once."""

    def __init__(self, *words: str | int | Path, files: int | None = None, **how: Any) -> None:
        """`files` is the maximum number of files that it may open."""
        super().__init__(*words, **how)  # type: ignore[arg-type]
        command = [sys.executable, "-m", "weft", *self.words]
        if files is not None:  # by a shell: this process may have more open already
            command = ["sh", "-c", f'ulimit -S -n {files} && exec "$0" "$@"', *command]
        environ = {k: v for k, v in os.environ.items() if k != "WEFT_API_KEY"} | self.environ
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environ)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.take_line(line)
        self.take_line("")

    def start(self) -> None:
        """Waits until the server listens."""
        self.reach()

    def end(self) -> None:
        """Interrupts the process, and waits for its end."""
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
