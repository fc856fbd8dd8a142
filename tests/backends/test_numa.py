"""Several memory nodes, made up: where threads and blocks of memory go."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

from weft import _native, numa
from weft.backends.cpu import ThreadOptions
from weft.backends.cpu.backend import CpuBackend
from weft.backends.memory import HostMemory
from weft.numa import MemoryPlacement, current_placement, memory_nodes, node_of, use_placement

BIG = 1 << 20


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Tests leave no placement behind."""
    yield
    use_placement(None)


@pytest.fixture
def two_nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine with nodes 0 and 2, a processor each, and node 3 without any."""
    if not {0, 1} <= set(_native.usable_cpus()):
        pytest.skip("processors 0 and 1 are needed")
    for node, cpus in ((0, "0"), (2, "1"), (3, "")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{cpus}\n")
    (tmp_path / "online").write_text("0,2-3\n")
    monkeypatch.setattr(numa, "SYSFS", tmp_path)
    return tmp_path


class Calls:
    """Stands for the system."""

    def __init__(self, error: int = 0) -> None:
        self.error = error
        self.made: list[tuple[int, int, int, tuple[int, ...]]] = []

    def __call__(self, address: int, nbytes: int, mode: int, nodes: Sequence[int]) -> int:
        self.made.append((address, nbytes, mode, tuple(nodes)))
        return self.error


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> Calls:
    recorded = Calls()
    monkeypatch.setattr(numa, "_mbind", recorded)
    return recorded


def test_nodes_are_read_from_the_system(two_nodes: Path) -> None:
    assert memory_nodes([0, 1]) == {0: [0], 2: [1]}
    assert memory_nodes([1]) == {2: [1]}
    assert node_of(1, {0: [0], 2: [1]}) == 2 and node_of(-1, {0: [0], 2: [1]}) == 0
    (two_nodes / "node0" / "cpulist").write_text("0-1,4-x\n")
    assert memory_nodes([0, 1])[0] == [0, 1]
    (two_nodes / "online").unlink()
    assert memory_nodes([0, 1]) == {0: [0, 1]}


def test_blocks_are_spread_over_all_nodes(two_nodes: Path, calls: Calls) -> None:
    backend = CpuBackend(2, threads=ThreadOptions(numa="distribute"))
    calls.made.clear()
    block = backend.buffer_type.allocate(BIG)
    ((address, nbytes, mode, nodes),) = calls.made
    assert (mode, nodes) == (3, (0, 2))
    host = block.host()
    assert host is not None
    assert address % 4096 == nbytes % 4096 == 0 and BIG - 8192 < nbytes <= BIG
    assert host.ctypes.data - 64 <= address < host.ctypes.data + 4096
    placement = current_placement()
    assert placement is not None and placement.placed_bytes == nbytes
    HostMemory.zeros(1000)
    assert len(calls.made) == 1  # too small to be worth it


def test_memory_stays_with_the_caller(
    two_nodes: Path, calls: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("weft._native.current_cpu", lambda: 1)
    CpuBackend(1, threads=ThreadOptions(numa="isolate"))
    HostMemory.zeros(BIG)
    assert calls.made[-1][2:] == (1, (2,))


def test_numactl_leaves_memory_to_the_process(two_nodes: Path, calls: Calls) -> None:
    CpuBackend(1, threads=ThreadOptions(numa="distribute"))
    assert current_placement() is not None
    CpuBackend(1)  # says nothing, and changes nothing
    assert current_placement() is not None
    CpuBackend(1, threads=ThreadOptions(numa="numactl"))
    assert current_placement() is None
    calls.made.clear()
    HostMemory.zeros(BIG)
    assert not calls.made


def test_a_refusal_is_a_warning(two_nodes: Path, calls: Calls) -> None:
    calls.error = errno.EPERM
    with pytest.warns(RuntimeWarning, match=r"does not place memory \(Operation not permitted\)"):
        CpuBackend(1, threads=ThreadOptions(numa="distribute"))
    assert current_placement() is None
    assert not HostMemory.zeros(BIG).host().any()


def test_a_refusal_later_leaves_the_block_as_it_is(calls: Calls) -> None:
    placement = MemoryPlacement("distribute", (0, 1))
    use_placement(placement)
    calls.error = errno.EINVAL
    HostMemory.zeros(BIG)
    assert (placement.placed_bytes, placement.refused) == (0, "Invalid argument")


def test_with_one_node_nothing_is_asked(calls: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(numa, "SYSFS", Path("/nowhere"))
    with pytest.warns(RuntimeWarning, match="one memory node"):
        CpuBackend(1, threads=ThreadOptions(numa="distribute"))
    HostMemory.zeros(BIG)
    assert not calls.made and current_placement() is None


def test_caches_arenas_and_repacked_weights_are_placed(
    two_nodes: Path, calls: Calls, tmp_path_factory: pytest.TempPathFactory
) -> None:
    from tests.llm.tiny import write_wide_model
    from weft.llm.compute.context import Context
    from weft.llm.model import Model

    model = Model.open(write_wide_model(tmp_path_factory.mktemp("model") / "m.gguf"))
    want = Context(model, 2048, n_threads=1).decode([1, 5, 9])
    assert not calls.made
    context = Context(model, 2048, threads=ThreadOptions(n_threads=2, numa="distribute"))
    np.testing.assert_array_equal(context.decode([1, 5, 9]), want)
    placement = current_placement()
    assert placement is not None
    assert placement.placed_bytes > context.memory.cache * 0.9


def test_the_system_itself_is_asked_and_nothing_breaks() -> None:
    """The real call, on the node that every machine has: done or refused, the bytes are right."""
    for mode in ("distribute", "isolate"):
        placement = MemoryPlacement(mode, (0,))
        refused = placement.try_out()
        use_placement(placement)
        memory = HostMemory.zeros(BIG)
        memory.write(BIG - 3, np.arange(3, dtype=np.uint8))
        assert memory.read(BIG - 4, 4).tolist() == [0, 0, 1, 2]
        assert bool(refused) != (placement.placed_bytes > 0)


def test_devices_names_the_nodes(two_nodes: Path) -> None:
    from tests.cli.in_process import weft

    said = weft("devices")
    assert said.returncode == 0, said.stderr
    assert "memory nodes: 0 (1 processors), 2 (1 processors); see --numa" in said.stdout
