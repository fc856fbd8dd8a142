"""Machine profiles: what is read, written and refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from weft.backends.base import Use
from weft.backends.cpu import CpuBackend
from weft.dtype import DTYPES
from weft.errors import FormatError
from weft.graph import mul_mat
from weft.graph.tensor import Buffer, Tensor
from weft.schedule.machine import paper_devices
from weft.schedule.profile import load_profile, parse_size, shipped_profiles

GOOD = """
format = "weft-machine-1"
name = "m"
[[memory]]
name = "RAM"
host = true
[[memory]]
name = "VRAM"
size = "2 GiB"
max_block = "1GiB"
[[device]]
name = "gpu"
kind = "GPU"
memory = "VRAM"
bandwidth = 500
launch = 5
gflops.default = 10000
gflops.q4_0 = 9000
gflops.vector = 1000
op_gflops.ROPE = 10
refuses = ["ARGSORT"]
offload_from = 32
[[device]]
name = "cpu"
kind = "CPU"
memory = "RAM"
bandwidth = 50
gflops.default = 100
[[link]]
between = ["RAM", "VRAM"]
bandwidth = 20
latency = 10
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "m.toml"
    file.write_text(GOOD)
    return file


def test_units(path: Path) -> None:
    gpu = load_profile(path).device("gpu")
    assert gpu is not None
    assert (gpu.bandwidth, gpu.launch, gpu.start) == pytest.approx((500e9, 5e-6, 0))
    assert gpu.rate("MUL_MAT", True, "q4_0") == 9e12
    assert gpu.rate("MUL_MAT", True, "f16") == 1e13
    assert gpu.rate("ADD", False, "f32") == 1e12
    assert gpu.rate("ROPE", False, "f32") == 1e10
    memory = load_profile(path).memories["VRAM"]
    assert (memory.size, memory.max_block) == (2 << 30, 1 << 30)


def test_links_go_by_host_memory(path: Path) -> None:
    text = GOOD.replace('[[device]]\nname = "cpu"', '''[[memory]]
name = "V2"
[[device]]
name = "gpu2"
kind = "GPU"
memory = "V2"
bandwidth = 1
gflops.default = 1
[[link]]
between = ["V2", "RAM"]
bandwidth = 20
latency = 10
[[device]]
name = "cpu"''')  # fmt: skip
    path.write_text(text)
    profile = load_profile(path)
    between = profile.link("VRAM", "V2")
    assert between.latency == pytest.approx(20e-6) and between.bandwidth == pytest.approx(10e9)
    assert profile.link("RAM", "VRAM").bandwidth == 20e9
    within = profile.link("VRAM", "VRAM")
    assert (within.latency, within.bandwidth) == (0, 250e9)


def test_what_is_written_is_read_back(path: Path) -> None:
    for source in (path, *shipped_profiles()):
        profile = load_profile(source)
        path.write_text(profile.to_toml())
        again = load_profile(path)
        assert again.memories == profile.memories and again.sources == profile.sources
        assert [d.name for d in again.devices] == [d.name for d in profile.devices]
        for a, b in zip(again.devices, profile.devices, strict=True):
            assert a.flops == pytest.approx(b.flops) and a.bandwidth == pytest.approx(b.bandwidth)
            assert (a.refuses, a.offload_from, a.reads) == (b.refuses, b.offload_from, b.reads)


def test_shipped_profiles_name_their_sources() -> None:
    assert len(shipped_profiles()) == 7
    for name in shipped_profiles():
        profile = load_profile(name)
        assert profile.sources and all("https://" in s for s in profile.sources)
        assert [d.name for d in paper_devices(profile)] == [d.name for d in profile.devices]


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("launch = 5", "lunch = 5", "device gpu: 'lunch' is unknown; did you mean launch"),
        ("gflops.q4_0", "gflops.q40", "device gpu: gflops: 'q40' is unknown; did you mean q4_0"),
        ("op_gflops.ROPE", "op_gflops.ROP", "'ROP' is unknown; did you mean ROPE"),
        ("latency", "latancy", "'latancy' is unknown; did you mean latency"),
        ('name = "m"', 'nane = "m"', "the file: 'nane' is unknown; did you mean name"),
        ("host = true", "hots = true", "memory RAM: 'hots' is unknown; did you mean host"),
        (
            "gflops.default = 100\n",
            "gflops.default = 100\nthreads = 0\n",
            "threads is 0; it must be",
        ),
    ],
)
def test_a_misspelt_key_is_an_error_with_the_near_ones(
    path: Path, before: str, after: str, said: str
) -> None:
    path.write_text(GOOD.replace(before, after, 1))
    with pytest.raises(FormatError) as error:
        load_profile(path)
    assert said in str(error.value)


