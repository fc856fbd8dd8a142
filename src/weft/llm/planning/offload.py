"""Chooses the device in whose memory each weight and each layer's cache lives.

With N layers offloaded, the last N layers go to the device. If N is more than the model has layers,
the final norm and the output go there too. The input embedding stays in host memory, where its rows
are looked up. Globs over weight names take precedence over these rules.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from fnmatch import fnmatchcase

from weft.backends.base import Backend, OnMachine
from weft.compiler.homes import first_with_own_memory, too_large, why_not_in
from weft.errors import ScheduleError
from weft.graph.graph import Graph
from weft.graph.tensor import Tensor
from weft.llm.weights import Weights
from weft.records import dataclass
from weft.schedule.machines import machine_of

_LAYER = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.(.*)")
SHARED = ("token_embd_norm", "rope_f")
"""Norms before the first layer, and rotation frequencies that all layers share."""
# Weights whose rows are looked up for the input.
_INPUT = ("token_embd", "position_embd", "token_types", "per_layer_token_embd")
# Weights that compute the keys: a layer's cache lives where it is written.
_KEYS = ("attn_k.", "attn_qkv.", "attn_kv_b.", "attn_k_b.", "attn_kv_a_mqa.")


@dataclass(slots=True)
class Homes:
    """The devices, by number, in whose memory weights and caches live."""

    weights: dict[str, int]
    """The device of each weight, by name. `output.weight` is among them even if the file has none
    and uses the embedding instead, because the output may need a copy on another device."""
    caches: list[int]
    n_gpu_layers: int | None = 0
    """Number of layers to offload, the output included; None: homes were chosen one by one."""
    kept: dict[str, str] = field(default_factory=dict)
    """Weights and caches that stay in host memory against the rule, with the device's reason."""
    forced: frozenset[str] = frozenset()

    def of_layers(self) -> list[int]:
        """The device of each layer, the one that has most of its weights, and that of the output as
        the last."""
        n_layer = len(self.caches)
        counts = [Counter[int]() for _ in range(n_layer + 1)]
        for name, device in self.weights.items():
            layer = layer_of_weight(name, n_layer)
            if layer is not None:
                counts[layer][device] += 1
        of = [count.most_common(1)[0][0] if count else -1 for count in counts]
        of[n_layer] = self.weights.get("output.weight", of[n_layer])
        return [self.caches[il] if d < 0 and il < n_layer else d for il, d in enumerate(of)]


def all_layers(n_layer: int) -> int:
    """The number of layers that can be offloaded: all of them and the output."""
    return n_layer + 1


def homes_by_layer(
    weights: Weights,
    n_layer: int,
    backends: Sequence[Backend],
    n_gpu_layers: int | Mapping[int, int] | None = None,
    place: Mapping[str, str] | None = None,
) -> Homes:
    """Chooses homes by number of layers and by glob.

    `n_gpu_layers` is the number of layers for the first device with memory of its own (None or
    below 0: all), or a mapping of devices to numbers of layers, where the first device takes the
    last layers. Devices of other machines share the bytes evenly. `place` maps globs over weight
    names, with or without their last part (`.weight`), to devices; the first match wins.

    Raises ScheduleError for a glob that matches no weight, for an unknown device, and if no device
    can take the layers."""
    of_layer = [len(backends) - 1] * (n_layer + 1)
    machines = [i for i, backend in enumerate(backends) if isinstance(backend, OnMachine)]
    if machines and not isinstance(n_gpu_layers, Mapping):
        total = all_layers(n_layer)
        if n_gpu_layers is not None and n_gpu_layers >= 0:
            total = min(n_gpu_layers, total)
        first = n_layer - total if total <= n_layer else 0
        sizes = _sizes(weights, n_layer)[first : first + total]
        of_layer[first : first + total] = _evenly(sizes, machines)
        homes = homes_of_layers(weights, of_layer, backends, place)
        homes.n_gpu_layers = total
        return homes
    counts = _counts(n_layer, backends, n_gpu_layers)
    end = n_layer  # the first layer that has a device; the output is number n_layer
    total = sum(counts.values())
    for device, n in counts.items():
        for il in range(max(end - n, 0), end):
            of_layer[il] = device
        end = max(end - n, 0)
    if total > n_layer and counts:
        of_layer[n_layer] = next(iter(counts))
    homes = homes_of_layers(weights, of_layer, backends, place)
    homes.n_gpu_layers = total
    return homes


def homes_of_layers(
    weights: Weights,
    of_layer: Sequence[int],
    backends: Sequence[Backend],
    place: Mapping[str, str] | None = None,
) -> Homes:
    """Homes where `of_layer` has the device of each layer, and of the output as the last.

    Raises ScheduleError for a glob of `place` that matches no weight, and for an unknown device."""
    last = len(backends) - 1
    n_layer = len(of_layer) - 1

    def by_rule(name: str) -> int:
        layer = layer_of_weight(name, n_layer)
        return last if layer is None else of_layer[layer]

    names = [*weights]
    if "output.weight" not in weights and "token_embd.weight" in weights:
        names.append("output.weight")
    rules = _rules(place or {}, names, backends)
    forced: dict[str, int] = {}
    for name in names:
        for matches, device in rules:
            if matches(name):
                forced.setdefault(name, device)
    homes = {name: by_rule(name) for name in names} | forced
    caches = [_cache_home(homes, il, of_layer[il]) for il in range(n_layer)]
    return Homes(homes, caches, None, forced=frozenset(forced))


