"""`Machine`: a worker process as its client sees it: commands, frames, answers and faults.

A command is a list, its name first (`weft.cluster.session` has all of them). Commands that answer
nothing are gathered and go out in a frame together; a frame may end with one command that answers.
The worker does commands in order. After one that failed it does none until the client, which
raises the failure at its next call, says that it knows.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.remote.connection import WAIT, Answer, Connection
from weft.backends.remote.recording import Recording
from weft.backends.remote.streams import GATHERED, Stream
from weft.errors import DeviceError, LinkError, WeftError, warn
from weft.flags import FLAGS
from weft.graph.op_table import op_stamp
from weft.links import Address, Limits, Link, connect
from weft.links.ends import HANDSHAKE_S
from weft.links.link import HeldInterrupt

Bytes = NDArray[np.uint8]

_LEFT = threading.local()
"""The machine of each thread whose gathered commands were not sent yet."""


class Machine:
    """A connection to a worker; after a loss it is made again when memory is next allocated.

    All its methods may be called from any thread."""

    def __init__(
        self, address: tuple[str, int], key: bytes | None = None, *, timeout: float = HANDSHAKE_S
    ) -> None:
        """Connects. Raises LinkError, naming the address and what was wrong."""
        self.address = Address(*address)
        self.name = str(self.address)
        """The name of the machine in errors."""
        self._key, self._timeout = key, timeout
        self._lock = threading.RLock()
        self._pending: list[list[Any]] = []
        self._arrays: list[Bytes] = []
        self._gathered = 0
        self._ids = 0
        self._gone: deque[tuple[Connection, str, int]] = deque()
        self._now: Connection
        self.frames = 0
        """Frames that were sent so far."""
        self.recording: Recording | None = None
        """The times of runs, while they are recorded."""
        self.waits = 0
        """The number of round trips: how often this side waited for an answer."""
        self._connect()

    def _connect(self) -> None:
        limits = Limits(silence=float(max(FLAGS.machine_timeout, 1)))
        link = connect(
            self.address, key=self._key, timeout=self._timeout, facts=self.stamp(), limits=limits
        )
        self._now = Connection(link)
        self._pending, self._arrays, self._gathered = [], [], 0
        self._peers: dict[int, tuple[object, Stream | None]] = {}
        link.send({"hello": "client"})
        header, _ = link.receive(self._timeout)
        if "devices" not in header:
            link.close()
            raise LinkError(f"{self.name}: {header.get('e', 'it is not a worker')}")
        self.facts: dict[str, Any] = header
        """The worker's description of itself, its devices among it."""
        self._now.start(self.name, self)

    def stamp(self) -> dict[str, Any]:
        """The facts that both ends of a link to the worker must agree on."""
        return {"ops": op_stamp()}

    @property
    def key(self) -> bytes | None:
        """The key of its links."""
        return self._key

    @property
    def connection(self) -> object:
        """Stands for what the worker holds for this client: another one after a loss."""
        return self._now

    @property
    def link(self) -> Link:
        """The link of the present connection."""
        return self._now.link

    @property
    def is_lost(self) -> bool:
        """True if the worker was lost, and no memory was allocated since."""
        return bool(self._now.lost)

    def revive(self) -> None:
        """Connects again after a loss; raises LinkError."""
        with self._lock:
            if self._now.lost:
                self._connect()

    def lose(self, why: str) -> None:
        """Ends the connection: whoever waits for it gets an error that says why."""
        self._now.lose(why)

    def reset(self, why: str) -> None:
        """Ends the connection and makes a new one; the worker frees all it held for this one.
        Raises LinkError."""
        self.lose(why)
        self.revive()

    def new_id(self) -> int:
        """A number for a block, an executable or a stream."""
        with self._lock:
            self._ids += 1
            return self._ids

    def record(self, on: bool) -> None:
        """Starts recording times of runs, or stops it; calls nest. Waits for the worker."""
        with self._lock:
            now = self.recording
            if on and now is not None:
                now.users += 1
            elif on:
                self.recording = Recording(self)
            elif now is not None:
                now.users -= 1
                if not now.users:
                    self.recording = None
                    now.stop()

    # ---- commands --------------------------------------------------------------------------------

    def post(self, command: list[Any], *arrays: Bytes) -> None:
        """Does a command that answers nothing, some time soon; arrays must not change any more.

        Raises DeviceError where the worker is lost, or an earlier command has failed."""
        if command[0] == "write" and getattr(_LEFT, "machine", None) is self:
            self._go()
        with self._lock:
            self._check()
            self._pending.append(command)
            self._arrays += arrays
            self._gathered += sum(a.nbytes for a in arrays)
            if self._gathered >= GATHERED or len(self._pending) >= 512:
                self._send(None)

    def post_run(self, command: list[Any], enqueued: list[int]) -> None:
        """Does a run as `post` does, and adds its number to `enqueued` while times are recorded."""
        with self._lock:
            self.post(command)
            if self.recording is not None:
                enqueued.append(self.recording.enqueued())

    def stop(self, connection: object, program: int, first: int, last: int) -> None:
        """Stops runs `first` to `last` of a program, as they are numbered, at once: it overtakes
        what is gathered and what the worker has not done yet. Never waits for the worker, and does
        nothing where that is lost."""
        now = self._now
        if connection is now and not now.lost:
            with suppress(LinkError):
                now.link.send({"stop": [program, first, last]})

    def call(self, command: list[Any], *arrays: Bytes) -> tuple[Any, list[Any]]:
        """Does a command and waits for its answer: the result and arrays.

        Raises what failed there, or here, as a DeviceError."""
        return self.ask(command, *arrays)()

    def ask(self, command: list[Any], *arrays: Bytes) -> Callable[[], tuple[Any, list[Any]]]:
        """Sends a command, and returns a function that waits for its answer, as `call` does. What
        is sent before that function is called comes behind the command."""
        self.turn()
        with self._lock:
            self._check()
            self._pending.append(command)
            self._arrays += arrays
            answer = Answer()
            connection = self._now
            self._send(answer)
        if getattr(_LEFT, "machine", None) is self:
            _LEFT.machine = None
        return lambda: self._wait(connection, answer)

    def _wait(self, connection: Connection, answer: Answer) -> tuple[Any, list[Any]]:
        self.waits += 1
        if not answer.wait(WAIT):
            connection.lose(f"no answer came within {WAIT:g} s")
        if answer.error is not None:
            connection.told()
            raise self._named(answer.error)
        if connection.lost:
            raise self._is_lost(connection)
        return answer.result, answer.arrays

    def flush(self) -> None:
        """Sends what was gathered."""
        with self._lock:
            if self._pending:
                self._send(None)

    def turn(self) -> None:
        """Sends what this thread left gathered for another worker, as it now waits for this one, or
        has given it a run. Where that one is lost, whoever uses it next is told, not the caller."""
        left: Machine | None = getattr(_LEFT, "machine", None)
        if left is not None and left is not self:
            with suppress(DeviceError):
                left._go()

    def _go(self) -> None:
        _LEFT.machine = None
        self.flush()

    def leave(self) -> None:
        """Lets what is gathered wait until this thread turns elsewhere: a run is followed by the
        copies of its results, or by a read, which go in the same frame."""
        self.turn()
        _LEFT.machine = self

    def mark(self) -> Mark:
        """Sends the gathered commands, and returns the point at which all of them are done."""
        self.turn()
        with self._lock:
            self._check()
            return Mark(self, self._now, self._send(None, marks=True))

    def require(self, connection: Connection) -> None:
        """Raises the failure of a connection, unless it was raised before."""
        if connection.lost or connection.fault is not None:
            self._raise(connection)

    def reaches(self, source: Machine) -> bool:
        """Whether copies from another worker come straight to this one."""
        known = self._peers.get(id(source.connection))
        return known is not None and known[1] is not None

    def synchronize(self) -> None:
        """Waits until all commands are done; raises what failed."""
        if self._now.lost:
            raise self._is_lost(self._now)
        self.call(["nothing"])

    def forget(self, connection: object, what: str, number: int) -> None:
        """Frees a block or an executable of that connection with the next frame. Never waits, as
        it is called when an object is freed, anywhere."""
        if connection is self._now:
            self._gone.append((self._now, what, number))

    def sweep(self, connection: object) -> None:
        """Sends what was gathered and what was freed, if the connection is still in use."""
        if (self._gone or self._pending) and self._lock.acquire(blocking=False):
            try:
                if connection is self._now and not self._now.lost and self._now.has_room:
                    self._send(None)
            finally:
                self._lock.release()

    # ---- sending ---------------------------------------------------------------------------------

    def _check(self) -> None:
        """Raises a failure that was not raised yet."""
        connection = self._now
        if connection.lost:
            raise self._is_lost(connection)
        if connection.fault is not None:
            if self._pending:  # with halves of copies, which other workers wait for
                self._send(None)
            self._raise(connection)

    def _raise(self, connection: Connection) -> None:
        if connection.lost:
            raise self._is_lost(connection)
        fault = connection.told()
        if fault is not None:
            raise self._named(fault)

    def _named(self, error: WeftError) -> WeftError:
        text = str(error)
        return error if self.name in text else type(error)(f"{self.name}: {text}")

    def _is_lost(self, connection: Connection) -> DeviceError:
        why = connection.lost
        return DeviceError(why if self.name in why else f"{self.name}: {why}")

    def _send(self, answer: Answer | None, marks: bool = False) -> int:
        connection = self._now
        # what is gathered stays so while this waits, which Ctrl-C may end
        full = connection.make_room(connection.next, sum(a.nbytes for a in self._arrays))
        with HeldInterrupt():
            try:
                return self._send_now(connection, answer, marks or full)
            except BaseException as error:
                if not isinstance(error, DeviceError):  # halves of copies may be gone
                    connection.lose(f"{self.name}: a frame to it was broken off: {error!r}")
                raise

    def _send_now(self, connection: Connection, answer: Answer | None, marks: bool) -> int:
        commands, arrays = self._pending, self._arrays
        self._pending, self._arrays, self._gathered = [], [], 0
        while self._gone:
            owner, what, number = self._gone.popleft()
            if owner is connection:
                commands.insert(0, [what, number])
        n = connection.next
        connection.next += 1
        header: dict[str, Any] = {"n": n, "c": commands}
        if answer is not None:
            connection.answers[n] = answer
            header["a"] = 2
        elif marks or n % 16 == 0:
            header["a"] = 1
        if connection.clears:
            connection.clears = False
            header["clear"] = 1
        self.frames += 1
        try:
            connection.link.send(header, *arrays)
        except LinkError as error:
            connection.lose(str(error))
            if answer is None:
                raise self._is_lost(connection) from error
        return n

    # ---- copies from worker to worker ------------------------------------------------------------

    def stream_from(self, source: Machine) -> Stream | None:
        """The way of bytes from another worker straight to this one; None where that one cannot
        reach this one, and bytes have to go through this process."""
        with self._lock:
            now = source.connection
            known = self._peers.get(id(now))
            if known is None:
                known = self._peers[id(now)] = now, self._make_stream(source)
            return known[1]

    def leave_stream(self, stream: object) -> None:
        """Uses the stream no more: the next copy from its source makes another one."""
        with self._lock:
            for source, known in list(self._peers.items()):
                if known[1] is stream:
                    del self._peers[source]

    def _make_stream(self, source: Machine) -> Stream | None:
        import secrets

        secret = secrets.token_hex(16)
        number = self.new_id()
        self.call(["inlet", number, secret, source.name])
        host, port = self.address
        way, _ = source.call(["outlet", secret, host, port, self.name])
        if not way:
            warn(
                f"{source.name} does not reach {self.name}, though this machine reaches both: what "
                "goes from one to the other goes through here, which takes longer; look at the "
                "network and the firewall between them",
                RuntimeWarning,
            )
            return None
        return Stream(source, self, secret, number)


class Mark:
    """A point in the commands of a worker."""

    __slots__ = ("_connection", "_machine", "_number")

    def __init__(self, machine: Machine, connection: Connection, number: int) -> None:
        self._machine, self._connection, self._number = machine, connection, number

    @property
    def is_over(self) -> bool:
        """Whether all commands before it are done, or will never be."""
        now = self._connection
        return now.done >= self._number or bool(now.lost) or now.fault is not None

    def wait(self) -> None:
        """Blocks until then; raises the DeviceError of a command that failed."""
        with self._connection.changed:
            self._connection.changed.wait_for(lambda: self.is_over)
        self._machine.require(self._connection)


_MACHINES: weakref.WeakValueDictionary[tuple[str, int, bytes | None], Machine] = (
    weakref.WeakValueDictionary()
)
_MAKING = threading.Lock()


def machine_at(address: tuple[str, int], key: bytes | None = None) -> Machine:
    """The machine at an address: one connection for all devices and models of this process.

    Connects anew where it was lost. Raises LinkError."""
    name = (address[0], address[1], key)
    with _MAKING:
        machine = _MACHINES.get(name)
        if machine is None:
            machine = _MACHINES[name] = Machine(address, key)
        else:
            machine.revive()
        return machine
