"""The options of the cpu device's threads: their number, processors, priority and waiting."""

from __future__ import annotations

from typing import get_args

from weft.backends.cpu import ThreadOptions
from weft.backends.cpu.threads import Numa, Priority, cpus_of_mask, cpus_of_range
from weft.cli.command import THREADS
from weft.cli.groups import Group
from weft.errors import DeviceError
from weft.llm.planning.options import LLM_OPTIONS
from weft.options import option


class ThreadFlags(Group):
    """The options of threads."""

    table = LLM_OPTIONS
    n_threads: int | None
    n_threads_batch: int | None
    cpu_mask: str | None = option(
        None, "Processors that threads run on, as a hex mask: 0x3.", "--cpu-mask -C", THREADS,
        metavar="HEX",
    )  # fmt: skip
    cpu_range: str | None = option(
        None, "The same as a range: 0-1.", "--cpu-range -Cr", THREADS, metavar="LOW-HIGH"
    )
    cpu_strict: bool = option(False, "One processor for each thread.", panel=THREADS)
    prio: str = option(
        "normal", "normal, medium, high or realtime; or 0 to 3.", panel=THREADS, metavar="NAME"
    )
    poll: int = option(
        50, "How long threads look for work before they sleep, 0 to 100.", panel=THREADS
    )
    numa: Numa | None = option(
        None, "How threads and memory use several memory nodes.", panel=THREADS
    )

    def thread_options(self) -> ThreadOptions:
        """Converts the options; raises DeviceError for an impossible value."""
        cpus: set[int] = set()
        if self.cpu_mask is not None and self.cpu_mask not in ("0", "0x0"):  # none chosen: all
            cpus.update(cpus_of_mask(self.cpu_mask))
        if self.cpu_range is not None:
            cpus.update(cpus_of_range(self.cpu_range))
        names: tuple[Priority, ...] = get_args(Priority)
        numbers = {str(i): name for i, name in enumerate(names)}
        priority = next((name for name in names if name == self.prio), numbers.get(self.prio))
        if priority is None:
            raise DeviceError(f"--prio is one of {', '.join(names)} or 0..3, got {self.prio!r}")
        n_threads, n_batch = (
            None if n == -1 else n for n in (self.n_threads, self.n_threads_batch)
        )
        return ThreadOptions(
            n_threads=n_threads, n_threads_batch=n_batch,
            cpus=tuple(sorted(cpus)) if cpus else None, strict=self.cpu_strict, priority=priority,
            poll=self.poll, numa=self.numa,
        )  # fmt: skip
