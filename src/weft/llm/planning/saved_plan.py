"""Plan files, which `weft explain --save` writes and `weft run --plan` follows.

Every name, shape, type, device and size in a file is compared with the model before it is used.
Besides the result of `weft.schedule.describe.to_json` a file has:

    model      architecture, layers
    options    the options of the graph: n_ctx, n_ubatch, n_outputs and so on
    weights    name, type, sizes (innermost first), bytes and device of each
    caches     the same for the KV cache
    memory     buffer, memory, bytes
    smaller    the plans for smaller batches: max_tokens, splits, totals
    together   for recurrent models, the plan for several sequences at once
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from weft.backends.base import Backend
from weft.errors import FormatError
from weft.files import read_json
from weft.graph.graph import Graph
from weft.graph.tensor import Tensor, shape_text
from weft.llm.weights import Weights
from weft.schedule import Schedule
from weft.schedule.describe import FORMAT


def leaf_rows(leaves: Iterable[Tensor], devices: Mapping[str, str]) -> list[dict[str, Any]]:
    """A row of a plan file for each leaf; `devices` has the device of each, by name."""
    return [
        {
            "name": leaf.name,
            "type": leaf.dtype.name,
            "ne": list(leaf.ne),
            "bytes": leaf.max_bytes,
            "device": devices[leaf.name],
        }
        for leaf in leaves
    ]


class SavedPlan:
    """The contents of a plan file, with the checks that it fits a model."""

    def __init__(self, data: Any, where: str = "the plan") -> None:
        """Raises FormatError if `data` is not a plan of a model. Messages start with `where`."""
        self._where = where
        if not isinstance(data, Mapping) or data.get("format") != FORMAT:
            self._fail(f"this is no plan of format {FORMAT}; write one with `weft explain --save`")
        self._data = data
        for key in ("devices", "splits", "weights", "caches", "smaller", "memory"):
            if not _is_rows(data.get(key)):
                self._fail(f"{key!r} is missing or no list; save the plan of a model again")
        if not isinstance(data.get("options"), Mapping):
            self._fail("'options' is missing; save the plan of a model again")

    @staticmethod
    def load(path: str | os.PathLike[str]) -> SavedPlan:
        """Reads a plan from a JSON file; raises FormatError if it is damaged."""
        return SavedPlan(read_json(path, "plan"), str(path))

    @property
    def devices(self) -> list[str]:
        """Names of the devices, in order."""
        return [str(row.get("name")) for row in self._data["devices"]]

    def option(self, name: str, given: Any, kind: type) -> Any:
        """The plan's value of an option of the context, of type `kind`. Raises FormatError if the
        caller gave another value (not None)."""
        value = self._data["options"].get(name)
        if type(value) is not kind:
            self._fail(f"option {name!r} is missing or no {kind.__name__}; save the plan again")
        if given is not None and given != value:
            self._fail(f"it was made with `{name}` = {value}, not {given}; save it again with that")
        return value

    @property
    def op_offload(self) -> str:
        """The rules by which devices took ops whose weights are in host memory, as text."""
        return str(self._data["options"].get("op_offload", "on"))

    def check_devices(self, backends: Sequence[Backend]) -> None:
        """Raises FormatError if names, kinds or memories of the devices differ."""
        theirs = [(r.get("name"), r.get("kind"), r.get("memory")) for r in self._data["devices"]]
        ours = [(b.name, b.kind, b.buffer_type.name) for b in backends]
        if theirs != ours:
            said, are = (", ".join("/".join(map(str, d)) for d in ds) for ds in (theirs, ours))
            self._fail(f"its devices (name/kind/memory) are {said}, but here they are {are}")

    def homes(
        self, weights: Weights, n_layer: int, backends: Sequence[Backend]
    ) -> tuple[dict[str, int], list[int]]:
        """The device of each weight and of each layer's cache.

        Raises FormatError, which names the weight, if only one side has it or if it differs."""
        number = {b.name: i for i, b in enumerate(backends)}
        homes: dict[str, int] = {}
        for row in self._data["weights"]:
            name = str(row.get("name"))
            leaf = weights.get(name)
            if leaf is None and name == "output.weight":  # of a model with a tied output
                leaf = weights.get("token_embd.weight")
            if leaf is None:
                self._fail(f"weight {name!r} is not in the model")
            self._compare(f"weight {name}", row, leaf)
            homes[name] = self._device(f"weight {name}", row, number)
        for name in weights:
            if name not in homes:
                self._fail(f"weight {name!r} of the model is not in it; save the plan again")
        caches = [len(backends) - 1] * n_layer
        for row in self._data["caches"]:
            name = str(row.get("name"))
            layer = name.rpartition("_")[2]
            if not re.fullmatch("[0-9]{1,9}", layer) or int(layer) >= n_layer:
                self._fail(f"cache {name!r} is not of one of the model's {n_layer} layers")
            caches[int(layer)] = self._device(f"cache {name}", row, number)
        return homes, caches

    def check_caches(self, caches: Sequence[Tensor]) -> None:
        """Raises FormatError if the caches are not those of the plan."""
        rows = {str(row.get("name")): row for row in self._data["caches"]}
        for leaf in caches:
            if not leaf.max_bytes:  # the layer has no attention
                continue
            if leaf.name not in rows:
                self._fail(f"cache {leaf.name!r} is not in it; save the plan again")
            self._compare(f"cache {leaf.name}", rows[leaf.name], leaf)

    def max_tokens(self, n_ubatch: int) -> list[int]:
        """The most tokens of each plan in the file, the largest first."""
        sizes = [n_ubatch]
        for row in reversed(self._data["smaller"]):
            n = row.get("max_tokens")
            if not isinstance(n, int) or not 1 <= n < sizes[-1]:
                self._fail(f"a plan under 'smaller' is for {n} tokens, which cannot be")
            sizes.append(n)
        return sizes

    def _splits(self, max_tokens: int | None) -> list[Mapping[str, Any]]:
        several = self._data.get("together")
        for row in self._data["smaller"]:
            if row.get("max_tokens") == max_tokens:
                splits = row.get("splits")
                break
        else:
            splits = self._data["splits"]
        if max_tokens is None:
            splits = several.get("splits") if isinstance(several, Mapping) else None
        if not _is_rows(splits):
            self._fail("'splits' is missing or no list; save the plan of a model again")
        return splits  # type: ignore[no-any-return]

    def node_devices(
        self, max_tokens: int | None, graph: Graph, backends: Sequence[Backend]
    ) -> dict[Tensor, int]:
        """The device of each node but views, from the plan for up to `max_tokens` tokens (None: for
        several sequences at once). Raises FormatError if names, ops, shapes or types differ."""
        number = {b.name: i for i, b in enumerate(backends)}
        rows = [
            row
            for split in self._splits(max_tokens)
            if _is_rows(split.get("nodes"))
            for row in split["nodes"]
        ]
        if len(rows) != len(graph.nodes):
            self._fail(f"it has {len(rows)} nodes, the model's graph has {len(graph.nodes)}")
        devices = {}
        for i, (row, node) in enumerate(zip(rows, graph.nodes, strict=True)):
            theirs = tuple(row.get(k) for k in ("name", "op", "shape", "type"))
            # plans saved before tensors had llama.cpp's names have numbers, and one for embeddings
            name = theirs[0] if theirs[0] in (f"node_{i}", "embd") else node.name
            ours = (name, node.op.name, shape_text(node), node.dtype.name)
            if theirs != ours:
                said, is_ = (" ".join(map(str, what)) for what in (theirs, ours))
                self._fail(f"node {i} is {said}, but in the model's graph it is {is_}")
            if not node.op.is_view:
                devices[node] = self._device(f"node {node.name}", row, number)
        return devices

    def check_memory(
        self, schedules: Mapping[int | None, Schedule], compute: Mapping[str, int]
    ) -> None:
        """Raises FormatError if the plan needs more compute memory than the file says.

        `schedules` are given by their most tokens, `compute` is the bytes needed in each memory. If
        someone has edited the nodes of the file, its splits differ and its sizes mean nothing, so
        they are not compared."""
        for max_tokens, schedule in schedules.items():
            theirs = [
                (s.get("device"), s.get("start"), s.get("end")) for s in self._splits(max_tokens)
            ]
            names = [b.name for b in schedule.backends]
            if theirs != [(names[s.backend], s.start, s.end) for s in schedule.splits]:
                return
        for row in self._data["memory"]:
            said, need = row.get("bytes"), compute.get(str(row.get("memory")), 0)
            if row.get("buffer") == "compute" and isinstance(said, int) and need > said:
                self._fail(
                    f"it says that {said:,} B of {row['memory']} memory are enough to compute in, "
                    f"but {need:,} B are needed; save it again"
                )

    def _compare(self, what: str, row: Mapping[str, Any], leaf: Tensor) -> None:
        theirs = (row.get("type"), row.get("ne"), row.get("bytes"))
        ours = (leaf.dtype.name, list(leaf.ne), leaf.max_bytes)
        if theirs != ours:
            self._fail(
                f"{what} is {theirs[0]} {theirs[1]} of {theirs[2]} bytes, but in the model it is "
                f"{ours[0]} {ours[1]} of {ours[2]} bytes"
            )

    def _device(self, what: str, row: Mapping[str, Any], number: Mapping[str, int]) -> int:
        device = str(row.get("device"))
        if device not in number:
            self._fail(f"{what} is on {device!r}, which is not one of {', '.join(number)}")
        return number[device]

    def _fail(self, why: str) -> NoReturn:
        raise FormatError(f"{self._where}: {why}")


def _is_rows(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(row, Mapping) for row in value)
