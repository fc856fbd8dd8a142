"""A server at a Unix socket, and one below the path of a proxy."""

from __future__ import annotations

import os
import re
import socket
import stat
import tempfile
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.in_process import weft
from tests.serve.in_process import DEMO, Server
from weft.cli.running import _connection
from weft.errors import ContextError
from weft.serve import ServeOptions, take_address

BODY = {"prompt": "a", "max_tokens": 2}


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder whose path is short enough for sockets."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


class AtSocket(Server):
    def connect(self) -> HTTPConnection:
        return _connection(self.url)[0]


def test_a_server_at_a_socket(folder: Path) -> None:
    path = folder / "weft.sock"
    with AtSocket(DEMO, "--uds", path, key="k") as server:
        assert stat.S_ISSOCK(path.stat().st_mode)
        assert server.url == f"http://unix:{path}:"
        said = "".join(server.lines)
        assert "--host and --port change nothing" in said  # the fixture gives --port
        assert "proxy in front of this socket" in said
        assert server.call("POST", "/v1/completions", BODY)[0] == 200
        transport = httpx.HTTPTransport(uds=str(path))
        with httpx.Client(transport=transport, base_url="http://localhost") as client:
            assert client.get("/v1/models").status_code == 401
            assert client.get("/health").status_code == 200
            page = client.get("/", headers={"Accept": "text/html"})
            assert page.status_code == 200 and "text/html" in page.headers["content-type"]
        for url in (server.url, f"{server.url}/v1"):
            shown = weft("ps", "--url", url, "--api-key", "k")
            assert shown.returncode == 0 and DEMO.stem in shown.stdout
        stopped = weft("stop", DEMO.stem, "--url", server.url, "--api-key", "k")
        assert "it serves this model alone" in stopped.stderr
        with pytest.raises(ContextError, match="a server listens there"):
            take_address(ServeOptions(uds=path))
    assert not path.exists()
    assert "no server at http://unix:" in weft("ps", "--url", server.url).stderr


def test_several_models_at_a_socket_below_a_path(folder: Path) -> None:
    (folder / "models").mkdir()
    (folder / "models" / "demo.gguf").symlink_to(DEMO)
    path = folder / "s"
    with AtSocket.many(folder / "models", "--uds", path, "--root-path", "/llm/") as server:
        assert server.url == f"http://unix:{path}:/llm"
        assert server.call("POST", "/llm/v1/completions", BODY)[0] == 200
        assert weft("stop", "demo", "--url", server.url).returncode == 0
        assert "no model is loaded" in weft("ps", "--url", server.url).stderr
    assert not path.exists()


def test_paths_that_no_socket_can_have(folder: Path) -> None:
    file = folder / "file"
    file.touch()
    for path, said in (
        (file, "no socket"), (folder, "no socket"), (folder / "none" / "s", "No such file"),
        (file / "s", "Not a directory"), (folder / ("s" * 120), r"has \d+ bytes; a socket's may"),
    ):  # fmt: skip
        with pytest.raises(ContextError, match=rf"{re.escape(str(path))}: .*{said}") as found:
            take_address(ServeOptions(uds=path))
        assert found.value.argument == "uds"
    assert weft("serve", DEMO, "--uds", file).stderr.startswith(f"error: --uds {file}: there is")
    assert file.is_file()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_to(folder: Path) -> None:
    folder.chmod(0o500)
    with pytest.raises(ContextError, match="Permission denied"):
        take_address(ServeOptions(uds=folder / "s"))


def test_the_file_of_a_server_that_was_killed_is_replaced(folder: Path) -> None:
    path = folder / "s"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    with take_address(ServeOptions(uds=path)) as sock:
        sock.listen()
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(str(path))
        path.unlink()
        path.touch()  # somebody else's by now
    assert path.is_file()


@pytest.fixture(scope="module")
def below() -> Iterator[Server]:
    with Server(DEMO, "--root-path", "/api", key="k") as running:
        yield running


def test_a_server_below_a_path(below: Server) -> None:
    """A proxy may leave the path in requests or take it away."""
    address = below.url.removesuffix("/api")
    assert below.url.endswith("/api") and any(
        f"page to chat: {below.url}/" in x for x in below.lines
    )
    for root in ("/api", ""):
        assert below.call("POST", f"{root}/v1/completions", BODY)[0] == 200
        assert below.call("GET", f"{root}/openapi.json")[2]["servers"] == [{"url": "/api"}]
        assert below.call("GET", f"{root}/health", Authorization="")[0] == 200
        assert below.call("GET", f"{root}/v1/models", Authorization="")[0] == 401
        shaped: Any = below.call("POST", f"{root}/v1/messages", {})[2]
        assert shaped["type"] == "error"
        assert weft("ps", "--url", address + root, "--api-key", "k").returncode == 0
    assert below.call("GET", "/api/v1/none")[0] == 404 == below.call("GET", "/apiv1/models")[0]
    assert 'path="/v1/models",method="GET",status="401"} 2' in below.call("GET", "/metrics")[2]


def test_the_page_below_a_path(below: Server) -> None:
    """The browser's own rules lead from the page to its files and the API."""
    base = below.url
    html = {"accept": "text/html", "authorization": ""}
    with httpx.Client() as client:
        first = client.get(base, headers=html)
        assert first.status_code == 307 and first.headers["location"] == "/api/"
        page = client.get(f"{base}/", headers=html)
        links = re.findall(r'(?:href|src)="(?!#)([^"]+)"', page.text)
        assert page.status_code == 200 and len(links) > 5
        for link in links:
            assert client.get(page.url.join(link), headers=html).status_code == 200, link


@pytest.mark.parametrize("root", ["llm", "/a b", "/a?b", "//a", "/ä"])
def test_paths_that_no_proxy_has(root: str) -> None:
    with pytest.raises(ContextError, match=r"e\.g\. /llm"):
        ServeOptions(root_path=root)
    assert ServeOptions(root_path="/").root_path == ""
