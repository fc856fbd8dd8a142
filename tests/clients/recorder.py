"""A server between a client and weft, which notes the requests."""

from __future__ import annotations

import json
import threading
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import urlsplit

_HOP = {"connection", "transfer-encoding", "content-length", "keep-alive", "host"}


class Recorder:
    """Forwards requests to the server at `url`, and notes each with the status of its answer."""

    def __init__(self, url: str) -> None:
        self.noted: list[dict[str, Any]] = []
        """Requests: method, path, headers and body (JSON); of the answer the status and the fields
        that had no effect."""
        recorder, host = self, urlsplit(url).netloc

        class Handler(BaseHTTPRequestHandler):
            def _forward(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {k: v for k, v in self.headers.items() if k.lower() not in _HOP}
                upstream = HTTPConnection(host, timeout=600)
                try:
                    upstream.request(self.command, self.path, body or None, headers)
                    answer = upstream.getresponse()
                    recorder._note(self.command, self.path, headers, body, answer)
                    self.send_response(answer.status)
                    for name, value in answer.getheaders():
                        if name.lower() not in _HOP:
                            self.send_header(name, value)
                    self.send_header("Connection", "close")
                    self.end_headers()
                    while part := answer.read1(65536):
                        self.wfile.write(part)
                        self.wfile.flush()
                except (BrokenPipeError, ConnectionResetError):
                    pass  # the client left
                finally:
                    upstream.close()
                self.close_connection = True

            do_GET = do_POST = do_HEAD = do_DELETE = _forward

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def _note(
        self, method: str, path: str, headers: dict[str, str], body: bytes, answer: HTTPResponse
    ) -> None:
        try:
            said = json.loads(body) if body else None
        except ValueError:
            said = body.decode(errors="replace")
        self.noted.append({
            "method": method, "path": path, "headers": headers, "body": said,
            "ignored": answer.getheader("X-Weft-Ignored"), "status": answer.status,
        })  # fmt: skip

    def __enter__(self) -> Self:
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
