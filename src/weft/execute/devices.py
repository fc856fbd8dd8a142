"""The queues of devices, and the order between them: queues that a device brings, and for backends
that block, the calling thread or a thread of their own."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any

from numpy.typing import NDArray

from weft.backends.base import Backend, CopiesBeside, Event, OrdersWork, Queue
from weft.backends.memory import BufferType
from weft.errors import DeviceError
from weft.execute.hazards import Access, Order
from weft.records import dataclass


@dataclass(slots=True)
class Work:
    """A piece of work of a run: of a device, or of the calling thread (device -1)."""

    device: int
    access: Access
    do: Callable[[], None]
    copies: bool = False
    """It only copies, and may do so beside kernels."""


class DeviceQueues:
    """Takes work for each backend. Conflicting work runs in the order of submission; after a
    failure nothing runs until `restart`.

    A device that copies while it computes has a second queue for work that only copies."""

    def __init__(self, backends: Sequence[Backend]) -> None:
        self.fault = Fault()
        self.backends = backends
        self._order = Order(2 * len(backends))  # the second half: queues of copies
        self._own: list[Queue | None] | None = None
        self._threads: list[Queue] | None = None

    def submit(self, work: Work, *, inline: bool) -> Event:
        """Submits work. `inline`: a backend that blocks does it at once, on this thread."""
        device = number = work.device
        if device < 0:
            self.on_host(work.access, work.do)
            return REACHED
        beside = self._beside(device) if work.copies else None
        queue = self._queue(device, inline)
        if beside is not None:
            queue, number = beside, len(self.backends) + device
        for event in self._order.before(number, work.access):
            queue.wait_for(event)
        event = queue.submit(self.fault.guarded(work.do))
        self._order.add(number, work.access, event)
        return event

    def on_host(self, access: Access, work: Callable[[], None]) -> None:
        """Does work on this thread, once no conflicting work is running."""
        for event in self._order.blockers(access):
            self.fault.guarded(event.wait)()
        self.fault.guarded(work)()

    def enqueues(self, device: int) -> bool:
        """Whether a backend has a queue of its own, which the calling thread puts work into."""
        return self._own_queues()[device] is not None

    def copier(self, buffer_types: Collection[BufferType] | None) -> int:
        """The device that makes copies from and to memory of these types beside its kernels; -1:
        this thread makes them."""
        devices = {self._owner(t) for t in buffer_types or ()} - {-1}
        if len(devices) == 1:
            (device,) = devices
            if self._beside(device) is not None:
                return device
        return -1

    def blocks(self, work: Work) -> bool:
        """Whether work submitted now would wait for other devices."""
        device = work.device
        queue = None if device < 0 else self._own_queues()[device]
        beside = self._beside(device) if work.copies else None
        if beside is not None:
            queue, device = beside, len(self.backends) + device
        orders = queue.orders if isinstance(queue, OrdersWork) else _never
        return any(
            not orders(event) and not event.is_done()
            for event in self._order.blockers(work.access, without=device)
        )

    def synchronize(self) -> None:
        """Waits until no backend has work, then raises the failure, if any."""
        self.drain()
        self.fault.check()

    def has_queue(self, buffer_type: BufferType) -> bool:
        """Whether memory of this type is reached through a queue of its device.

        Then only the calling thread may copy from and to it, because a copy on another thread might
        wait for work that itself waits for that thread."""
        return self._owner(buffer_type) >= 0

    def _owner(self, buffer_type: BufferType) -> int:
        """The device through whose queue memory of this type is reached; -1: none."""
        for i, own in enumerate(self._own_queues()):
            backend = self.backends[i]
            mine = backend.buffer_type is buffer_type or backend.name == buffer_type.device
            if own is not None and mine:
                return i
        return -1

    def _beside(self, device: int) -> Queue | None:
        """The queue of copies of a device, where it has one."""
        queue = None if device < 0 else self._own_queues()[device]
        return queue.copies if isinstance(queue, CopiesBeside) else None

    def ready(self) -> None:
        """Raises DeviceError after a failure, until `restart`."""
        error = self.fault.error
        if error is not None:
            raise DeviceError(f"call reset() after a failure; the failure was: {error!r}")

    def drain(self) -> None:
        """Waits until no backend has work. A failure is kept in `fault`."""
        for backend, queue in self._open():
            try:
                queue.synchronize()
            except Exception as error:
                self.fault.set(DeviceError(f"{backend.name}: {error}"))
            except BaseException as error:
                self.fault.set(error)  # so that running work ends soon
                raise
        self._order.clear()

    def close(self) -> None:
        """Waits for all work and gives back threads and queues; new work creates them again."""
        self.drain()
        for _, queue in self._open():
            queue.close()
        self._own = self._threads = None

    def restart(self) -> None:
        """Creates new queues and drops the failure."""
        self.close()
        self.fault = Fault()

    def _queue(self, device: int, inline: bool) -> Queue:
        own = self._own_queues()[device]
        if own is not None:
            return own
        if inline:
            return _INLINE
        if self._threads is None:
            self._threads = [ThreadQueue(backend.name) for backend in self.backends]
        return self._threads[device]

    def _own_queues(self) -> list[Queue | None]:
        if self._own is None:
            self._own = [backend.make_queue() for backend in self.backends]
        return self._own

    def _open(self) -> list[tuple[Backend, Queue]]:
        """The open queues with their backends, those on threads first."""
        on_threads = [*zip(self.backends, self._threads or (), strict=False)]
        own = zip(self.backends, self._own or (), strict=False)
        return [*on_threads, *((backend, queue) for backend, queue in own if queue is not None)]


def _never(event: Event) -> bool:
    return False


class _Reached:
    """An event that is always over."""

    def is_done(self) -> bool:
        return True

    def wait(self) -> None:
        return None


REACHED: Event = _Reached()


class InlineQueue:
    """Does the work at once, on the calling thread, so that Ctrl-C stops it."""

    def submit(self, work: Callable[[], None]) -> Event:
        """Does `work`."""
        work()
        return REACHED

    def wait_for(self, event: Event) -> None:
        """Blocks until `event`."""
        event.wait()

    def synchronize(self) -> None:
        """Does nothing, as no work is ever left."""

    def close(self) -> None:
        """Does nothing, as the queue owns nothing."""


class ThreadQueue:
    """A thread that does the work of one device in order; it starts with the first work.

    An event of one queue is always submitted before another queue waits for it, so the queues of a
    driver cannot wait for each other in a circle."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] | None = None
        self._thread: Thread | None = None
        self._last: Event = REACHED

    def submit(self, work: Callable[[], None]) -> Event:
        """Does `work`, which must not raise, after all earlier work."""
        if self._jobs is None:
            self._jobs = SimpleQueue()
            # the thread holds no reference to this object, and ends with it
            weakref.finalize(self, self._jobs.put, None)
            self._thread = Thread(
                target=_work, args=(self._jobs,), name=f"weft-{self._name}", daemon=True
            )
            self._thread.start()
        job = _Job(work)
        self._jobs.put(job)
        self._last = job
        return job

    def wait_for(self, event: Event) -> None:
        """Makes the thread wait for `event` before it continues."""
        if not event.is_done():
            self.submit(lambda: _wait(event))

    def synchronize(self) -> None:
        """Blocks until all work is done."""
        self._last.wait()

    def close(self) -> None:
        """Ends the thread once all work is done; a later `submit` starts another."""
        if self._jobs is not None and self._thread is not None:
            self._jobs.put(None)
            self._thread.join()
            self._jobs = self._thread = None


