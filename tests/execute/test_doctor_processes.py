"""Checks of kernel targets by several processes: none disturbs another, a crash is remembered."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.waiting import eventually
from weft import _native
from weft.backends import make_backend
from weft.backends.cases import all_cases
from weft.backends.cpu import record
from weft.backends.cpu.record import UNFINISHED, Verdict, choose, verdicts, write_verdict
from weft.errors import DeviceError
from weft.execute.doctor import check_targets
from weft.file_lock import locked

TARGETS = [name for name, score in _native.targets() if score]
BEST = max((score, name) for name, score in _native.targets())[1]
ONE = [case for case in all_cases() if case.name == "ADD f32 f32"]

CHECK = """
import os, sys
from weft.backends.cases import all_cases
from weft.execute.doctor import check_targets
from weft.execute.trial import run_case

def waits(case, backend):
    if getattr(backend, "target", "") == sys.argv[1]:
        print("checking", flush=True)
        word = sys.stdin.readline().strip()
        if word == "die":
            os._exit(139)
    return run_case(case, backend)

few = [c for c in all_cases() if c.name == "ADD f32 f32"]
for report in check_targets([sys.argv[1]], 1, cases=few, run=waits):
    print(report.target, report.ok, flush=True)
"""

CHOOSE = "from weft.backends import make_backend; print(make_backend('cpu').target)"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A record of its own, for this process and those that it starts."""
    monkeypatch.setattr(record, "record_file", lambda: tmp_path / "targets.json")
    monkeypatch.setenv("WEFT_CACHE", str(tmp_path))
    monkeypatch.delenv("WEFT_TARGET", raising=False)
    record.best_target.cache_clear()
    yield tmp_path
    record.best_target.cache_clear()


Start = Callable[[], "subprocess.Popen[str]"]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts a doctor that is in the middle of checking the best target."""
    started = []

    def one() -> subprocess.Popen[str]:
        doctor = subprocess.Popen(
            [sys.executable, "-c", CHECK, BEST],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        started.append(doctor)
        assert doctor.stdout is not None
        while (line := doctor.stdout.readline()) not in ("checking\n", ""):
            pass
        assert line
        return doctor

    yield one
    for doctor in started:
        doctor.kill()
        doctor.communicate()


def _end(doctor: subprocess.Popen[str], word: str) -> str:
    return doctor.communicate(f"{word}\n" * 9, timeout=60)[0]


def _another_process(**env: str) -> str:
    command = [sys.executable, "-W", "error", "-c", CHOOSE]
    said = subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
    return (said.stdout or said.stderr.strip().splitlines()[-1]).strip()


def test_others_keep_their_target_while_one_is_checked(start: Start) -> None:
    write_verdict(BEST, Verdict((), 3, "2020-01-01"))
    doctor = start()
    assert verdicts()[BEST] == Verdict((), 3, "2020-01-01")
    assert make_backend("cpu").target == BEST
    assert f"process {doctor.pid} checks it now" in choose().why
    assert _another_process() == BEST
    assert _another_process(WEFT_TARGET=BEST) == BEST
    assert f"{BEST} True" in _end(doctor, "go")
    assert verdicts()[BEST].checked == 1 and "checks it now" not in choose().why


def test_a_failed_target_stays_failed_while_it_is_checked(start: Start) -> None:
    write_verdict(BEST, Verdict(("ADD f32 f32",), 3, "2020-01-01"))
    doctor = start()
    assert verdicts()[BEST].failed == ("ADD f32 f32",)
    _end(doctor, "go")
    assert verdicts()[BEST].failed == ()


@pytest.mark.parametrize("how", ["dies", "is killed"])
def test_a_check_that_ends_its_process_counts_as_failed(start: Start, how: str) -> None:
    doctor = start()
    if how == "dies":
        _end(doctor, "die")
    else:
        os.kill(doctor.pid, signal.SIGKILL)
        doctor.wait()
    assert verdicts()[BEST].failed == (UNFINISHED,)
    with pytest.raises(DeviceError, match="the check did not end"):
        make_backend("cpu", target=BEST)
    if len(TARGETS) > 1:
        assert choose().target != BEST
    next_doctor = start()  # it says nothing of the crash before it is over
    assert verdicts()[BEST].failed == (UNFINISHED,)
    _end(next_doctor, "go")
    assert verdicts()[BEST].failed == () and choose().target == BEST


def test_two_at_once(start: Start, folder: Path) -> None:
    first, second = start(), start()
    _end(first, "go")
    assert verdicts()[BEST].failed == ()
    _end(second, "die")
    assert verdicts()[BEST].failed == (UNFINISHED,)
    third, fourth = start(), start()
    _end(third, "go"), _end(fourth, "go")
    assert verdicts()[BEST].failed == ()
    assert not list(folder.glob("*.checking")) and not list(folder.glob("*.part"))


def test_verdicts_written_at_the_same_time_are_all_kept(folder: Path) -> None:
    names = [f"target{i}" for i in range(24)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: write_verdict(name, Verdict((), 1, "2020-01-01")), names))
    assert sorted(verdicts()) == sorted(names)


def test_a_record_that_stays_locked_is_an_error(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "_LOCK_SECONDS", 0.05)
    said = r"another process keeps .*targets\.json\.lock locked"
    with locked(folder / "targets.json.lock", 1), pytest.raises(DeviceError, match=said):
        write_verdict(BEST, None)


def test_a_check_that_ends_while_one_looks_is_no_crash(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its file was read, then it ended, then its lock was asked for."""
    check = record.under_check(BEST)
    check.__enter__()
    (marker,) = folder.glob("*.checking")

    def ended(path: Path) -> bool:
        if path.exists():
            check.__exit__(None, None, None)
        return False

    monkeypatch.setattr(record, "is_locked", ended)
    assert verdicts() == {}
    assert not marker.exists()


def test_a_damaged_marker_says_nothing(folder: Path) -> None:
    key = record.machine_key()
    (folder / f"targets.json.{key}.{BEST}.7-0.checking").write_bytes(b"")
    (folder / "targets.json.other.checking").write_text("process 1")
    (folder / f"targets.json.{key}.{BEST}.8-0.checking").write_bytes(b"\xff\xfe")
    assert verdicts() == {} and choose().target == BEST
    list(check_targets([BEST], cases=ONE))


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM to be caught")
def test_a_doctor_that_is_told_to_end_says_nothing(folder: Path) -> None:
    write_verdict("baseline", Verdict((), 3, "2020-01-01"))
    command = [sys.executable, "-m", "weft", "doctor", "--target", "baseline", "--json"]
    doctor = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        eventually(lambda: doctor.poll() or list(record._markers(folder / "targets.json")))
        assert doctor.poll() is None
        assert verdicts()["baseline"].checked == 3
        doctor.terminate()
        doctor.communicate(timeout=60)
    finally:
        doctor.kill()
        doctor.communicate()
    assert doctor.returncode == 143
    assert verdicts()["baseline"] == Verdict((), 3, "2020-01-01")
    assert not list(folder.glob("*.checking"))
