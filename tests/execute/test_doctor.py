"""The check of kernel targets: it finds what is wrong, and a target that fails is not used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from weft import _native
from weft.backends import Backend, make_backend
from weft.backends.cases import FORMATS, SOME_FORMATS, Case, all_cases, some_cases
from weft.backends.cpu import record
from weft.backends.cpu.record import Verdict, choose, verdicts, write_verdict
from weft.errors import DeviceError
from weft.execute import doctor
from weft.execute.doctor import Checked, check_devices, check_targets
from weft.execute.trial import POISON, Array, disagreement, run_case
from weft.graph.op import OPS

TARGETS = [name for name, score in _native.targets() if score]
BEST = max((score, name) for name, score in _native.targets())[1]
FEW = [c for c in all_cases() if c.name in ("ADD f32 f32", "MUL_MAT q4_0 x5", "ARGMAX f32")]


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The user's own record is neither read nor written."""
    file = tmp_path / "weft" / "targets.json"
    monkeypatch.setattr(record, "record_file", lambda: file)
    record.best_target.cache_clear()
    yield file
    record.best_target.cache_clear()


def broken(op: str, target: str, spoil: object = None):
    """A runner whose kernels of `op` on `target` leave their memory as it was, or `spoil` it."""

    def run(case: Case, backend: Backend) -> Array:
        got = run_case(case, backend)
        if case.op == op and getattr(backend, "target", "") == target and backend.name == "cpu":
            if callable(spoil):
                spoil(got)
            else:
                got.view(np.uint8)[...] = POISON
        return got

    return run


OTHERS = [pytest.param(name, marks=pytest.mark.part("targets")) for name in TARGETS if name != BEST]


@pytest.mark.parametrize("target", [BEST, *OTHERS])
def test_every_kernel_of_a_target_is_right(target: str) -> None:
    (report,) = check_targets([target])
    wrong = [f"{f.kernel} against {f.against}: {f.how}" for f in report.failures]
    assert report.ok, "\n".join(wrong)
    assert report.cases > 500 and report.against_reference == report.cases
    assert report.ops == len({c.op for c in all_cases()})
    assert verdicts()[target] == report.verdict


def test_the_table_has_every_op_once() -> None:
    cases = all_cases()
    computed = {name for name, op in OPS.items() if not op.is_view and name != "NONE"}
    missing = computed - {c.op for c in cases}
    assert not missing, f"add cases to src/weft/backends/cases for {sorted(missing)}"
    assert len({c.name for c in cases}) == len(cases)
    assert all(c.node().op.name == c.op for c in cases)


def test_a_kernel_that_computes_nothing_is_caught_and_its_target_refused() -> None:
    (report,) = check_targets([BEST], cases=FEW, run=broken("MUL_MAT", BEST))
    (failure,) = report.failures
    assert (failure.kernel, failure.how) == ("MUL_MAT q4_0 x5", "computes nothing")
    with pytest.raises(DeviceError, match=r"failed its check \(1 kernel fails: MUL_MAT q4_0 x5\)"):
        make_backend("cpu", target=BEST)
    if len(TARGETS) == 1:
        return
    with pytest.warns(RuntimeWarning, match=f"kernel target {BEST} failed.*MUL_MAT q4_0 x5"):
        other = make_backend("cpu").target
    assert other != BEST and other == choose().target
    assert make_backend("cpu").target == other  # and no second warning
    (again,) = check_targets([BEST], cases=FEW)
    assert again.ok and make_backend("cpu").target == BEST


def test_elements_left_unwritten_are_counted() -> None:
    def spoil(got: Array) -> None:
        got.reshape(-1)[-3:].view(np.uint8)[...] = POISON

    (report,) = check_targets([BEST], cases=FEW, run=broken("ADD", BEST, spoil))
    assert [f.how for f in report.failures] == ["leaves 3 of 798 elements unwritten"]


def test_wrong_values_are_caught() -> None:
    def spoil(got: Array) -> None:
        got += 1

    for op, how in (("ADD", "error 0"), ("ARGMAX", "bytes differ")):
        (report,) = check_targets(["baseline"], cases=FEW, run=broken(op, "baseline", spoil))
        (failure,) = report.failures
        assert failure.against == "reference" and how in failure.how


def test_a_check_that_is_interrupted_changes_nothing(own_cache: Path) -> None:
    write_verdict("baseline", Verdict((), 3, "2020-01-01"))

    def interrupted(case: Case, backend: Backend) -> Array:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(check_targets(["baseline"], cases=FEW, run=interrupted))
    assert verdicts()["baseline"].checked == 3
    assert not list(own_cache.parent.glob("*.checking"))


