"""A worker: lends its devices to clients over links.

    listener = Listener("127.0.0.1", 0, key=key, facts=worker_facts())
    serve_devices(listener, Lender(["cpu"], model_dirs=["models"], cache_dir="cache", key=key))

`session.py` has the commands of a client, `weights.py` the worker's files, `streams.py` copies from
worker to worker.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from weft.cluster.lent import Lender
from weft.cluster.session import ClientSession
from weft.cluster.streams import takes
from weft.errors import LinkError, WeftError
from weft.links import Link, Listener

_CLIENTS = 64
"""Maximum number of clients and streams at the same time."""


class Worker:
    """The links of a lender's clients."""

    def __init__(self, lender: Lender) -> None:
        """`lender` has the devices and files that clients use."""
        self._lender = lender
        self._links: set[Link] = set()
        self._lock = threading.Lock()

    def handle(self, link: Link) -> None:
        """Serves one link until it ends."""
        with self._lock:
            if len(self._links) >= _CLIENTS:
                link.close(f"this worker has {_CLIENTS} clients")
                return
            self._links.add(link)
        stream = False  # such a link is closed by its client's session
        try:
            header, _ = link.receive(10.0)
            if header.get("hello") == "client":
                facts = [d.facts() for d in self._lender.devices]
                link.send({"devices": facts, "pid": os.getpid()})
                ClientSession(self._lender, link).serve()
            elif header.get("hello") == "measure":
                self._measure(link, header)
            elif header.get("hello") == "stream":
                inlet = self._lender.inlets.get(str(header.get("secret")))
                if inlet is None:
                    link.send({"e": "there is no such stream"})
                else:
                    link.use_limits(takes())
                    stream = inlet.use(link)
                    link.send({"ok": True} if stream else {"e": "this stream has a sender"})
        except (WeftError, ValueError):
            pass
        finally:
            if not stream:
                link.close()
            with self._lock:
                self._links.discard(link)

    def _measure(self, link: Link, header: Mapping[str, Any]) -> None:
        """Measures the devices, one client at a time, while no other client's work runs there."""
        from weft.cluster.calibrate import answer_measure

        try:
            with ExitStack() as held:
                devices = self._lender.devices
                for device in devices:
                    held.enter_context(device.lock)
                answer_measure(link, header, [d.backend for d in devices], self._lender.memory)
        except LinkError:
            raise
        except Exception as error:
            link.send({"e": str(error)[:500]})

    def close(self) -> None:
        """Ends all links; their sessions free what they hold."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close("the worker was stopped")


def serve_devices(listener: Listener, lender: Lender) -> None:
    """Serves clients of a lender until the listener is closed; both have the same key."""
    worker = Worker(lender)
    try:
        while True:
            link = listener.accept()
            threading.Thread(target=worker.handle, args=(link,), daemon=True).start()
    except LinkError:
        return
    finally:
        worker.close()
