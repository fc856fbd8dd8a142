"""A placement step by step in words: the table of letters after each sweep, and the story of single
tensors. The functions read the data of `weft.schedule.passes.Passes.to_dict`."""

from __future__ import annotations

import re
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from fnmatch import fnmatchcase
from itertools import pairwise
from typing import Any

from weft.errors import ScheduleError
from weft.schedule.explain import LEAST_FOLD, folded, node_key, seconds_text
from weft.schedule.parts import Candidate
from weft.tables import count_text, list_text

_Data = Mapping[str, Any]

_ROW = 64
"""Maximum number of letters in a line."""
_NAMES = 8
"""Number of names up to which all are listed."""
_SPLITS = 12
"""Number of splits up to which all are listed."""


def passes_lines(
    data: _Data,
    width: int | None = None,
    *,
    fold: bool = True,
    candidates: Sequence[Candidate] = (),
) -> list[str]:
    """Every step: the letter of each node that does work, the questions, and what has changed.

    With `fold`, equal layers are one line, and long lists are shortened. Lines longer than `width`
    are broken."""
    known = zip(data["devices"], data["letters"], strict=True)
    devices = ", ".join(f"{letter} {name}" for name, letter in known)
    work = [t for t in data["tensors"] if not t["leaf"] and not t["view"]]
    n_views = sum(t["view"] and not t["leaf"] for t in data["tensors"])
    views = f" ({n_views} views, which compute nothing, are left out)" if n_views else ""
    lines = _broken(
        f"A letter is a node, in order{views}: {devices}; ? has no device yet.", width, 0
    )
    rows = _rows(work, fold)
    where: dict[int, str] = {}
    shown: list[str] = []
    for step in data["steps"]:
        lines += ["", *_broken(step["title"], width, 0)]
        where |= {c["tensor"]: c["now"] for c in step["changes"]}
        now = [*_letters(data, rows, [t["id"] for t in work], where)]
        lines += now if now != shown else []
        shown = now
        lines += _questions(step, width)
        lines += _changes(data, step, width, fold)
        if step["pass"] == "cost":
            lines += candidate_lines(candidates, width)
        if step["pass"] == "5":
            lines += _splits(data, width, fold)
    return lines


def story_lines(data: _Data, glob: str, width: int | None = None) -> list[str]:
    """The story of the tensors whose names match `glob`: each question, each answer, each device
    and cause. Raises ScheduleError for a glob that matches nothing."""
    lines: list[str] = []
    for tensor in _chosen(data, glob):
        lines += ["", *_story(data, tensor, width)] if lines else _story(data, tensor, width)
    return lines


def only_about(data: dict[str, Any], glob: str) -> None:
    """Takes out of the steps what concerns no tensor whose name matches `glob`. Raises
    ScheduleError for a glob that matches nothing."""
    about = {tensor["id"] for tensor in _chosen(data, glob)}
    for step in data["steps"]:
        step["changes"] = [one for one in step["changes"] if one["tensor"] in about]
        step["questions"] = [
            one for one in step["questions"] if about & {one["tensor"], one["about"]}
        ]


def _chosen(data: _Data, glob: str) -> list[_Data]:
    """The tensors whose names match `glob`. Raises ScheduleError where there are none."""
    chosen = [t for t in data["tensors"] if fnmatchcase(t["name"], glob)]
    if not chosen:
        names = list(dict.fromkeys(t["name"] for t in data["tensors"]))
        lower = {name.lower(): name for name in names}
        near = [lower[name] for name in get_close_matches(glob.lower(), lower, 3)]
        hint = f"did you mean {' or '.join(near)}?" if near else f"some are {', '.join(names[:6])}"
        raise ScheduleError(f"the graph has no tensor whose name matches {glob!r}; {hint}")
    return chosen


# -- tables ----------------------------------------------------------------------------------------


def _rows(work: Sequence[_Data], fold: bool) -> list[tuple[int, int]]:
    """The nodes of each line: the first, and behind the last; a layer that repeats is a line."""
    same = {"why": "", "device": "", "refused": {}}
    keys = [node_key({"name": t["name"], "op": t["op"]} | same) for t in work]
    ends, place = {0, len(work)}, 0
    for _, more in folded(work, keys, LEAST_FOLD if fold else 0):
        if more:
            ends |= {place + more.period * k for k in range(-1, more.times + 1)}
        place += more.hidden if more else 1
    borders = sorted(ends)
    return [
        (begin, min(begin + _ROW, end))
        for start, end in pairwise(borders)
        for begin in range(start, end, _ROW)
    ]


