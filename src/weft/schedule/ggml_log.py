"""Reads what ggml's scheduler and llama.cpp print as data that can stand beside a plan.

`GGML_SCHED_DEBUG=2` makes the scheduler print each graph that it splits (`## SPLIT #0: CPU # 0
inputs` and a line `node #` for each node, with its cause if ggml was built with causes), and 1 the
splits alone. llama.cpp prints the sizes of its buffers, the number of nodes and splits, and its
settings. Newer and older spellings are read, with or without times, colours and the prefixes of
services; every other line is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

from weft.bounds import LOG_BYTES, LOG_NODES
from weft.errors import FormatError
from weft.records import dataclass
from weft.schedule.cause import WEIGHT, code_meaning
from weft.schedule.describe import FORMAT
from weft.tables import CONTROLS

SOURCE = "ggml"
"""The value of the key `source` of data that comes from a log."""

_LONGEST = 1 << 16
"""Maximum number of characters of a line. Those of ggml have some hundred for each input."""
_NOISE = re.compile(r"\x1b\[[0-9;]*m|\b\d+\.\d\d\.\d{3}\.\d{3} [A-Z] ")
"""Colours, and the times before each piece of a line."""
_SPLIT = re.compile(r"## SPLIT #(\d{1,9}): (.{1,128}?) # \d{1,9} inputs?(.*)")
_INPUT = re.compile(r"\[(.{1,64}?) \( *(\d{1,20})([KM]?)\)\]")
_NODE = re.compile(
    r"node # *(\d{1,9}) \( *([^)]{0,10})\): *(.{0,64}?) \( *(\d{1,20})([KM]?)\) \[([^]]{10,15})\]"
    r"(?: use=[^:]{0,40})?:(.*)"
)
_SOURCE = re.compile(r" (.{1,64}?) \( *(\d{1,20})([KM]?)\) \[([^]]{10,15})\]")
_RESERVED = re.compile(
    r"reserving a graph for ubatch with n_tokens = *(\d{1,9})(?:.{0,40}n_outputs = *(\d{1,9}))?"
)
_BUFFER = re.compile(
    r"(?:^|: +)(\S{1,80}) +(model |KV |RS |output |compute )?buffer size = *(\d{1,12}\.\d\d) Mi?B"
)
_BUFFERS = {"": "weights", "model": "weights", "KV": "cache", "RS": "cache"}
"""Kind of buffer in the words of llama.cpp -> its kind in the words of a plan."""
_COUNTS = re.compile(
    r"graph (nodes|splits) += (\d{1,9})(?: \(with bs=\d{1,9}\), (\d{1,9}) \(with bs=1\))?"
)
_BOTH_COUNTS = re.compile(
    r"graph(?: \(pp[^)]{0,60}\))?: nodes = (\d{1,9})(?: / (\d{1,9}))?, "
    r"splits = (\d{1,9})(?: / (\d{1,9}))?"
)
_SETTINGS = (
    ("n_ctx", re.compile(r"\bn_ctx +(?:=|:) *(\d{1,9})$"), int),
    ("n_ubatch", re.compile(r"\bn_ubatch +(?:=|:) *(\d{1,9})$"), int),
    ("n_seq_max", re.compile(r"\bn_seq_max +(?:=|:) *(\d{1,9})$"), int),
    ("flash", re.compile(r"\bflash_attn +(?:=|:) *(enabled|disabled|0|1)$"),
     lambda value: value in ("enabled", "1")),
    ("type_k", re.compile(r"\bK \((\w{1,16})\): "), str),
    ("type_v", re.compile(r"\bV \((\w{1,16})\): "), str),
    ("n_gpu_layers", re.compile(r"\boffloaded (\d{1,9})/\d{1,9} layers to GPU"), int),
    ("file", re.compile(r"meta data .{0,80} from (.{1,4096}?) \(version"), str),
)  # fmt: skip
_DEVICE_CUT = 5
CUT = 20
"""Characters of a name in a line of a node; the scheduler cuts longer ones."""
_KINDS = {"CPU": "CPU", "BLAS": "ACCEL"}
_UNITS = {"K": 10, "M": 20, "": 20}


@dataclass(frozen=True, slots=True)
class LoggedGraph:
    """A graph that the scheduler printed: where its lines are, and what it was for."""

    start: int
    """Number of its first line in `GgmlLog.lines`; `end` is the line after its last one."""
    end: int
    tokens: int | None = None
    """Number of tokens of the batches that it was reserved for; None: a graph that ran, or the log
    does not say."""
    outputs: int | None = None
    """Number of rows of logits that it was reserved for."""
    widest: int = 0
    """Bytes of its widest tensor among the first ones, which tell large batches from small ones."""


@dataclass(slots=True)
class GgmlLog:
    """A log that has been looked through; `plan` reads one of its graphs."""

    lines: list[str]
    graphs: list[LoggedGraph] = field(default_factory=list)
    buffers: dict[tuple[str, str], int] = field(default_factory=dict)
    """(kind of a buffer in a plan's words, name of its memory) -> bytes, rounded to 0.01 MiB."""
    settings: dict[str, Any] = field(default_factory=dict)
    counts: dict[str, tuple[int, int]] = field(default_factory=dict)
    """`nodes` and `splits` as llama.cpp counts them: of the largest batches, and of one token."""
    shortened: bool = False
    """Whether only the first `LOG_BYTES` bytes were read."""

    def main(self) -> int | None:
        """The number of the graph for the largest batches that was reserved last, from 0; None:
        the log has no graph."""
        return self._last(max)

    def smallest(self) -> int | None:
        """The number of the graph for single tokens that was reserved last."""
        number = self._last(min)
        return None if number is None or self.graphs[number].tokens != 1 else number

    def _last(self, which: Any) -> int | None:
        reserved = any(graph.tokens is not None for graph in self.graphs)
        sizes = [
            (graph.tokens if reserved else graph.widest, i)
            for i, graph in enumerate(self.graphs)
            if graph.tokens is not None or not reserved
        ]
        best = which((size for size, _ in sizes), default=None)
        return max((i for size, i in sizes if size == best), default=None)

    def about(self, number: int) -> str:
        """Describes graph `number` in a few words."""
        tokens = self.graphs[number].tokens
        what = "" if tokens is None else f", reserved for {tokens:,} token{'s' * (tokens != 1)}"
        return f"graph {number + 1} of {len(self.graphs)}{what}"

    def plan(self, number: int | None) -> dict[str, Any]:
        """A graph, the buffers and the settings with the keys of a plan; see
        `weft.schedule.describe.to_json`.

        Sizes are at least what they say: an input has its `bytes` rounded down, and `rounded` bytes
        to which they were rounded. Raises FormatError for a number that no graph has."""
        if number is not None and not 0 <= number < len(self.graphs):
            raise FormatError(
                f"the log has {len(self.graphs)} graphs, so none is number {number + 1}"
            )
        graph = None if number is None else self.graphs[number]
        splits = [] if graph is None else self._splits(graph)
        settings = dict(self.settings)
        if graph is not None and graph.outputs is not None:
            settings["n_outputs"] = graph.outputs
        devices = dict.fromkeys(split["device"] for split in splits)
        for _, memory in self.buffers:  # also of devices that have no split
            devices[device_of(memory, devices)] = None
        inputs = [row for split in splits for row in split["inputs"]]
        totals = {
            "splits": len(splits),
            "nodes": sum(len(split["nodes"]) for split in splits),
            "copies": len(inputs),
            "copied_bytes": sum(row["bytes"] for row in inputs),
        }
        file = re.split(r"[/\\]", settings.pop("file", ""))[-1]
        return {
            "format": FORMAT,
            "source": SOURCE,
            "devices": [
                {"name": name, "kind": _KINDS.get(name, "GPU"), "memory": name} for name in devices
            ],
            "splits": splits,
            "totals": totals,
            "counts": self.counts,
            "max_tokens": None if graph is None else graph.tokens or settings.get("n_ubatch"),
            "model": {"file": file},
            "n_gpu_layers": settings.pop("n_gpu_layers", ""),
            "options": settings,
            "memory": [
                {"buffer": buffer, "memory": memory, "bytes": size, "rounded": 10486}
                for (buffer, memory), size in self.buffers.items()
            ],
        }

    def _splits(self, graph: LoggedGraph) -> list[dict[str, Any]]:
        splits: list[dict[str, Any]] = []
        places: dict[str, str] = {}  # cut name -> cut name of the device, so far
        whole: dict[str, str] = {}  # cut name of a device -> its name
        n_nodes = 0
        for line in self.lines[graph.start : graph.end]:
            if (found := _SPLIT.search(line)) is not None:
                device = found[2]
                inputs = [
                    {"name": name, "from": places.get(name[:CUT], "")} | _size(number, unit)
                    for name, number, unit in _INPUT.findall(found[3])
                ]
                splits.append({"device": device, "inputs": inputs, "nodes": []})
                whole.setdefault(device[:_DEVICE_CUT], device)
            elif (found := _NODE.search(line)) is not None:
                n_nodes += 1
                if n_nodes > LOG_NODES:
                    raise FormatError(f"a graph of the log has more than {LOG_NODES:,} nodes")
                device, cause = _place(found[6])
                if not splits:  # the log begins within the graph
                    splits.append({"device": device, "inputs": [], "nodes": []})
                sources = [(name.strip(), _place(where)[0]) for name, _, _, where in
                           _SOURCE.findall(found[7])]  # fmt: skip
                places |= {name: place for name, place in sources if place != "NULL"}
                places[found[3]] = device
                splits[-1]["nodes"].append(
                    {
                        "index": int(found[1]), "name": found[3], "op": found[2],
                        "device": splits[-1]["device"], "cause": cause, "refused": {},
                        "why": _meaning(cause, [name for name, _ in sources]),
                    }
                )  # fmt: skip
        start = 0
        for number, split in enumerate(splits):
            for row in split["inputs"]:
                place = whole.get(row["from"], row["from"])
                row["from"] = "" if place == split["device"] else place
            end = start + len(split["nodes"])
            split |= {"split": number, "start": start, "end": end}
            start = end
        return splits


def device_of(memory: str, devices: Iterable[str]) -> str:
    """The device of a memory such as CUDA0_Split or CPU_Mapped. Pinned memory of the host, such as
    CUDA_Host, belongs to the processor."""
    if memory.endswith("_Host"):
        return "CPU"
    fitting = [name for name in devices if memory.startswith(name)]
    return max(fitting, key=len, default=memory.partition("_")[0])


def encoding_of(data: bytes) -> str:
    """The encoding of a text, by its first bytes; PowerShell writes UTF-16."""
    return "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"


def read_log(data: bytes) -> GgmlLog:
    """Looks through a log. Raises FormatError for data without any line of ggml or llama.cpp.

    Bytes beyond the first `LOG_BYTES` are not read: graphs are reserved at the beginning."""
    shortened = len(data) > LOG_BYTES
    data = data[:LOG_BYTES]
    text = data.decode(encoding_of(data), "replace")
    lines = [line and _clean(line) for line in text.replace("\r\n", "\n").split("\n")]
    log = GgmlLog(lines, shortened=shortened)
    starts: list[tuple[int, int | None, int | None]] = []
    tokens = outputs = None
    split = node = -1
    for number, line in enumerate(lines):
        if "## SPLIT #" in line and (found := _SPLIT.search(line)) is not None:
            if int(found[1]) <= split or not starts or (split < 0 and node >= 0):
                starts.append((number, tokens, outputs))
                tokens = outputs = None
                node = -1
            split = int(found[1])
        elif "node #" in line and (found := _NODE.search(line)) is not None:
            if int(found[1]) <= node or not starts:
                starts.append((number, tokens, outputs))
                tokens = outputs = None
                split = -1
            node = int(found[1])
        elif "reserving a graph" in line and (found := _RESERVED.search(line)) is not None:
            tokens, outputs = int(found[1]), int(found[2]) if found[2] else None
        elif len(line) > 8:  # no shorter line says anything
            _read_line(log, line)
    ends = [*(start for start, *_ in starts[1:]), len(lines)][: len(starts)]
    log.graphs = [
        LoggedGraph(start, end, tokens, outputs, _widest(lines[start:end]))
        for (start, tokens, outputs), end in zip(starts, ends, strict=True)
    ]
    if not (log.graphs or log.buffers or log.counts):
        raise FormatError(
            "neither a plan of `weft explain --save` nor a log of ggml: it has no line with "
            "`## SPLIT #` (run llama.cpp with GGML_SCHED_DEBUG=2 and -v), `buffer size =` or "
            "`graph splits =`"
        )
    return log


def _clean(line: str) -> str:
    """A line without colors, times and control characters, cut at `_LONGEST`."""
    return _NOISE.sub("", line[:_LONGEST]).translate(CONTROLS).rstrip()


def _read_line(log: GgmlLog, line: str) -> None:
    """Notes a size, a number or a setting that llama.cpp prints."""
    if "buffer size =" in line and (found := _BUFFER.search(line)) is not None:
        kind = (found[2] or "").strip()
        key = _BUFFERS.get(kind, kind), found[1]
        log.buffers[key] = round(float(found[3]) * 1024 * 1024)
    elif (found := _BOTH_COUNTS.search(line)) is not None:
        nodes, splits = int(found[1]), int(found[3])
        log.counts["nodes"] = nodes, int(found[2] or nodes)
        log.counts["splits"] = splits, int(found[4] or splits)
    elif (found := _COUNTS.search(line)) is not None:
        log.counts[found[1]] = int(found[2]), int(found[3] or found[2])
    else:
        for name, pattern, value in _SETTINGS:
            if (found := pattern.search(line)) is not None:
                log.settings[name] = value(found[1])


def _widest(lines: Sequence[str]) -> int:
    """Bytes of the widest of the first nodes."""
    sizes = (_NODE.search(line) for line in lines[:16])
    return max((_size(found[4], found[5])["bytes"] for found in sizes if found), default=0)


def _meaning(cause: str, sources: Sequence[str]) -> str:
    """A cause in words, with the name of the weight that decided."""
    source = cause.removeprefix(WEIGHT.rule)
    if source != cause and source.isdigit() and int(source[:3]) < len(sources):
        return f"weight {sources[int(source[:3])]} lives there"
    return code_meaning(cause) or cause


def _size(number: str, unit: str) -> dict[str, int]:
    """Bytes as the scheduler prints them, rounded down to whole KiB or MiB."""
    shift = _UNITS[unit]
    return {"bytes": int(number) << shift, "rounded": 1 << shift}


def _place(text: str) -> tuple[str, str]:
    """The name of a device, cut at five characters, and a cause."""
    return text[:-8].strip(), text[-8:].strip()
