"""The page's files, its plan, and who gets them. `tests/pages` has it in a browser."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.report.test_timeline import page_data
from tests.serve.in_process import DEMO, Server
from weft.errors import ContextError
from weft.serve import ServeOptions
from weft.serve.access import Tickets, opens
from weft.serve.page.endpoints import FOLDER, page_files, policy_of
from weft.serve.sampling import usual_values

HTML = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}
MOST = 400_000
"""Most bytes of the whole page, packed."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(DEMO, key="sesame") as started:
        yield started


def raw(server: Server, path: str, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """An answer without a key."""
    connection = server.connect()
    connection.request("GET", path, headers=headers)
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, {k.lower(): v for k, v in answer.getheaders()}, body


def test_the_page_is_small_and_whole() -> None:
    files = page_files()
    assert sum(len(file.packed) for file in files.values()) < MOST
    start = files["index.html"].plain.decode()
    asked = re.findall(r'(?:src|href)="page/([^"]+)"', start)
    assert len(asked) > 10 and set(asked) <= files.keys()
    for name, file in files.items():
        text = file.plain.decode()
        imports = re.findall(r'from "\./([\w-]+\.js)"', text) if name.startswith("js/") else []
        assert {f"js/{one}" for one in imports} <= files.keys()
        assert gzip.decompress(file.packed) == file.plain
        assert "http://" not in text.replace("http://www.w3.org/", "") or name.startswith("vendor/")


def test_every_library_has_its_licence_and_version() -> None:
    said = (FOLDER / "vendor" / "README.md").read_text("utf-8")
    libraries = [path.name for path in (FOLDER / "vendor").glob("*.js")]
    assert len(libraries) == 4
    for name in libraries:
        row = next(line for line in said.splitlines() if f"`{name}`" in line)
        licences = re.findall(r"`([\w-]+\.LICENSE)`", row)
        assert licences and all((FOLDER / "vendor" / one).is_file() for one in licences)
        assert re.search(r"\d+\.\d+\.\d+", row)
    assert not [p for p in page_files() if "LICENSE" in p or p.endswith(".md")]


def test_browsers_get_the_page_and_programs_the_text(server: Server) -> None:
    status, headers, body = raw(server, "/", **HTML)
    assert status == 200 and headers["content-type"].startswith("text/html")
    assert body.startswith(b"<!doctype html>") and b"weft-demo" not in body
    assert headers["vary"].startswith("Accept")
    assert server.call("GET", "/")[2].startswith("weft ")
    assert raw(server, "/")[0] == 401  # the text names the model


def test_headers_of_the_page(server: Server) -> None:
    for path in ("/", "/page/js/main.js", "/page/css/base.css", "/page/icon.svg"):
        headers = raw(server, path, **HTML)[1]
        policy = headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'; ")
        assert "unsafe" not in policy and "frame-ancestors 'none'" in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


def test_files_are_packed_and_known_again(server: Server) -> None:
    path = "/page/vendor/highlight.min.js"
    _, plain_headers, plain = raw(server, path)
    _, headers, packed = raw(server, path, **{"Accept-Encoding": "gzip, deflate, br"})
    assert "content-encoding" not in plain_headers and headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed) == plain
    status, _, body = raw(server, path, **{"If-None-Match": headers["etag"]})
    assert status == 304 and body == b""


@pytest.mark.parametrize(
    "path", ["../routes.py", "%2e%2e/routes.py", "js/../../files.py", "vendor/marked.LICENSE", ""]
)
def test_nothing_else_is_served(server: Server, path: str) -> None:
    assert raw(server, f"/page/{path}", **HTML)[0] == 404


def test_the_plan_has_its_own_policy(server: Server) -> None:
    status, headers, body = server.call("GET", "/plan")
    assert status == 200 and "weft-demo, as it is served" in body
    policy = headers["content-security-policy"]
    assert re.search(r"script-src 'sha256-[\w+/=]{44}';", policy)
    assert "default-src 'none'" in policy and "connect-src" not in policy


def test_a_ticket_opens_the_plan_once(server: Server) -> None:
    assert raw(server, "/plan")[0] == 401
    assert raw(server, "/plan?ticket=guessed")[0] == 401
    ticket = server.call("POST", "/plan/ticket")[2]["ticket"]
    assert raw(server, f"/plan?ticket={ticket}")[0] == 200
    assert raw(server, f"/plan?ticket={ticket}")[0] == 401
    ticket = server.call("POST", "/plan/ticket")[2]["ticket"]
    assert raw(server, f"/v1/models?ticket={ticket}")[0] == 401
    connection = server.connect()
    connection.request("POST", "/plan/ticket")
    assert connection.getresponse().status == 401
    connection.close()


