"""`ThreadOptions`: the number of threads of the cpu device, their processors, and their way to
wait.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, get_args

from weft.control_group import processor_limit
from weft.errors import DeviceError
from weft.flags import FLAGS
from weft.native import _native
from weft.numa import MemoryPlacement, memory_nodes, node_of, use_placement
from weft.options import whole_number
from weft.records import dataclass

Priority = Literal["normal", "medium", "high", "realtime"]
Numa = Literal["distribute", "isolate", "numactl"]

_MOST = 1024


def default_threads() -> int:
    """The number of physical cores among the processors that this process may use; fewer where its
    control group grants the time of fewer processors."""
    cores = int(_native.usable_cores())
    return min(cores, processor_limit() or cores)


@dataclass(frozen=True, slots=True)
class ThreadOptions:
    """Threads of the cpu device. Every default suits a machine that runs nothing else.

    Raises DeviceError for a value out of range, naming it."""

    n_threads: int | None = None
    """Threads for single tokens, the caller's included (default: the physical cores that this
    process may use, at most the processors that its control group grants, or `WEFT_THREADS`)."""
    n_threads_batch: int | None = None
    """Threads for more tokens than one (default: `n_threads`)."""
    cpus: tuple[int, ...] | None = None
    """Numbers of the processors that threads may run on (default: the processors of the
    process)."""
    strict: bool = False
    """One processor per thread, in the order of `cpus`, instead of any of them for each."""
    priority: Priority = "normal"
    """The scheduling priority of threads; the system may refuse it, which is a warning."""
    poll: int = 50
    """The time that threads poll for work before they sleep, from 0 (none) to 100 (200 us)."""
    numa: Numa | None = None
    """The policy for several memory nodes: `distribute` threads, and pages of caches, compute
    memory and repacked weights, over all nodes; `isolate` both on the node of the caller; or run
    where `numactl` has put the process. Memory is the process's: the last device decides."""

    def __post_init__(self) -> None:
        for name in ("n_threads", "n_threads_batch"):
            if getattr(self, name) is None:
                continue
            value = whole_number(name, getattr(self, name), DeviceError)
            if not 1 <= value <= _MOST:
                raise DeviceError(f"must be 1..{_MOST}, got {value}", argument=name)
            object.__setattr__(self, name, value)
        if self.cpus is not None:
            cpus = tuple(whole_number("cpus", c, DeviceError) for c in self.cpus)
            object.__setattr__(self, "cpus", cpus)
            if not cpus or min(cpus) < 0:
                raise DeviceError(
                    f"must be processor numbers from 0, got {self.cpus}", argument="cpus"
                )
        if self.priority not in get_args(Priority):
            names = ", ".join(get_args(Priority))
            raise DeviceError(f"must be one of {names}, got {self.priority!r}", argument="priority")
        object.__setattr__(self, "poll", whole_number("poll", self.poll, DeviceError))
        if not 0 <= self.poll <= 100:
            raise DeviceError(f"must be 0..100, got {self.poll}", argument="poll")
        if self.numa is not None and self.numa not in get_args(Numa):
            names = ", ".join(get_args(Numa))
            raise DeviceError(f"must be one of {names}, got {self.numa!r}", argument="numa")
        if self.numa is not None and self.cpus is not None:
            raise DeviceError("chooses the processors; leave out `cpus`", argument="numa")

    def resolved(self) -> tuple[int, int]:
        """(threads for single tokens, threads for more), with defaults filled in.

        The default is at most the number of chosen processors."""
        single = self.n_threads
        if single is None:
            single = FLAGS.threads or default_threads()
            if self.cpus is not None:
                single = min(single, len(set(self.cpus)))
        return single, single if self.n_threads_batch is None else self.n_threads_batch

    def make_pool(self) -> tuple[_native.ThreadPool, list[str]]:
        """The pool, and a sentence for each setting that failed or has no effect on this machine.

        Raises DeviceError for processors that the process may not use."""
        n = max(self.resolved())
        usable = list(_native.usable_cpus())
        nodes = memory_nodes(usable)
        notes = []
        if self.numa is not None and len(nodes) == 1:
            notes.append(f"numa={self.numa} has no effect: this machine has one memory node")
        caller = int(_native.current_cpu())
        if self.numa is not None and len(nodes) > 1:
            notes += self._place_memory(nodes, node_of(caller, nodes))
        where = place(self, n, usable, list(nodes.values()), caller)
        priority = get_args(Priority).index(self.priority)
        pool = _native.ThreadPool(n, self.poll, priority, where)
        return pool, notes + list(pool.warnings)

    def _place_memory(self, nodes: Mapping[int, Sequence[int]], own: int) -> list[str]:
        """Places memory of the process like the threads; returns what the system refuses."""
        if self.numa == "numactl":
            use_placement(None)
            return []
        assert self.numa is not None
        chosen = MemoryPlacement(self.numa, (own,) if self.numa == "isolate" else tuple(nodes))
        refused = chosen.try_out()
        use_placement(None if refused else chosen)
        if not refused:
            return []
        return [f"numa={self.numa}: the system does not place memory ({refused}); it lies where it "
                "is first used"]  # fmt: skip


def place(
    options: ThreadOptions,
    n: int,
    usable: Sequence[int],
    nodes: Sequence[Sequence[int]],
    caller: int,
) -> list[list[int]]:
    """The processors of each of `n` threads; an empty list where they may run anywhere.

    `usable`: processors of the process; `nodes`: processors of each memory node; `caller`: the
    processor that the caller runs on. Raises DeviceError for others."""
    if options.cpus is not None:
        missing = sorted(set(options.cpus) - set(usable))
        if missing:
            raise DeviceError(
                f"processors {missing} are not among those this process may use: {list(usable)}"
            )
        groups = [list(dict.fromkeys(options.cpus))]
    elif options.numa in ("distribute", "isolate") and len(nodes) > 1:
        groups = [list(node) for node in nodes]
        if options.numa == "isolate":
            groups = [next((g for g in groups if caller in g), groups[0])]
    elif options.strict:
        groups = [list(usable)]
    else:
        return []
    return [_one(groups[i % len(groups)], i // len(groups), options.strict) for i in range(n)]


def _one(group: list[int], number: int, strict: bool) -> list[int]:
    """The processors of thread `number` of a group."""
    return [group[number % len(group)]] if strict else group


def cpus_of_mask(text: str) -> tuple[int, ...]:
    """Processors of a mask in hexadecimal, `0x5` or `5` -> (0, 2). Raises DeviceError."""
    try:
        mask = int(text, 16)
    except ValueError:
        mask = 0
    if mask <= 0:
        raise DeviceError(f"a mask of processors is hexadecimal and not 0, e.g. 0x3; got {text!r}")
    return tuple(i for i in range(mask.bit_length()) if mask >> i & 1)


def cpus_of_range(text: str) -> tuple[int, ...]:
    """Processors of a range, both ends included, `4-7` -> (4, 5, 6, 7). Raises DeviceError."""
    first, dash, last = text.partition("-")
    if not (dash and first.strip().isdigit() and last.strip().isdigit()):
        raise DeviceError(f"a range of processors is FIRST-LAST, e.g. 0-3; got {text!r}")
    low, high = int(first), int(last)
    if low > high or high > 8191:
        raise DeviceError(f"processors {text} are not a range from low to high, below 8192")
    return tuple(range(low, high + 1))
