"""The best split of a model's layers into stages of consecutive layers, one a device.

    split = best_split(problem)      # split.of_layer[i] is the device of layer i

A device has one run of layers at most, and the devices of one machine follow one another, so a text
visits each machine once. The output, which stands behind the last layer, is with it or on the
machine that reads it. Among all such splits in which each memory has room for its layers, the one
with the least predicted time is found by dynamic programming over (devices used, last device, first
layer of the next run); every pair of borders is tried.

With several passes in flight, the time of all is `max(sum / in flight, busiest stage)`. For a bound
on the busiest stage the least sum is found as above, and the best bound by bisection.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.records import dataclass

_MOST_ORDERED = 8
"""Maximum number of devices for which every order is tried; of more devices, two orders are
tried, with the devices of the home machine first and last."""

_TIE = 1e-6
"""Share of the time by which splits may differ and be as fast."""

_Floats = NDArray[np.float64]


@dataclass(slots=True)
class StageProblem:
    """Layers 0 to n - 1 and the output, as layer n, on devices; times are seconds of all passes."""

    seconds: _Floats
    """[device, layer]: seconds of a layer's nodes; infinite where the device does not run one."""
    start: _Floats
    """[device]: seconds to start a stage."""
    nbytes: NDArray[np.int64]
    """[device, layer]: bytes of weights and cache of a layer."""
    room: _Floats
    """[device]: bytes that its memory has for layers; infinite: no limit known."""
    memory: Sequence[int]
    """[device]: number of its memory. A split uses at most one device of each memory."""
    machine: Sequence[int]
    """[device]: number of its machine."""
    home: int
    """The device whose memory the input is in and the output is read from."""
    latency: _Floats
    """[from, to]: seconds of one copy to another device beside its bytes; 0 within a memory."""
    per_byte: _Floats
    """[from, to]: seconds of one byte of a copy; 0 within a memory."""
    inputs: tuple[_Floats, _Floats]
    """[first, end]: copies that layers first to end - 1 need of the inputs, and their bytes."""
    crossing: tuple[_Floats, _Floats]
    """[first, end]: copies of results of layers before `first` that they need, and their bytes."""
    result: tuple[float, float]
    """The copies and the bytes of the output, which go home."""
    in_flight: int = 1
    """Passes that are under way at the same time."""
    passes: float = np.inf
    """The number of all passes. All tensors that a pass brings to a stage from another machine are
    one message, whose latency counts once."""

    @property
    def n_layers(self) -> int:
        """The number of layers without the output."""
        return len(self.seconds[0]) - 1

    @property
    def n_devices(self) -> int:
        """The number of devices."""
        return len(self.seconds)

    def stages(self, of_layer: Sequence[int]) -> list[tuple[int, int, int]]:
        """(device, first layer, layer after the last) of each run of layers."""
        found: list[tuple[int, int, int]] = []
        for layer, device in enumerate(of_layer):
            if found and found[-1][0] == device:
                found[-1] = (device, found[-1][1], layer + 1)
            else:
                found.append((device, layer, layer + 1))
        return found

    def busy(self, device: int, first: int, end: int) -> float:
        """Seconds of work of a stage."""
        return float(self.seconds[device, first:end].sum() + self.start[device])

    def entry(self, device: int, first: int, end: int) -> float:
        """Seconds to bring a stage its inputs."""
        copies, nbytes = self.inputs
        return float(self._copy(self.home, device, copies[first, end], nbytes[first, end]))

    def hop(self, source: int, target: int, first: int, end: int) -> float:
        """Seconds to bring results from the stage on `source` to the stage on `target`."""
        copies, nbytes = self.crossing
        inputs = self.inputs[0][first, end]
        return float(self._hop(source, target, copies[first, end], nbytes[first, end], inputs))

    def _hop(self, source: int, target: int, copies: Any, nbytes: Any, inputs: Any) -> Any:
        """Seconds of results from `source` to a stage that also gets `inputs` copies from home."""
        if self.memory[source] == self.memory[self.home] and np.isfinite(self.passes):
            if self.machine[source] != self.machine[target]:
                copies = np.where(inputs > 0, 0.0, copies)  # in the message of the inputs
        return self._copy(source, target, copies, nbytes)

    def _copy(self, source: int, target: int, copies: Any, nbytes: Any) -> Any:
        if self.machine[source] != self.machine[target]:
            copies = np.minimum(copies, self.passes)
        return self.latency[source, target] * copies + self.per_byte[source, target] * nbytes

    def times(self, of_layer: Sequence[int]) -> tuple[float, float]:
        """The seconds of all stages and links of a split, and of the busiest of them; infinite for
        an illegal split, or where a memory has no room."""
        stages = self.stages(of_layer)
        if not self._is_legal(stages) or not self._fits(stages):
            return float("inf"), float("inf")
        parts = [self.busy(*stage) for stage in stages]
        parts += [self.entry(*stage) for stage in stages]
        previous = self.home
        for device, first, end in stages:
            parts.append(self.hop(previous, device, first, end))
            previous = device
        parts.append(float(self._copy(previous, self.home, *self.result)))
        return sum(parts), max(parts)

    def time(self, of_layer: Sequence[int]) -> float:
        """The seconds of a split with all its passes."""
        total, busiest = self.times(of_layer)
        return max(total / self.in_flight, busiest)

    def _is_legal(self, stages: Sequence[tuple[int, int, int]]) -> bool:
        body = [d for d, first, _ in stages if first < self.n_layers]
        machines = [self.machine[d] for d in body]
        runs = [m for i, m in enumerate(machines) if i == 0 or machines[i - 1] != m]
        last, first, _ = stages[-1]
        if first == self.n_layers:  # the output has a stage of its own, at home
            if self.machine[last] != self.machine[self.home]:
                return False
            if any(self.memory[d] == self.memory[last] and d != last for d in body):
                return False
        return len(set(runs)) == len(runs) and len({self.memory[d] for d in body}) == len(body)

    def _fits(self, stages: Sequence[tuple[int, int, int]]) -> bool:
        used = np.zeros(self.n_devices)
        for device, first, end in stages:
            used[device] += self.nbytes[device, first:end].sum()
        return bool((used <= self.room).all())