def _wait(event: Event) -> None:
    with suppress(Exception):  # the queue of the event reports its failure
        event.wait()


class _Job:
    """A piece of work, and the event that it is over: a lock that is held until then."""

    __slots__ = ("_done", "_held", "work")

    def __init__(self, work: Callable[[], None]) -> None:
        self.work: Callable[[], None] | None = work
        self._done = False
        self._held = Lock()
        self._held.acquire()

    def is_done(self) -> bool:
        return self._done

    def wait(self) -> None:
        if not self._done:
            with self._held:
                pass

    def finish(self) -> None:
        self._done = True
        self.work = None  # frees the objects that it refers to
        self._held.release()


def _work(jobs: SimpleQueue[_Job | None]) -> None:
    while (job := jobs.get()) is not None:
        try:
            assert job.work is not None
            job.work()
        finally:
            job.finish()
            del job


class Fault:
    """The first failure of any work since the last reset; later work is skipped."""

    def __init__(self) -> None:
        self.error: BaseException | None = None
        self._lock = Lock()

    def set(self, error: BaseException) -> None:
        """Keeps the first error."""
        with self._lock:
            if self.error is None:
                self.error = error

    def guarded(self, work: Callable[[], None]) -> Callable[[], None]:
        """`work` for a queue: it raises nothing, and does nothing after a failure."""

        def run() -> None:
            if self.error is None:
                try:
                    work()
                except BaseException as error:
                    self.set(error)

        return run

    def check(self) -> None:
        """Raises the failure, if there is one."""
        if self.error is not None:
            raise self.error


class Run:
    """The result of `compute_async`: wait for it, then read the outputs that it computed."""

    def __init__(self, fault: Fault, values: Mapping[str, int]) -> None:
        self._fault = fault
        self.values = values
        """The values of the symbols."""
        self._outputs: dict[str, NDArray[Any]] = {}
        self._later: dict[str, Callable[[], NDArray[Any]]] = {}
        self._events: list[Event] = []
        self.stopped = False
        """A callback stopped the run early."""

    def is_done(self) -> bool:
        """Whether `wait` would return at once."""
        return all(event.is_done() for event in self._events)

    def wait(self) -> bool:
        """Blocks until the run is over; False when a callback stopped it.

        Raises DeviceError, as `Scheduler.compute` does, when a device failed in this run or in one
        before it."""
        try:
            for event in self._events:
                event.wait()
        except BaseException as error:
            self._fault.set(error)
            if not isinstance(error, Exception):
                raise
        self._fault.check()
        return not self.stopped

    @property
    def outputs(self) -> Mapping[str, NDArray[Any]]:
        """The graph's outputs by name, in PyTorch order of sizes; waits for the run."""
        self.wait()
        while self._later:
            name, array = self._later.popitem()
            self._outputs[name] = array()
        return self._outputs

    def add(self, event: Event) -> None:
        """Makes the run last until this event."""
        self._events.append(event)

    def put(self, name: str, array: NDArray[Any]) -> None:
        """Stores an output."""
        self._outputs[name] = array

    def put_later(self, name: str, array: Callable[[], NDArray[Any]]) -> None:
        """Stores a function that waits for an output."""
        self._later[name] = array


_INLINE = InlineQueue()
