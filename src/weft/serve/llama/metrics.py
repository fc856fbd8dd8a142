"""The metrics that users of llama.cpp's server know, under their names."""

from __future__ import annotations

from collections.abc import Iterator

from weft.llm.engine import Engine

__all__ = ["llama_metrics"]


def llama_metrics(engine: Engine | None) -> str:
    """Lines for Prometheus; none for a server that only embeds."""
    if engine is None:
        return ""
    lines = []
    for name, kind, meaning, value in _metrics(engine):
        lines += [
            f"# HELP llamacpp:{name} {meaning}",
            f"# TYPE llamacpp:{name} {kind}",
            f"llamacpp:{name} {value:.10g}",
        ]
    return "\n".join(lines) + "\n"


def _metrics(engine: Engine) -> Iterator[tuple[str, str, str, float]]:
    s = engine.stats
    prompt, drawn = s.prompt_seconds, s.generation_seconds
    busy = s.ended.total() and s.generated_tokens / max(s.steps, 1)
    yield "prompt_tokens_total", "counter", "Prompt tokens computed.", s.prompt_tokens
    yield "prompt_seconds_total", "counter", "Time of prompts of ended texts.", prompt
    yield "tokens_predicted_total", "counter", "Tokens drawn.", s.generated_tokens
    yield "tokens_predicted_seconds_total", "counter", "Writing time of ended texts.", drawn
    yield "n_decode_total", "counter", "Batches computed.", s.steps
    yield "n_busy_slots_per_decode", "gauge", "Tokens drawn per batch.", busy
    speeds = (s.prompt_tokens / prompt if prompt else 0, s.generated_tokens / drawn if drawn else 0)
    yield "prompt_tokens_seconds", "gauge", "Prompt tokens per second, on average.", speeds[0]
    yield "predicted_tokens_seconds", "gauge", "Tokens drawn per second, on average.", speeds[1]
    yield "requests_processing", "gauge", "Texts being written.", engine.n_running
    yield "requests_deferred", "gauge", "Requests that wait.", engine.n_waiting