def test_a_build_for_one_processor_is_held_to_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "targets", lambda: [(BEST, 20)])
    (report,) = check_targets([BEST], cases=FEW)
    assert report.ok and report.against_reference == report.cases == len(FEW)
    (report,) = check_targets([BEST], cases=FEW, run=broken("ADD", BEST, lambda got: got.fill(7)))
    assert [f.against for f in report.failures] == ["reference"]


def test_a_build_for_another_processor_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_native, "targets", lambda: [("avx512", 0)])
    with pytest.raises(DeviceError, match=r"cannot run the kernels of this build.*avx512 only"):
        make_backend("cpu")


def test_no_target_left_is_an_error() -> None:
    for name in TARGETS:
        write_verdict(name, Verdict(("ADD f32 f32",), 1, "2020-01-01"))
    with pytest.raises(DeviceError, match="every kernel target failed"):
        make_backend("cpu")


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"x": 3}', '{"KEY": {"baseline": {"failed": 1}}}']
)
def test_a_damaged_record_says_nothing(own_cache: Path, text: str) -> None:
    own_cache.parent.mkdir()
    own_cache.write_text(text.replace("KEY", record.machine_key()))
    assert verdicts() == {}
    assert choose().target == BEST and "not checked" in choose().why


def test_verdicts_of_another_machine_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    write_verdict(BEST, Verdict(("ADD f32 f32",), 1, "2020-01-01"))
    monkeypatch.setattr(record, "machine_key", lambda: "another")
    assert choose().target == BEST


def test_a_record_that_cannot_be_kept_is_an_error(own_cache: Path) -> None:
    own_cache.parent.parent.joinpath("weft").write_text("a file")
    with pytest.raises(DeviceError, match="WEFT_CACHE names another folder"):
        list(check_targets(["baseline"], cases=FEW))
    (report,) = check_targets(["baseline"], cases=FEW, remember=False)
    assert report.ok


def test_agreement() -> None:
    f32 = all_cases()[0].node().dtype
    one = np.ones(4, np.float32)
    assert disagreement(one, one, f32, 0) == ""
    assert "no number" in disagreement(one * np.inf, one, f32, 1e-3)
    assert "no number" in disagreement(one, one * np.inf, f32, 1e-3)
    assert disagreement(one * np.inf, one * np.inf, f32, 1e-3) == ""
    assert "NMSE" in disagreement(one * 1.1, one, f32, 1e-3)


# ---- devices -------------------------------------------------------------------------------------

SUMS = [c for c in all_cases() if c.name.startswith(("ADD f32", "SQR", "MUL_MAT i2_s x1"))]


def test_devices_are_checked_with_a_format_of_each_kind() -> None:
    some = some_cases()
    assert {c.op for c in some} == {c.op for c in all_cases()}
    assert {c.format for c in some} == {*SOME_FORMATS, ""} and set(SOME_FORMATS) < set(FORMATS)


def test_a_device_is_checked_op_by_op() -> None:
    """The first case of each op comes first; what is wrong is told at once."""
    order: list[str] = []
    told: list[Checked] = []

    def run(case: Case, backend: Backend) -> Array:
        order.append(case.op)
        got = run_case(case, backend)
        return got + 1 if case.op == "SQR" and len(order) > 4 else got

    (report,) = check_devices(["null"], cases=SUMS, run=run, finished=told.append)
    ops = list(dict.fromkeys(c.op for c in SUMS))
    assert [t.op for t in told[: len(ops)]] == ops
    assert sum(t.cases for t in told) == report.cases == len(SUMS) - sum(t.refused for t in told)
    assert [f for t in told for f in t.failures] == report.failures
    assert report.ops == len({t.op for t in told if t.cases})


def test_a_limit_of_time_ends_with_what_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def run(case: Case, backend: Backend) -> Array:
        nonlocal now
        now += 1
        return run_case(case, backend)

    monkeypatch.setattr(doctor, "perf_counter", lambda: now)
    told: list[Checked] = []
    cases = [c for c in SUMS if c.op in ("ADD", "SQR")]
    limit = 3 * 2  # each case runs on the device and on the reference
    (report,) = check_devices(
        ["reference"], cases=cases, run=run, limit=limit, finished=told.append
    )
    assert report.ok and report.cases == 3 and report.ops == 2
    assert len(report.not_run) == len(cases) - 3 and sum(t.cases for t in told) == 3
