"""`MachineGroup`: the workers that a context's layers are on, found again after a fault.

Workers come from a list of addresses, or from a cluster that starts them (`WorkerSource`). When a
device of the group fails, `recover` asks every worker for a sign of life, waits a bounded time
until lost ones are back, and leaves out those that are not.
"""

from __future__ import annotations

import threading
import time
import weakref
from collections import deque
from collections.abc import Sequence
from importlib import import_module
from typing import Any, Protocol

from weft.backends.remote.backend import RemoteBackend
from weft.backends.remote.machine import Machine, machine_at
from weft.errors import ArgumentError, DeviceError, LinkError, warn
from weft.flags import FLAGS
from weft.links.addresses import Address, parse_address
from weft.links.link import PROBE
from weft.links.speed import Speed, SpeedWatch, measure

_SIGN_OF_LIFE = 3.0
"""Seconds in which a worker answers a ping."""
WATCH_S = 10.0
"""Seconds between two looks at the speed of links."""
_RESETS = 3
"""Recoveries in a minute in which no worker was lost; one more and the error is the caller's."""
SOURCES = {"ray": "weft.cluster.ray_workers"}
"""Words that stand for workers which are started, and the modules with a function
`start(address, model_dirs)` that does so."""


class WorkerSource(Protocol):
    """A source of workers, which starts, watches and ends them."""

    key: bytes | None

    def addresses(self) -> Sequence[Address]:
        """The addresses of the workers, one per machine."""

    def again(self, worker: int, seconds: float) -> Address | None:
        """The address of worker number `worker` once it is back; None if it is not, in
        `seconds`."""

    def close(self) -> None:
        """Ends the workers."""


class _Fixed:
    """Workers that were started by hand, or by `weft worker`'s supervisor: they come back where
    they were."""

    def __init__(self, addresses: Sequence[Address], key: bytes | None) -> None:
        self._addresses = tuple(addresses)
        self.key = key

    def addresses(self) -> Sequence[Address]:
        return self._addresses

    def again(self, worker: int, seconds: float) -> Address | None:
        return self._addresses[worker]

    def close(self) -> None:
        return


def machine_group(
    value: Any, key: bytes | None = None, model_dirs: Sequence[str] = ()
) -> MachineGroup:
    """The group that the option `machines` means: a group, `ray`, `ray:ADDRESS`, or addresses.

    The same value is the same group, as long as that is used and nobody is missing. Workers that
    are started look for model files in `model_dirs`, too.

    Raises ArgumentError for anything else, LinkError where a worker cannot be reached."""
    if isinstance(value, MachineGroup):
        return value
    names = [value] if isinstance(value, str) else list(value)
    names = [part.strip() for name in names for part in str(name).split(",") if part.strip()]
    if not names:
        raise ArgumentError("machines names no worker; give HOST:PORT, ..., or ray")
    with _MAKING:
        found = _GROUPS.get((tuple(names), key))
        if found is None or not found.is_whole:
            found = _GROUPS[tuple(names), key] = _made(names, key, model_dirs)
        return found


_MAKING = threading.Lock()
_GROUPS: weakref.WeakValueDictionary[tuple[tuple[str, ...], bytes | None], MachineGroup] = (
    weakref.WeakValueDictionary()
)


def _made(names: Sequence[str], key: bytes | None, model_dirs: Sequence[str]) -> MachineGroup:
    word, _, rest = names[0].partition(":")
    if word in SOURCES and not rest.isdigit():
        if len(names) > 1:
            raise ArgumentError(f"machines is {names[0]!r}, which stands for all workers there are")
        source: WorkerSource = import_module(SOURCES[word]).start(rest or None, model_dirs)
        return MachineGroup(source)
    found = [parse_address(name, "machines", port=7333) for name in names]
    twice = next((at for at in found if found.count(at) > 1), None)
    if twice is not None:
        raise ArgumentError(f"machines names {twice} twice")
    return MachineGroup(_Fixed(found, key))


