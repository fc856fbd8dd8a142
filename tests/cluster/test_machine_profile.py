"""Profiles over machines: times of workers on one clock, a track for each machine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.worker_threads import WorkerThread, group_of
from weft.backends.remote.group import MachineGroup
from weft.cluster.run_times import RunTimes
from weft.execute import Profile
from weft.llm.compute.context import Context
from weft.llm.model import Model

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MachineGroup]:
    folder = tmp_path_factory.mktemp("workers")
    made = [WorkerThread(folder / f"{i}", [DEMO.parent], devices=["cpu"]) for i in (0, 1)]
    with group_of(made) as found:
        yield found


@pytest.fixture(scope="module")
def profile(group: MachineGroup) -> Profile:
    context = Context(Model.open(DEMO), n_ctx=64, n_ubatch=16, machines=group)
    context.decode(list(range(3, 11)))
    profile = Profile(name="text")
    with context.profile(profile):
        for token in (11, 12, 13):
            context.decode([token])
    return profile


def test_every_step_of_a_worker_has_a_time(group: MachineGroup, profile: Profile) -> None:
    assert profile.runs == 3
    names = [device.name for device in group.devices()]
    for name in names:
        steps = [x for x in profile.lines if x.device == name and x.op != "copies"]
        assert steps and all(line.calls == 3 and line.seconds > 0 for line in steps)
        assert {"MUL_MAT"} & {line.op for line in steps}
    assert set(names) < set(profile.busy) and all(0 < profile.idle[name] < 1 for name in names)


def test_clocks_are_brought_together(group: MachineGroup, profile: Profile) -> None:
    # these workers share this process's clock, so what is left is the error that is stated
    assert set(profile.clocks) == {device.name for device in group.devices()}
    assert all(0 < error < 1 for error in profile.clocks.values())
    assert profile.trace is not None
    worst = max(profile.clocks.values()) * 1e9
    runs = [s for s in profile.trace.slices if s.kind == "run"]
    steps = [s for s in profile.trace.slices if s.row.endswith("/cpu kernels")]
    assert len(runs) == 3 and steps
    for step in steps:
        assert any(r.start - worst <= step.start and step.end <= r.end + worst for r in runs)


def test_a_track_for_each_machine(group: MachineGroup, profile: Profile) -> None:
    assert profile.trace is not None
    data = profile.trace.as_json()
    events = data["traceEvents"]
    tracks = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    machines = [device.name.rpartition("/")[0] for device in group.devices()]
    assert tracks[1] == "this machine" and len(tracks) == 3
    for machine in machines:
        assert any(name.startswith(f"{machine} (clock within ") for name in tracks.values())
    for event in events:
        if event["ph"] == "X" and event["cat"] == "split":
            device = event["name"].rpartition(" on ")[2]
            assert tracks[event["pid"]].startswith(device.rpartition("/")[0] or "this machine")
    assert set(data["otherData"]["clocks are right to seconds"]) == set(profile.clocks)
    assert "devices were idle" in str(profile) and "clocks of other machines" in str(profile)


def test_nothing_is_recorded_otherwise(group: MachineGroup, profile: Profile) -> None:
    for device in group.devices():
        assert device.machine.recording is None and device.clock_error == 0.0
        assert device.recorded()() == []


def test_what_a_worker_keeps_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    class Quick:
        def run(self, values: object) -> None:
            return

    monkeypatch.setattr("weft.cluster.run_times._MOST", 30)
    times = RunTimes()
    for _ in range(10):
        times.run(Quick(), {}, 5)  # type: ignore[arg-type]
    assert len(times.taken()) == 2 * 12 * 8
    times.run(Quick(), {}, 5)  # type: ignore[arg-type]
    assert times.taken().view("i8")[0] == 11
