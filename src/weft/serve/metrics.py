"""The server's numbers in Prometheus' text format, version 0.0.4.

Source of the format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from weft.llm.engine import Engine

__all__ = ["CONTENT_TYPE", "exposition"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Metric = tuple[str, str, str, float | Mapping[str, float]]
"""Name, type, meaning, and a value or a value for each reason."""


def exposition(engine: Engine | None) -> str:
    """All metrics as text; none for a server that only embeds."""
    lines: list[str] = []
    for name, kind, meaning, value in _metrics(engine) if engine is not None else ():
        lines += [f"# HELP weft_{name} {meaning}", f"# TYPE weft_{name} {kind}"]
        if isinstance(value, Mapping):
            lines += [f'weft_{name}{{reason="{k}"}} {v:g}' for k, v in sorted(value.items())]
        else:
            lines.append(f"weft_{name} {value:.10g}")
    return "\n".join(lines) + "\n"


def _metrics(engine: Engine) -> Iterator[Metric]:
    s, counters = engine.stats, engine.context.counters
    prompt_speed, speed = s.speeds()
    yield "requests_total", "counter", "Texts accepted.", s.accepted
    yield "requests_refused_total", "counter", "Texts refused for a full queue.", s.refused
    yield "requests_ended_total", "counter", "Texts ended, by reason.", dict(s.ended)
    yield "prompt_tokens_total", "counter", "Prompt tokens computed.", s.prompt_tokens
    yield "reused_tokens_total", "counter", "Prompt tokens found in the cache.", s.reused_tokens
    yield "generated_tokens_total", "counter", "Tokens drawn.", s.generated_tokens
    yield "drafted_tokens_total", "counter", "Tokens drafted.", s.drafted_tokens
    yield "accepted_tokens_total", "counter", "Drafted tokens that were right.", s.accepted_tokens
    yield "steps_total", "counter", "Batches computed.", s.steps
    yield "step_seconds_total", "counter", "Time of all batches, sampling included.", s.step_seconds
    yield "running", "gauge", "Texts being written.", engine.n_running
    yield "queue", "gauge", "Requests that wait.", engine.n_waiting
    yield "prompt_chunk", "gauge", "Most prompt tokens beside texts.", engine.prompt_chunk
    yield "cells", "gauge", "Cells of the cache.", engine.context.n_ctx
    yield "cells_used", "gauge", "Cells that hold a token.", engine.context.cache.n_used
    yield "prompt_tokens_per_second", "gauge", "Over the last ten seconds.", prompt_speed
    yield "generated_tokens_per_second", "gauge", "Over the last ten seconds.", speed
    yield "graphs_built_total", "counter", "Graphs built.", counters.graphs_built
    yield "graphs_reused_total", "counter", "Runs of a graph.", counters.graphs_reused
    kept = engine.prefixes.use
    yield "prefix_bytes", "gauge", "Host memory of kept texts and checkpoints.", kept.nbytes
    yield "prefix_bytes_limit", "gauge", "Most bytes that they may take.", kept.most_bytes
    yield "kept_texts", "gauge", "Texts kept beside the cache.", kept.n_texts
    yield "checkpoints", "gauge", "States to which texts can go back.", kept.n_checkpoints
    yield "prefixes_evicted_total", "counter", "Texts and checkpoints gone.", kept.n_evicted
    yield "restored_texts_total", "counter", "Texts that came back.", kept.n_restored
    yield "restored_tokens_total", "counter", "Tokens of these.", kept.n_tokens_restored
    if engine.prefixes.files is not None:
        yield "prefix_files_written_total", "counter", "Texts written to files.", kept.n_written
        yield "prefix_files_read_total", "counter", "Texts read from files.", kept.n_read
        yield "prefix_files_refused_total", "counter", "Damaged files.", kept.n_refused
    experts = engine.context.plan.experts
    if experts is not None:
        e = experts.stats
        yield "experts_bytes", "gauge", "Memory for experts.", experts.nbytes
        yield "expert_hits_total", "counter", "Experts in memory when a step chose them.", e.hits
        yield "expert_misses_total", "counter", "Experts that a step waited for.", e.misses
        yield "expert_guesses_total", "counter", "Experts read by a prediction.", e.guesses
        yield "expert_guesses_hit_total", "counter", "Hits due to a prediction.", e.predicted
        yield "expert_read_bytes_total", "counter", "Bytes of experts read.", e.nbytes
        yield "expert_wait_seconds_total", "counter", "Time that steps waited.", e.waited
        yield "expert_hit_rate", "gauge", "Hits among all experts chosen, 0 to 1.", e.hit_rate
    fell_back = float(bool(engine.context.fell_back))
    yield "fallback", "gauge", "1 after a device failed and others replaced it.", fell_back
    yield "reallocs_total", "counter", "Times that memory had to grow.", counters.reallocs
