"""Mistakes, floods and departures: the server says no, or forgets, and goes on serving."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from openai import AuthenticationError, OpenAI, RateLimitError

from tests.cli.in_process import weft
from tests.serve import server as process
from tests.serve.in_process import SAMPLE, Server
from tests.waiting import eventually

LONG = {"prompt": "a b c", "max_tokens": 400, "temperature": 0, "ignore_eos": True}


@pytest.fixture(scope="module", autouse=True)
def usual_recursion() -> Iterator[None]:
    """Python's own limit, which PyTorch raises in a process that has compiled something."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1000)
    yield
    sys.setrecursionlimit(before)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(
        SAMPLE, "-np", 2, "--max-queue", 2, "--max-body", 4000, "--max-tokens", 450,
        "--alias", "small", "-c", 1024, key="a secret",
    ) as running:  # fmt: skip
        yield running


def short(server: Server) -> None:
    """It still serves."""
    body = {"prompt": "a", "max_tokens": 2, "ignore_eos": True}
    status, _, answer = server.call("POST", "/v1/completions", body)
    assert status == 200, answer
    assert answer["usage"]["completion_tokens"] == 2


@pytest.mark.parametrize(
    "key", ["", "Bearer wrong", "Basic a secret", "Bearer a secret2", "Bearer"]
)
def test_a_wrong_key(server: Server, key: str) -> None:
    for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/metrics")):
        status, headers, body = server.call(method, path, Authorization=key)
        assert status == 401 and headers["www-authenticate"] == "Bearer"
        assert body["error"]["code"] == "invalid_api_key"
    assert server.call("GET", "/health", Authorization=key)[0] == 200


def test_the_client_with_a_wrong_key(server: Server) -> None:
    with (
        OpenAI(base_url=f"{server.url}/v1", api_key="wrong", max_retries=0) as client,
        pytest.raises(AuthenticationError),
    ):
        client.models.list()


@pytest.mark.parametrize(
    ("data", "status", "message"),
    [
        (b"", 400, "the body is no JSON object; send one"),
        (b"{", 400, "the body is not JSON"),
        (b"\xff\xfe", 400, ""),
        (b"[]", 400, "the body"),
        (b'{"prompt": "a", "n": "x"}', 400, 'n is "x"; it must be a whole number'),
        (b'{"prompt": "a", "max_tokens": true}', 400, "max_tokens is true; it must be a whole nu"),
        (b'{"prompt": "a", "top_p": false}', 400, "top_p is false; it must be a number"),
        (b'{"prompt": [5, true]}', 400, "prompt"),
        (b'{"prompt": {"a": 1}}', 400, "prompt"),
        (b'{"prompt": [1, "a"]}', 400, "prompt"),
        (b'{"prompt": "\\ud800"}', 400, "prompt has half a character (a lone surrogate) at 0"),
        (b'{"prompt": "a", "max_tokens": 451}', 400, "this server allows 450"),
        (b'{"prompt": "a", "temperature": NaN}', 400, "temperature"),
        (b"[" * 3000, 400, ""),
        (b"[" * 1900 + b"]" * 1900, 400, "the body is JSON nested too deeply"),
        (b'{"prompt": "' + b"a" * 4000 + b'"}', 413, "more than 4000 bytes"),
    ],
)
def test_malformed_bodies(server: Server, data: bytes, status: int, message: str) -> None:
    got, _, body = server.call("POST", "/v1/completions", data)
    assert got == status, body
    assert message in body["error"]["message"]
    short(server)


@pytest.mark.parametrize(("n_bytes", "status"), [(4000, 400), (4001, 413), (8192, 413)])
def test_a_body_that_hides_its_size(server: Server, n_bytes: int, status: int) -> None:
    """It is counted as it comes, and what may come is read as JSON."""
    connection = server.connect()
    connection.putrequest("POST", "/v1/completions")
    connection.putheader("Transfer-Encoding", "chunked")
    connection.putheader("Content-Type", "application/json")
    connection.putheader("Authorization", "Bearer a secret")
    connection.endheaders()
    with contextlib.suppress(ConnectionError):  # it may hang up before all is sent
        for at in range(0, n_bytes, 1000):
            n = min(1000, n_bytes - at)
            connection.send(b"%x\r\n" % n + b"a" * n + b"\r\n")
        connection.send(b"0\r\n\r\n")
    assert connection.getresponse().status == status
    connection.close()
    short(server)


def test_a_body_that_is_not_said_to_be_json(server: Server) -> None:
    """curl sends such a body when no header is given."""
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    status, _, body = server.call("POST", "/v1/completions", {"prompt": "a"}, **form)
    assert status == 400 and "with Content-Type: application/json" in body["error"]["message"]


def test_a_port_in_use_is_said_before_anything_is_loaded(server: Server) -> None:
    port = server.url.rpartition(":")[2]
    ended = weft("serve", __file__, "--port", port)  # which is no model
    assert ended.returncode == 1
    assert f"127.0.0.1:{port}: Address already in use; choose another --port" in ended.stderr


