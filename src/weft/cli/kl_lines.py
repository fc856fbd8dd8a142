"""The figures of `weft perplexity --kl` as lines, in the order of llama-perplexity."""

from __future__ import annotations

from collections.abc import Iterator

from weft.llm.quality.divergence import Estimate, KLDivergence, Spread

CHUNK_HEAD = (
    "chunk             PPL               ln(PPL/PPL base)          KL divergence"
    "              Δp RMS            Same top p"
)


def chunk_line(n_chunks: int, now: KLDivergence) -> str:
    """The figures after `n_chunks` chunks."""
    return (
        f"{n_chunks:4d}    {_pair(now.ppl, '9.4f')}    {_pair(now.ln_ppl_ratio, '10.5f')}"
        f"    {_pair(now.kl, '10.5f')}    {_per_cent(now.p_change_rms)}"
        f"    {_per_cent(now.same_top)}"
    )


def kl_lines(result: KLDivergence) -> Iterator[str]:
    """All figures, a line each."""
    yield "====== Perplexity ======"
    for name, estimate in (
        ("Mean PPL", result.ppl),
        ("Mean PPL base", result.ppl_base),
        ("Mean ln(PPL/PPL base)", result.ln_ppl_ratio),
        ("Mean PPL/PPL base", result.ppl_ratio),
        ("Mean PPL-PPL base", result.ppl_difference),
    ):
        yield f"{name:<24}: {_pair(estimate, '10.6f')}"
    yield f"{'Correlation of log p':<24}: {100 * result.correlation:6.2f} %"
    yield ""
    yield "====== KL divergence, nats ======"
    yield f"{'Mean':<8} KL: {_pair(result.kl, '10.6f')}"
    if result.kl_spread is not None:
        for name, value in _rows(result.kl_spread, (99.9, 99, 95, 90, 10, 5, 1, 0.1)):
            yield f"{name:<8} KL: {value:10.6f}"
    yield ""
    yield "====== Probability of the text's tokens ======"
    yield f"{'Mean':<8} Δp: {_per_cent(result.p_change)}"
    if result.p_change_spread is not None:
        some = (99.9, 99, 95, 90, 75, 25, 10, 5, 1, 0.1)
        for name, value in _rows(result.p_change_spread, some):
            yield f"{name:<8} Δp: {100 * value:6.3f} %"
    yield f"{'RMS':<8} Δp: {_per_cent(result.p_change_rms)}"
    yield f"Same top p : {_per_cent(result.same_top)}"


def _rows(spread: Spread, percents: tuple[float, ...]) -> Iterator[tuple[str, float]]:
    yield "Maximum", spread.maximum
    for upper in (True, False):
        for per in percents:
            if (per > 50) is upper:
                yield f"{per:.1f} %", spread.percentiles[per]
        if upper:
            yield "Median", spread.median
    yield "Minimum", spread.minimum


def _pair(estimate: Estimate, form: str) -> str:
    return f"{estimate.value:{form}} ± {estimate.error:{form}}"


def _per_cent(estimate: Estimate) -> str:
    return f"{100 * estimate.value:6.3f} ± {100 * estimate.error:6.3f} %"
