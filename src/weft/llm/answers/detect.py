"""Detects how a model writes calls, reasoning and content, by rendering its chat template with
made-up messages.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from functools import reduce

from weft.llm.answers.json_text import NoCallError, as_object, members
from weft.llm.answers.markers import HOLE, KNOWN, THOUGHTS, CallMarkers
from weft.llm.answers.probes import (
    ARGUMENTS,
    ID,
    NAMES,
    SAID,
    TAG,
    THOUGHT,
    VALUE,
    Probe,
    shared_end,
    shared_start,
)


def find_thought(probe: Probe) -> tuple[str, str] | None:
    """The texts around reasoning; None: the model writes none."""
    source = "\n".join(probe.template.sources.values())
    for pair in THOUGHTS:
        if pair[1] in source and any(p.rstrip().endswith(pair[0].strip()) for p in probe.prompts):
            return pair
    text = probe.thought()
    if text is not None:
        before, _, behind = text.partition(THOUGHT)
        known = next((pair for pair in THOUGHTS if before.rstrip().endswith(pair[0].strip())), None)
        if known is not None and known[1] in behind:
            return known
        opening = before.removeprefix(probe.head).strip()
        if opening == before.strip():
            opening = ""
        if not opening:
            tags = TAG.findall(before)
            opening = tags[-1] if tags and before.rstrip().endswith(tags[-1]) else ""
        closing = _closing(probe, behind)
        if opening and closing:
            return opening, closing
    return next((pair for pair in THOUGHTS if pair[1] in source), None)


def _closing(probe: Probe, behind: str) -> str:
    until = behind.partition(SAID)[0]
    content = find_content(probe)[0]
    if SAID in behind and content and until.rstrip().endswith(content.rstrip()):
        until = until.rstrip()[: -len(content.rstrip())]
        if until.strip():
            return until.strip()
    match = TAG.match(behind.lstrip())
    return match[0] if match else ""


def find_content(probe: Probe, thought: tuple[str, str] | None = None) -> tuple[str, str]:
    """The texts that a model writes around content, behind reasoning between the texts `thought`;
    empty where there is none."""
    text = probe.plain()
    if text is None or SAID not in text:
        return "", ""
    before, _, behind = text.partition(SAID)
    for opening, closing in (
        *THOUGHTS,
        *([thought] if thought else []),
    ):  # some templates write empty reasoning
        if closing in before:
            before = before.rpartition(closing)[2]
        before = before.replace(opening, "")
    if before.strip() and all(p.rstrip().endswith(before.rstrip()) for p in probe.prompts):
        before = ""
    called = probe.called(1, SAID) or ""
    if SAID in called:
        close = shared_start(behind, called.partition(SAID)[2]).strip()
    else:
        end = shared_end(behind, called)
        close = behind[: len(behind) - len(end)].strip() if called and end.strip() else ""
    return before.lstrip() if before.strip() else "", close


Found = tuple[CallMarkers | None, str]
"""The texts around calls, and the text between content and calls that belongs to neither."""


def find_markers(probe: Probe) -> Found:
    """None as the markers: the template does not support tools."""
    template = probe.template
    if not template.knows_tools and not template.reads("tool_calls"):
        return None, ""
    singles = [text for text in _singles(probe) if text is not None]
    for text in sorted(singles, key=len):
        markers = _shape(text)
        if markers is None:
            continue
        opening, closing = _around(singles, markers, probe)
        between = _between_content(probe, markers, opening)
        markers = replace(markers, open=opening, close=closing)
        several = probe.called(2, "") or probe.called(2, SAID)
        if several is not None and several.count(NAMES[1]):
            markers = _sections(markers, several, probe.head)
        if markers.open.strip() and probe.head.rstrip().endswith(markers.open.strip()):
            between = ""
        markers = _stripped(markers)
        if not markers.trigger and markers.kind == "object":
            return replace(markers, prefix="<|python_tag|>", separator=";"), between
        return markers, between
    source = "\n".join(template.sources.values())
    return next((markers for text, markers in KNOWN if text in source), None), ""


def _singles(probe: Probe) -> Iterator[str | None]:
    """Texts of one call, without content, with content, and with reasoning."""
    for thinks in (False, True):
        for content in ("", SAID):
            text = probe.called(1, content, thinks=thinks)
            if text is not None and NAMES[0] in text and "weft_key_b" in text:
                yield text


# ---- the form of a call ----


def _shape(text: str) -> CallMarkers | None:
    """The markers of a single call; all text before and behind it becomes `open` and `close`."""
    at, key = _named_at(text), text.find("weft_key_a")
    if at < 0 or VALUE not in text:
        return None
    for start, end in _objects(text):
        part = text[start:end]
        if NAMES[0] in part and "weft_key_a" in part:
            return _object_shape(text, start, end)
        if "weft_key_a" in part and at < start:
            after = text[at + len(NAMES[0]) : start]
            return CallMarkers("named", text[:at], text[end:], after_name=after)
    gap = text[at + len(NAMES[0]) : key]
    if gap == "(":
        end = text.find(")", text.find("7351"))
        return CallMarkers("python", text[:at], text[end + 1 :]) if end > 0 else None
    if gap == "{":
        quote = text[text.find(":", key) + 1 : text.find(VALUE)]
        end = text.find("}", text.find("7351"))
        return CallMarkers("loose", text[:at], text[end + 1 :], quote=quote) if quote else None
    return _elements_shape(text, at) or _tagged_shape(text, at)


def _named_at(text: str) -> int:
    """The last place of the tool's name in front of its arguments."""
    return text.rfind(NAMES[0], 0, text.find("weft_key_a"))


