"""`Profile`: how fast a machine's devices, memories and links are, as data.

A TOML file, written by hand from data sheets or by `weft calibrate`:

    format = "weft-machine-1"
    name = "a desktop"
    sources = ["where the figures are from"]

    [[memory]]
    name = "RAM"
    host = true                # the CPU's kernels can address it
    in_host = false            # a device's memory in the host's (absent: if an IGPU's)
    size = "64 GiB"            # bytes that plans may use; absent: unknown, no limit

    [[device]]                 # highest priority first, a CPU last
    name = "cpu"
    kind = "CPU"               # CPU, GPU, IGPU or ACCEL
    memory = "RAM"             # where its results live
    reads = []                 # other memories that its kernels read in place
    bandwidth = 80.0           # GB/s to and from memory
    launch = 1.0               # microseconds that an op costs beside its work
    start = 5.0                # microseconds to start a split
    threads = 8                # of its kernels, a CPU's: absent: as many as here
    gflops.default = 500.0     # matrix products, by type of the weight
    gflops.q4_0 = 700.0
    gflops.vector = 200.0      # everything else (absent: as `default`)
    op_gflops.FLASH_ATTN_EXT = 100.0   # an op that differs from its kind
    refuses = []               # ops that it does not run
    offload_from = 32          # least batch for which it asks for ops with host weights; 0: never

    [[link]]                   # between two memories, both ways unless one_way
    between = ["RAM", "VRAM"]
    bandwidth = 25.0           # GB/s
    latency = 10.0             # microseconds of each copy

GB are 10^9 bytes, GiB 2^30.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from typing import TYPE_CHECKING, get_args

from weft.backends.base import DeviceKind
from weft.dtype import DTYPES
from weft.errors import FormatError
from weft.files import read_text
from weft.graph.op import OPS
from weft.records import dataclass
from weft.schedule.profile_table import Table

if TYPE_CHECKING:
    from importlib.resources.abc import Traversable

FORMAT = "weft-machine-1"

_MOST_THREADS = 1024
_RATES = frozenset(("default", "vector", *DTYPES))
"""The names of `gflops`."""
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
          "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40,
          "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30, "TIB": 1 << 40}  # fmt: skip


@dataclass(frozen=True, slots=True)
class MemoryProfile:
    """A memory of the machine."""

    name: str
    host: bool
    size: int | None = None
    """Bytes that plans may use; None: no limit known."""
    alignment: int = 64
    max_block: int | None = None
    """Bytes of the largest single block; None: no limit."""
    in_host: bool = False
    """A device's memory that is a part of the host's, so that plans count both together."""


@dataclass(frozen=True, slots=True)
class DeviceProfile:
    """A device; units are bytes, seconds and operations per second."""

    name: str
    kind: DeviceKind
    memory: str
    bandwidth: float
    """Bytes per second between kernels and memory."""
    flops: Mapping[str, float]
    """Type of the weight -> operations per second of matrix products; `default`, `vector`."""
    launch: float = 0.0
    """Seconds that an op costs beside its work."""
    start: float = 0.0
    """Seconds to start a split."""
    op_flops: Mapping[str, float] = field(default_factory=dict)
    """Op -> operations per second, where it differs from its kind."""
    reads: tuple[str, ...] = ()
    """Other memories that kernels read in place."""
    refuses: tuple[str, ...] = ()
    offload_from: int | None = None
    """Least batch for which it takes ops whose weights are in host memory; 0: it takes none, None:
    that is not known."""
    threads: int | None = None
    """The number of threads of the kernels of a CPU; None: the default of the machine that
    plans."""

    def rate(self, op: str, is_product: bool, weight_type: str) -> float:
        """The operations per second of an op."""
        rate = self.op_flops.get(op)
        if rate is None and is_product:
            rate = self.flops.get(weight_type)
        elif rate is None:
            rate = self.flops.get("vector")
        return self.flops["default"] if rate is None else rate


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """The speed of copies from one memory to another."""

    bandwidth: float
    """Bytes per second."""
    latency: float
    """Seconds that each copy takes beside its bytes."""


@dataclass(frozen=True, slots=True)
class Profile:
    """The devices, memories and links of a machine."""

    name: str
    devices: tuple[DeviceProfile, ...]
    memories: Mapping[str, MemoryProfile]
    links: Mapping[tuple[str, str], LinkProfile]
    """Links by the names of the memories (from, to)."""
    sources: tuple[str, ...] = ()

    def device(self, name: str) -> DeviceProfile | None:
        """The device called `name`."""
        return next((d for d in self.devices if d.name == name), None)

    @property
    def host_memory(self) -> str:
        """The memory of the last device, a CPU."""
        return self.devices[-1].memory

    def link(self, source: str, target: str) -> LinkProfile:
        """The link from one memory to another, or both links by way of host memory as one.

        A copy within a memory runs at half the bandwidth of the last device that has it."""
        if source == target:
            owner = next(d for d in reversed(self.devices) if d.memory == source)
            return LinkProfile(owner.bandwidth / 2, 0.0)
        direct = self.links.get((source, target))
        if direct is not None:
            return direct
        first = self.links[source, self.host_memory]
        second = self.links[self.host_memory, target]
        return LinkProfile(
            1 / (1 / first.bandwidth + 1 / second.bandwidth), first.latency + second.latency
        )

    def to_toml(self) -> str:
        """The text that `load_profile` reads."""
        return "\n".join(_toml_lines(self)) + "\n"


def load_profile(source: str | os.PathLike[str]) -> Profile:
    """The profile in a TOML file, or a shipped one by its name (see `shipped_profiles`).

    Raises FormatError naming the file and the field at fault."""
    text = str(source)
    if text in shipped_profiles():
        shipped = _shipped() / f"{text}.toml"
        return parse_profile(shipped.read_text(), text)
    try:
        return parse_profile(read_text(text), text)
    except OSError as error:
        names = ", ".join(shipped_profiles())
        raise FormatError(
            f"machine profile {text}: {error.strerror or error}; give a file as `weft calibrate` "
            f"writes it, or one of {names}"
        ) from None
    except UnicodeDecodeError:
        raise FormatError(f"machine profile {text} is not text") from None


def shipped_profiles() -> list[str]:
    """Names of the profiles that come with weft."""
    names = (f.name for f in _shipped().iterdir())
    return sorted(name[: -len(".toml")] for name in names if name.endswith(".toml"))


def _shipped() -> Traversable:
    from importlib.resources import files  # most runs read no profile

    return files("weft.schedule") / "profiles"


def parse_size(text: str | int) -> int:
    """Bytes of `24 GiB`, `512M` (2^20), `1.5 GB` (10^9) or a plain number; raises FormatError."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    digits = str(text).strip().rstrip("BKMGTibkmgt ")
    unit = str(text).strip()[len(digits) :].strip().upper()
    try:
        size = int(float(digits) * _UNITS[unit])
    except (ValueError, KeyError, OverflowError):
        size = -1
    if size < 0:
        raise FormatError(f"{text!r} is not a size; write e.g. 24GiB, 512M or 1000000")
    return size