def layer_of_weight(name: str, n_layer: int) -> int | None:
    """The layer of a weight, `n_layer` for the output; None: its rows are looked up for the
    input."""
    layer = _LAYER.match(name)
    if layer is not None:
        return min(int(layer[1]), n_layer)
    if name.startswith(SHARED):
        return 0
    return None if name.startswith(_INPUT) else n_layer


def _counts(
    n_layer: int, backends: Sequence[Backend], n_gpu_layers: int | Mapping[int, int] | None
) -> dict[int, int]:
    if isinstance(n_gpu_layers, Mapping):
        return dict(n_gpu_layers)
    device = first_with_own_memory(backends)
    if device < 0:
        if n_gpu_layers is not None and n_gpu_layers > 0:
            names = ", ".join(b.name for b in backends)
            raise ScheduleError(
                f"{n_gpu_layers} layers cannot be offloaded: no device of {names} has memory of "
                "its own; list one in front, e.g. --devices opencl,cpu"
            )
        return {}
    most = all_layers(n_layer)
    if n_gpu_layers is None or n_gpu_layers < 0:
        n_gpu_layers = most
    return {device: min(n_gpu_layers, most)}


def _sizes(weights: Weights, n_layer: int) -> list[int]:
    """The bytes of the weights of each layer, and of the output."""
    sizes = [0] * (n_layer + 1)
    for name, leaf in weights.items():
        layer = layer_of_weight(name, n_layer)
        if layer is not None:
            sizes[layer] += leaf.max_bytes
    if "output.weight" not in weights and "token_embd.weight" in weights:
        sizes[n_layer] += weights["token_embd.weight"].max_bytes
    return sizes


def _evenly(sizes: Sequence[int], devices: Sequence[int]) -> list[int]:
    """A device for each of some consecutive layers of so many bytes: shares as even as borders
    between layers make them, in order."""
    total, before, of = max(sum(sizes), 1), 0, []
    for size in sizes:
        middle = (2 * before + size) * len(devices) // (2 * total)
        of.append(devices[min(middle, len(devices) - 1)])
        before += size
    return of


def _rules(
    place: Mapping[str, str], names: Sequence[str], backends: Sequence[Backend]
) -> list[tuple[Callable[[str], bool], int]]:
    number = {b.name: i for i, b in enumerate(backends)}
    rules = []
    for glob, device in place.items():
        if device not in number:
            raise ScheduleError(
                f"{glob!r} is to go to {device!r}, which is not one of the devices "
                f"{', '.join(number)}"
            )
        matches = _matcher(glob)
        if not any(map(matches, names)):
            raise ScheduleError(
                f"no weight is called like {glob!r}; `weft inspect` lists the names (they look "
                f"like {names[0]!r})"
                if names
                else f"no weight is called like {glob!r}: the model has none"
            )
        rules.append((matches, number[device]))
    return rules


def _matcher(glob: str) -> Callable[[str], bool]:
    def matches(name: str) -> bool:
        return fnmatchcase(name, glob) or fnmatchcase(name.rpartition(".")[0], glob)

    return matches


def _cache_home(homes: Mapping[str, int], il: int, default: int) -> int:
    """The home of the weight that computes the keys of layer `il`; `default`: there is none."""
    names = (f"blk.{il}.{keys}weight" for keys in _KEYS)
    return next((homes[name] for name in names if name in homes), default)


def keep_what_runs(
    homes: Homes,
    graphs: Iterable[Graph],
    caches: Sequence[Sequence[Tensor]],
    backends: Sequence[Backend],
) -> None:
    """Moves weights and caches to the host memory of their machine if one of the graphs has an op
    on them that no device with their memory can run. Changes `homes` and the buffer types of the
    leaves.

    `caches` has the leaves of each layer's cache. Weights that a glob has placed stay."""
    last = len(backends) - 1
    host = [_host_of(b, backends) for b in range(len(backends))]
    layer_of = {leaf: il for il, leaves in enumerate(caches) for leaf in leaves}
    for graph in graphs:
        for node in graph.nodes:
            if node.op.is_view:
                continue
            for src in (*node.src, node):
                base = None if src is None else src.view_src or src
                if base is None or base.buffer is None or base.buffer.type is None:
                    continue
                il = layer_of.get(base)
                home = homes.weights.get(base.name, last) if il is None else homes.caches[il]
                if home == host[home] or base.name in homes.forced:
                    continue
                home_type = base.buffer.type
                why = too_large(base, home_type) or why_not_in(home_type, node, backends)
                if why is None:
                    continue
                homes.kept[base.name] = why
                moved: Sequence[Tensor] = (base,)
                if il is None:
                    homes.weights[base.name] = host[home]
                else:
                    homes.caches[il] = host[home]
                    moved = caches[il]
                for leaf in moved:
                    assert leaf.buffer is not None
                    leaf.buffer.type = backends[host[home]].buffer_type


def _host_of(device: int, backends: Sequence[Backend]) -> int:
    """The last device of the same machine, or the last of all."""
    machine = machine_of(backends[device].name)
    same = [i for i, b in enumerate(backends) if machine_of(b.name) == machine]
    return same[-1] if same[-1] != device else len(backends) - 1
