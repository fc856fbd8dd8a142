"""Which tests run, in what order, and fixtures that every test may use (docs/testing.md)."""

from __future__ import annotations

import gc
import os
import signal
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.profiles import use_profile
from tests.units import Durations, in_order

pytest_plugins = ["tests.lasting", "tests.ray_nodes"]

ROOT = Path(__file__).resolve().parent.parent
VECTORS = ROOT.parent / "shared" / "vectors"
"""The full golden vectors; a public clone does not have them."""
PARTS = {
    "targets": "kernel targets beside the best of this machine, over all golden data",
    "devices": "OpenCL and WebGPU devices and CUDA's kernels on their stand-in, at length",
    "models": "architectures, folders and towers, every scenario",
    "programs": "PyTorch's operator database and ExecuTorch's models",
    "faults": "kills, restarts, hostile input and long runs",
    "pages": "pages in Chromium, every look",
    "cluster": "Ray and several machines",
    "clients": "programs of others, installed, against a server",
    "properties": "tests with random input, with five times the examples",
}
"""What `make test` leaves to `make test-all`, by name: `@pytest.mark.part(NAME)`."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of this suite."""
    group = parser.getgroup("weft")
    group.addoption("--part", choices=(*PARTS, "all"), help="run this part of make test-all")
    group.addoption("--profile", choices=("ci", "nightly"), help="examples of random tests")
    group.addoption("--shuffle", type=int, metavar="SEED", help="files and tests in random order")
    group.addoption("--record-durations", action="store_true", help="write tests/durations.json")


def pytest_configure(config: pytest.Config) -> None:
    """Ctrl-C reaches tests that raise it, also where a shell started them in the background, which
    ignores it. Libraries that tests use take one thread each, as two workers share two cores.
    Lavapipe and PoCL, which compile a kernel longer than a test runs it, leave out
    optimizations."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ.setdefault(name, "1")
    config.addinivalue_line("markers", "part(name): runs in `make test-all PART=name` only")
    part = config.getoption("part")
    if part is None:  # parts run what users' kernels are; both kinds are kept apart on disk
        os.environ.setdefault("GALLIVM_PERF", "nopt")
        os.environ.setdefault("POCL_EXTRA_BUILD_FLAGS", "-cl-opt-disable")
    use_profile(config.getoption("profile") or ("nightly" if part == "properties" else "ci"))
    if config.getoption("record_durations") and not hasattr(config, "workerinput"):
        config.pluginmanager.register(Durations())


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Generator[None, object, object]:
    """Objects of collected tests stay until the end: the garbage collector, which would look at
    all of them again and again, leaves them out."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def _part(item: pytest.Item) -> str | None:
    mark = item.get_closest_marker("part")
    if mark is None:
        return None
    assert mark.args[0] in PARTS, f"{item.nodeid}: there is no part {mark.args[0]!r}"
    return str(mark.args[0])


def _random(item: pytest.Item) -> bool:
    return bool(getattr(getattr(item, "obj", None), "is_hypothesis_test", False))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Takes the tests of the part that is asked for, in the order of `tests.units`."""
    part = config.getoption("part")
    if part == "all":
        chosen = items[:]
    elif part == "properties":
        chosen = [item for item in items if _random(item)]
    else:
        chosen = [item for item in items if _part(item) == part]
    taken = set(map(id, chosen))
    config.hook.pytest_deselected(items=[item for item in items if id(item) not in taken])
    items[:] = in_order(chosen, config.getoption("shuffle"))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Units go to workers, the longest first."""
    from tests.units import UnitScheduling

    return UnitScheduling(config, log)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Says how many tests were skipped, by reason."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ")
        for report in terminalreporter.stats.get("skipped", ())
        if isinstance(report.longrepr, tuple)
    )
    if reasons:
        terminalreporter.section("skipped, by reason")
    for reason, n in reasons.most_common():
        terminalreporter.write_line(f"{n:6} {reason}")


@pytest.fixture(scope="session")
def vectors() -> Path:
    """Folder of the full golden vectors; skips the test where it is absent."""
    if not VECTORS.is_dir():
        pytest.skip("the full golden vectors (../shared/vectors) are not part of a public clone")
    return VECTORS
