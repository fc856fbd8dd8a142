"""Describes the plan of a context in words, for `weft explain` and `LLM.explain`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from html import escape
from typing import Any

from weft.compiler.layouts import choose_layouts
from weft.errors import ContextError
from weft.llm.cache.kv_cache import KVCache
from weft.llm.cache.prefix_options import PrefixOptions
from weft.llm.cache.snapshots import checkpoint_bytes, needs_checkpoints, row_sizes
from weft.llm.planning.plan import ContextPlan, RegimePlan
from weft.program import Program
from weft.schedule import schedule
from weft.schedule.cause import CHOSEN, OF_LAYER, OFFLOADED, PLANNED
from weft.schedule.explain import prediction_text, table_lines
from weft.tables import count_text, html_table, size_text, text_table

MEMORY_COLUMNS = ("buffer", "memory", "bytes", "size", "about")


def plan_for(plan: ContextPlan, tokens: int | None) -> RegimePlan:
    """The plan for batches of `tokens` tokens; None: for the largest batches.

    Raises ContextError for a number of tokens that no batch has."""
    largest = plan.regimes[-1]
    if tokens is None:
        return largest
    if not 1 <= tokens <= largest.max_tokens:
        raise ContextError(f"batches have 1 to {largest.max_tokens} tokens, not {tokens}")
    return next(r for r in plan.regimes if tokens <= r.max_tokens)


def placement_lines(
    plan: ContextPlan,
    *,
    tokens: int | None = None,
    width: int | None = None,
    nodes: bool = True,
    fold: bool = False,
    hint: str = "tokens={}",
) -> list[str]:
    """Describes the plan for batches of `tokens`: its splits, the device of each op and the cause
    (if `nodes` is true), and totals. With `fold`, layers that repeat are left out.

    Lines are broken at `width` characters. `hint` says how to see the plans of other batches; `{}`
    in it stands for their number of tokens."""
    regime = plan_for(plan, tokens)
    lines = table_lines(regime.plan.to_json(), width, nodes=nodes, in_short=True, fold=fold)
    lines += [_other_plan(other, hint) for other in plan.regimes if other is not regime]
    lines += offload_lines(plan, regime)
    if plan.predicted is not None and len(plan.regimes) > 1:
        lines.append(prediction_text(plan.predicted.to_json()))
    return lines + [f"{name} stays in host memory: {why}" for name, why in plan.homes.kept.items()]


def offload_lines(plan: ContextPlan, regime: RegimePlan) -> list[str]:
    """A sentence about ops that devices take although their weights are in host memory: splits,
    copies and bytes of a pass with them and without; none where no such op could move."""
    placed = regime.plan.schedule
    causes = set(placed.cause_of.values())
    if len(plan.backends) < 2 or not causes.isdisjoint((CHOSEN, PLANNED, OF_LAYER)):
        return []
    off = plan.op_offload.is_off
    if not off and not any(cause.rule == OFFLOADED.rule for cause in causes):
        return []
    other = schedule(regime.graph, plan.backends, op_offload=off)
    on = other if off else placed
    takers = Counter(
        plan.backends[on.backend_of[node]].name
        for node, cause in on.cause_of.items()
        if cause.rule == OFFLOADED.rule
    )
    if not takers:
        return ["op offload is off; on, no device would take an op whose weight is in host memory"]
    verb = "would take" if off else "takes"
    taken = " and ".join(f"{name} {verb} {n} ops" for name, n in takers.items())
    here, there = (_pass(one.to_json()["totals"]) for one in (placed, other))
    if off:
        return [f"op offload is off: {here}; on, {taken} whose weights are in host memory: {there}"]
    stay = 0
    if plan.options.repack:
        stay = len(choose_layouts([other]).keys() - plan.plan.layouts.keys())
    return [
        f"op offload {plan.op_offload}: {taken} whose weights are in host memory: {here}; off: "
        + there
        + (f"; {stay} weights that are sent stay as the file has them" if stay else "")
    ]


def _pass(totals: Mapping[str, int]) -> str:
    return f"{_counts(totals)}, {size_text(totals['copied_bytes'])} a pass"


def _counts(totals: Mapping[str, int]) -> str:
    splits, copies = totals["splits"], totals["copies"]
    return f"{count_text(splits, 'split')}, {count_text(copies, 'copy')}"


def memory_lines(
    plan: ContextPlan, scratch: int, prefixes: PrefixOptions | None = None
) -> list[str]:
    """A table of the bytes of every buffer; see `memory_rows`."""
    rows = memory_cells(memory_rows(plan, scratch, prefixes))
    return ["memory", *text_table(MEMORY_COLUMNS, rows, ("bytes", "size"))]


def memory_rows(
    plan: ContextPlan, scratch: int, prefixes: PrefixOptions | None = None
) -> list[dict[str, Any]]:
    """The memory of each kind of buffer: weights, caches, compute memory, the kernels' `scratch`,
    and with `prefixes` what is kept of texts beside the cache."""
    about = "of the kernels"
    rows = [
        *plan.memory_rows(),
        {"buffer": "scratch", "memory": "threads", "bytes": scratch, "about": about},
    ]
    keeps = plan.model.config.causal and not plan.options.embeddings
    if prefixes is not None and prefixes.cache_ram and keeps:
        about = f"at most, as texts leave the cache; {prefix_text(plan.cache)}"
        size = prefixes.cache_ram
        rows.append({"buffer": "prefixes", "memory": "host", "bytes": size, "about": about})
    return rows


def prefix_text(cache: KVCache) -> str:
    """The bytes of what is kept of a text beside the cache."""
    nbytes = 4 + sum(-(-size // per) for size, per in row_sizes(cache))
    token = f"{size_text(nbytes)} for each token of a text"
    if not needs_checkpoints(cache):
        return token
    return f"{size_text(checkpoint_bytes(cache, cache.size))} for each checkpoint, {token}"


def memory_cells(rows: list[dict[str, Any]]) -> list[list[str]]:
    """The cells of rows of memory as texts, in the order of `MEMORY_COLUMNS`."""
    return [
        [row["buffer"], row["memory"], f"{row['bytes']:,}", size_text(row["bytes"]), _about(row)]
        for row in rows
    ]


def html_of(plan: ContextPlan, scratch: int, program: Program, title: str) -> str:
    """A context as HTML for notebooks: its memory and the splits for the largest batches."""
    rows = memory_cells(memory_rows(plan, scratch))
    memory = html_table("memory", MEMORY_COLUMNS, rows, ("bytes", "size"))
    return f"<p>{escape(title)}</p>{memory}{program.html('Program')}"


def _other_plan(other: RegimePlan, hint: str) -> str:
    totals = other.plan.schedule.to_json()["totals"]
    tokens = count_text(other.max_tokens, "token")
    return (
        f"batches of up to {tokens} have another plan: {_counts(totals)} "
        f"({hint.format(other.max_tokens)} shows it)"
    )


def _about(row: dict[str, Any]) -> str:
    bound = row.get("lower_bound")
    if not bound:
        return str(row["about"])
    over = row["bytes"] / bound - 1
    text = f"lower bound {bound:,} B" + (f" (+{over:.1%})" if over else " (reached)")
    reference = row.get("ggml")
    if reference is None:
        return text
    return f"{text}; ggml's allocator takes {reference:,} B ({reference / row['bytes'] - 1:+.1%})"
