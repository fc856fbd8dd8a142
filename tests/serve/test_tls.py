"""TLS, certificates that change, and clients that are slow to agree."""

from __future__ import annotations

import shutil
import signal
import socket
import ssl
import subprocess
from collections.abc import Iterator
from http.client import HTTPSConnection
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.cli.in_process import weft
from tests.serve.server import DEMO, Server
from tests.waiting import eventually

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="there is no openssl")


def certify(folder: Path, name: str) -> None:
    """Writes a key and its certificate."""
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
               "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2", "-subj", f"/CN={name}",
               "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
               "-keyout", str(folder / "key.pem"), "-out", str(folder / "cert.pem")]  # fmt: skip
    subprocess.run(command, check=True, capture_output=True)


def with_files(folder: Path) -> Path:
    """The folder, with a certificate and a file of keys."""
    certify(folder, "first")
    (folder / "keys.txt").write_text("old-key\n")
    return folder


def serving(folder: Path) -> Server:
    """A server with the files of a folder."""
    options = ("--ssl-keyfile", folder / "key.pem", "--ssl-certfile", folder / "cert.pem",
               "--api-key-file", folder / "keys.txt", "--max-connections", 4)  # fmt: skip
    return Server(DEMO, *options, sent_key="old-key")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return with_files(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving(folder) as running:
        assert running.url.startswith("https://")
        yield running


def ask(server: Server, folder: Path, key: str = "old-key") -> tuple[int, str]:
    """Status of a request, and the name in the certificate."""
    context = ssl.create_default_context(cafile=str(folder / "cert.pem"))
    connection = HTTPSConnection(urlsplit(server.url).netloc, context=context, timeout=30)
    try:
        connection.request("GET", "/v1/models", headers={"Authorization": f"Bearer {key}"})
        certificate = connection.sock.getpeercert() or {}
        names = dict(pair[0] for pair in certificate["subject"])  # type: ignore[misc]
        return connection.getresponse().status, names["commonName"]
    finally:
        connection.close()


def test_requests_are_encrypted(server: Server, folder: Path) -> None:
    assert ask(server, folder) == (200, "first")
    with pytest.raises(ssl.SSLCertVerificationError):
        ask(server, other(folder))
    address = urlsplit(server.url)
    with socket.create_connection((address.hostname, address.port), timeout=10) as plain:
        plain.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP/1.1 200" not in plain.recv(4096)


def other(folder: Path) -> Path:
    """A folder with another certificate, which the server does not have."""
    new = folder / "other"
    new.mkdir(exist_ok=True)
    certify(new, "other")
    return new


def test_clients_that_say_nothing_keep_nobody_out(server: Server, folder: Path) -> None:
    address = urlsplit(server.url)
    silent = [socket.create_connection((address.hostname, address.port)) for _ in range(12)]
    try:
        assert ask(server, folder)[0] == 200
    finally:
        for one in silent:
            one.close()


def test_sighup_reads_keys_and_certificate_again(tmp_path: Path) -> None:
    folder = with_files(tmp_path)
    with serving(folder) as server:
        certify(folder, "second")
        (folder / "keys.txt").write_text("new-key\n")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: any("certificates: read again" in line for line in server.lines))
        assert ask(server, folder, "new-key") == (200, "second")
        assert ask(server, folder, "old-key")[0] == 401

        (folder / "key.pem").write_text("nonsense")
        (folder / "keys.txt").write_text("")
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: any("certificates: as before" in line for line in server.lines))
        assert any("keys: as before, because" in line for line in server.lines)
        assert ask(server, folder, "new-key") == (200, "second")


def test_files_that_do_not_fit(tmp_path: Path) -> None:
    certify(tmp_path, "one")
    two = other(tmp_path)

    def serve(*options: str | Path) -> str:
        ended = weft("serve", DEMO, "--port", "0", *options)
        assert ended.returncode == 1
        return ended.stderr

    key, cert = tmp_path / "key.pem", tmp_path / "cert.pem"
    assert "TLS needs both --ssl-key-file and --ssl-cert-file" in serve("--ssl-key-file", key)
    missing = tmp_path / "none.pem"
    text = serve("--ssl-key-file", missing, "--ssl-cert-file", cert)
    assert f"--ssl-key-file {missing}: No such file" in text
    text = serve("--ssl-key-file", two / "key.pem", "--ssl-cert-file", cert)
    assert "key values mismatch" in text
    locked = tmp_path / "locked.pem"
    subprocess.run(["openssl", "ec", "-in", str(key), "-aes256", "-passout", "pass:secret",
                    "-out", str(locked)], check=True, capture_output=True)  # fmt: skip
    text = serve("--ssl-key-file", locked, "--ssl-cert-file", cert)
    assert "the key has a password" in text