@dataclass(slots=True)
class StageSplit:
    """A device for every layer."""

    seconds: float
    """The time of all passes."""
    total: float
    """The seconds of all stages and links."""
    of_layer: list[int] = field(default_factory=list)
    """The device of each layer; the output is the last."""


def best_split(problem: StageProblem) -> StageSplit | None:
    """The split with the least time; None where no split has room.

    Of several as fast with one pass under way it is the one whose busiest stage works least."""
    best = _least_sum(problem, float("inf"))
    if best is None:
        return best
    alone = problem.in_flight == 1
    bounds = _busy_times(problem)
    low, high = 0, len(bounds) - 1
    while low <= high:  # a looser bound makes the sum smaller and the busiest stage longer
        middle = (low + high) // 2
        bound = float(bounds[middle]) * (1 + 1e-9)
        split = _least_sum(problem, bound)
        if split is None:
            low = middle + 1
            continue
        enough = best.seconds * (1 + _TIE) if alone else problem.in_flight * bound
        if split.total > enough:
            low = middle + 1
        else:
            high = middle - 1
        if split.seconds < best.seconds or (alone and split.total <= enough):
            best = split
    return best


def _busy_times(problem: StageProblem) -> _Floats:
    """The times that the busiest stage or link of a split can have, in order."""
    n, times = problem.n_layers + 1, []
    for device in range(problem.n_devices):
        for times_of_stages in _work(problem, device, n):
            times.append(times_of_stages[np.isfinite(times_of_stages)])
        for other in range(problem.n_devices):
            hops = problem._hop(other, device, *problem.crossing, problem.inputs[0])
            times.append(hops[np.isfinite(hops)])
        back = problem._copy(device, problem.home, *problem.result)
        times.append(np.array([back]))
    return np.unique(np.concatenate(times))