def test_a_planned_cpu_takes_what_the_cpu_here_takes(path: Path) -> None:
    profile = load_profile(path)
    *_, planned = paper_devices(profile)
    real = CpuBackend(n_threads=3, even_if_failing=True)
    weight = Tensor(
        DTYPES["q8_0"], (256, 64, 1, 1), name="w",
        buffer=Buffer("weights", planned.buffer_type, np.zeros(64 * 272, np.uint8)),
    )  # fmt: skip
    x = Tensor(DTYPES["f32"], (256, 16, 1, 1), name="x")
    node = mul_mat(weight, x)
    assert planned.rewrites == real.rewrites and planned.generalizes == real.generalizes
    planned_nodes, real_nodes = planned.optimize([node]), real.optimize([mul_mat(weight, x)])
    assert [n.op.name for n in planned_nodes] == [n.op.name for n in real_nodes]
    threads = replace(profile, devices=tuple(replace(d, threads=3) for d in profile.devices))
    *_, planned = paper_devices(threads)
    assert [planned.work_bytes(n) for n in planned_nodes] == [
        real.work_bytes(n) for n in real_nodes
    ]
    there, here = (d.weight_layout(weight, [Use(node, 0)]) for d in (planned, real))
    assert (there is None) == (here is None)
    if there is not None and here is not None:
        assert there.alloc_size(weight) == here.alloc_size(weight)
        assert there.name == "RAM" + here.name.removeprefix("CPU")


def test_paper_devices(path: Path) -> None:
    gpu, cpu = paper_devices(load_profile(path))
    assert gpu.memory_limit() == 2 << 30 and cpu.memory_limit() is None
    assert not gpu.supports_buffer_type(cpu.buffer_type) and not gpu.buffer_type.is_host


@pytest.mark.parametrize(
    ("kind", "told", "in_host"),
    [
        ("GPU", "", False),
        ("IGPU", "", True),
        ("ACCEL", "in_host = true", True),
        ("IGPU", "in_host = false", False),
    ],
)
def test_memory_within_the_hosts(path: Path, kind: str, told: str, in_host: bool) -> None:
    """The file says it, or an integrated GPU has it."""
    text = GOOD.replace('kind = "GPU"', f'kind = "{kind}"')
    path.write_text(text.replace('name = "VRAM"', f'name = "VRAM"\n{told}'))
    for _ in range(2):
        profile = load_profile(path)
        device, cpu = paper_devices(profile)
        assert device.buffer_type.in_host == in_host and not cpu.buffer_type.in_host
        path.write_text(profile.to_toml())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("weft-machine-1", "other"), "format is not"),
        (("bandwidth = 500", "bandwidth = 0"), "device gpu: 'bandwidth' is 0"),
        (("bandwidth = 500", 'bandwidth = "fast"'), "'bandwidth' is 'fast', which is not"),
        (("bandwidth = 500", ""), "'bandwidth' is missing"),
        (("gflops.default = 100\n", "gflops.f32 = 100\n"), "device cpu: gflops.default is missing"),
        (('kind = "GPU"', 'kind = "TPU"'), "kind 'TPU' is not one of CPU, GPU"),
        (('memory = "VRAM"', 'memory = "HBM"'), "there is no memory 'HBM'"),
        (('between = ["RAM", "VRAM"]', 'between = ["RAM"]'), "must name two memories"),
        (('kind = "CPU"', 'kind = "ACCEL"'), "the last must be of kind CPU"),
        (('name = "gpu"', 'name = "cpu"'), "a device is listed twice"),
        (("[[link]]", "[[lonk]]"), "'lonk' is unknown; did you mean link"),
        ((GOOD[GOOD.index("[[link]]") :], ""), r"no \[\[link\]\] from RAM to VRAM"),
        (("2 GiB", "many"), "'many' is not a size"),
        (("host = true", "host = 1"), "'host' is 1"),
        (("launch = 5", "launch = -5"), "'launch' is -5"),
        (("[[memory]]", "[[memory"), "machine profile .*m.toml"),
    ],
)
def test_bad_profiles(path: Path, change: tuple[str, str], message: str) -> None:
    assert change[0] in GOOD
    path.write_text(GOOD.replace(*change, 1))
    with pytest.raises(FormatError, match=message):
        load_profile(path)


def test_a_profile_that_is_not_there() -> None:
    with pytest.raises(FormatError, match=r"nowhere: .*or one of desktop-rtx4060"):
        load_profile("nowhere")


@pytest.mark.parametrize(
    ("text", "size"),
    [("24 GiB", 24 << 30), ("512M", 512 << 20), ("1.5 GB", 1_500_000_000), ("10", 10), (7, 7)],
)
def test_sizes(text: str | int, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GiB", "1 XB", "1 2", True])
def test_bad_sizes(text: str) -> None:
    with pytest.raises(FormatError, match="is not a size"):
        parse_size(text)
