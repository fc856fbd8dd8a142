"""Hosts on this machine, each in a network namespace of its own, and the network between them: what
it delays, loses and cuts, packet by packet.

A thread makes a namespace for itself and starts the processes of its host, which inherit it. The
namespace has one device, a TUN, whose packets this process passes on. Nothing has a name outside:
all of it is gone with the processes and this one. It takes root and /dev/net/tun.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import os
import queue
import random
import selectors
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, NamedTuple

_CLONE_NEWNET = 0x40000000
_TUNSETIFF = 0x400454CA
_TUN, _NO_PACKET_INFO = 0x1, 0x1000
_NETWORK = "10.83.0"
_MTU = 9000


class Wire(NamedTuple):
    """What happens to packets from one host to another."""

    delay: float = 0.0
    """Seconds by which they are late."""
    loss: float = 0.0
    """The share that does not arrive."""
    is_cut: bool = False
    """Nothing arrives."""


class Host:
    """A namespace with an address."""

    def __init__(self, number: int) -> None:
        """Raises OSError where namespaces or TUN devices cannot be made."""
        self.address = f"{_NETWORK}.{number}"
        self._work: queue.Queue[tuple[Callable[[], Any], Future[Any]] | None] = queue.Queue()
        self._ready: Future[int] = Future()
        self._thread = threading.Thread(target=self._live, daemon=True)
        self._thread.start()
        self.fd = self._ready.result(20)
        """Packets that the host sends, and where those to it are written."""

    def _live(self) -> None:
        try:
            fd = self._enter()
        except BaseException as error:
            self._ready.set_exception(error)
            return
        self._ready.set_result(fd)
        while (item := self._work.get()) is not None:
            work, result = item
            try:
                result.set_result(work())
            except BaseException as error:
                result.set_exception(error)

    def _enter(self) -> int:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.unshare(_CLONE_NEWNET):
            code = ctypes.get_errno()
            raise OSError(code, f"no network namespace can be made: {os.strerror(code)}")
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", b"wire", _TUN | _NO_PACKET_INFO))
            for command in (
                f"address add {self.address}/24 dev wire",
                f"link set wire mtu {_MTU} up",
                "link set lo up",
            ):
                subprocess.run(
                    ["ip", *command.split()], check=True, capture_output=True, timeout=10
                )
        except subprocess.SubprocessError as error:
            os.close(fd)
            raise OSError(f"the device of a namespace cannot be set up: {error}") from error
        except BaseException:
            os.close(fd)
            raise
        return fd

    def popen(self, *arguments: Any, **options: Any) -> subprocess.Popen[str]:
        """`subprocess.Popen` on this host."""
        result: Future[subprocess.Popen[str]] = Future()
        self._work.put((lambda: subprocess.Popen(*arguments, **options), result))
        return result.result(30)

    def close(self) -> None:
        """Leaves the namespace, which ends with its last process."""
        self._work.put(None)
        self._thread.join(10)
        os.close(self.fd)


class Network:
    """Hosts that reach one another."""

    def __init__(self, n: int, seed: int = 1) -> None:
        """`n` hosts; `seed` is that of losses. Raises OSError where they cannot be made."""
        self.hosts: list[Host] = []
        self._wires: dict[tuple[bytes, bytes], Wire] = {}
        self._random = random.Random(seed)
        self.passed = self.lost = 0
        """Packets."""
        self._wake, self._waker = os.pipe()
        try:
            for i in range(n):
                self.hosts.append(Host(i + 1))
        except BaseException:
            self._close_all()
            raise
        self._by_address = {_packed(host): host for host in self.hosts}
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def between(self, a: Host, b: Host, wire: Wire = Wire()) -> None:  # noqa: B008
        """Says what happens to packets between two hosts, both ways, from now on."""
        for ends in ((a, b), (b, a)):
            self._wires[_packed(ends[0]), _packed(ends[1])] = wire

    def everywhere(self, wire: Wire = Wire()) -> None:  # noqa: B008
        """Says so of all hosts."""
        for a in self.hosts:
            for b in self.hosts:
                self.between(a, b, wire)

    def close(self) -> None:
        """Ends it. Processes of the hosts must have ended."""
        os.write(self._waker, b"x")
        self._thread.join(10)
        self._close_all()

    def _close_all(self) -> None:
        for host in self.hosts:
            host.close()
        os.close(self._wake)
        os.close(self._waker)

    def _run(self) -> None:
        late: list[tuple[float, int, int, bytes]] = []
        number = 0
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake, selectors.EVENT_READ)
            for host in self.hosts:
                selector.register(host.fd, selectors.EVENT_READ)
            while True:
                wait = max(0.0, late[0][0] - time.monotonic()) if late else None
                for key, _ in selector.select(wait):
                    if key.fd == self._wake:
                        return
                    for packet in _packets(key.fd):
                        found = self._route(packet)
                        if found is not None:
                            fd, delay = found
                            number += 1
                            heapq.heappush(late, (time.monotonic() + delay, number, fd, packet))
                while late and late[0][0] <= time.monotonic():
                    _, _, fd, packet = heapq.heappop(late)
                    try:
                        os.write(fd, packet)
                    except OSError:
                        self.lost += 1

    def _route(self, packet: bytes) -> tuple[int, float] | None:
        """Where a packet goes, and how much later; None: nowhere."""
        if packet[0] >> 4 != 4:
            return None
        host = self._by_address.get(packet[16:20])
        wire = self._wires.get((packet[12:16], packet[16:20]), Wire())
        if host is None or wire.is_cut or self._random.random() < wire.loss:
            self.lost += 1
            return None
        self.passed += 1
        return host.fd, wire.delay


def _packed(host: Host) -> bytes:
    return socket.inet_aton(host.address)


def _packets(fd: int) -> list[bytes]:
    found: list[bytes] = []
    try:
        while len(found) < 64:
            found.append(os.read(fd, _MTU))
    except BlockingIOError:
        pass
    except OSError:
        time.sleep(0.01)
    return found
