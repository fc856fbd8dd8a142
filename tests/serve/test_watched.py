"""What is known of requests: ids, logs, metrics and traces."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.cli.in_process import weft
from tests.serve.in_process import DEMO, Server
from tests.waiting import eventually

ASK: dict[str, Any] = {"prompt": "What is 2 + 3?", "max_tokens": 5, "ignore_eos": True,
                       "temperature": 0}  # fmt: skip
PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Collector(ThreadingHTTPServer):
    """A server that takes spans over OTLP."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Take)
        self.spans: list[Any] = []
        self.services: set[str] = set()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Take(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        assert isinstance(self.server, Collector) and self.path == "/v1/traces"
        data = self.rfile.read(int(self.headers["Content-Length"]))
        for resource in ExportTraceServiceRequest.FromString(data).resource_spans:
            names = {a.key: a.value.string_value for a in resource.resource.attributes}
            self.server.services.add(names["service.name"])
            for scope in resource.scope_spans:
                self.server.spans += scope.spans
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with Collector() as running:
        yield running
        running.shutdown()


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("log") / "weft.log"


@pytest.fixture(scope="module")
def server(collector: Collector, log: Path) -> Iterator[Server]:
    environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.url, "OTEL_BSP_SCHEDULE_DELAY": "50"}
    options = ("--log-format", "json", "--log-file", log, "--otel", "--embeddings")
    with Server(DEMO, *options, environ=environ) as running:
        yield running


def lines(log: Path, request_id: str) -> dict[str, Any]:
    """The line of a request, which comes after its answer."""

    def found() -> dict[str, Any] | None:
        text = log.read_text() if log.exists() else ""
        rows: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
        return next((row for row in rows if row.get("request_id") == request_id), None)

    return eventually(found)


def test_requests_have_ids(server: Server) -> None:
    ids = {server.call("GET", "/health")[1]["x-request-id"] for _ in range(3)}
    assert len(ids) == 3 and all(re.fullmatch(r"req_[0-9a-f]{32}", i) for i in ids)
    own = {"x-request-id": "mine:1/2"}
    assert server.call("GET", "/health", **own)[1]["x-request-id"] == "mine:1/2"
    for wrong in ("a b", "x" * 129, "a\tb", '"'):
        got = server.call("GET", "/health", **{"x-request-id": wrong})[1]["x-request-id"]
        assert got.startswith("req_")
    client = server.client.completions.create(model="m", prompt="a", max_tokens=1)
    assert str(client._request_id).startswith("req_")


def test_a_line_is_an_object(server: Server, log: Path) -> None:
    server.call("POST", "/v1/completions", ASK, **{"x-request-id": "logged", "traceparent": PARENT})
    line = lines(log, "logged")
    assert line["level"] == "info" and line["time"].endswith("Z")
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/completions", 200)
    assert (line["generated_tokens"], line["client"]) == (5, "127.0.0.1")
    assert line["prompt_tokens"] > 5 and line["cached_tokens"] >= 0 and line["ms"] > 0
    assert line["trace_id"] == PARENT.split("-")[1]
    server.call("POST", "/v1/completions", {"prompt": "a", "n": 99}, **{"x-request-id": "refused"})
    assert lines(log, "refused")["status"] == 400
    assert not [line for line in server.lines if "/v1/completions" in line]


def test_a_log_that_was_moved_begins_anew(server: Server, log: Path) -> None:
    server.call("GET", "/v1/models", **{"x-request-id": "before"})
    lines(log, "before")
    log.rename(log.with_suffix(".old"))
    server.call("GET", "/v1/models", **{"x-request-id": "after"})
    assert lines(log, "after")["path"] == "/v1/models"


