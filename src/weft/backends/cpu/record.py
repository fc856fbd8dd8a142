"""The record of kernel targets that passed `weft doctor` on this machine, and the choice of a
target.

A file in the user's cache folder holds the result of the last check of each target, by machine and
build of weft. Without one nothing is known and the best target is used. With one, finding the entry
of this build takes 4 ms once, because the key is a hash of the kernels.

While a target is checked, a file beside it, locked by the checking process, says so
(`under_check`); earlier verdicts stay valid for other processes. A file of a process that is gone
stands for a check that ended the process: its target counts as failed until a check of it ends.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from functools import cache
from hashlib import file_digest
from pathlib import Path
from types import MappingProxyType
from typing import Any

from weft.backends.cpu.products import wrong_products
from weft.errors import DeviceError, FormatError, warn
from weft.file_lock import is_locked, locked, try_lock
from weft.files import write_text
from weft.flags import FLAGS
from weft.native import _native
from weft.records import dataclass

UNFINISHED = "the check did not end: the process crashed or was ended"
"""The verdict of a check whose process is gone."""

_CHECKED_FIRST = {"amx": "avx512"}
"""For each target that is compared before its first use, the target below it, which has the same
products."""

_LOCK_SECONDS = 10.0
"""The longest wait for the record, which is read and written within milliseconds."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The result of the last check of a target."""

    failed: tuple[str, ...]
    """Names of kernels that failed, e.g. `MUL_MAT q4_0 x1`; empty: all passed."""
    checked: int = 0
    """The number of cases."""
    date: str = ""
    """The day of the check, YYYY-MM-DD."""

    @property
    def summary(self) -> str:
        """The verdict in a line, such as `3 kernels fail: ADD f32, MUL f32, ...`."""
        if not self.failed:
            return f"all {self.checked} checks passed on {self.date}"
        names = ", ".join(self.failed[:4]) + (", ..." if len(self.failed) > 4 else "")
        if self.failed == (UNFINISHED,):
            return UNFINISHED
        return f"{len(self.failed)} kernel{'s fail' if len(self.failed) > 1 else ' fails'}: {names}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The target that is used unless a caller names another."""

    target: str
    why: str
    passed_over: tuple[str, ...] = ()
    """Better targets that failed their check."""


def record_file() -> Path:
    """The file that holds verdicts."""
    return Path(FLAGS.cache) / "targets.json"


def verdicts(file: Path | None = None) -> dict[str, Verdict]:
    """The verdicts of this machine and build by target; empty for a file that cannot be read."""
    where = file or record_file()
    by_target = _kept_verdicts(where)
    for target, _ in _broken_off(where):
        by_target[target] = Verdict((UNFINISHED,))
    return by_target


def _kept_verdicts(where: Path) -> dict[str, Verdict]:
    entries = entries_of(where)
    if not entries:
        return {}
    own = entries.get(machine_key(), {})
    by_target = {}
    for target, entry in own.items() if isinstance(own, dict) else ():
        try:
            failed, checked = tuple(map(str, entry["failed"])), int(entry["checked"])
            by_target[target] = Verdict(failed, checked, str(entry["date"]))
        except (KeyError, TypeError, ValueError):
            continue  # a damaged entry is ignored
    return by_target


def write_verdict(target: str, verdict: Verdict | None, file: Path | None = None) -> None:
    """Stores a verdict (None removes it), and removes checks of the target that were broken off.

    Raises DeviceError for a folder that cannot be written."""
    where = file or record_file()
    with _told(where), locked(_beside(where, "lock"), _LOCK_SECONDS):
        entries = entries_of(where)
        own = entries.setdefault(machine_key(), {})
        if verdict is None:
            own.pop(target, None)
        else:
            own[target] = asdict(verdict)
        write_text(where, json.dumps(entries, indent=1))
        for name, marker in _broken_off(where):
            if name == target:
                marker.unlink(missing_ok=True)
    best_target.cache_clear()


@contextmanager
def under_check(target: str, file: Path | None = None) -> Iterator[None]:
    """Records that this process checks a target, for the length of a block.

    If the process ends in it, the target counts as failed. Raises DeviceError for a folder that
    cannot be written."""
    where = file or record_file()
    with _told(where):
        where.parent.mkdir(parents=True, exist_ok=True)
        marker = _marker(where, target)
        opened = marker.open("x", encoding="utf-8")
    try:
        with opened:
            try_lock(opened)
            # an empty file is only just created, or about to be removed
            opened.write(f"process {os.getpid()}")
            opened.flush()
            try:
                yield
            finally:
                opened.truncate(0)
    finally:
        with suppress(OSError):
            marker.unlink()


def _marker(where: Path, target: str) -> Path:
    for number in range(1 << 16):
        path = _beside(where, f"{machine_key()}.{target}.{os.getpid()}-{number}.checking")
        if not path.exists():
            return path
    raise DeviceError(f"{where.parent} is full of files *.checking; remove them")


