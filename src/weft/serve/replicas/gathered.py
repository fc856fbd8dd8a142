"""The metrics of all replicas in one text, and those of the server in front of them."""

from __future__ import annotations

from collections.abc import Iterator

from weft.cluster.routing import routed_counts
from weft.serve.http_metrics import HttpMetrics
from weft.serve.many.gathered import joined
from weft.serve.metrics import exposition
from weft.serve.replicas.replicas import Replicas

__all__ = ["gathered"]


async def gathered(replicas: Replicas, http: HttpMetrics) -> str:
    """All metrics as text; those of replicas have a label `replica` with its name."""
    of_replicas = joined(await replicas.metrics(), "replica")
    return exposition(None, http) + "\n".join(_own(replicas)) + "\n" + of_replicas


def _own(replicas: Replicas) -> Iterator[str]:
    options = replicas.replicas
    for name, kind, meaning, value in (
        ("replicas", "gauge", "Replicas that answer requests.", replicas.n_running),
        ("replicas_least", "gauge", "Replicas that are always there.", options.least),
        ("replicas_most", "gauge", "Most replicas.", options.most),
        ("replica_requests", "gauge", "Requests without a whole answer.", replicas.n_open),
        ("replica_retries_total", "counter", "Requests given to a second replica after the first "
         "one died.", replicas.n_retried),
    ):  # fmt: skip
        yield from (f"# HELP weft_{name} {meaning}", f"# TYPE weft_{name} {kind}")
        yield f"weft_{name} {value}"
    yield "# HELP weft_routed_total Requests by why they went to their replica."
    yield "# TYPE weft_routed_total counter"
    for why, n in routed_counts().items():
        yield f'weft_routed_total{{reason="{why}"}} {n}'
