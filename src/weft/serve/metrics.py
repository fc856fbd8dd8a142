"""Counts of requests and engines, in Prometheus' text format, version 0.0.4.

Source of the format: https://prometheus.io/docs/instrumenting/exposition_formats/
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from weft.llm.engine import Engine, Histogram
from weft.llm.engine.stats import SECONDS

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Metric = tuple[str, str, str, float | Mapping[str, float]]
"""Name, type, meaning, and a value or a value for each reason."""
METHODS = frozenset(("GET", "POST", "DELETE", "OPTIONS", "HEAD", "PUT", "PATCH"))
OF_SERVER = "weft_http_"
"""Beginning of the metrics of requests, which the server counts and not its models."""
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})? (.*)")
_SUFFIX = re.compile(r"_(?:bucket|sum|count)$")


class HttpMetrics:
    """Counts requests by the path of their endpoint, so that the number of paths is bounded."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, int]] = Counter()
        """Number of requests by path, method and status; 499: the client left."""
        self.seconds: dict[str, Histogram] = {}
        """Times from the head of a request to the end of its answer, by path."""
        self.in_flight = 0
        self.n_asking = 0
        """Number of requests in flight that may compute, without lines of batches."""

    def add(self, path: str, method: str, status: int, seconds: float) -> None:
        """Counts a request that has ended."""
        self.counts[path, method if method in METHODS else "other", status] += 1
        if path not in self.seconds:
            self.seconds[path] = Histogram(SECONDS)
        self.seconds[path].add(seconds)

    def refuse(self, status: int) -> None:
        """Counts an answer to what no application sees, such as a head that is too large."""
        self.counts["other", "other", status] += 1

    def rows(self) -> Iterator[tuple[str, int]]:
        """The labels and the number of each kind of request."""
        for (path, method, status), n in sorted(self.counts.items()):
            yield f'path="{path}",method="{method}",status="{status}"', n


def exposition(engine: Engine | None, http: HttpMetrics) -> str:
    """All metrics as text, also under the names of llama.cpp's server; the metrics of requests
    alone for a server that only embeds, or for one in front of models."""
    lines = [*_http(http)]
    if engine is not None:
        lines += [*_histograms(engine), *metric_lines(_metrics(engine))]
        lines += metric_lines(_llama_metrics(engine), "llamacpp:")
    return "\n".join(lines) + "\n"


def metric_lines(metrics: Iterable[Metric], prefix: str = "weft_") -> Iterator[str]:
    """The lines of metrics whose names get a prefix."""
    for name, kind, meaning, value in metrics:
        yield f"# HELP {prefix}{name} {meaning}"
        yield f"# TYPE {prefix}{name} {kind}"
        if isinstance(value, Mapping):
            for reason, one in sorted(value.items()):
                yield f'{prefix}{name}{{reason="{reason}"}} {one:.10g}'
        else:
            yield f"{prefix}{name} {value:.10g}"


def joined(texts: Mapping[str, str], kind: str = "model") -> str:
    """The metrics of several models, by their names, as one text: every metric once, with a label
    `kind` in each line."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for model, text in texts.items():
        label = f'{kind}="{_escaped(model)}"'
        for row in text.splitlines():
            if OF_SERVER in row:
                continue
            if row.startswith("#"):
                name = row.split(" ")[2]
                if row not in heads.setdefault(name, []):
                    heads[name].append(row)
            elif match := _SAMPLE.fullmatch(row):
                name, labels, value = match[1], match[2], match[3]
                family = name if name in heads else _SUFFIX.sub("", name)
                both = f"{label},{labels}" if labels else label
                samples.setdefault(family, []).append(f"{name}{{{both}}} {value}")
    lines = [line for name, rows in samples.items() for line in (*heads.get(name, ()), *rows)]
    return "\n".join(lines) + "\n" if lines else ""


def _http(http: HttpMetrics) -> Iterator[str]:
    yield "# HELP weft_http_requests_total Requests by path of the endpoint, method and status."
    yield "# TYPE weft_http_requests_total counter"
    for labels, n in http.rows():
        yield f"weft_http_requests_total{{{labels}}} {n}"
    yield "# HELP weft_http_requests_in_flight Requests that have no whole answer yet."
    yield "# TYPE weft_http_requests_in_flight gauge"
    yield f"weft_http_requests_in_flight {http.in_flight}"
    yield "# HELP weft_http_request_seconds Time from a request to the end of its answer, by path."
    yield "# TYPE weft_http_request_seconds histogram"
    for path, histogram in sorted(http.seconds.items()):
        yield from _buckets("http_request_seconds", histogram, f'path="{path}",')


def _histograms(engine: Engine) -> Iterator[str]:
    s = engine.stats
    for name, meaning, histogram in (
        ("queue_seconds", "Time of texts from the request to their start.", s.queue_seconds),
        ("first_token_seconds", "Time from the request to the first token.", s.first_token_seconds),
        ("between_tokens_seconds", "Time from token to token.", s.between_tokens_seconds),
        ("text_seconds", "Time of texts from the request to their end.", s.text_seconds),
        ("text_prompt_tokens", "Prompt tokens of a text.", s.prompt_sizes),
        ("text_generated_tokens", "Generated tokens of a text.", s.text_sizes),
    ):
        yield f"# HELP weft_{name} {meaning}"
        yield f"# TYPE weft_{name} histogram"
        yield from _buckets(name, histogram)


def _buckets(name: str, histogram: Histogram, labels: str = "") -> Iterator[str]:
    total = 0
    for bound, total in histogram.cumulative():
        at_most = "+Inf" if bound == float("inf") else f"{bound:g}"
        yield f'weft_{name}_bucket{{{labels}le="{at_most}"}} {total}'
    shown = f"{{{labels[:-1]}}}" if labels else ""
    yield f"weft_{name}_sum{shown} {histogram.sum:.10g}"
    yield f"weft_{name}_count{shown} {total}"


def _metrics(engine: Engine) -> Iterator[Metric]:
    s, counters = engine.stats, engine.context.counters
    prompt_speed, speed = s.speeds()
    yield "requests_total", "counter", "Texts accepted.", s.accepted
    yield "requests_refused_total", "counter", "Texts refused at once.", s.refused
    yield "requests_late_total", "counter", "Texts that waited longer than they may.", s.late
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
    queue = engine.queue
    expected = queue.expected(engine.n_waiting)
    yield "queue_prompt_tokens", "gauge", "Prompt tokens of requests that wait.", queue.n_tokens
    yield "queue_longest_seconds", "gauge", "Time of the request that waits longest.", queue.longest
    yield "queue_expected_seconds", "gauge", "Expected wait of one more request.", expected
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


def _llama_metrics(engine: Engine) -> Iterator[Metric]:
    """The metrics that users of llama.cpp's server know."""
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


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