def _markers(where: Path) -> Iterator[tuple[str, Path, str]]:
    """(target, file, text of the file) of each check of this machine and build that did not end."""
    paths = where.parent.glob(f"{where.name}.*.checking")
    for path in paths:
        parts = path.name.removeprefix(f"{where.name}.").split(".")
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        if len(parts) == 4 and parts[0] == machine_key() and text:
            yield parts[1], path, text


def _broken_off(where: Path) -> list[tuple[str, Path]]:
    """(target, file) of checks whose process is gone."""
    unlocked = [(target, path) for target, path, _ in _markers(where) if not is_locked(path)]
    # a check that has ended meanwhile has no file any more
    still = {path for _, path, _ in _markers(where)} if unlocked else set()
    return [(target, path) for target, path in unlocked if path in still]


def _beside(where: Path, ending: str) -> Path:
    return where.with_name(f"{where.name}.{ending}")


@contextmanager
def _told(where: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, FormatError) as error:
        raise DeviceError(
            f"the result of the check cannot be kept in {where}: "
            f"{getattr(error, 'strerror', None) or error}; WEFT_CACHE names another folder"
        ) from None


def forget(file: Path | None = None) -> None:
    """Removes every verdict."""
    where = file or record_file()
    where.unlink(missing_ok=True)
    for _, marker in _broken_off(where):
        marker.unlink(missing_ok=True)
    best_target.cache_clear()


def choose(file: Path | None = None, known: Mapping[str, Verdict] = MappingProxyType({})) -> Choice:
    """The best target that this machine can run and that no check failed. `known`: verdicts that
    the record may lack.

    Raises DeviceError when every target failed, or the build has none for this machine."""
    results = verdicts(file) | dict(known)
    usable = sorted(((s, name) for name, s in _native.targets() if s), reverse=True)
    if not usable:
        names = ", ".join(name for name, _ in _native.targets())
        raise DeviceError(
            f"this processor cannot run the kernels of this build of weft ({names} only); install "
            "weft on this machine, or build it for every processor: pip install . "
            "-C cmake.define.WEFT_TARGETS=all"
        )
    passed_over = []
    for _, name in usable:
        verdict = results.get(name)
        if verdict is not None and verdict.failed:
            passed_over.append(name)
            continue
        why = "the best this machine can run" if not passed_over else "the best that did not fail"
        known_as = verdict.summary if verdict is not None else "not checked, see weft doctor"
        for other, _, process in _markers(file or record_file()):
            known_as += f"; {process} checks it now" if other == name else ""
        return Choice(name, f"{why}; {known_as}", tuple(passed_over))
    raise DeviceError(
        f"every kernel target failed its check ({', '.join(passed_over)}); reinstall weft, or run "
        "`weft doctor --all` again"
    )


@cache
def best_target() -> str:
    """The target of `choose`; warns once of a better target that failed its check."""
    choice = choose()
    known = _check_first(choice.target)
    if known.get(choice.target, Verdict(())).failed:
        choice = choose(known=known)
    for name in choice.passed_over:
        verdict = verdicts().get(name) or known[name]
        warn(
            f"kernel target {name} failed its check ({verdict.summary}); using "
            f"{choice.target}. `weft doctor --target {name}` checks it again",
            RuntimeWarning,
        )
    return choice.target


def require_usable(target: str) -> None:
    """Raises DeviceError, naming kernels, when a target failed its check."""
    verdict = _check_first(target).get(target) or verdicts().get(target)
    if verdict is not None and verdict.failed:
        raise DeviceError(
            f"kernel target {target} failed its check ({verdict.summary}) and is not used; "
            f"`weft doctor --target {target}` checks it again"
        )


def _check_first(target: str) -> dict[str, Verdict]:
    """The verdict of a target that is compared with the one below it before its first use, where
    this is the first; kept where the cache folder can be written."""
    below = _CHECKED_FIRST.get(target)
    if below is None or target in verdicts() or below not in dict(_native.targets()):
        return {}
    try:
        with under_check(target):
            verdict = _compared(target, below)
            write_verdict(target, verdict)
    except DeviceError:  # no record can be written
        verdict = _compared(target, below)
    return {target: verdict}


def _compared(target: str, below: str) -> Verdict:
    wrong, count = wrong_products(target, below)
    return Verdict(tuple(wrong), count, datetime.date.today().isoformat())


def entries_of(file: Path) -> dict[str, Any]:
    """The entries of a file of records, by machine; empty for a file that cannot be read."""
    try:
        entries = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return entries if isinstance(entries, dict) else {}


@cache
def machine_key() -> str:
    """The processor's model and features, and this build of the kernels."""
    with open(str(_native.__file__), "rb") as file:  # read in parts: it has tens of megabytes
        digest = file_digest(file, "sha256")
    digest.update("\n".join([processor_name(), *_native.cpu_features()]).encode())
    return digest.hexdigest()[:24]


def processor_name() -> str:
    """The processor's model as the system calls it."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
