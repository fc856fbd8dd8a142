"""`weft calibrate --machines`: workers measure themselves, links are measured between them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.worker_threads import WorkerThread, group_of
from weft.backends import make_backend
from weft.backends.remote.group import MachineGroup, _names
from weft.cluster.calibrate import measure_group
from weft.errors import WeftError
from weft.links.addresses import Address
from weft.llm.model import Model
from weft.llm.planning.prepare import prepare
from weft.llm.planning.stage_report import stage_report
from weft.schedule.machines import load_machines, machines_of
from weft.schedule.profile import Profile

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"


@pytest.fixture(scope="module")
def group(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MachineGroup]:
    folder = tmp_path_factory.mktemp("workers")
    lent: dict[str, Any] = {"memory": 64 << 20, "devices": ["cpu"]}
    with group_of([WorkerThread(folder / f"{i}", [DEMO.parent], **lent) for i in (0, 1)]) as found:
        yield found


@pytest.fixture(scope="module")
def measured(group: MachineGroup) -> tuple[Profile, list[str]]:
    said: list[str] = []
    return measure_group(group, [make_backend("cpu")], 0.001, said.append), said


def test_devices_are_called_as_models_use_them(
    group: MachineGroup, measured: tuple[Profile, list[str]]
) -> None:
    profile, said = measured
    names = [device.name for device in group.devices()]
    assert [d.name for d in profile.devices] == [*names, "cpu"]
    assert machines_of(profile) == ["", *(name.rpartition("/")[0] for name in names)]
    assert profile.device(names[0]) != profile.device(names[1])
    assert all(profile.memories[d.memory].size == 64 << 20 for d in profile.devices[:2])
    assert sum(text.startswith("measuring the link") for text in said) == 3
    assert any(names[0].rpartition("/")[0] in text and "bandwidth" in text for text in said)


def test_every_pair_has_a_link(measured: tuple[Profile, list[str]], tmp_path: Path) -> None:
    profile, _ = measured
    memories = [d.memory for d in profile.devices]
    for source in memories:
        for target in memories:
            if source != target:
                link = profile.links[source, target]
                assert 0 < link.latency < 1 and 1e5 < link.bandwidth < 1e12
    path = tmp_path / "cluster.toml"
    path.write_text(profile.to_toml())
    assert machines_of(load_machines([str(path)])) == machines_of(profile)


def test_a_plan_by_the_measured_speeds(
    group: MachineGroup, measured: tuple[Profile, list[str]]
) -> None:
    profile, _ = measured
    model = Model.open(DEMO)
    sizes = {"cpu": 2_000_000} | {d.name: 2_200_000 for d in group.devices()}
    plan = prepare(
        model, n_ctx=128, n_ubatch=32, machines=group, profile=profile, policy="cost", memory=sizes
    )
    report = stage_report(plan, profile)
    assert len(report.stages) >= 2
    for need in plan.needs():
        assert need.total <= 2_200_000


def test_a_worker_that_cannot_measure_says_so(
    group: MachineGroup, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*args: object) -> None:
        raise WeftError("no room to measure in")

    monkeypatch.setattr("weft.cluster.calibrate.answer_measure", fails)
    with pytest.raises(WeftError, match=r"127\.0\.0\.1:\d+ could not measure its devices: no room"):
        measure_group(group, [make_backend("cpu")], 0.001, lambda text: None)


def test_names_of_workers_that_a_cluster_starts_have_no_ports() -> None:
    addresses = [Address("10.0.0.1", 1), Address("10.0.0.2", 2), Address("10.0.0.1", 3)]
    assert _names(addresses, False) == ["10.0.0.1", "10.0.0.2", "10.0.0.1#2"]
    assert _names(addresses, True) == ["10.0.0.1:1", "10.0.0.2", "10.0.0.1:3"]
