"""The stages, links and speeds of a plan over several machines as tables of text."""

from __future__ import annotations

from weft.llm.planning.stage_report import Load, StageReport
from weft.schedule.explain import seconds_text
from weft.tables import size_text, text_table

__all__ = ["load_text", "stage_lines"]

_UNKNOWN = (
    "speeds are not known: `weft calibrate` with the same machines and -o FILE measures them, and "
    "--speeds FILE predicts tokens per second from them"
)


def stage_lines(report: StageReport) -> list[str]:
    """The tables, with a title and an empty line before each."""
    return [
        "",
        "stages, as a token passes them",
        *_stages(report),
        "",
        "links, for one token of one text and for an ubatch of a prompt",
        *_links(report),
        "",
        *(["predicted, with a full cache", *_loads(report)] if report.has_times else [_UNKNOWN]),
    ]


def _if_timed(report: StageReport, text: str) -> tuple[str, ...]:
    """The text, where speeds are known."""
    return (text,) if report.has_times else ()


def _stages(report: StageReport) -> list[str]:
    numbers = ("weights", "cache", "compute", "all", "there", *_if_timed(report, "time per token"))
    rows = []
    for stage in report.stages:
        need = stage.memory
        sizes = [size_text(need[key]) for key in ("weights", "cache", "compute", "bytes")]
        there = "?" if need["room"] is None else size_text(need["room"])
        seconds = seconds_text(stage.token_seconds)
        held = stage.holds or "nothing"
        own = _if_timed(report, seconds)
        rows.append([stage.device, held, need["memory"], *sizes, there, *own])
    return text_table(("device", "holds", "memory", *numbers), rows, numbers)


def _links(report: StageReport) -> list[str]:
    numbers = (
        *("bytes per token", "copies"), *_if_timed(report, "time per token"), "bytes per ubatch",
    )  # fmt: skip
    rows = [
        [
            link.source or "here",
            link.target or "here",
            f"{link.token_bytes:,}",
            str(link.token_copies),
            *_if_timed(report, seconds_text(link.token_seconds)),
            f"{link.prompt_bytes:,}",
        ]
        for link in report.links
    ]
    return text_table(("from", "to", *numbers), rows, numbers)


def _loads(report: StageReport) -> list[str]:
    devices = [stage.device for stage in report.stages if stage.token_seconds]
    idle = [f"{device} idle" for device in devices]
    numbers = ("tokens/s", "a pass takes", "passes at a time", *idle)
    rows = [
        [
            load_text(load),
            f"{load.tokens_per_second:.4g}",
            seconds_text(load.seconds),
            str(load.in_flight),
            *(f"{load.idle.get(device, 1.0):.0%}" for device in devices),
        ]
        for load in report.loads
    ]
    return text_table(("load", *numbers), rows, numbers)


def load_text(load: Load) -> str:
    """A load in words, such as `pp512, one ubatch`."""
    n = load.n_tokens
    each = f" in {load.in_flight} groups of {n}" if load.kind == "tg" and load.in_flight > 1 else ""
    return f"pp{n}, {load.what}" if load.kind == "pp" else f"tg, {load.what}{each}"