# ---- reading -------------------------------------------------------------------------------------


def parse_profile(text: str, where: str = "text") -> Profile:
    """The profile in TOML text, as `Profile.to_toml` writes it; `where` names the text in messages.

    Raises FormatError naming the field at fault."""
    import tomllib  # most runs read no profile

    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise FormatError(f"machine profile {where}: {error}") from None
    if data.get("format") != FORMAT:
        raise FormatError(f"machine profile {where}: format is not {FORMAT!r}")
    root = Table(where, "the file", data)
    memories, untold = _memories(root)
    devices = [_device(table, memories) for table in root.tables("device")]
    for name in untold.intersection(d.memory for d in devices if d.kind == "IGPU"):
        memories[name] = replace(memories[name], in_host=True)
    links = dict(pair for table in root.tables("link") for pair in _link(table, memories))
    profile = Profile(
        root.take("name", str, where),
        tuple(devices),
        memories,
        links,
        tuple(root.take("sources", list, [])),
    )
    root.end("format")
    _check(root, profile)
    return profile


def _memories(root: Table) -> tuple[dict[str, MemoryProfile], set[str]]:
    """The memories by name, and the names of those that do not say whether they are in the
    host's."""
    memories: dict[str, MemoryProfile] = {}
    untold: set[str] = set()
    for table in root.tables("memory"):
        size = table.take("size", (str, int), None)
        in_host = table.take("in_host", bool, None)
        memory = MemoryProfile(
            name=table.take("name", str),
            host=table.take("host", bool, False),
            size=None if size is None else parse_size(size),
            alignment=table.take("alignment", int, 64),
            max_block=None if (m := table.take("max_block", (str, int), None)) is None
            else parse_size(m),
            in_host=bool(in_host),
        )  # fmt: skip
        table.end()
        if memory.name in memories:
            table.fail(f"memory {memory.name!r} is listed twice")
        if memory.alignment < 1 or memory.alignment & (memory.alignment - 1):
            table.fail(f"alignment {memory.alignment} is not a power of two")
        memories[memory.name] = memory
        if in_host is None:
            untold.add(memory.name)
    return memories, untold