class MachineGroup:
    """The devices of several workers."""

    def __init__(self, source: WorkerSource) -> None:
        """Connects to all workers at once. Raises LinkError naming one that cannot be reached."""
        self._source = source
        self._lock = threading.Lock()
        self._resets: deque[float] = deque(maxlen=_RESETS)
        self._watches: dict[int, SpeedWatch] = {}
        self.serial = 0
        """A number that changes when devices were lost, and memory with them."""
        try:
            found = source.addresses()
            self._machines: list[Machine | None] = [machine_at(at, source.key) for at in found]
            self._names = _names(
                [machine.address for machine in self._there()], isinstance(source, _Fixed)
            )
            self._devices = self._made()
        except BaseException:
            source.close()
            raise
        self._closed = threading.Event()
        watching = threading.Thread(
            target=_watch, args=(weakref.ref(self), self._closed), name="weft-watch", daemon=True
        )
        weakref.finalize(self, self._closed.set).atexit = False
        watching.start()

    def _there(self) -> list[Machine]:
        return [machine for machine in self._machines if machine is not None]

    def _made(self) -> dict[int, list[RemoteBackend]]:
        return {i: self._devices_of(i) for i, m in enumerate(self._machines) if m is not None}

    def _devices_of(self, worker: int) -> list[RemoteBackend]:
        machine = self._machines[worker]
        assert machine is not None
        names = [str(facts["name"]) for facts in machine.facts["devices"]]
        return [RemoteBackend(machine, name, f"{self._names[worker]}/{name}") for name in names]

    def devices(self) -> list[RemoteBackend]:
        """The devices of the workers that are there, in the order in which these were named."""
        with self._lock:
            return [device for devices in self._devices.values() for device in devices]

    @property
    def machines(self) -> list[Machine]:
        """The workers that are there."""
        return self._there()

    @property
    def is_whole(self) -> bool:
        """Whether all workers are there that it began with."""
        return not self._closed.is_set() and None not in self._machines

    def recover(self, since: int, error: DeviceError, *, loading: bool = False) -> str:
        """After `error` in a context that was made at `serial` `since`: finds out who is lost, and
        waits for them. Returns what happened, in a sentence.

        All connections are made anew, which frees what the context had on machines that are there.
        Raises `error` where nobody is lost, and it happens again and again, or while loading."""
        with self._lock:
            if self.serial != since:
                return "another context has connected again"
            there = [(i, m) for i, m in enumerate(self._machines) if m is not None]
            lost = [i for i, machine in there if not _lives(machine)]
            if not lost:
                now = time.monotonic()
                often = len(self._resets) == _RESETS and now - self._resets[0] < 60.0
                if loading or often:
                    raise error
                self._resets.append(now)
            self.serial += 1
            said = []
            for i, machine in there:
                machine.lose("connecting again after an error")
                what = self._again(i)
                if i in lost or i not in self._devices:
                    said.append(what)
            return "; ".join(said) or "all machines are there; trying again"

    def _again(self, worker: int) -> str:
        """Connects to a lost worker again, or leaves it out."""
        machine, name = self._machines[worker], self._names[worker]
        until = time.monotonic() + max(FLAGS.machine_timeout, 1)
        why: str = "it was not started again"
        while (left := until - time.monotonic()) > 0:
            at = self._source.again(worker, left)
            if at is None:
                break
            try:
                if machine is not None and at == machine.address:
                    machine.revive()
                else:
                    self._machines[worker] = machine = machine_at(at, self._source.key)
                self._devices[worker] = self._devices_of(worker)
                return f"{name} is back"
            except DeviceError as error:
                why = str(error)
                if isinstance(error, LinkError) and "install the same" in why:
                    break
            time.sleep(0.1)
        self._machines[worker] = None
        self._devices.pop(worker, None)
        return f"going on without {name} ({why})"

    def close(self) -> None:
        """Ends the workers that were started for this group."""
        self._closed.set()
        self._source.close()

    def _look(self) -> list[str]:
        """Sentences about links that are slow."""
        said = []
        for worker, machine in enumerate(self._machines):
            if machine is None or machine.is_lost:
                continue
            watch = self._watches.get(worker)
            try:
                now = measure(machine.link, nbytes=PROBE if watch is None else watch.nbytes)
            except LinkError:
                continue
            if watch is None and now is not None:
                self._watches[worker] = SpeedWatch(self._names[worker], now)
            elif watch is not None and (text := watch.look(now)):
                said.append(text)
        return said

    def speeds(self) -> dict[str, Speed]:
        """The speed of each link when it was connected, by machine."""
        return {watch.name: watch.first for watch in self._watches.values()}


def _watch(group: weakref.ref[MachineGroup], closed: threading.Event) -> None:
    """Looks at the speed of links now and then, as long as the group is used."""
    pause = 0.05
    while not closed.wait(pause):
        there = group()
        if there is None:
            return
        for text in there._look():
            warn(text, RuntimeWarning)
        pause, there = WATCH_S, None


def _lives(machine: Machine) -> bool:
    """Whether a worker gives a sign of life; one that does not is disconnected."""
    if machine.is_lost:
        return False
    link, asked = machine.link, time.monotonic()
    try:
        link.ping()
    except LinkError as error:
        machine.lose(str(error))
        return False
    while time.monotonic() - asked < _SIGN_OF_LIFE:
        if machine.is_lost:
            return False
        if link.heard > asked:
            return True
        time.sleep(0.02)
    machine.lose(f"no sign of life in {_SIGN_OF_LIFE:g} s")
    return False


def _names(addresses: Sequence[Address], by_port: bool) -> list[str]:
    """A name for each: the host where no other has it, else host and port, or without `by_port`
    host and number, as ports of workers that a cluster starts are new each time."""
    hosts = [at.host for at in addresses]

    def name(i: int, at: Address) -> str:
        if hosts.count(at.host) == 1:
            return at.host
        number = hosts[: i + 1].count(at.host)
        return str(at) if by_port else at.host if number == 1 else f"{at.host}#{number}"

    return [name(i, at) for i, at in enumerate(addresses)]