def _letters(
    data: _Data, rows: Sequence[tuple[int, int]], work: Sequence[int], where: Mapping[int, str]
) -> Iterator[str]:
    """The lines of letters; lines that are equal to the one before are counted instead."""
    letters = dict(zip(data["devices"], data["letters"], strict=True))
    texts = ["".join(letters.get(where.get(i, ""), "?") for i in work[a:b]) for a, b in rows]
    if len(texts) == 1:
        yield f"  {texts[0]}"
        return
    place = 0
    while place < len(texts):
        same = place + 1
        while same < len(texts) and texts[same] == texts[place]:
            same += 1
        first = data["tensors"][work[rows[place][0]]]["node"]
        last = data["tensors"][work[rows[same - 1][1] - 1]]["node"]
        times = f"  {same - place} times, to node {last}" if same - place > 1 else ""
        yield f"  {first:>5}  {texts[place]}{times}"
        place = same


def _questions(step: _Data, width: int | None) -> Iterator[str]:
    """The number of answers to each question, by device."""
    asked: dict[str, Counter[tuple[str, bool]]] = {}
    for one in step["questions"]:
        asked.setdefault(one["device"], Counter())[one["question"], one["answer"]] += 1
    for device, counts in asked.items():
        questions = dict.fromkeys(question for question, _ in counts)
        texts = [
            f"{question}? " + list_text(f"{counts[question, a]} {word}" for a, word in
                                   ((True, "yes"), (False, "no")) if counts[question, a])
            for question in questions
        ]  # fmt: skip
        yield from _broken(f"  asked {device}: {'; '.join(texts)}", width, 4)


def _changes(data: _Data, step: _Data, width: int | None, fold: bool) -> Iterator[str]:
    """A line for each kind of change, with the names of its tensors."""
    kinds: dict[tuple[Any, ...], list[str]] = {}
    for one in step["changes"]:
        kind = (one["was"], one["now"], one["cause"], one["meaning"], one["over"])
        kinds.setdefault(kind, []).append(data["tensors"][one["tensor"]]["name"])
    if not kinds and step["pass"] not in "56":
        yield "  nothing changes"
    for kind, names in kinds.items():
        text = ", ".join(_shortened(names, fold))
        yield from _broken(f"  {_change(*kind)}: {text}", width, 4)


def _change(was: str | None, now: str, cause: str, meaning: str, over: str | None) -> str:
    move = now if was in (None, now) else f"{was} -> {now}"
    return f"{move} {cause} ({meaning}{f'; over {over}' if over else ''})"


def _shortened(names: Sequence[str], fold: bool) -> list[str]:
    """The names, of which those that differ in numbers alone are counted where there are many."""
    if len(names) <= _NAMES or not fold:
        return list(names)
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(re.sub(r"\d+", "#", name), []).append(name)
    texts = [same[0] if len(same) == 1 else _range(same) for same in alike.values()]
    more = len(texts) - 2 * _NAMES
    return texts if more < 2 else [*texts[: 2 * _NAMES], f"and {more} more kinds"]


def _range(names: Sequence[str]) -> str:
    """Names that differ in numbers alone, as `blk.0..29.attn_q.weight (30)`."""
    numbers = [tuple(map(int, re.findall(r"\d+", name))) for name in names]
    spans = [(min(column), max(column)) for column in zip(*numbers, strict=True)]
    ends = (f"{a}" if a == b else f"{a}..{b}" for a, b in spans)
    text = re.sub(r"\d+", lambda _: next(ends), names[0])
    return f"{text} ({len(names)})"


def candidate_lines(candidates: Iterable[Candidate], width: int | None = None) -> Iterator[str]:
    """Placements with their predicted times, a line for each."""
    for one in candidates:
        nodes = list_text(
            f"{count_text(n, 'node')} on {name}" for name, n in one.nodes.items() if n
        )
        parts = "" if one.prediction is None else "".join(
            f", {what} {seconds_text(seconds)}"
            for what, seconds in (
                ("computing", one.prediction.nodes),
                ("copies", one.prediction.copies),
                ("starts", one.prediction.splits),
            )
        )  # fmt: skip
        optimum = "; no placement is faster" if one.exact else ""
        mark = "taken" if one.taken else "tried"
        text = f"  {mark}: {one.how}: {seconds_text(one.seconds)}{parts}; {nodes}{optimum}"
        yield from _broken(text, width, 4)