def test_unknown_paths_and_methods(server: Server) -> None:
    assert server.call("GET", "/v1/nothing")[0] == 404
    assert server.call("GET", "/v1/completions")[0] == 405
    assert "error" in server.call("GET", "/v1/nothing")[2]


def test_embeddings_were_not_asked_for(server: Server) -> None:
    status, _, body = server.call("POST", "/v1/embeddings", {"input": "a"})
    assert status == 400 and "--embeddings" in body["error"]["message"]


def test_a_flood_is_told_to_come_back(server: Server) -> None:
    """Two run, two wait; the others get 429 at once, and all that were taken are served."""

    def ask(_: int) -> tuple[int, dict[str, str]]:
        status, headers, _ = server.call("POST", "/v1/completions", LONG)
        return status, headers

    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(ask, range(16)))
    statuses = [status for status, _ in answers]
    assert set(statuses) == {200, 429} and statuses.count(200) >= 4
    assert all(int(h["retry-after"]) >= 1 for status, h in answers if status == 429)
    assert server.metrics()["requests_refused_total"] >= statuses.count(429)
    short(server)


def test_the_client_sees_a_rate_limit(server: Server) -> None:
    many = LONG | {"prompt": ["a"] * 5}
    with pytest.raises(RateLimitError, match="running or waiting"):
        server.client.completions.create(
            model="small", prompt=["a"] * 5, max_tokens=400, extra_body={"ignore_eos": True}
        )
    assert server.call("POST", "/v1/completions", many)[0] == 429
    eventually(lambda: server.metrics()["running"] == 0)  # the four that fitted were withdrawn
    short(server)


def cancelled(server: Server) -> float:
    return server.metrics().get('requests_ended_total{reason="cancelled"}', 0)


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_cells(server: Server, stream: bool) -> None:
    before = cancelled(server)
    connection = server.connect()
    body = json.dumps(LONG | {"prompt": "c b a", "n": 2, "stream": stream})
    headers = {"Content-Type": "application/json", "Authorization": "Bearer a secret"}
    connection.request("POST", "/v1/completions", body, headers)
    if stream:
        answer = connection.getresponse()
        assert answer.readline().startswith(b"data: ")
        answer.close()
    else:
        eventually(lambda: server.metrics()["running"] == 2)
    connection.close()
    eventually(lambda: server.metrics()["running"] == 0)
    assert cancelled(server) > before
    short(server)


def test_one_text_that_fails_ends_alone(server: Server) -> None:
    """A prompt that cannot fit beside one that can."""
    good: list[int] = []
    thread = threading.Thread(
        target=lambda: good.append(server.call("POST", "/v1/completions", LONG)[0])
    )
    thread.start()
    for _ in range(5):
        status, _, body = server.call("POST", "/v1/completions", {"prompt": [5] * 600})
        assert status == 400 and body["error"]["code"] == "context_length_exceeded"
    thread.join()
    assert good == [200]


@pytest.mark.parametrize("sig", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_lets_texts_finish(sig: signal.Signals) -> None:
    with process.Server(SAMPLE, "-np", 2, "--grace", 30) as server:
        stream = server.client.completions.create(
            model="llama3", prompt="a", max_tokens=300, temperature=0, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        chunks = iter(stream)
        next(chunks)
        server.process.send_signal(sig)
        rest = list(chunks)
        assert rest[-1].choices[0].finish_reason == "length"
        assert server.process.wait(30) in (0, -sig, 128 + sig)
    said = f"info: {sig.name}: stops; open requests have 30 seconds (a second signal ends them"
    assert said in "".join(server.lines)


def test_a_stop_does_not_wait_for_ever() -> None:
    """More texts than can be written in the time that they have."""
    with Server(SAMPLE, "-np", 32, "--max-queue", 1000, "--grace", 0) as server:
        body = LONG | {"n": 16}
        with ThreadPoolExecutor(16) as pool:
            asked = [
                pool.submit(server.call, "POST", "/v1/completions", body | {"prompt": "a" * i})
                for i in range(1, 17)
            ]
            eventually(lambda: server.metrics()["running"] == 32)
            server.stop()
            assert server.wait(30) == 0
            # those that were not finished were told so, or hung up on
            ends = [f.exception() is not None or f.result()[0] != 200 for f in asked]
            assert any(ends)


def test_every_line_is_an_object() -> None:
    """With `--log-format json` also what the command says before the log begins, and at its end."""
    with process.Server(SAMPLE, "--log-format", "json", "--host", "0.0.0.0") as server:
        assert server.call("GET", "/v1/models")[0] == 200
        server.process.send_signal(signal.SIGTERM)
        server.process.wait(30)
    rows = [json.loads(line) for line in server.lines]
    said = {row["message"]: row["level"] for row in rows}
    assert all(row["time"].endswith("Z") for row in rows)
    warned = [text for text, level in said.items() if level == "warning"]
    assert any(text.startswith("without --keys, --api-key or") for text in warned)
    (page,) = [text for text in said if text.startswith("page to chat: ")]
    assert page.startswith("page to chat: http://127.0.0.1:") and "this machine's name" in page
    assert said.get("SIGTERM: stops") == "info", [*said][-3:]  # nothing is open
