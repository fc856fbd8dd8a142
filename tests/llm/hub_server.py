"""A hub of one's own on the loopback interface: the endpoints that huggingface_hub asks for a list
of files and for a file, with ETags and byte ranges.

Source of the endpoints: https://huggingface.co/docs/hub/api and what the client sends.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

__all__ = ["Hub", "Seen"]

COMMIT = "c0ffee" * 6 + "c0ff"


@dataclass(frozen=True)
class Seen:
    """A request."""

    method: str
    path: str
    start: int | None
    """First byte that was asked for."""


@dataclass
class Hub:
    """Repositories by name, each files by name; started by `with`."""

    repos: dict[str, dict[str, bytes]]
    gated: set[str] = field(default_factory=set)
    cut: dict[str, int] = field(default_factory=dict)
    """Files whose transfer breaks off after so many bytes, once."""
    stall: dict[str, int] = field(default_factory=dict)
    """Files whose transfer stands still after so many bytes, until `go_on`."""
    seen: list[Seen] = field(default_factory=list)

    def __enter__(self) -> Hub:
        hub = self
        self.go_on = threading.Event()
        self.stalled = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                hub.answer(self)

            def do_GET(self) -> None:
                hub.answer(self)

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.go_on.set()
        self._server.shutdown()
        self._server.server_close()

    def environment(self, home: Path, **more: str) -> dict[str, str]:
        """What makes the client ask this hub and cache in `home`."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
        return kept | {
            "HF_ENDPOINT": self.url,
            "HF_HOME": str(home),
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "NO_PROXY": "127.0.0.1",
        } | more  # fmt: skip

    def start(self, home: Path, *args: str, **more: str) -> subprocess.Popen[str]:
        """`weft ARGS` in a process of its own, as the client reads its settings once."""
        return subprocess.Popen(
            [sys.executable, "-m", "weft", *args],
            env=self.environment(home, **more), text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )  # fmt: skip

    def weft(self, home: Path, *args: str, **more: str) -> tuple[int, str, str]:
        """Exit code, stdout and stderr of `weft ARGS`."""
        process = self.start(home, *args, **more)
        out, err = process.communicate(timeout=120)
        return process.returncode, out, err

    def files(self) -> list[str]:
        """Files that were fetched."""
        return [s.path for s in self.seen if s.method == "GET" and "/resolve/" in s.path]

    # ---- answers ----

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        """Answers a request."""
        path = unquote(urlsplit(request.path).path)
        asked = re.fullmatch(r"bytes=(\d+)-\d*", request.headers.get("Range", ""))
        start = int(asked[1]) if asked else None
        self.seen.append(Seen(request.command, path, start))
        if api := re.fullmatch(r"/api/models/([^/]+/[^/]+)(/.*)?", path):
            return self._about(request, api[1], api[2] or "")
        if file := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            return self._file(request, file[1], file[2], start)
        self._refuse(request, 404, "EntryNotFound")

    def _about(self, request: BaseHTTPRequestHandler, repo: str, rest: str) -> None:
        if repo not in self.repos:
            return self._refuse(request, 401, "RepoNotFound")
        rows = [{"type": "file", "path": name, "size": len(data), "oid": _etag(data)}
                for name, data in self.repos[repo].items()]  # fmt: skip
        body: Any = rows
        if "/tree/" not in rest:
            siblings = [{"rfilename": name} for name in self.repos[repo]]
            body = {"id": repo, "sha": COMMIT, "siblings": siblings}
        self._send(request, 200, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def _file(
        self, request: BaseHTTPRequestHandler, repo: str, name: str, start: int | None
    ) -> None:
        if repo not in self.repos:
            return self._refuse(request, 401, "RepoNotFound")
        if repo in self.gated:
            return self._refuse(request, 403, "GatedRepo")
        data = self.repos[repo].get(name)
        if data is None:
            return self._refuse(request, 404, "EntryNotFound")
        headers = {"ETag": f'"{_etag(data)}"', "X-Repo-Commit": COMMIT, "Accept-Ranges": "bytes"}
        if start is not None:
            headers["Content-Range"] = f"bytes {start}-{len(data) - 1}/{len(data)}"
        self._send(request, 200 if start is None else 206, data[start or 0 :], headers, name)

    def _refuse(self, request: BaseHTTPRequestHandler, status: int, code: str) -> None:
        headers = {"X-Error-Code": code, "X-Error-Message": code}
        self._send(request, status, b'{"error": "no"}', headers)

    def _send(
        self,
        request: BaseHTTPRequestHandler,
        status: int,
        data: bytes,
        headers: dict[str, str],
        name: str = "",
    ) -> None:
        request.send_response(status)
        for key, value in headers.items():
            request.send_header(key, value)
        request.send_header("Content-Length", str(len(data)))
        request.end_headers()
        if request.command == "HEAD":
            return
        if name in self.stall:
            n = self.stall.pop(name)
            request.wfile.write(data[:n])
            request.wfile.flush()
            self.stalled.set()
            self.go_on.wait(60)
            request.close_connection = True
        elif name in self.cut:
            request.wfile.write(data[: self.cut.pop(name)])
            request.close_connection = True
        else:
            request.wfile.write(data)


def _etag(data: bytes) -> str:
    return hashlib.sha1(data).hexdigest()
