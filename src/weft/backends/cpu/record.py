"""Which kernel targets passed `weft doctor` on this machine, and which target is used therefore.

A file in the user's cache folder holds, per machine and build of weft, the result of the last check
of each target. Without one nothing is known and the best target is used. Where there is one,
finding the entry of this build takes 4 ms once: the key is a hash of the kernels.

While a target is checked, a file beside it, locked by the checking process, says so
(`under_check`); verdicts stay as they are for everybody else. A file of a process that is gone
stands for a check that ended the process: its target counts as failed until a check of it ends.
"""

from __future__ import annotations

import json
import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from weft.errors import DeviceError, FormatError
from weft.file_lock import is_locked, locked, try_lock
from weft.files import write_text
from weft.flags import FLAGS
from weft.native import _native

__all__ = ["Choice", "Verdict", "best_target", "choose", "forget", "machine_key", "processor_name",
           "require_usable", "under_check", "verdicts", "write_verdict"]  # fmt: skip

UNFINISHED = "the check did not end: the process crashed or was ended"
"""What the verdict holds of a check whose process is gone."""

_LOCK_SECONDS = 10.0
"""Reading and writing the record takes milliseconds; who still waits then is told so."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the last check of a target found."""

    failed: tuple[str, ...]
    """Names of kernels, e.g. `MUL_MAT q4_0 x1`; empty: all passed."""
    checked: int = 0
    """Cases that were run."""
    date: str = ""
    """Day of the check, YYYY-MM-DD."""

    @property
    def summary(self) -> str:
        """`3 kernels fail: ADD f32, MUL f32, ...`."""
        if not self.failed:
            return f"all {self.checked} checks passed on {self.date}"
        names = ", ".join(self.failed[:4]) + (", ..." if len(self.failed) > 4 else "")
        if self.failed == (UNFINISHED,):
            return UNFINISHED
        return f"{len(self.failed)} kernel{'s fail' if len(self.failed) > 1 else ' fails'}: {names}"


@dataclass(frozen=True, slots=True)
class Choice:
    """The target that is used where nothing else is asked for."""

    target: str
    why: str
    passed_over: tuple[str, ...] = ()
    """Better targets that failed their check."""


def record_file() -> Path:
    """Where verdicts are kept."""
    return Path(FLAGS.cache) / "targets.json"


def verdicts(file: Path | None = None) -> dict[str, Verdict]:
    """The verdicts of this machine and build by target; none from a file that cannot be read."""
    where = file or record_file()
    made = _kept_verdicts(where)
    for target, _ in _broken_off(where):
        made[target] = Verdict((UNFINISHED,))
    return made


def _kept_verdicts(where: Path) -> dict[str, Verdict]:
    found = _entries(where)
    if not found:
        return {}
    mine = found.get(machine_key(), {})
    made = {}
    for target, entry in mine.items() if isinstance(mine, dict) else ():
        try:
            failed, checked = tuple(map(str, entry["failed"])), int(entry["checked"])
            made[target] = Verdict(failed, checked, str(entry["date"]))
        except (KeyError, TypeError, ValueError):
            continue  # a damaged entry says nothing
    return made


def write_verdict(target: str, verdict: Verdict | None, file: Path | None = None) -> None:
    """Keeps a verdict (None: forgets it), and forgets checks of the target that were broken off.

    A folder that cannot be written is a DeviceError."""
    where = file or record_file()
    with _told(where), locked(_beside(where, "lock"), _LOCK_SECONDS):
        found = _entries(where)
        mine = found.setdefault(machine_key(), {})
        if verdict is None:
            mine.pop(target, None)
        else:
            mine[target] = asdict(verdict)
        write_text(where, json.dumps(found, indent=1))
        for name, marker in _broken_off(where):
            if name == target:
                marker.unlink(missing_ok=True)
    best_target.cache_clear()


@contextmanager
def under_check(target: str, file: Path | None = None) -> Iterator[None]:
    """Says that this process checks a target, for the length of a block. If the process ends in
    it, the target counts as failed.

    A folder that cannot be written is a DeviceError."""
    where = file or record_file()
    with _told(where):
        where.parent.mkdir(parents=True, exist_ok=True)
        marker = _marker(where, target)
        opened = marker.open("x", encoding="utf-8")
    try:
        with opened:
            try_lock(opened)
            # a file without a word in it is not there yet, or no more
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
    """(target, file, what it says) of each check of this machine and build that did not end."""
    paths = where.parent.glob(f"{where.name}.*.checking")
    for path in paths:
        parts = path.name.removeprefix(f"{where.name}.").split(".")
        try:
            said = path.read_text(encoding="utf-8")
        except (OSError, ValueError):
            continue
        if len(parts) == 4 and parts[0] == machine_key() and said:
            yield parts[1], path, said


def _broken_off(where: Path) -> list[tuple[str, Path]]:
    """(target, file) of checks whose process is gone."""
    unlocked = [(target, path) for target, path, _ in _markers(where) if not is_locked(path)]
    # one that has ended meanwhile says nothing any more
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
    """Forgets every verdict."""
    where = file or record_file()
    where.unlink(missing_ok=True)
    for _, marker in _broken_off(where):
        marker.unlink(missing_ok=True)
    best_target.cache_clear()


def choose(file: Path | None = None) -> Choice:
    """The best target that this machine can run and that no check failed.

    Raises DeviceError when every target failed, or the build has none for this machine."""
    known = verdicts(file)
    usable = sorted(((s, name) for name, s in _native.targets() if s), reverse=True)
    if not usable:
        names = ", ".join(name for name, _ in _native.targets())
        raise DeviceError(
            f"this processor cannot run the kernels of this build of weft ({names} only); install "
            "weft on this machine"
        )
    passed_over = []
    for _, name in usable:
        verdict = known.get(name)
        if verdict is not None and verdict.failed:
            passed_over.append(name)
            continue
        why = "the best this machine can run" if not passed_over else "the best that did not fail"
        known_as = verdict.summary if verdict is not None else "not checked, see weft doctor"
        for other, _, said in _markers(file or record_file()):
            known_as += f"; {said} checks it now" if other == name else ""
        return Choice(name, f"{why}; {known_as}", tuple(passed_over))
    raise DeviceError(
        f"every kernel target failed its check ({', '.join(passed_over)}); reinstall weft, or run "
        "`weft doctor --all` again"
    )


@cache
def best_target() -> str:
    """The target of `choose`; warns once of a better one that failed its check."""
    choice = choose()
    known = verdicts() if choice.passed_over else {}
    for name in choice.passed_over:
        warnings.warn(
            f"kernel target {name} failed its check ({known[name].summary}); using {choice.target}."
            f" `weft doctor --target {name}` checks it again",
            RuntimeWarning,
            stacklevel=2,
        )
    return choice.target


def require_usable(target: str) -> None:
    """Raises DeviceError, naming kernels, when a target failed its check."""
    verdict = verdicts().get(target)
    if verdict is not None and verdict.failed:
        raise DeviceError(
            f"kernel target {target} failed its check ({verdict.summary}) and is not used; "
            f"`weft doctor --target {target}` checks it again"
        )


def _entries(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


@cache
def machine_key() -> str:
    """The processor's model and features, and this build of the kernels."""
    digest = sha256(Path(str(_native.__file__)).read_bytes())
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
