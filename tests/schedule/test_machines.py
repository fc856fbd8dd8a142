"""Several machines joined into one profile."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft import graph as G
from weft.backends.null import NullBackend, NullBufferType
from weft.errors import FormatError
from weft.schedule.machine import paper_devices
from weft.schedule.machines import (
    DEFAULT_LINK,
    join_machines,
    link_text,
    load_machines,
    machine_of,
    machines_of,
    parse_link,
    unmeasured,
)
from weft.schedule.profile import load_profile, parse_profile
from weft.schedule.timing import TimeModel

CPU = """
format = "weft-machine-1"
name = "a machine"
sources = ["a guess"]
[[memory]]
name = "RAM"
host = true
size = "2 GiB"
[[device]]
name = "cpu"
kind = "CPU"
memory = "RAM"
bandwidth = 20
gflops.default = 50
"""


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name in ("a", "b"):
        (tmp_path / f"{name}.toml").write_text(CPU)
    return [str(tmp_path / "a.toml"), str(tmp_path / "b.toml")]


def test_names_and_order(files: list[str]) -> None:
    profile = load_machines([*files, "desktop-rtx4090"])
    names = ["b/cpu", "desktop-rtx4090/gpu", "desktop-rtx4090/cpu", "a/cpu"]
    assert [d.name for d in profile.devices] == names
    assert machines_of(profile) == ["a", "b", "desktop-rtx4090"]
    assert [m.name for m in profile.memories.values() if m.host] == ["a/RAM"]
    assert machine_of("host:7000/opencl:0") == "host:7000" and machine_of("cpu") == ""


def test_memory_within_that_of_its_own_host(files: list[str]) -> None:
    """A device of another machine shares no memory with the host that plans."""
    profile = load_machines(["laptop-780m", *files, "mac-m2"])
    within = [m.name for m in profile.memories.values() if m.in_host]
    assert within == ["laptop-780m/GPU"]
    here = unmeasured([NullBackend("gpu", "GPU", NullBufferType("V", in_host=True))])
    assert [m.in_host for m in here.memories.values()] == [True]


def test_kernels_reach_their_own_machine_only(files: list[str]) -> None:
    b, a = paper_devices(load_machines(files))
    assert not b.supports_buffer_type(a.buffer_type)
    assert not a.supports_buffer_type(b.buffer_type)
    assert b.memory_limit() == 2 << 30


def test_links_of_pairs_and_of_all(files: list[str]) -> None:
    links = [parse_link("1Gbps,0.2ms"), parse_link("a:desktop-rtx4090=10Gbps,50us")]
    profile = load_machines([*files, "desktop-rtx4090"], links)
    slow = profile.link("a/RAM", "b/RAM")
    assert (slow.bandwidth, slow.latency) == pytest.approx((125e6, 0.2e-3))
    fast = profile.link("desktop-rtx4090/RAM", "a/RAM")
    assert (fast.bandwidth, fast.latency) == pytest.approx((1.25e9, 50e-6))
    # from a card to another machine by the memories of both hosts: 6 us and 26.6 GB/s more
    by_hosts = profile.link("desktop-rtx4090/VRAM", "a/RAM")
    assert by_hosts.latency == pytest.approx(56e-6)
    assert by_hosts.bandwidth == pytest.approx(1 / (1 / 26.6e9 + 1 / 1.25e9))


def test_a_default_link(files: list[str]) -> None:
    assert load_machines(files).link("b/RAM", "a/RAM") is DEFAULT_LINK
    assert link_text(DEFAULT_LINK) == "936 Mbit/s, 0.2 ms"


def test_the_same_machine_twice(files: list[str]) -> None:
    profile = load_machines([files[0], files[0], files[0]])
    assert machines_of(profile) == ["a", "a#2", "a#3"]


def test_a_joined_profile_is_a_profile(files: list[str], tmp_path: Path) -> None:
    joined = load_machines([*files, "desktop-rtx4090"], [parse_link("1Gbps,1ms")])
    path = tmp_path / "three.toml"
    path.write_text(joined.to_toml())
    again = load_machines([str(path)])
    assert [d.name for d in again.devices] == [d.name for d in joined.devices]
    assert again.memories == joined.memories == load_profile(path).memories
    for pair, link in joined.links.items():
        assert again.links[pair].bandwidth == pytest.approx(link.bandwidth, rel=1e-4)
    faster = load_machines([str(path)], [parse_link("10Gbps,1us")])
    assert faster.link("a/RAM", "b/RAM").latency == 1e-6


def test_helpers_that_are_slower_are_left_out(tmp_path: Path) -> None:
    helper = CPU.replace("[[device]]", """[[device]]