def _objects(text: str) -> Iterator[tuple[int, int]]:
    """Yields the spans of JSON objects in a text, outer ones first."""
    decoder = json.JSONDecoder()
    for match in re.finditer(r"\{", text):
        try:
            yield match.start(), decoder.raw_decode(text, match.start())[1]
        except (ValueError, RecursionError):
            continue


def _object_shape(text: str, start: int, end: int) -> CallMarkers | None:
    try:
        parts = {key: json.loads(part) for key, part in members(text[start:end]).items()}
    except NoCallError:
        return None
    if parts == {NAMES[0]: ARGUMENTS}:
        return CallMarkers("keyed", text[:start], text[end:])
    function = next((key for key, v in parts.items() if v == {"name": NAMES[0]}), None)
    name = next((key for key, v in parts.items() if v == NAMES[0]), None)
    arguments = next(
        (k for k, v in parts.items() if ARGUMENTS in (v, isinstance(v, str) and as_object(v))), None
    )
    if name is None or arguments is None or function is not None:
        return None
    keys = list(parts)
    identity = next((key for key in keys if "id" in key and key not in (name, arguments)), "")
    return CallMarkers(
        "object", text[:start], text[end:], name=name, arguments=arguments, identity=identity,
        identity_first=bool(identity) and keys.index(identity) < keys.index(name),
    )  # fmt: skip


def _elements_shape(text: str, at: int) -> CallMarkers | None:
    gap = text[at + len(NAMES[0]) :]
    match = re.match(rf"(.*?)<weft_key_a>{VALUE}(.*?)</weft_key_a>", gap, re.DOTALL)
    if match is None:
        return None
    mark = match[2]
    last = gap.rfind(f"{mark}</weft_key_b>") + len(f"{mark}</weft_key_b>")
    after = match[1].removesuffix(mark) if mark else match[1]
    return CallMarkers("elements", text[:at], gap[last:], after_name=after, quote=mark)


def _tagged_shape(text: str, at: int) -> CallMarkers | None:
    """The markers of arguments between tags: `NAME` after_name key_open `KEY` value_open `VALUE`
    value_close."""
    behind = text[at + len(NAMES[0]) :]
    parts = re.split(r"(weft_key_[ab]|weft value a|7351)", behind)
    if parts[1::2] != ["weft_key_a", VALUE, "weft_key_b", "7351"]:
        return None
    first, value_open, between, second_open, last = parts[::2]
    mark = ""
    if value_open != second_open:
        value_open, mark = _with_hole(value_open, second_open)
    if not value_open.strip():
        return None
    closed = len(shared_start(between, last))
    key_open = shared_end(first, between[closed:] or between)
    value_close = between[: len(between) - len(key_open)]
    if not key_open.strip() or not value_close.strip():
        return None
    return CallMarkers(
        "tagged", text[:at], last[len(value_close.rstrip()) :],
        after_name=first[: len(first) - len(key_open)].strip(), key_open=key_open.strip(),
        value_open=value_open.strip(), text_mark=mark, value_close=value_close.strip(),
        padding=value_open[len(value_open.rstrip()) :],
    )  # fmt: skip


def _with_hole(a: str, b: str) -> tuple[str, str]:
    """The text that both have, with a hole for the word that differs, and this word of `a`."""
    start = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), 0)
    while start and re.match(r"\w", a[start - 1]):
        start -= 1
    match = re.match(r"\w+", a[start:])
    other = re.match(r"\w+", b[start:])
    if match is None or other is None:
        return "", ""
    behind = a[start + match.end() :]
    if b[start + other.end() :] != behind:
        return "", ""
    return a[:start] + HOLE + behind, match[0]


