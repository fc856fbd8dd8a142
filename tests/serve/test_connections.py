"""Connections that ask for nothing, who may call, what is logged, and the end."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from http.client import HTTPException
from urllib.parse import urlsplit

import pytest
import uvicorn
from starlette.types import Receive, Scope, Send
from uvicorn.server import ServerState

from tests.cli.in_process import weft
from tests.serve import server as process
from tests.serve.in_process import DEMO, SAMPLE, Server
from tests.serve.server import Reached
from tests.waiting import eventually
from weft.bounds import CHUNKS
from weft.serve.connections import SPARE_FILES, Door, connection_class, most_connections
from weft.serve.middleware import host_name

BODY = {"prompt": "a", "max_tokens": 2, "ignore_eos": True}


def dial(server: Reached, data: bytes = b"") -> socket.socket:
    """A connection that has sent `data`."""
    address = urlsplit(server.url)
    connection = socket.create_connection((address.hostname, address.port), 30)
    connection.sendall(data)
    return connection


def closed(connection: socket.socket, seconds: float = 30) -> bytes:
    """What came until the server closed it; raises TimeoutError when it does not."""
    connection.settimeout(seconds)
    said = b""
    try:
        while part := connection.recv(1 << 16):
            said += part
    except ConnectionError:
        pass
    return said


def served(server: Reached) -> None:
    status, _, answer = server.call("POST", "/v1/completions", BODY)
    assert status == 200, answer


def test_half_a_request_stops_nobody() -> None:
    """There are few file descriptors, and three times as many connections that never ask."""
    with process.Server(DEMO, "-t", 1, files=64) as server, ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(dial(server, b"POST /v1/comp"))
        for _ in range(5):
            served(server)
        for _ in range(50):
            stack.enter_context(dial(server))
        served(server)
        said = "".join(server.lines)
        assert "system lets this process open no more files" in said
        assert said.count("closed to make room") <= 3 and len(said) < 4000


def test_a_flood_of_nonsense_is_one_line() -> None:
    with Server(DEMO, "-t", 1) as server:
        for _ in range(40):
            with dial(server, b"\x16\x03\x01 nonsense\r\n\r\n") as connection:
                assert b"400" in closed(connection)
        assert sum("Invalid HTTP" in line for line in server.lines) == 1


@pytest.fixture(scope="module")
def hasty() -> Iterator[Server]:
    with Server(DEMO, "-t", 1, "--timeout", 1, "--max-connections", 4) as running:
        yield running


def test_a_body_that_does_not_come(hasty: Server) -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with dial(hasty, head + b"Content-Length: 100\r\n\r\n{") as connection:
        said = closed(connection)
    assert b" 408 " in said and b"the body did not come within 1 seconds" in said
    noted(hasty, "/v1/completions", "POST", 408)
    served(hasty)


def noted(server: Reached, path: str, method: str, status: int) -> None:
    """Waits until the metrics and the log have a request with this status."""
    row = f'weft_http_requests_total{{path="{path}",method="{method}",status="{status}"}} '
    line = f"{method} {path} {status}"
    eventually(lambda: row in str(server.call("GET", "/metrics")[2]))
    eventually(lambda: any(line in said for said in server.lines))


def test_a_client_that_leaves_before_its_body_is_whole(hasty: Server) -> None:
    head = b"POST /v1/embeddings HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with dial(hasty, head + b"Content-Length: 100\r\n\r\n{"):
        pass
    noted(hasty, "/v1/embeddings", "POST", 499)


def test_a_body_that_is_refused_while_it_comes(hasty: Server) -> None:
    head = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    chunks = b"Transfer-Encoding: chunked\r\n\r\n" + b"1\r\n \r\n" * (2 * CHUNKS)
    with dial(hasty) as connection:
        with suppress(ConnectionError):
            connection.sendall(head + chunks)
        assert b" 400 " in closed(connection)
    noted(hasty, "/tokenize", "POST", 400)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 70000 + b"\r\n\r\n", 431),
    ],
    ids=["no HTTP", "large"],
)
def test_what_no_application_sees_is_counted(hasty: Server, head: bytes, status: int) -> None:
    def count() -> int:
        text = str(hasty.call("GET", "/metrics")[2])
        found = re.search(rf'path="other",method="other",status="{status}"}} (\d+)', text)
        return 0 if found is None else int(found[1])

    before = count()
    with dial(hasty) as connection:
        with suppress(ConnectionError):
            connection.sendall(head)
        assert b" %d " % status in closed(connection)
    assert count() == before + 1


def test_a_head_that_does_not_come(hasty: Server) -> None:
    """A byte now and then does not help, before or after a first request."""
    whole = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with dial(hasty) as one, dial(hasty, whole) as other:
        stop = threading.Event()

        def drip() -> None:
            left = [one, other]
            while not stop.wait(0.5):
                for connection in list(left):
                    try:
                        connection.sendall(b"G")
                    except OSError:
                        left.remove(connection)

        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert b" 200 " not in closed(one)
            assert b" 200 " in closed(other)
        finally:
            stop.set()
            thread.join()


def test_no_room_beside_answers() -> None:
    """Clients that are being answered stay, and those that come later are told so."""

    async def patient(scope: Scope, receive: Receive, send: Send) -> None:
        arrived.release()
        await answer.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    async def ask(address: tuple[str, int]) -> bytes:
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
        try:
            return await asyncio.wait_for(reader.read(), 30)
        finally:
            writer.close()

    async def answers() -> None:
        kind = connection_class(head_seconds=60, body_seconds=60)
        config = uvicorn.Config(patient, http=kind, ws="none", log_config=None, lifespan="off")
        state = ServerState()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            door = Door(listener, lambda: kind(config, state, {}), 4, refused=refused.append)
            door.open()
            busy = [asyncio.create_task(ask(listener.getsockname())) for _ in range(4)]
            for _ in busy:
                await asyncio.wait_for(arrived.acquire(), 30)
            assert b" 503 " in await ask(listener.getsockname())
            assert refused == [503]
            answer.set()
            assert all(b" 200 OK" in said for said in await asyncio.gather(*busy))
            assert b" 200 OK" in await ask(listener.getsockname())
            door.close()

    refused: list[int] = []
    arrived, answer = asyncio.Semaphore(0), asyncio.Event()
    asyncio.run(answers())


def test_connections_are_what_files_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    assert most_connections(3) == 3
    n_open = len(os.listdir("/dev/fd"))
    for spare, connections in ((40, 40), (4, 4), (0, 1), (-9, 1)):
        limit = n_open + SPARE_FILES + spare
        monkeypatch.setattr(resource, "getrlimit", lambda _, limit=limit: (limit, limit))
        assert most_connections(100) == connections


@pytest.mark.parametrize(
    ("host", "allowed"),
    [
        ("localhost:1", True), ("LOCALHOST", True), ("a.localhost", True), ("127.0.0.1:80", True),
        ("[::1]:80", True), ("192.168.0.7", True), ("box.example:8080", True),
        ("evil.example", False), ("box.example.evil", False), ("127.0.0.1.evil.example", False),
        ("localhost.evil", False), ("", False),
    ],
)  # fmt: skip
def test_names_of_a_server_without_a_key(named: Server, host: str, allowed: bool) -> None:
    status, _, body = named.call("GET", "/v1/models", Host=host)
    assert status == (200 if allowed else 403)
    assert allowed or "--allow-host NAME" in body["error"]["message"]
    assert named.call("GET", "/health", Host=host)[0] == 200


@pytest.fixture(scope="module")
def named() -> Iterator[Server]:
    with Server(DEMO, "-t", 1, "--allow-host", "Box.example") as running:
        yield running


def test_host_names() -> None:
    assert host_name("A.b:80") == "a.b" and host_name("[::1]:80") == "::1"
    assert host_name("::1") == "::1" and host_name("a.") == "a" and host_name("a:x") == "a:x"


def test_with_a_key_any_name_will_do() -> None:
    with Server(DEMO, "-t", 1, key="k") as server:
        assert server.call("GET", "/v1/models", Host="box.example")[0] == 200


def test_the_log(named: Server) -> None:
    start = "".join(named.lines)
    assert "placement: cpu" in start and "memory: weights" in start
    assert "has no chat template; chats are written as ChatML" in start
    served(named)
    named.call("POST", "/v1/completions", BODY | {"stream": True, "n": 2})
    named.call("POST", "/v1/completions?x=%0Aerror", {"prompt": 5})
    lines = [
        r"\d:\d\d info: 127.0.0.1 POST /v1/completions 200, prompt 2, generated 2 tokens, \d",
        r"200, prompt 2, generated 4 tokens, \d+ ms",
        r"info: 127.0.0.1 POST /v1/completions 400, \d+ ms",
    ]
    for line in lines:
        eventually(lambda line=line: bool(re.search(line, "".join(named.lines))))  # type: ignore[misc]
    named.call("GET", "/health")
    named.call("GET", "/metrics")
    assert not any("/health" in line or "/metrics" in line for line in named.lines)


@pytest.mark.parametrize(
    ("options", "request_line", "placement"),
    [(["--quiet"], False, False), (["--log-level", "warning"], False, True)],
)
def test_a_quiet_log(options: list[str], request_line: bool, placement: bool) -> None:
    with Server(DEMO, "-t", 1, *options) as server:
        served(server)
    said = "".join(server.lines)
    assert ("POST" in said, "placement" in said) == (request_line, placement)


def test_a_cors_origin_that_is_none() -> None:
    ended = weft("serve", str(DEMO), "--cors-origin", "example.com/page")
    assert ended.returncode == 1 and "is no origin; write scheme, name and port" in ended.stderr


@pytest.mark.parametrize(
    "second",
    [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.part("faults"))],
)
def test_a_second_signal_ends_it_at_once(second: signal.Signals) -> None:
    """It comes in the middle of long texts, with the longest period of grace."""
    with process.Server(SAMPLE, "-np", 8, "-c", 8192, "--grace", 3600) as server:
        body = {"prompt": "a", "max_tokens": 500, "ignore_eos": True, "n": 16}
        asked = [
            threading.Thread(target=ask_until_cut, args=[server, body], daemon=True)
            for _ in range(4)
        ]
        for thread in asked:
            thread.start()
        eventually(lambda: server.metrics()["running"] == 8)
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert server.process.poll() is None  # it lets them end
        server.process.send_signal(second)
        server.process.wait(10)
        for thread in asked:
            thread.join(10)


def ask_until_cut(server: Reached, body: object) -> None:
    with suppress(ConnectionError, HTTPException):
        server.call("POST", "/v1/completions", body)


def test_two_servers_side_by_side() -> None:
    """Each is right, whatever the other does."""
    with Server(DEMO, "-t", 1) as one, Server(DEMO, "-t", 1) as other:
        ask = {"prompt": "What is 17 + 25?", "max_tokens": 4, "temperature": 0, "n": 8}
        answers: list[str] = []

        def call(server: Server) -> None:
            for _ in range(5):
                got = server.call("POST", "/v1/completions", ask)[2]
                answers.extend(choice["text"] for choice in got["choices"])

        threads = [threading.Thread(target=call, args=[s]) for s in (one, other)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert answers == [" 42."] * 80


def test_a_client_that_does_not_read() -> None:
    """It may fill what the system holds for it, and is then hung up on."""

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        while not gone.is_set():
            await send({"type": "http.response.body", "body": b"a" * 65536, "more_body": True})
            await asyncio.sleep(0)

    async def served_once() -> None:
        kind = connection_class(head_seconds=60, body_seconds=0.5)
        config = uvicorn.Config(endless, http=kind, ws="none", log_config=None, lifespan="off")
        state = ServerState()

        class Watched(kind):  # type: ignore[misc, valid-type]
            def connection_lost(self, exc: Exception | None) -> None:
                gone.set()
                super().connection_lost(exc)

        with socket.create_server(("127.0.0.1", 0)) as listener:
            door = Door(listener, lambda: Watched(config, state, {}), 4)
            door.open()
            with socket.create_connection(listener.getsockname()) as client:
                client.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
                await asyncio.wait_for(gone.wait(), 30)
            door.close()

    gone = asyncio.Event()
    asyncio.run(served_once())