name = "blas"
kind = "ACCEL"
memory = "RAM"
bandwidth = 20
gflops.default = 40
[[device]]""")  # fmt: skip
    (tmp_path / "a.toml").write_text(helper)
    (tmp_path / "b.toml").write_text(helper.replace("gflops.default = 40", "gflops.default = 60"))
    profile = load_machines([str(tmp_path / "a.toml"), str(tmp_path / "b.toml")])
    assert [d.name for d in profile.devices] == ["b/blas", "b/cpu", "a/cpu"]


@pytest.mark.parametrize(
    ("text", "bandwidth", "latency"),
    [
        ("1Gbps,0.2ms", 125e6, 0.2e-3),
        ("100 Mbit/s, 1 ms", 12.5e6, 1e-3),
        ("10GB/s", 10e9, 0.0),
        ("2.5gbps,30µs", 312.5e6, 30e-6),
    ],
)
def test_links(text: str, bandwidth: float, latency: float) -> None:
    link = parse_link(text).link
    assert (link.bandwidth, link.latency) == pytest.approx((bandwidth, latency))


@pytest.mark.parametrize(
    "text", ["", "fast", "1", "1Zbps", "0Gbps", "1.2.3Gbps", "1Gbps,", "1Gbps,1h", "a=1Gbps"]
)
def test_bad_links(text: str) -> None:
    with pytest.raises(FormatError, match=r"is not a link; write e\.g\. 1Gbps,0\.2ms"):
        parse_link(text)


def test_what_is_no_cluster(files: list[str], tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"one machine \(a\) is no cluster"):
        load_machines(files[:1])
    for link in ("a:c=1Gbps", "a:a=1Gbps"):
        with pytest.raises(FormatError, match="the machines are a, b"):
            load_machines(files, [parse_link(link)])
    joined = tmp_path / "both.toml"
    joined.write_text(load_machines(files).to_toml())
    with pytest.raises(FormatError, match="has several machines already; give it alone"):
        load_machines([str(joined), files[0]])
    text = joined.read_text()
    joined.write_text(text[: text.index("[[link]]")])
    with pytest.raises(FormatError, match=r"there is no \[\[link\]\] from b/RAM to a/RAM|a/RAM"):
        load_machines([str(joined)])


def test_what_a_split_gets_from_a_machine_is_one_message() -> None:
    """Four inputs of a split have the latency of the link once; without names of machines, each."""
    for names, latencies in ((("a", "b"), 1), (None, 4)):
        one = parse_profile(CPU)
        if names is None:
            profile = load_profile("desktop-rtx4090")
        else:
            profile = join_machines(dict.fromkeys(names, one), [parse_link("1GB/s,1ms")])
        devices = paper_devices(profile)
        model = TimeModel(profile, G.Graph(G.scale(G.input("x", (4,)), 2.0)), devices)
        inputs = [G.input(f"x{i}", (250,)) for i in range(4)]
        there, here = 0, len(devices) - 1
        copied = list(model.copies([(t, devices[here].buffer_type) for t in inputs], there))
        link = profile.link(devices[here].buffer_type.name, devices[there].buffer_type.name)
        total = sum(seconds for _, _, seconds in copied)
        assert total == pytest.approx(latencies * link.latency + 4000 / link.bandwidth)