def test_spans(server: Server, collector: Collector) -> None:
    headers = {"x-request-id": "traced", "traceparent": PARENT}
    server.call("POST", "/v1/completions", ASK | {"n": 2}, **headers)
    server.call("POST", "/v1/embeddings", {"input": "a"}, **{"x-request-id": "vector"})
    server.call("GET", "/metrics")

    def attributes(span: Any) -> dict[str, Any]:
        kinds = ("string_value", "int_value", "double_value", "array_value")
        return {a.key: getattr(a.value, next(k for k in kinds if a.value.HasField(k)))
                for a in span.attributes}  # fmt: skip

    def by_id(request_id: str) -> Any:
        def found() -> Any:
            ids = [attributes(span).get("weft.request.id") for span in collector.spans]
            return collector.spans[ids.index(request_id)] if request_id in ids else None

        return eventually(found)

    request = by_id("traced")
    about = attributes(request)
    assert request.name == "text_completion weft-demo"
    assert request.trace_id.hex() == PARENT.split("-")[1]
    assert request.parent_span_id.hex() == PARENT.split("-")[2]
    assert about["gen_ai.usage.output_tokens"] == 10
    assert about["gen_ai.request.max_tokens"] == 5
    assert about["http.response.status_code"] == 200 and about["http.route"] == "/v1/completions"
    assert [event.name for event in request.events] == ["gen_ai.first_token"]
    parts = [s for s in collector.spans if s.parent_span_id == request.span_id]
    assert sorted(s.name for s in parts) == sorted(["queue", "prompt", "generation"] * 2)
    for text in (0, 1):
        queue, prompt, generation = (
            next(s for s in parts if s.name == name and attributes(s)["weft.text"] == text)
            for name in ("queue", "prompt", "generation")
        )
        assert request.start_time_unix_nano <= queue.start_time_unix_nano
        assert queue.end_time_unix_nano == prompt.start_time_unix_nano
        assert prompt.end_time_unix_nano == generation.start_time_unix_nano
        assert generation.end_time_unix_nano <= request.end_time_unix_nano
    assert by_id("vector").name == "embeddings weft-demo"
    assert not [s for s in collector.spans if attributes(s).get("url.path") == "/metrics"]
    assert not [s for s in collector.spans if "What is" in str(s)]
    assert collector.services == {"weft"}


def test_histograms_add_up(server: Server) -> None:
    before = server.metrics()
    for _ in range(3):
        server.call("POST", "/v1/completions", ASK)
    server.call("POST", "/v1/completions", {"prompt": 3})
    server.call("GET", "/no/such/path")
    after = server.metrics()

    def new(name: str) -> float:
        return after[name] - before.get(name, 0)

    for name, n in (("queue_seconds", 3), ("first_token_seconds", 3), ("text_seconds", 3),
                    ("between_tokens_seconds", 12), ("text_generated_tokens", 3)):  # fmt: skip
        assert new(f"{name}_count") == n
        assert new(f'{name}_bucket{{le="+Inf"}}') == n
        buckets = [value for key, value in after.items() if key.startswith(f"{name}_bucket")]
        assert buckets == sorted(buckets)
    assert new("text_generated_tokens_sum") == 15
    assert new('text_generated_tokens_bucket{le="8"}') == 3
    assert new('text_generated_tokens_bucket{le="4"}') == 0
    labels = 'path="/v1/completions",method="POST"'
    assert new(f'http_requests_total{{{labels},status="200"}}') == 3
    assert new(f'http_requests_total{{{labels},status="400"}}') == 1
    assert new('http_requests_total{path="other",method="GET",status="404"}') == 1
    assert new('http_request_seconds_count{path="/v1/completions"}') == 4
    assert after["http_requests_in_flight"] == 1  # this one


def test_a_log_file_that_cannot_be_written(tmp_path: Path) -> None:
    ended = weft("serve", DEMO, "--port", "0", "--log-file", tmp_path)
    assert ended.returncode == 1
    assert f"error: --log-file {tmp_path}: Is a directory" in ended.stderr


def test_traces_name_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    ended = weft("serve", DEMO, "--port", "0", "--otel")
    assert ended.returncode == 1 and "pip install 'weft[otel]'" in ended.stderr