def _splits(data: _Data, width: int | None, fold: bool) -> Iterator[str]:
    """The splits with the copies that they begin with."""
    splits = data["splits"]
    shown = len(splits) if not fold or len(splits) <= _SPLITS else _SPLITS // 2
    for number, split in enumerate(splits[:shown]):
        yield from _broken(f"  split {number}: {_split(data, split)}", width, 4)
    if shown < len(splits):
        yield f"  ... {len(splits) - shown} more splits (--nodes lists all)"
    readers: dict[int, list[str]] = {}
    for one in data["rewired"] if shown == len(splits) else ():
        readers.setdefault(one["copy"], []).append(data["tensors"][one["node"]]["name"])
    for number, names in readers.items():
        copy = data["copies"][number]
        of, text = data["tensors"][copy["of"]]["name"], ", ".join(_shortened(names, fold))
        yield from _broken(f"  {copy['name']} is read instead of {of} by {text}", width, 4)


def _split(data: _Data, split: _Data) -> str:
    first, last = split["start"], split["end"] - 1
    nodes = f"node {first}" if first == last else f"nodes {first}..{last}"
    inputs = ", ".join(data["tensors"][i]["name"] for i in split["inputs"])
    copies = f"; copies {inputs}" if inputs else ""
    return f"{split['device']}, {nodes if last >= first else 'no nodes'}: {split['why']}{copies}"


def _rewired(data: _Data, one: _Data) -> str:
    copy = data["copies"][one["copy"]]
    node, of = data["tensors"][one["node"]]["name"], data["tensors"][copy["of"]]["name"]
    return f"{node} reads {copy['name']} instead of {of} (source {one['source']})"


# -- stories ---------------------------------------------------------------------------------------


def _story(data: _Data, tensor: _Data, width: int | None) -> Iterator[str]:
    number = tensor["id"]
    what = "leaf" if tensor["leaf"] else tensor["op"]
    sources = [data["tensors"][i]["name"] for i in tensor["sources"] if i is not None]
    parts = [f"{tensor['name']}: {what} {tensor['type']}{tensor['shape']}"]
    if tensor["memory"] is not None:
        weight = "a weight " if tensor["weight"] else ""
        parts.append(f"{weight}in memory of type {tensor['memory']}")
    parts += [f"reads {list_text(sources)}"] if sources else []
    yield from _broken(", ".join(parts), width, 4)
    for step in data["steps"]:
        events = [*_events(data, step, number)]
        if step["pass"] == "5":
            events += _places(data, number)
        if events:
            yield f"  {_name(step)}"
        for event in events:
            yield from _broken(f"    {event}", width, 6)


def _name(step: _Data) -> str:
    """A step in short."""
    if step["pass"] in "12":
        return f"pass {step['pass']}, {step['sweep']}"
    names = {"0": "user assignments", "cost": "the search", "plan": f"the plan, {step['sweep']}"}
    return names.get(step["pass"], f"pass {step['pass']}")


def _events(data: _Data, step: _Data, number: int) -> Iterator[str]:
    for one in step["questions"]:
        if number in (one["tensor"], one["about"]):
            about = ""
            if one["about"] is not None:
                about = f", where {data['tensors'][one['about']]['name']} is"
            asks = ""
            if one["tensor"] != number:
                asks = f"for {data['tensors'][one['tensor']]['name']}: "
            answer = "yes" if one["answer"] else f"no, {one['reason']}"
            yield f"{asks}{one['device']} {one['question']}{about}? {answer}"
    for one in step["changes"]:
        if one["tensor"] == number:
            kind = (one["was"], one["now"], one["cause"], one["meaning"], one["over"])
            yield _change(*kind) if one["was"] not in (None, one["now"]) else f"-> {_change(*kind)}"


def _places(data: _Data, number: int) -> Iterator[str]:
    """Where pass 5 puts a tensor: its split, its copies, and the copies that it reads."""
    for i, split in enumerate(data["splits"]):
        if number in split["nodes"]:
            yield f"in split {i}: {_split(data, split)}"
        elif number in split["inputs"]:
            yield f"copied to {split['device']} before split {i}"
    for one in data["rewired"]:
        if one["node"] == number or data["copies"][one["copy"]]["of"] == number:
            yield _rewired(data, one)


def _broken(text: str, width: int | None, indent: int) -> list[str]:
    if width is None or len(text) <= width:
        return [text]
    first = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(
        text.lstrip(), width, initial_indent=first, subsequent_indent=" " * indent,
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip
