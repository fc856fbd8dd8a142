"""Transcripts as text, as subtitles (SRT and WebVTT), as a table and as JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any

from weft.llm.audio.segments import Segment

__all__ = ["FORMATS", "as_data", "as_json", "clock", "lines", "segment_data"]

FORMATS = ("text", "srt", "vtt", "tsv", "json")


def clock(seconds: float, mark: str = ".") -> str:
    """A time as hours, minutes, seconds and, behind `mark`, milliseconds."""
    ms = max(round(seconds * 1000), 0)
    return f"{ms // 3_600_000:02}:{ms // 60_000 % 60:02}:{ms // 1000 % 60:02}{mark}{ms % 1000:03}"


def lines(segments: Iterable[Segment], form: str, *, times: bool = False) -> Iterator[str]:
    """The lines of a transcript in a format of `FORMATS` other than json, as segments come; with
    `times`, each line of text begins with the times of its segment."""
    if form == "vtt":
        yield "WEBVTT\n"
    elif form == "tsv":
        yield "start\tend\ttext"
    for number, segment in enumerate(segments, 1):
        text = segment.text.strip()
        if form == "srt":
            span = f"{clock(segment.start, ',')} --> {clock(segment.end, ',')}"
            yield f"{number}\n{span}\n{_shown(text)}\n"
        elif form == "vtt":
            yield f"{clock(segment.start)} --> {clock(segment.end)}\n{_shown(text)}\n"
        elif form == "tsv":
            start, end = (round(1000 * t) for t in (segment.start, segment.end))
            yield f"{start}\t{end}\t{' '.join(text.split())}"
        elif times:
            yield f"[{clock(segment.start)} --> {clock(segment.end)}]  {text}"
        else:
            yield text


def _shown(text: str) -> str:
    """Text without what subtitles give another meaning: the arrow, and empty lines."""
    return "\n".join(line for line in text.replace("-->", "->").splitlines() if line.strip())


def as_data(segments: Iterable[Segment], language: str) -> dict[str, Any]:
    """A transcript as data for JSON: its text, its segments and its language."""
    found = list(segments)
    return {
        "text": "".join(segment.text for segment in found).strip(),
        "segments": [segment_data(i, segment) for i, segment in enumerate(found)],
        "language": language,
    }


def segment_data(number: int, segment: Segment) -> dict[str, Any]:
    """A segment with its number, in the fields that the OpenAI API has."""
    return {
        "id": number,
        "seek": segment.seek,
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": list(segment.tokens),
        "temperature": segment.temperature,
        "avg_logprob": round(segment.avg_logprob, 6),
        "compression_ratio": round(segment.compression_ratio, 6),
        "no_speech_prob": round(segment.no_speech_prob, 6),
    }


def as_json(segments: Iterable[Segment], language: str) -> str:
    """A transcript as a line of JSON."""
    return json.dumps(as_data(segments, language), ensure_ascii=False)