def test_tickets_end(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("weft.serve.access.monotonic", lambda: now)
    tickets = Tickets()
    first = tickets.new()
    assert tickets.take(first) and not tickets.take(first)
    old = tickets.new()
    now += 61
    assert not tickets.take(old)
    many = [tickets.new() for _ in range(100)]
    assert not tickets.take(many[0]) and tickets.take(many[-1])


@pytest.mark.parametrize(
    ("method", "path", "accept", "open_"),
    [
        ("GET", "/page/js/main.js", b"*/*", True),
        ("POST", "/page/js/main.js", b"*/*", False),
        ("GET", "/", b"text/html", True),
        ("GET", "/", b"*/*", False),
        ("GET", "/plan", b"text/html", False),
        ("GET", "/v1/models", b"text/html", False),
        ("GET", "/page", b"text/html", False),
    ],
)
def test_what_needs_no_key(method: str, path: str, accept: bytes, open_: bool) -> None:
    scope = {"method": method, "path": path, "headers": [(b"accept", accept)], "query_string": b""}
    assert opens(scope) is open_


def test_policy_of_a_page_without_scripts() -> None:
    assert "script-src 'none'" in policy_of("<p>no script</p>")


def test_models_say_what_they_take(server: Server) -> None:
    (model,) = server.call("GET", "/v1/models")[2]["data"]
    assert model["meta"] == {
        "n_ctx": 256, "n_ctx_train": 256, "n_params": 1045760, "size": DEMO.stat().st_size,
        "modalities": {"vision": False, "audio": False}, "sampling": usual_values({}),
    }  # fmt: skip
    sampling = model["meta"]["sampling"]
    assert [sampling[name] for name in ("temperature", "top_k", "top_p", "min_p", "seed")] == [
        0.8, 40, 0.95, 0.05, -1,
    ]  # fmt: skip


def test_several_models_have_one_page(tmp_path: Path) -> None:
    (tmp_path / "one.gguf").symlink_to(DEMO)
    (tmp_path / "two.gguf").symlink_to(DEMO)
    with Server.many(tmp_path) as server:
        assert raw(server, "/", **HTML)[2].startswith(b"<!doctype html>")
        assert raw(server, "/page/js/main.js")[0] == 200
        assert b"serves 2 models" in raw(server, "/")[2]
        for path, status in (("/plan", 400), ("/plan?model=%3Cb%3E", 404)):
            answer = raw(server, path, **HTML)
            assert answer[0] == status and b'<a href="plan?model=two">two</a>' in answer[2]
            assert b"<b>" not in answer[2]
            assert json.loads(raw(server, path)[2])["error"]["param"] == "model"
        listed = {m["id"]: m for m in server.call("GET", "/v1/models")[2]["data"]}
        assert "meta" not in listed["two"]
        status, _, body = server.call("GET", "/plan?model=two")
        assert status == 200 and "two, as it is served" in body
        listed = {m["id"]: m for m in server.call("GET", "/v1/models")[2]["data"]}
        assert listed["two"]["meta"]["n_ctx"] == 256


def test_the_plan_shows_the_updates_of_the_cache(server: Server) -> None:
    """They are those at the time of the request, as many as were asked for; without
    `--cache-events` none are noted."""
    assert page_data(server.call("GET", "/plan")[2])["cache"] is None
    with Server(DEMO, "--cache-events", "5") as watched:
        n = 0
        for prompt in ("Once upon a time", "Once upon a hill"):
            watched.call("POST", "/v1/completions", {"prompt": prompt, "max_tokens": 9})
            data = page_data(watched.call("GET", "/plan")[2])["cache"]
            assert len(data["events"]) == 5 and data["n"] > max(n, 5)
            n = data["n"]
            assert data["events"][-1]["number"] == data["n"]
        texts = " ".join(e["text"] for e in data["events"])
        assert "seq " in texts and " takes cell" in texts
    with pytest.raises(ContextError, match=r"is 99999; it must be 0 to"):
        ServeOptions(cache_events=99999)
