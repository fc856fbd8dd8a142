"""HOST:PORT as text, and which hosts are this machine alone."""

from __future__ import annotations

import ipaddress
import socket
from typing import NamedTuple

from weft.errors import ArgumentError, LinkError


class Address(NamedTuple):
    """The host and port of a listener."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def parse_address(text: str, option: str, *, port: int | None = None) -> Address:
    """The address `HOST:PORT` or `[IPV6]:PORT`; `port` is for a text without one.

    Raises ArgumentError, naming `option`."""
    host, colon, digits = text.strip().rpartition(":")
    if not colon or digits.endswith("]") or (":" in host and not host.startswith("[")):
        host, digits = text.strip(), "" if port is None else str(port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not digits.isascii() or not digits.isdigit() or int(digits) > 65535:
        raise ArgumentError(
            f"{option}: {text!r} is not an address; give HOST:PORT, e.g. 10.0.0.2:7333, with a "
            "port of 0 to 65535"
        )
    return Address(host, int(digits))


def is_loopback(host: str) -> bool:
    """Whether `host` is reached from this machine only.

    Raises LinkError where the name has no address."""
    try:
        found = socket.getaddrinfo(host or "0.0.0.0", None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise LinkError(f"the host {host!r} has no address: {error}") from error
    return all(ipaddress.ip_address(str(at[4][0]).split("%")[0]).is_loopback for at in found)