def _least_sum(problem: StageProblem, bound: float) -> StageSplit | None:
    """The split with the least sum of times in which no stage or link is busy for more than
    `bound`."""
    best: StageSplit | None = None
    n = problem.n_layers
    for output in (None, *_at_home(problem)):
        for of_layer in _walk(problem, n + (output is None), output, bound):
            full = of_layer if output is None else [*of_layer, output]
            total, busiest = problem.times(full)
            if total < (float("inf") if best is None else best.total):
                best = StageSplit(max(total / problem.in_flight, busiest), total, full)
    return best


def _at_home(problem: StageProblem) -> list[int]:
    home = problem.machine[problem.home]
    return [d for d in range(problem.n_devices) if problem.machine[d] == home]


def _work(problem: StageProblem, device: int, n: int) -> tuple[_Floats, _Floats]:
    """[first, end]: seconds of stages of layers below `n`, infinite where they have no room, and
    seconds to copy their inputs."""
    sums = np.concatenate([[0.0], np.cumsum(np.nan_to_num(problem.seconds[device], posinf=0.0))])
    cannot = np.concatenate([[0], np.cumsum(np.isinf(problem.seconds[device]))])
    size = np.concatenate([[0], np.cumsum(problem.nbytes[device])])
    first, end = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    copies, nbytes = (part[: n + 1, : n + 1] for part in problem.inputs)
    wrong = (end <= first) | (cannot[end] > cannot[first])
    wrong |= size[end] - size[first] > problem.room[device]
    work = np.where(wrong, np.inf, sums[end] - sums[first] + problem.start[device])
    return work, problem._copy(problem.home, device, copies, nbytes)


def _walk(problem: StageProblem, n: int, output: int | None, bound: float) -> Iterator[list[int]]:
    """The splits of layers below `n` with the least sum, one for each order of the devices.

    `output` is the device of the layer behind them, None where that is among them."""
    work = []
    for d in range(problem.n_devices):
        own, entries = _work(problem, d, n)
        if d == output:
            own = _without_room(problem, own, d, n)
        if output is None:
            own[n - 1] = np.inf  # the output alone, which is tried as `output`
        work.append(_bounded(own, bound) + _bounded(entries, bound))
    crossing = [part[: n + 1, : n + 1] for part in (*problem.crossing, problem.inputs[0])]
    hops: dict[tuple[int, int], _Floats] = {}
    for order in _orders(problem):
        ways = _Ways(problem, n)
        for key, device, before in order:
            total = np.full((n + 1, n + 1), np.inf)
            source = np.full((n + 1, n + 1), -1)
            for state, p in before:
                if state not in ways.cost:
                    continue
                if (p, device) not in hops:
                    hop = problem._hop(p, device, *crossing)
                    hops[p, device] = _bounded(hop, bound)
                reached = ways.cost[state][:, None] + hops[p, device]
                better = reached < total
                total = np.where(better, reached, total)
                source = np.where(better, ways.number[state], source)
            ways.add(key, total + work[device], source)
        end, cost = None, float("inf")
        for key, costs in ways.cost.items():
            if key == ways.begin or not _output_may_follow(problem, key[0], output):
                continue
            final = costs[n] + _closing(problem, key[1], output, bound)
            if final < cost:
                end, cost = key, final
        if end is not None:
            yield ways.of_layer(end, n)


def _bounded(times: _Floats, bound: float) -> _Floats:
    return np.where(times > bound, np.inf, times)


def _without_room(problem: StageProblem, work: _Floats, device: int, n: int) -> _Floats:
    """Times of stages on a device that has the output, too."""
    size = np.concatenate([[0], np.cumsum(problem.nbytes[device])])
    room = problem.room[device] - problem.nbytes[device, n]
    both = (size[None, : n + 1] - size[: n + 1, None]) > room
    return np.where(both, np.inf, work)


def _output_may_follow(problem: StageProblem, used: int, output: int | None) -> bool:
    if output is None:
        return True
    if problem.nbytes[output, problem.n_layers] > problem.room[output]:
        return False
    return not any(
        used >> d & 1 and d != output and problem.memory[d] == problem.memory[output]
        for d in range(problem.n_devices)
    )


