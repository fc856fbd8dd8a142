"""Describes a loaded model in a few lines: its size, its devices and why, and its memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from weft.backends.base import UsesThreads
from weft.cli.console import size_text
from weft.llm import Context
from weft.llm.cache.prefix_options import PrefixOptions
from weft.llm.planning.explain import prefix_text
from weft.llm.planning.plan import MemoryNeed
from weft.program import Program
from weft.schedule.cause import Cause, code_meaning
from weft.tables import count_text


def plan_lines(
    path: Path, context: Context, *, label: str = "", codes: bool = False
) -> Iterator[str]:
    """Yields the lines about a context and its model, each after `label`. With `codes`, causes have
    the codes of `weft explain`."""
    config = context.model.config
    yield (
        f"{label}{path.name}: {config.arch}, {config.n_layer} layers, {config.n_embd} wide, "
        f"{config.n_vocab} tokens; {context.n_ctx} of context"
    )
    for line in placement_lines(context.program, codes):
        yield label + line
    yield f"{label}memory: {memory_text(context)}"


def prefixes_line(context: Context, options: PrefixOptions) -> str:
    """A line about the prefixes that may be kept beside the cache, and where."""
    if not options.cache_ram or not context.model.config.causal:
        return "prefixes: no text is kept beside the cache"
    most, each = size_text(options.cache_ram), prefix_text(context.cache)
    folder = ""
    if options.cache_dir is not None:
        folder = f"; {size_text(options.cache_dir_size)} at most in {options.cache_dir}"
    return f"prefixes: {most} of host memory at most ({each}){folder}"


def memory_text(context: Context) -> str:
    """The size of each kind of buffer, per memory if there are several; repacked weights count as
    weights."""
    needs = [need for need in context.plan.needs() if need.total]
    scratch = f"scratch of the threads {size_text(context.memory.scratch)}"
    if len(needs) == 1:
        return f"{_need_text(needs[0])}, {scratch}"
    return "; ".join([*(f"{need.memory}: {_need_text(need)}" for need in needs), scratch])


def _need_text(need: MemoryNeed) -> str:
    sizes = {
        "weights": need.weights + sum(need.repacked.values()),
        "experts": need.experts,
        "cache": need.cache,
        "compute": need.compute,
        "copies": need.copies,
    }
    return ", ".join(f"{buffer} {size_text(size)}" for buffer, size in sizes.items() if size)


def placement_lines(program: Program, codes: bool = False) -> list[str]:
    """A line for each device: its splits and nodes, and why they are there. With `codes`, the codes
    of `weft explain` follow the words."""
    schedule = program.plan.schedule
    lines = []
    for index, backend in enumerate(schedule.backends):
        splits = [s for s in schedule.splits if s.backend == index]
        nodes = [n for s in splits for n in schedule.graph.nodes[s.start : s.end] if not n.is_view]
        if not nodes:
            lines.append(f"placement: {backend.name}: nothing")
            continue
        causes = Counter(schedule.cause_of[n] for n in nodes if n in schedule.cause_of)
        detail = ""
        if isinstance(backend, UsesThreads):
            detail = f" ({backend.target}, {threads_text(backend)})"
        steps = sum(len(program.splits[i].steps) for i, s in enumerate(schedule.splits)
                    if s.backend == index)  # fmt: skip
        ops = count_text(steps, "op")
        if len(schedule.backends) == 1:  # a single device needs no causes
            lines.append(f"placement: {backend.name}{detail}: all {ops}")
            continue
        count = count_text(len(splits), "split")
        lines.append(f"placement: {backend.name}{detail}: {count}, {ops}; {_why(causes, codes)}")
    return lines


def _why(causes: Counter[Cause], codes: bool) -> str:
    """The number of nodes for each cause of their placement."""
    if codes:
        return "; ".join(
            f"{n} because {code_meaning(cause.code)} ({cause.code})"
            for cause, n in causes.most_common()
        )
    words: Counter[str] = Counter()
    for cause, n in causes.items():
        words[cause.meaning] += n
    if len(words) == 1:  # the device may have fused some of its nodes, so that there are fewer ops
        return f"because {next(iter(words))}"
    return "; ".join(f"{n} because {what}" for what, n in words.most_common())


def threads_text(backend: UsesThreads) -> str:
    """The threads, such as `4 threads`, or `4/8 threads` for single tokens and for several."""
    counts = [n for n in dict.fromkeys((backend.n_threads, backend.n_threads_batch)) if n]
    return f"{'/'.join(map(str, counts))} thread{'' if counts == [1] else 's'}"
