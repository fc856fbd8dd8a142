"""The figures of an importance matrix as lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from weft.llm.quality.imatrix import TensorStatistics, layer_statistics


def statistics_lines(rows: Sequence[TensorStatistics]) -> Iterator[str]:
    """A line for each tensor and each layer, in the columns of llama-imatrix."""
    yield (
        f"{'layer':>5} {'tensor':<20} {'total':>12} {'min':>9} {'max':>11} {'mean':>9} {'σ':>9} "
        f"{'active %':>9} {'N':>8} {'entropy':>9} {'of most %':>9} {'far %':>7} {'cosine':>7}"
    )
    for row in rows:
        layer = "-" if row.layer is None else str(row.layer)
        kind = row.name.removesuffix(".weight").rpartition(".")[2]
        yield (
            f"{layer:>5} {kind:<20} {row.total:>12.2f} {row.minimum:>9.4f} {row.maximum:>11.4f} "
            f"{row.mean:>9.4f} {row.deviation:>9.4f} {100 * row.active:>9.2f} {row.n:>8} "
            f"{row.entropy:>9.4f} {100 * row.entropy_share:>9.2f} {100 * row.far:>7.2f} "
            f"{row.cosine:>7.4f}"
        )
    yield ""
    yield f"{'layer':>5} {'total':>12} {'far %':>9} {'cosine':>7}"
    for layer_row in layer_statistics(rows):
        yield (
            f"{layer_row.layer:>5} {layer_row.total:>12.2f} {100 * layer_row.far:>9.4f} "
            f"{layer_row.cosine:>7.4f}"
        )
