"""The time model: seconds of nodes, copies and splits on the devices of a profile.

A node takes `launch + max(operations / rate, bytes / bandwidth)` (the roofline of Williams,
Waterman and Patterson, doi 10.1145/1498765.1498785); a copy `latency + bytes / bandwidth` of its
link, and all that goes to a split from another machine is one message with one latency; a split its
device's `start`, which for a device of another machine has the handling of a message in it. Splits
run one after another, because each needs the one before.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import prod
from typing import Any

from weft.backends.base import Backend, IsMeasuredAs
from weft.errors import ScheduleError
from weft.graph.costs import Sizes, Values, Work, expert_share, ne_at, sources_moved
from weft.graph.graph import Graph
from weft.graph.op import MultiplyAdds
from weft.graph.size import evaluate
from weft.graph.tensor import Tensor
from weft.records import dataclass
from weft.schedule.devices import Devices
from weft.schedule.machines import machine_of
from weft.schedule.parts import Prediction, Split
from weft.schedule.profile import DeviceProfile, Profile
from weft.schedule.result import Schedule


@dataclass(frozen=True, slots=True)
class Point:
    """A kind of pass that time is predicted for: values of the graph's symbols, and the number of
    such passes."""

    values: Mapping[str, int]
    passes: float = 1.0


class TimeModel:
    """Seconds on the devices of one `schedule` call, summed over points."""

    def __init__(
        self,
        profile: Profile,
        graph: Graph,
        devices: Devices | Sequence[Backend],
        points: Sequence[Point] = (),
        what: str = "pass",
    ) -> None:
        """The model of `graph` on `devices`, which are found in the profile by name.

        Without `points` it is for one pass with every symbol at its maximum; `what` is a word for
        all points together. Raises ScheduleError for a device that the profile does not have."""
        self.profile = profile
        self.graph = graph
        self.what = what
        self.devices = devices if isinstance(devices, Devices) else Devices(devices)
        self.of: list[DeviceProfile] = [_find(profile, b) for b in self.devices.backends]
        self.points = tuple(points) or (Point({s.name: s.max for s in graph.symbols.values()}),)
        self._work: dict[Tensor, list[Work]] = {}
        self._memory: dict[int, str] = {
            id(t): d.memory
            for t, d in zip(self.devices.buffer_types, self.of, strict=True)
        }  # fmt: skip
        self.readers: dict[Tensor, list[Tensor]] = {}
        for node in graph.nodes:
            if node.op.name == "MUL_MAT_ID" and node.src[0] is not None:
                self.readers.setdefault(node.src[0], []).append(node)

    def memory_of(self, buffer_type: Any) -> str:
        """The memory of the profile that a buffer type stands for."""
        memory = self._memory.get(id(buffer_type))
        if memory is None:
            memory = self.profile.host_memory
            if not buffer_type.is_host:
                for b, device in enumerate(self.of):
                    if self.devices.supports_buffer_type(b, buffer_type):
                        memory = device.memory
                        break
            self._memory[id(buffer_type)] = memory
        return memory

    def node(self, node: Tensor, b: int) -> float:
        """Seconds of a node on device `b`."""
        todo = self._work.get(node)
        if todo is None:
            todo = self._work[node] = [work(node, p.values) for p in self.points]
        device = self.of[b]
        weight_type = "" if not node.src or node.src[0] is None else node.src[0].dtype.name
        total = 0.0
        for point, w in zip(self.points, todo, strict=True):
            rate = device.rate(node.op.name, w.is_product, weight_type)
            total += point.passes * (
                device.launch + max(w.flops / rate, w.nbytes / device.bandwidth)
            )
        return total

    def copy(self, tensor: Tensor, source: Any, b: int) -> float:
        """The seconds to copy a tensor from memory of buffer type `source` to device `b`.

        Of stacked experts, only the used ones count."""
        link = self.profile.link(self.memory_of(source), self.of[b].memory)
        readers = self.readers.get(tensor, ())
        total = 0.0
        for point in self.points:
            size = float(nbytes_at(tensor, point.values))
            if readers and tensor.buffer is not None and tensor.buffer.usage == "weights":
                size *= min(1.0, sum(expert_share(n, point.values) for n in readers))
            total += point.passes * (link.latency + size / link.bandwidth)
        return total

    def copies(
        self, inputs: Sequence[tuple[Tensor, Any]], b: int
    ) -> Iterator[tuple[Tensor, tuple[str, str], float]]:
        """(tensor, memories from and to, seconds) of what a split on device `b` has to have copied;
        `inputs` are tensors and the buffer types of where they are.

        What goes to a split from another machine is one message, whose latency the first tensor
        has."""
        seen: set[tuple[str, str]] = set()
        for tensor, source in inputs:
            pair = self.memory_of(source), self.of[b].memory
            seconds = self.copy(tensor, source, b)
            if pair in seen and machine_of(pair[0]) != machine_of(pair[1]):
                seconds -= self.profile.link(*pair).latency * sum(p.passes for p in self.points)
            seen.add(pair)
            yield tensor, pair, seconds

    def inputs(self, schedule: Schedule, split: Split) -> list[tuple[Tensor, Any]]:
        """The tensors that are copied for a split, each with the buffer type of its memory."""
        found = []
        for tensor in split.inputs:
            source = self.devices.type_of(tensor)
            if source is None:
                source = self.devices.buffer_types[schedule.backend_of[tensor]]
            found.append((tensor, source))
        return found

    def start(self, b: int) -> float:
        """Seconds to start a split on device `b`."""
        return self.of[b].start * sum(p.passes for p in self.points)

    def predict(self, schedule: Schedule) -> Prediction:
        """Seconds of a schedule over all points."""
        nodes = copies = starts = 0.0
        by_device = {b.name: 0.0 for b in schedule.backends}
        for split in schedule.splits:
            b = split.backend
            starts += self.start(b)
            copies += sum(s for _, _, s in self.copies(self.inputs(schedule, split), b))
            for node in schedule.graph.nodes[split.start : split.end]:
                if not node.op.is_view:
                    seconds = self.node(node, b)
                    nodes += seconds
                    by_device[schedule.backends[b].name] += seconds
        return Prediction(nodes, copies, starts, by_device, self.what)


def _find(profile: Profile, backend: Backend) -> DeviceProfile:
    name = backend.measured_as if isinstance(backend, IsMeasuredAs) else backend.name
    device = profile.device(name)
    if device is None:
        names = ", ".join(d.name for d in profile.devices)
        raise ScheduleError(
            f"machine profile {profile.name} has no device {backend.name!r} (it has {names}); "
            "measure this machine with `weft calibrate`"
        )
    return device


_NONE = Work(0.0, 0.0, False)
_ABSENT = Sizes((1, 1, 1, 1))


def work(node: Tensor, values: Values) -> Work:
    """The operations and bytes of `node` on any device, from the declaration of its op; 0 for views
    and leaves."""
    if node.op.is_view or node.op.name == "NONE":
        return _NONE
    ne = ne_at(node, values)
    if 0 in ne:
        return _NONE
    cost = node.op.cost
    if isinstance(cost, float):
        return Work(cost * prod(ne), sources_moved(node, values), False)
    if isinstance(cost, MultiplyAdds):
        sizes = [_ABSENT if s is None else Sizes(ne_at(s, values)) for s in node.src]
        count = cost.formula(prod(ne), sizes, node.params)
        return Work(2.0 * count, (cost.moved or sources_moved)(node, values), cost.of_weights)
    own: Work = cost(node, values)
    return own


def nbytes_at(tensor: Tensor, values: Values) -> int:
    """`tensor.nbytes` with these values: the bytes that a copy of it moves."""
    return evaluate(tensor.nbytes, values)
