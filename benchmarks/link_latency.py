"""There and back over loopback: a link of weft beside a plain TCP connection, in turns.

python benchmarks/link_latency.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import os
import socket
import statistics
import threading
import time
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import Connection

from weft.links import Limits, Listener, connect

SIZES = {16 << 10: 200, 8 << 20: 10}
KEY = bytes(range(32))


def _exactly(sock: socket.socket, view: memoryview) -> None:
    while view:
        view = view[sock.recv_into(view) :]


def _serve(ports: Connection) -> None:
    room = memoryview(bytearray(max(SIZES)))
    plain = socket.create_server(("127.0.0.1", 0))
    listener = Listener(key=KEY, limits=Limits(silence=600.0))
    ports.send((plain.getsockname()[1], listener.address.port))

    def answer_plain() -> None:
        sock, _ = plain.accept()
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        head = memoryview(bytearray(8))
        while True:
            _exactly(sock, head)
            view = room[: int.from_bytes(head, "little")]
            if not view:
                return
            _exactly(sock, view)
            sock.sendall(view)

    threading.Thread(target=answer_plain, daemon=True).start()
    link = listener.accept()
    while True:
        header, arrays = link.receive_into(lambda _, sizes: [room[:n] for n in sizes])
        if not arrays:
            return
        link.send(header, *arrays)


def main() -> None:
    """Prints medians of all rounds."""
    parser = argparse.ArgumentParser(description="a link beside plain TCP")
    parser.add_argument("--rounds", type=int, default=5)
    rounds: int = parser.parse_args().rounds
    context = get_context("spawn")
    ports, theirs = context.Pipe()
    process = context.Process(target=_serve, args=(theirs,), daemon=True)
    process.start()
    plain_port, link_port = ports.recv()
    sock = socket.create_connection(("127.0.0.1", plain_port))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    link = connect(("127.0.0.1", link_port), key=KEY, limits=Limits(silence=600.0))
    for size, n in SIZES.items():
        data, room = os.urandom(size), memoryview(bytearray(size))

        def by_tcp(data: bytes = data, room: memoryview = room) -> None:
            sock.sendall(len(data).to_bytes(8, "little") + data)
            _exactly(sock, room)

        def by_link(data: bytes = data, room: memoryview = room) -> None:
            link.send({"n": 1}, data)
            link.receive_into(lambda _, sizes: [room])

        times: dict[str, list[float]] = {"tcp": [], "link": []}
        ways: dict[str, Callable[[], None]] = {"tcp": by_tcp, "link": by_link}
        for _ in range(rounds):
            for name, way in ways.items():
                for _ in range(n):
                    start = time.perf_counter()
                    way()
                    times[name].append(time.perf_counter() - start)
        tcp, ours = (1e3 * statistics.median(times[name]) for name in ("tcp", "link"))
        print(f"{size >> 10:6d} KiB: tcp {tcp:.3f} ms, link {ours:.3f} ms, {ours / tcp:.2f} times")
    link.send({})
    process.join(5)


if __name__ == "__main__":
    main()