def _device(table: Table, memories: Mapping[str, MemoryProfile]) -> DeviceProfile:
    kind = table.take("kind", str)
    if kind not in get_args(DeviceKind):
        table.fail(f"kind {kind!r} is not one of {', '.join(get_args(DeviceKind))}")
    flops = table.rates("gflops", _RATES)
    if "default" not in flops:
        table.fail("gflops.default is missing")
    device = DeviceProfile(
        name=table.take("name", str),
        kind=kind,
        memory=table.take("memory", str),
        bandwidth=1e9 * table.number("bandwidth"),
        flops=flops,
        launch=1e-6 * table.number("launch", 0.0),
        start=1e-6 * table.number("start", 0.0),
        op_flops=table.rates("op_gflops", OPS),
        reads=table.names("reads"),
        refuses=table.names("refuses"),
        offload_from=table.take("offload_from", int, None),
        threads=table.take("threads", int, None),
    )
    if device.threads is not None and not 1 <= device.threads <= _MOST_THREADS:
        table.fail(f"threads is {device.threads}; it must be 1..{_MOST_THREADS}")
    table.end()
    for name in (device.memory, *device.reads):
        if name not in memories:
            table.fail(f"there is no memory {name!r}; there are {', '.join(memories) or 'none'}")
    return device


def _link(
    table: Table, memories: Mapping[str, MemoryProfile]
) -> list[tuple[tuple[str, str], LinkProfile]]:
    ends = table.names("between")
    if len(ends) != 2 or ends[0] == ends[1]:
        table.fail("'between' must name two memories")
    for name in ends:
        if name not in memories:
            table.fail(f"there is no memory {name!r}; there are {', '.join(memories) or 'none'}")
    link = LinkProfile(1e9 * table.number("bandwidth"), 1e-6 * table.number("latency", 0.0))
    pairs = [((ends[0], ends[1]), link)]
    if not table.take("one_way", bool, False):
        pairs.append(((ends[1], ends[0]), link))
    table.end()
    return pairs


def _check(root: Table, profile: Profile) -> None:
    """Raises FormatError where tables contradict one another."""
    names = [d.name for d in profile.devices]
    if not names or profile.devices[-1].kind != "CPU":
        root.fail("there must be at least one [[device]], and the last must be of kind CPU")
    if len(set(names)) != len(names):
        root.fail(f"a device is listed twice: {', '.join(names)}")
    host = profile.host_memory
    for device in profile.devices:
        for pair in ((host, device.memory), (device.memory, host)):
            if device.memory != host and pair not in profile.links:
                root.fail(f"there is no [[link]] from {pair[0]} to {pair[1]}")


# ---- writing -------------------------------------------------------------------------------------


def _toml_lines(profile: Profile) -> Iterator[str]:
    yield f'format = "{FORMAT}"'
    yield f"name = {_text(profile.name)}"
    yield f"sources = [{', '.join(map(_text, profile.sources))}]"
    for memory in profile.memories.values():
        yield ""
        yield "[[memory]]"
        yield f"name = {_text(memory.name)}"
        yield f"host = {str(memory.host).lower()}"
        yield f"in_host = {str(memory.in_host).lower()}"
        yield f"alignment = {memory.alignment}"
        if memory.size is not None:
            yield f"size = {memory.size}"
        if memory.max_block is not None:
            yield f"max_block = {memory.max_block}"
    for d in profile.devices:
        yield ""
        yield "[[device]]"
        yield f"name = {_text(d.name)}"
        yield f"kind = {_text(d.kind)}"
        yield f"memory = {_text(d.memory)}"
        yield f"reads = [{', '.join(map(_text, d.reads))}]"
        yield f"bandwidth = {_number(d.bandwidth / 1e9)}  # GB/s"
        yield f"launch = {_number(d.launch * 1e6)}  # microseconds of an op"
        yield f"start = {_number(d.start * 1e6)}  # microseconds of a split"
        for key, rates in (("gflops", d.flops), ("op_gflops", d.op_flops)):
            for name, rate in rates.items():
                yield f"{key}.{name} = {_number(rate / 1e9)}"
        yield f"refuses = [{', '.join(map(_text, d.refuses))}]"
        if d.threads is not None:
            yield f"threads = {d.threads}"
        if d.offload_from is not None:
            yield f"offload_from = {d.offload_from}" + ("" if d.offload_from else "  # never")
    for (source, target), link in profile.links.items():
        yield ""
        yield "[[link]]"
        yield f"between = [{_text(source)}, {_text(target)}]"
        yield "one_way = true"
        yield f"bandwidth = {_number(link.bandwidth / 1e9)}  # GB/s"
        yield f"latency = {_number(link.latency * 1e6)}  # microseconds of a copy"


def _text(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c >= " " else " " for c in escaped) + '"'


def _number(value: float) -> str:
    return f"{value:.6g}" if "e" in f"{value:.6g}" or "." in f"{value:.6g}" else f"{value:.6g}.0"
