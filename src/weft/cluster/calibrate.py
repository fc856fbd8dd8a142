"""Measures the devices of workers, and the links between them, for `weft calibrate --machines`.

A worker measures its own devices, as `weft calibrate` would there, so that the time of messages is
in no figure. Links are measured by copies of the kind that stages make: pings between two workers'
memories, whose messages go straight from one to the other, and one large block each way.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from weft import graph as G
from weft.backends.base import Backend
from weft.backends.registry import make_backend
from weft.backends.remote.group import MachineGroup
from weft.backends.remote.machine import Machine
from weft.backends.remote.memory import RemoteMemory
from weft.compiler import compile
from weft.errors import LinkError, WeftError
from weft.execute.measure import measure_machine
from weft.execute.session import Session
from weft.links import Link, connect
from weft.schedule.machines import joined_here
from weft.schedule.profile import LinkProfile, Profile, parse_profile

Progress = Callable[[str], None]

_HELLO = "measure"
_PINGS = 16
"""Number of copies there and back in one measurement of a link's latency."""
_SMALL = 4096
_FIRST, _MOST = 256 << 10, 16 << 20
"""Number of bytes of the first and of the largest block that bandwidth is measured with; each block
has four times as many as the one before, until a copy takes long."""
_LONG = 0.05
_INPUTS, _WIDTH = 4, 256
"""Number of inputs of a split that is timed, and of floats in each, as a token has them."""
_SILENCE = 120.0
"""Maximum number of seconds in which a worker measures one figure."""


# ---- the worker's side ---------------------------------------------------------------------------


def answer_measure(
    link: Link, header: Mapping[str, Any], backends: Sequence[Backend], room: int | None
) -> None:
    """Measures the devices of this process for a client that asked with `hello: measure`.

    Sends a frame with `progress` before each figure and one with `profile`, TOML, at the end; ends
    early where the client is gone. `room` are the bytes that this machine may lend."""
    seconds = header.get("seconds")
    seconds = float(seconds) if isinstance(seconds, int | float) else 0.2
    limit = header.get("limit")
    profile = measure_machine(
        list(backends), min(max(seconds, 0.01), 60.0), lambda text: link.send({"progress": text}),
        float(limit) if isinstance(limit, int | float) else None,
    )  # fmt: skip
    memories = {
        name: replace(memory, size=room if memory.size is None else memory.size)
        for name, memory in profile.memories.items()
    }
    link.send({"profile": replace(profile, memories=memories).to_toml()})


# ---- the client's side ---------------------------------------------------------------------------


def measure_group(
    group: MachineGroup,
    here: Sequence[Backend],
    seconds: float,
    progress: Progress,
    limit: float | None = None,
) -> Profile:
    """The profile of the workers of a group and of the devices of this process, each figure
    measured for `seconds`, and none begun after `limit` seconds on a device (default:
    `measure.time_limit`).

    Workers measure one after the other, so that several on one machine do not disturb one another.
    Raises LinkError naming a worker that cannot be reached, WeftError for one that cannot
    measure."""
    machines = group.machines
    names = list(dict.fromkeys(d.name.rpartition("/")[0] for d in group.devices()))
    profiles: dict[str, Profile] = {}
    for name, machine in zip(names, machines, strict=True):
        profiles[name] = _measured_there(name, machine, seconds, progress, limit)
    own = measure_machine(list(here), seconds, progress, limit)
    own = _sized(own)
    blocks = {
        name: next(d for d in group.devices() if d.machine is machine).buffer_type
        for name, machine in zip(names, machines, strict=True)
    }
    links: dict[tuple[str, str], LinkProfile] = {}
    for i, (name, machine) in enumerate(zip(names, machines, strict=True)):
        progress(f"measuring the link to {name}")
        links["", name], links[name, ""] = measure_link_of(machine, blocks[name], seconds)
        profiles[name] = _with_messages(group, name, profiles[name], links["", name], seconds)
        for j in range(i):
            progress(f"measuring the link from {names[j]} to {name}")
            pair = measure_pair(blocks[names[j]], blocks[name], seconds)
            if pair is not None:
                links[names[j], name], links[name, names[j]] = pair
    return joined_here(own, profiles, links)


def _sized(profile: Profile) -> Profile:
    """The profile of this machine, whose host memory has what is free now."""
    from weft.free_memory import available_bytes

    free = available_bytes()
    memories = {
        name: replace(m, size=free if m.size is None and m.host else m.size)
        for name, m in profile.memories.items()
    }
    return replace(profile, memories=memories)


