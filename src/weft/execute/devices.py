"""The devices of a scheduler at work: a queue each, and the order between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from weft.backends.base import Backend, Event, Queue
from weft.backends.memory import BufferType
from weft.errors import DeviceError
from weft.execute.hazards import Access, Order
from weft.execute.queue import InlineQueue, ThreadQueue
from weft.execute.run import Fault

__all__ = ["DeviceQueues"]


class DeviceQueues:
    """Takes work for each backend. Work that conflicts is done in the order it came; after a
    failure nothing more is done until `restart`."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self.fault = Fault()
        self._backends = backends
        self._order = Order(len(backends))
        self._own: list[Queue | None] | None = None
        self._threads: list[Queue] | None = None

    def submit(
        self, device: int, access: Access, work: Callable[[], None], *, inline: bool
    ) -> Event:
        """Gives work to a backend. `inline`: a backend that blocks does it now, on this thread."""
        queue = self._queue(device, inline)
        for event in self._order.before(device, access):
            queue.wait_for(event)
        event = queue.submit(self.fault.guarded(work))
        self._order.add(device, access, event)
        return event

    def on_host(self, access: Access, work: Callable[[], None]) -> None:
        """Does work on this thread once nothing that conflicts is under way."""
        for event in self._order.blockers(access):
            self.fault.guarded(event.wait)()
        self.fault.guarded(work)()

    def enqueues(self, device: int) -> bool:
        """Whether a backend has a queue of its own, which the calling thread puts work into."""
        return self._own_queues()[device] is not None

    def blocks(self, device: int, access: Access) -> bool:
        """Whether work given to a backend now would wait for others; -1: work on this thread."""
        return any(not event.is_done() for event in self._order.blockers(access, without=device))

    def synchronize(self) -> None:
        """Waits until no backend has work; raises the failure."""
        self.drain()
        self.fault.check()

    def has_queue(self, buffer_type: BufferType) -> bool:
        """Whether memory of this type is reached through a queue of its device. Then only the
        calling thread may copy from and to it: what another thread would wait for there may wait
        for that thread."""
        return any(
            own is not None
            and (backend.buffer_type is buffer_type or backend.name == buffer_type.device)
            for backend, own in zip(self._backends, self._own_queues(), strict=True)
        )

    def ready(self) -> None:
        """Raises DeviceError after a failure."""
        error = self.fault.error
        if error is not None:
            raise DeviceError(f"after a failure, call reset() first; it was: {error!r}")

    def drain(self) -> None:
        """Waits until no backend has work. A failure is kept for whoever asks `fault`."""
        for backend, queue in self._open():
            try:
                queue.synchronize()
            except Exception as error:
                self.fault.set(DeviceError(f"{backend.name}: {error}"))
            except BaseException as error:
                self.fault.set(error)  # so that the work under way ends soon
                raise
        self._order.clear()

    def close(self) -> None:
        """Waits for all work, gives back threads and queues; they come back with new work."""
        self.drain()
        for _, queue in self._open():
            queue.close()
        self._own = self._threads = None

    def restart(self) -> None:
        """New queues, and no failure."""
        self.close()
        self.fault = Fault()

    def _queue(self, device: int, inline: bool) -> Queue:
        own = self._own_queues()[device]
        if own is not None:
            return own
        if inline:
            return _INLINE
        if self._threads is None:
            self._threads = [ThreadQueue(backend.name) for backend in self._backends]
        return self._threads[device]

    def _own_queues(self) -> list[Queue | None]:
        if self._own is None:
            self._own = [backend.make_queue() for backend in self._backends]
        return self._own

    def _open(self) -> list[tuple[Backend, Queue]]:
        """The queues that exist, those on threads first."""
        found = [*zip(self._backends, self._threads or (), strict=False)]
        own = zip(self._backends, self._own or (), strict=False)
        return [*found, *((backend, queue) for backend, queue in own if queue is not None)]


_INLINE = InlineQueue()
