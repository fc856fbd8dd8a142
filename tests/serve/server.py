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
from typing import Any
from urllib.parse import urlsplit

from openai import OpenAI

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "weft-demo.gguf"
SAMPLE = ROOT / "tests" / "data" / "vectors" / "models" / "archs" / "llama3.gguf"


class Server:
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
        self.key = sent_key or key
        more = environ or {}
        what = ("--models", model) if several else (model,)
        command = [sys.executable, "-m", "weft", "serve", *what, "--port", 0, *options]
        if files is not None:  # by a shell: this process may have more open already
            command = ["sh", "-c", f'ulimit -S -n {files} && exec "$0" "$@"', *command]
        environ = {k: v for k, v in os.environ.items() if k != "WEFT_API_KEY"} | more
        if key is not None:
            environ["WEFT_API_KEY"] = key
        self.process = subprocess.Popen(
            [str(part) for part in command], stderr=subprocess.PIPE, text=True, env=environ
        )
        self.lines: list[str] = []
        """What it wrote to stderr."""
        self._url: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @classmethod
    def many(cls, folder: Path, *options: str | int | Path) -> Server:
        """A server of all models of a folder."""
        return cls(folder, *options, several=True)

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line)
            if " at http" in line:
                self._url.put(line.split(" at ")[1].split(";")[0].removesuffix("/v1"))
        self._url.put("")

    def __enter__(self) -> Server:
        self.url = self._url.get(timeout=300)
        assert self.url, self.lines
        self.client = OpenAI(
            base_url=f"{self.url}/v1", api_key=self.key or "none", max_retries=0, timeout=60
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.client.close()
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