# ---- the texts around calls ----


def _around(singles: list[str], markers: CallMarkers, probe: Probe) -> tuple[str, str]:
    """The texts before and behind a call that its turn always has: without content, reasoning and
    what ends the turn."""
    opening, closings = "", []
    for i, text in enumerate(singles):
        shape = _shape(text)
        if shape is None or shape.kind != markers.kind:
            continue
        before = shape.open.replace(NAMES[0], HOLE)
        if SAID not in shape.close:
            closings.append(shape.close)
        said = _behind_thought(before.rpartition(SAID)[2])
        opening = said if i == 0 else shared_end(opening, said)
    closing = reduce(shared_start, closings) if closings else ""
    plain = probe.plain() or ""
    closing = closing.rstrip()
    end = shared_end(plain.rpartition(SAID)[2].rstrip(), closing)
    return opening, closing[: len(closing) - len(end)]


def _behind_thought(text: str) -> str:
    """The text without the marks of reasoning at its beginning."""
    for pair in THOUGHTS:
        for mark in pair:
            text = text.rpartition(mark.strip())[2]
    return text


def _between_content(probe: Probe, markers: CallMarkers, opening: str) -> str:
    """The text between content and a call that belongs to neither."""
    text = probe.called(1, SAID)
    if text is None or not 0 <= text.find(SAID) < text.find(NAMES[0]):
        return ""
    shape = _shape(text)
    if shape is None or shape.kind != markers.kind:
        return ""
    before = shape.open.replace(NAMES[0], HOLE).rpartition(SAID)[2]
    return before[: len(before) - len(opening)].strip() if before.endswith(opening) else ""


def _sections(markers: CallMarkers, several: str, head: str) -> CallMarkers:
    """Splits `markers` into the texts around all calls and those around each call, by comparison
    with the text of two calls, `several`."""
    between = _between(markers, several)
    if between is None:
        return markers
    between = between.replace(NAMES[1], HOLE)
    if not markers.open.strip() and between.strip() and head.rstrip().endswith(between.strip()):
        return replace(markers, open=between)  # the prompt opens the first call
    markers = _numbered(markers, several)
    open_ = shared_end(markers.open, between)
    rest = between[: len(between) - len(open_)]
    close = shared_start(markers.close.rstrip(), rest)
    return replace(
        markers,
        section=markers.open[: len(markers.open) - len(open_)],
        open=open_,
        close=close,
        separator=rest[len(close) :],
        end=markers.close[len(close) :],
    )


def _numbered(markers: CallMarkers, several: str) -> CallMarkers:
    """Puts a hole where the text behind a name has a number that counts calls."""
    second = several.rfind(NAMES[1], 0, several.rfind("weft_key_a")) + len(NAMES[1])
    after = several[second : second + len(markers.after_name)]
    if after != markers.after_name:
        with_hole, _ = _with_hole(markers.after_name, after)
        return replace(markers, after_name=with_hole or markers.after_name)
    return markers


def _between(markers: CallMarkers, several: str) -> str | None:
    """The text between two calls, from the end of one to the beginning of the other."""
    second = several.rfind(NAMES[1], 0, several.rfind("weft_key_a"))
    first = several.rfind(NAMES[0], 0, several.find("weft_key_a"))
    if not 0 <= first < second:
        return None
    if markers.kind == "tagged":
        end = several.rfind(markers.value_close, first, second) + len(markers.value_close)
        return several[end:second]
    if markers.kind == "elements":
        last = f"{markers.quote}</weft_key_b>"
        return several[several.rfind(last, first, second) + len(last) : second]
    if markers.kind in ("python", "loose"):
        end = several.find(")" if markers.kind == "python" else "}", several.find("7351", first))
        return several[end + 1 : second]
    spans = [(start, end) for start, end in _objects(several) if "weft_key_a" in several[start:end]]
    if markers.kind in ("object", "keyed"):
        spans = [(s, e) for s, e in spans if any(name in several[s:e] for name in NAMES)]
        return several[spans[0][1] : spans[1][0]] if len(spans) == 2 else None
    ends = [end for start, end in spans if first < start and end <= second]
    return several[ends[0] : second] if ends else None


def _stripped(markers: CallMarkers) -> CallMarkers:
    names = ("open", "close", "section", "separator", "end", "after_name", "key_open",
             "value_open", "value_close")  # fmt: skip
    return replace(
        markers, **{name: getattr(markers, name).strip().replace(ID, HOLE) for name in names}
    )
