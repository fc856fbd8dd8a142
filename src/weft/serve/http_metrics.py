"""Counts of requests by path, method and status, and their times."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from weft.llm.engine import Histogram
from weft.llm.engine.stats import SECONDS

__all__ = ["HttpMetrics"]

METHODS = frozenset(("GET", "POST", "DELETE", "OPTIONS", "HEAD", "PUT", "PATCH"))


class HttpMetrics:
    """Counts requests. Paths are those of endpoints, so that there is a bounded number of them."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str, int]] = Counter()
        """Numbers of requests by path, method and status; 499: the client left."""
        self.seconds: dict[str, Histogram] = {}
        """Times from the head of a request to the end of its answer, by path."""
        self.in_flight = 0
        self.n_asking = 0
        """Requests in flight that may compute, those of batches left out."""

    def add(self, path: str, method: str, status: int, seconds: float) -> None:
        """Counts a request that has ended."""
        self.counts[path, method if method in METHODS else "other", status] += 1
        if path not in self.seconds:
            self.seconds[path] = Histogram(SECONDS)
        self.seconds[path].add(seconds)

    def rows(self) -> Iterator[tuple[str, int]]:
        """The labels and the number of each kind of request."""
        for (path, method, status), n in sorted(self.counts.items()):
            yield f'path="{path}",method="{method}",status="{status}"', n