def _measured_there(
    name: str, machine: Machine, seconds: float, progress: Progress, limit: float | None
) -> Profile:
    link = connect(machine.address, key=machine.key, facts=machine.stamp())
    try:
        link.send({"hello": _HELLO, "seconds": seconds, "limit": limit})
        while True:
            header, _ = link.receive(_SILENCE + 20 * seconds)
            if "progress" in header:
                progress(f"{name}: {str(header['progress'])[:100]}")
            elif "profile" in header:
                return parse_profile(str(header["profile"]), f"of {name}")
            else:
                why = header.get("e", "it does not know the question")
                raise WeftError(f"{name} could not measure its devices: {str(why)[:500]}")
    except LinkError as error:
        raise LinkError(f"{error}; {name} was measuring its devices") from error
    finally:
        link.close()


def measure_link_of(
    machine: Machine, buffer_type: Any, seconds: float
) -> tuple[LinkProfile, LinkProfile]:
    """Measures copies from this process to a worker's memory, and back."""
    latency = _best(machine.synchronize, seconds) / 2
    n = _FIRST
    while True:
        data, block = np.zeros(n, np.uint8), buffer_type.allocate(n)

        def there(block: Any = block, data: Any = data) -> None:
            block.write(0, data)
            machine.synchronize()

        def back(block: Any = block, n: int = n) -> None:
            block.read(0, n)

        to, fro = _best(there, seconds), _best(back, seconds)
        if min(to, fro) >= _LONG or n >= _MOST:
            break
        n *= 4
    return _link(n, to - 2 * latency, latency), _link(n, fro - 2 * latency, latency)


def measure_pair(a: Any, b: Any, seconds: float) -> tuple[LinkProfile, LinkProfile] | None:
    """Measures copies from memory of one worker to memory of another, and back; None where they do
    not reach one another, so that bytes go through this process."""
    ends: tuple[RemoteMemory, RemoteMemory] = a.allocate(_SMALL), b.allocate(_SMALL)
    if not ends[1].copy_from(0, ends[0], 0, 64) or not ends[0].copy_from(0, ends[1], 0, 64):
        return None

    def pings() -> None:
        for _ in range(_PINGS):
            ends[1].copy_from(0, ends[0], 0, 64)
            ends[1].machine.flush()
            ends[0].copy_from(0, ends[1], 0, 64)
            ends[0].machine.flush()
        ends[1].machine.synchronize()
        ends[0].machine.synchronize()

    latency = _best(pings, seconds) / (2 * _PINGS)
    there = _rate(a, b, seconds)
    back = _rate(b, a, seconds)
    return LinkProfile(there, latency), LinkProfile(back, latency)


def _rate(a: Any, b: Any, seconds: float) -> float:
    n = _FIRST
    while True:
        source, target = a.allocate(n), b.allocate(n)

        def once(source: Any = source, target: Any = target, n: int = n) -> None:
            target.copy_from(0, source, 0, n)
            source.machine.flush()
            target.machine.synchronize()

        took = _best(once, seconds)
        if took >= _LONG or n >= _MOST:
            quick = _best(lambda: once(n=64), seconds)
            return _link(n, took - quick, 0.0).bandwidth
        n *= 4


def _with_messages(
    group: MachineGroup, name: str, profile: Profile, link: LinkProfile, seconds: float
) -> Profile:
    """The profile of a worker whose splits also cost what one takes of a message: to put it
    together, to take it apart, and to answer. The worker itself measures without messages."""
    devices = []
    for device in profile.devices:
        real = next(d for d in group.devices() if d.name == f"{name}/{device.name}")
        rest = measure_split(real, seconds) - 2 * link.latency - device.start - device.launch
        devices.append(replace(device, start=device.start + max(rest, 0.0)))
    return replace(profile, devices=tuple(devices))


def measure_split(device: Backend, seconds: float) -> float:
    """Number of seconds from sending the inputs of a split of one op to a worker's device until its
    result is here. The inputs have the size of a token's."""
    names = [f"x{i}" for i in range(_INPUTS)]
    total = functools.reduce(G.add, [G.input(name, (_WIDTH,), "f32") for name in names])
    graph = G.Graph(total.as_output("y"))
    work = {node: 0 for node in graph.nodes if not node.op.is_view}
    session = Session(compile(graph, [device, make_backend("cpu")], policy="plan", assign=work))
    for name in names:
        session.input_view(name)[:] = 0

    def once() -> None:
        session.execute({})
        session.output("y", {})

    return _best(once, seconds)


def _link(nbytes: int, seconds: float, latency: float) -> LinkProfile:
    return LinkProfile(nbytes / max(seconds, nbytes / 1e12), latency)


def _best(call: Callable[[], Any], seconds: float) -> float:
    call()
    best, end = float("inf"), time.perf_counter() + seconds
    while True:
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best
