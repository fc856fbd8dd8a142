"""A server whose device is lost: streams go on, and it says so where people and monitors look."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from http.client import HTTPConnection
from typing import Any

import pytest
import uvicorn

from tests.backends.webgpu_device import webgpu
from tests.llm.lost_device import Lost
from tests.serve.in_process import SAMPLE, Server
from weft.serve import ServeOptions, Service, create_app

BODY = {"model": "m", "max_tokens": 12, "temperature": 0, "stream": True, "ignore_eos": True}
OPTIONS: dict[str, Any] = {"activations": "f32", "n_threads": 1, "type_k": "f32", "type_v": "f32"}


@contextmanager
def serving(**options: Any) -> Iterator[tuple[str, int]]:
    """Host and port of a server in this process."""
    service = Service(SAMPLE, ServeOptions(parallel=2), n_ctx=128, embeddings=True,
                      **(OPTIONS | options))  # fmt: skip
    config = uvicorn.Config(create_app(service), port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            thread.join(0.01)
        yield server.servers[0].sockets[0].getsockname()[:2]
    finally:
        server.should_exit = True
        thread.join(60)


def ask(address: tuple[str, int], method: str, path: str, body: Any = None) -> tuple[int, str]:
    connection = HTTPConnection(*address, timeout=60)
    try:
        headers = {"Content-Type": "application/json"}
        connection.request(method, path, body and json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    finally:
        connection.close()


def streams(address: tuple[str, int]) -> list[list[str]]:
    """The pieces of three streams at once."""

    def one(prompt: str) -> list[str]:
        status, text = ask(address, "POST", "/v1/completions", BODY | {"prompt": prompt})
        assert status == 200
        events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        assert events[-1] == "[DONE]", events[-1]
        return [json.loads(e)["choices"][0]["text"] for e in events[:-1]]

    with ThreadPoolExecutor(3) as pool:
        return list(pool.map(one, ["abc the", "the cab", "a"]))


@pytest.fixture(scope="module")
def right() -> list[str]:
    with serving() as address:
        assert json.loads(ask(address, "GET", "/health")[1]) == {"status": "ok"}
        assert "\nweft_fallback 0\n" in ask(address, "GET", "/metrics")[1]
        return ["".join(pieces) for pieces in streams(address)]


@pytest.mark.parametrize(("what", "after"), [("write", 25), ("run", 6), ("read", 6)])
def test_streams_go_on(right: list[str], what: str, after: int) -> None:
    device = Lost()
    with serving(devices=[device, "cpu"], fallback=["cpu"]) as address:
        device.lose(what, after)
        with pytest.warns(RuntimeWarning, match=f"going on with cpu: .*{what} failed"):
            assert ["".join(pieces) for pieces in streams(address)] == right
        status, health = ask(address, "GET", "/health")
        assert status == 200 and json.loads(health)["status"] == "ok"
        assert f"{what} failed" in json.loads(health)["note"]
        assert "\nweft_fallback 1\n" in ask(address, "GET", "/metrics")[1]
        body = {"model": "m", "input": "abc the"}
        with pytest.warns(RuntimeWarning, match=f"going on with cpu: .*{what} failed"):
            assert ask(address, "POST", "/v1/embeddings", body)[0] == 200


def test_a_webgpu_device_is_lost(right: list[str]) -> None:
    """The requests that meet it go on, and so do the next ones."""
    device = webgpu()
    with serving(devices=[device, "cpu"], fallback=["cpu"]) as address:
        device.driver._device.destroy()
        with pytest.warns(RuntimeWarning, match=r"going on with cpu: .*webgpu: .*device is lost"):
            assert ["".join(pieces) for pieces in streams(address)] == right
        assert ["".join(pieces) for pieces in streams(address)] == right
        assert "webgpu" in json.loads(ask(address, "GET", "/health")[1])["note"]


def test_without_a_fallback_requests_get_the_error(right: list[str]) -> None:
    """The error names what failed, as the server's fault; the server goes on, and works again when
    the device does."""
    device = Lost()
    with serving(devices=[device, "cpu"]) as address:
        device.lose("run")
        status, said = ask(address, "POST", "/v1/completions", BODY | {"prompt": "a"})
        assert "run failed" in said and '"server_error"' in said
        plain = {k: v for k, v in BODY.items() if k != "stream"}
        status, said = ask(address, "POST", "/v1/completions", plain | {"prompt": "a"})
        assert status == 500 and "run failed" in json.loads(said)["error"]["message"]
        assert ask(address, "GET", "/health")[0] == 200
        device.lose("")
        assert ["".join(pieces) for pieces in streams(address)] == right


def test_a_device_that_is_not_there() -> None:
    """One line says so when the server starts."""
    with Server(SAMPLE, "--devices", "opencl:77,cpu", "--fallback", "cpu", "-c", 64) as server:
        said = [line for line in server.lines if "going on" in line]
        assert len(said) == 1 and said[0].startswith("warning: going on with cpu: ")
        assert "going on with cpu" in server.call("GET", "/health")[2]["note"]