def _closing(problem: StageProblem, last: int, output: int | None, bound: float) -> float:
    """Seconds after the last layer's stage on `last`: to compute the output and to copy it home."""
    parts = []
    n = problem.n_layers
    if output is not None and output != last:
        alone = output, n, n + 1
        parts += [problem.hop(last, *alone), problem.entry(*alone), problem.busy(*alone)]
    elif output is not None:
        return float("inf")  # one stage with the last layer, which is tried without `output`
    end = last if output is None else output
    parts.append(float(problem._copy(end, problem.home, *problem.result)))
    return float("inf") if max(parts) > bound else sum(parts)


_Key = tuple[int, int]
"""Devices used, as bits, and the last one."""


class _Ways:
    """The least cost to have placed the first layers, per state, and how it was reached."""

    def __init__(self, problem: StageProblem, n: int) -> None:
        self.begin: _Key = (0, problem.home)
        first = np.full(n + 1, np.inf)
        first[0] = 0.0
        self.cost: dict[_Key, _Floats] = {self.begin: first}
        self.number: dict[_Key, int] = {self.begin: 0}
        self._keys: list[_Key] = [self.begin]
        self._from: dict[_Key, tuple[NDArray[np.int64], NDArray[np.int64]]] = {}

    def add(self, key: _Key, total: _Floats, source: NDArray[np.int64]) -> None:
        """Adds a state, from costs [first layer of its last run, end] and where they come from."""
        first = total.argmin(axis=0)
        cost = np.take_along_axis(total, first[None, :], axis=0)[0]
        if not np.isfinite(cost).any():
            return
        self.number[key] = len(self._keys)
        self._keys.append(key)
        self.cost[key] = cost
        self._from[key] = first, np.take_along_axis(source, first[None, :], axis=0)[0]

    def of_layer(self, key: _Key, end: int) -> list[int]:
        """The device of each layer below `end`, of the best way to a state."""
        found: list[int] = []
        while key != self.begin:
            first, source = self._from[key]
            begin = int(first[end])
            found = [key[1]] * (end - begin) + found
            key, end = self._keys[int(source[end])], begin
        return found


def _orders(problem: StageProblem) -> Iterator[list[tuple[_Key, int, list[tuple[_Key, int]]]]]:
    """The states in an order in which each follows those it is reached from: (state, device,
    [(state before, its device)])."""
    n = problem.n_devices
    if n <= _MOST_ORDERED:
        yield list(_all_states(problem))
        return
    at_home = [d for d in range(n) if problem.machine[d] == problem.machine[problem.home]]
    away = [d for d in range(n) if d not in at_home]
    yield list(_ordered_states(problem, [*at_home, *away]))
    yield list(_ordered_states(problem, [*away, *at_home]))


def _all_states(problem: StageProblem) -> Iterator[tuple[_Key, int, list[tuple[_Key, int]]]]:
    n = problem.n_devices
    for used in range(1, 1 << n):
        members = [d for d in range(n) if used >> d & 1]
        if len({problem.memory[d] for d in members}) < len(members):
            continue
        for device in members:
            rest = used & ~(1 << device)
            before = [((rest, p), p) for p in members if p != device]
            before = [b for b in before if _may_follow(problem, b[0], device)]
            if rest == 0:
                before = [((0, problem.home), problem.home)]
            if before:
                yield (used, device), device, before


def _may_follow(problem: StageProblem, key: _Key, device: int) -> bool:
    """False where the device's machine was left before."""
    used, last = key
    machine = problem.machine[device]
    return machine == problem.machine[last] or not any(
        used >> d & 1 and problem.machine[d] == machine for d in range(problem.n_devices)
    )


def _ordered_states(
    problem: StageProblem, order: Sequence[int]
) -> Iterator[tuple[_Key, int, list[tuple[_Key, int]]]]:
    """States that use devices in one order; the bits name the last device only."""
    begin: _Key = (0, problem.home)
    for i, device in enumerate(order):
        before: list[tuple[_Key, int]] = [(begin, problem.home)]
        for p in order[:i]:
            if problem.memory[p] != problem.memory[device]:
                before.append(((1 << p, p), p))
        yield (1 << device, device), device, before
