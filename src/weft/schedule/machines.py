"""Several machines as one profile, whose devices are called `MACHINE/DEVICE`.

    profile = load_machines(["a.toml", "b.toml"], [parse_link("1Gbps,0.2ms")])

The first machine is the one that a person types at: it holds the input and gets the output, so its
cpu is the last device. The memories of the others are out of reach of its kernels. Between two
machines everything goes by their host memories; `[[link]]` tables between those memories say how
fast. A joined profile is written and read like any other (`weft-machine-1`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from weft.backends.base import Backend, IsMeasuredAs
from weft.backends.memory import in_host
from weft.errors import FormatError
from weft.records import dataclass
from weft.schedule.profile import DeviceProfile, LinkProfile, MemoryProfile, Profile, load_profile

DEFAULT_LINK = LinkProfile(bandwidth=117e6, latency=0.2e-3)
"""A gigabit network: 1 Gbit/s less the headers of TCP and Ethernet, 0.2 ms for a message."""

_LINK = re.compile(
    r"(?:(?P<a>[^=,]+):(?P<b>[^=,]+)=)?(?P<rate>[\d.]+)\s*(?P<unit>[A-Za-z/]+)"
    r"(?:,\s*(?P<delay>[\d.]+)\s*(?P<of>us|µs|ms|s))?$"
)
_RATES = {
    "kbps": 1e3 / 8, "mbps": 1e6 / 8, "gbps": 1e9 / 8, "kbit/s": 1e3 / 8, "mbit/s": 1e6 / 8,
    "gbit/s": 1e9 / 8, "kb/s": 1e3, "mb/s": 1e6, "gb/s": 1e9,
}  # fmt: skip
_DELAYS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0}
_LINK_ADVICE = "write e.g. 1Gbps,0.2ms, or a:b=10Gbps,50us for two machines"


@dataclass(frozen=True, slots=True)
class Between:
    """A link of two machines; without `a` and `b`, of all machines without one of their own."""

    link: LinkProfile
    a: str = ""
    b: str = ""


def machine_of(device: str) -> str:
    """The machine of a device or memory called `MACHINE/NAME`; empty for `NAME` of this machine."""
    return device.rpartition("/")[0]


def machines_of(profile: Profile) -> list[str]:
    """The machines of a profile; the first has the input and the output."""
    names = [machine_of(d.name) for d in profile.devices]
    return list(dict.fromkeys([names[-1], *names]))


def host_memories(profile: Profile) -> dict[str, str]:
    """Machine -> the memory of its last device, by which everything enters and leaves it."""
    return {machine_of(d.name): d.memory for d in profile.devices}


def parse_link(text: str) -> Between:
    """A link such as `1Gbps,0.2ms` (bits per second, seconds of a message), or `a:b=10GB/s`.

    Raises FormatError for any other text."""
    match = _LINK.match(text.strip())
    rate = 0.0
    if match is not None:
        try:
            rate = float(match["rate"]) * _RATES.get(match["unit"].lower(), 0.0)
            delay = float(match["delay"] or 0) * _DELAYS.get(match["of"] or "s", 0.0)
        except ValueError:
            rate = 0.0
    if match is None or rate <= 0:
        raise FormatError(f"{text!r} is not a link; {_LINK_ADVICE}")
    return Between(LinkProfile(rate, delay), match["a"] or "", match["b"] or "")


def link_text(link: LinkProfile) -> str:
    """A link in the form that `parse_link` reads."""
    rate = next(
        (f"{link.bandwidth * 8 / scale:.4g} {unit}bit/s"
         for scale, unit in ((1e9, "G"), (1e6, "M")) if link.bandwidth * 8 >= scale),
        f"{link.bandwidth * 8 / 1e3:.4g} kbit/s",
    )  # fmt: skip
    return f"{rate}, {link.latency * 1e3:.3g} ms"


def load_machines(sources: Sequence[str], links: Sequence[Between] = ()) -> Profile:
    """The machines of several profiles as one; they are called like their files.

    A single profile whose devices are of several machines already, as `weft calibrate --machines`
    writes it, is taken as it is, with `links` in place of its own. Raises FormatError naming the
    file, field or link at fault."""
    profiles: dict[str, Profile] = {}
    for source in sources:
        profile = load_profile(source)
        if len(machines_of(profile)) > 1:
            if len(sources) > 1:
                raise FormatError(
                    f"{source} has several machines already; give it alone, or profiles of single "
                    "machines"
                )
            return _with_links(profile, links)
        name = re.sub(r"[^\w.-]", "-", Path(source).stem) or "machine"
        number = sum(other.partition("#")[0] == name for other in profiles)
        profiles[name if not number else f"{name}#{number + 1}"] = profile
    return join_machines(profiles, links)


def join_machines(machines: Mapping[str, Profile], links: Sequence[Between] = ()) -> Profile:
    """One profile of several, by name; the first is where the input and output are.

    Machines that no link names are joined by the link without names, or by `DEFAULT_LINK`. Raises
    FormatError for a link that names no machine, and for fewer than two machines."""
    if len(machines) < 2:
        raise FormatError(
            f"one machine ({', '.join(machines)}) is no cluster; give two profiles or more, or "
            "plan for it with --machine"
        )
    memories: dict[str, MemoryProfile] = {}
    inner: dict[tuple[str, str], LinkProfile] = {}
    devices: list[DeviceProfile] = []
    first, *others = machines
    for name in (*others, first):
        profile = without_slow_helpers(machines[name])
        for memory in profile.memories.values():
            at = f"{name}/{memory.name}"
            memories[at] = replace(
                memory, name=at, host=memory.host and name == first,
                in_host=memory.in_host and name == first,
            )  # fmt: skip
        for device in profile.devices:
            devices.append(
                replace(
                    device,
                    name=f"{name}/{device.name}",
                    memory=f"{name}/{device.memory}",
                    reads=tuple(f"{name}/{m}" for m in device.reads),
                )
            )
        for (source, target), link in profile.links.items():
            inner[f"{name}/{source}", f"{name}/{target}"] = link
    joined = Profile(
        " + ".join(machines),
        tuple(devices),
        memories,
        inner,
        tuple(dict.fromkeys(s for p in machines.values() for s in p.sources)),
    )
    return _with_links(joined, links, DEFAULT_LINK)


def joined_here(
    own: Profile, others: Mapping[str, Profile], links: Mapping[tuple[str, str], LinkProfile]
) -> Profile:
    """One profile of this machine, whose devices keep their names, and of others by name.

    `links` join machines by their names (from, to); an empty name is this machine. Machines without
    a link reach each other by way of this machine."""
    first = "\0"  # no machine is called that
    machines = {first: own, **others}
    hosts = {name: machines[name].host_memory for name in machines}
    joined = join_machines(machines) if others else own
    memories: dict[str, MemoryProfile] = {}
    for memory in joined.memories.values():
        name = memory.name.removeprefix(f"{first}/")
        memories[name] = replace(memory, name=name)
    devices = tuple(
        replace(
            device,
            name=device.name.removeprefix(f"{first}/"),
            memory=device.memory.removeprefix(f"{first}/"),
            reads=tuple(m.removeprefix(f"{first}/") for m in device.reads),
        )
        for device in joined.devices
    )
    inner = {
        (a.removeprefix(f"{first}/"), b.removeprefix(f"{first}/")): link
        for (a, b), link in joined.links.items()
        if _within((a, b))
    }

    def end(name: str) -> str:
        return f"{name}/{hosts[name]}" if name else hosts[first]

    for (a, b), link in links.items():
        inner[end(a), end(b)] = link
    for a, b in itertools.permutations(others, 2):
        if (a, b) not in links:
            to, back = links[a, ""], links["", b]
            inner[end(a), end(b)] = LinkProfile(
                1 / (1 / to.bandwidth + 1 / back.bandwidth), to.latency + back.latency
            )
    name = " + ".join(["here", *others])
    return _with_links(Profile(name, devices, memories, inner, joined.sources), ())


def unmeasured(backends: Sequence[Backend]) -> Profile:
    """A profile of devices whose speeds are not known, for sizes alone; its times mean nothing."""
    memories: dict[str, MemoryProfile] = {}
    devices = []
    for backend in backends:
        own = backend.buffer_type
        memories[own.name] = MemoryProfile(own.name, own.is_host, in_host=in_host(own))
        name = backend.measured_as if isinstance(backend, IsMeasuredAs) else backend.name
        devices.append(DeviceProfile(name, backend.kind, own.name, 1.0, {"default": 1.0}))
    links = {pair: LinkProfile(1.0, 0.0) for pair in itertools.permutations(memories, 2)}
    return Profile("not measured", tuple(devices), memories, links)


def without_slow_helpers(profile: Profile) -> Profile:
    """The profile without devices that would only help its last one, in its memory, but are
    slower."""
    last = profile.devices[-1]
    rate = last.rate("MUL_MAT", True, "f32")
    devices = [
        d
        for d in profile.devices
        if d.kind != "ACCEL" or d.memory != last.memory or d.rate("MUL_MAT", True, "f32") >= rate
    ]
    return replace(profile, devices=tuple(devices))


def _with_links(
    profile: Profile, links: Sequence[Between], default: LinkProfile | None = None
) -> Profile:
    """The profile with links between its machines, and between all memories by way of them."""
    hosts = host_memories(profile)
    names = machines_of(profile)
    general = next((given.link for given in reversed(links) if not given.a), default)
    of_pair = {frozenset((given.a, given.b)): given.link for given in links if given.a}
    for pair in of_pair:
        unknown = [n for n in pair if n not in hosts]
        if unknown or len(pair) != 2:
            raise FormatError(
                f"a link is to be between {' and '.join(sorted(pair))}, but the machines are "
                f"{', '.join(names)}"
            )
    between = {pair: link for pair, link in profile.links.items() if _within(pair)}
    for a, b in itertools.permutations(names, 2):
        ends = hosts[a], hosts[b]
        link = of_pair.get(frozenset((a, b)), general) or profile.links.get(ends)
        if link is None:
            raise FormatError(
                f"machine profile {profile.name}: there is no [[link]] from {ends[0]} to "
                f"{ends[1]}; give one, or --link"
            )
        between[ends] = link
    for source, target in itertools.permutations(profile.memories, 2):
        a, b = machine_of(source), machine_of(target)
        if a == b or (source, target) in between:
            continue
        way = [source, hosts[a], hosts[b], target]
        parts = [between[p] for p in itertools.pairwise(way) if p[0] != p[1] and p in between]
        between[source, target] = LinkProfile(
            1 / sum(1 / p.bandwidth for p in parts), sum(p.latency for p in parts)
        )
    return replace(profile, links=between)


def _within(pair: tuple[str, str]) -> bool:
    return machine_of(pair[0]) == machine_of(pair[1])
