"""What `weft bench --tune` found best for a model on a machine, in the user's cache folder.

`tuned.json` is a list of entries to read and to edit: a machine, a model, and the values that beat
the defaults. They never change results, only how long these take. A model is known by the names,
types and sizes of its tensors, so that a copy of a file is the same model.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import field, replace
from datetime import date
from hashlib import sha256
from pathlib import Path
from typing import Any

from weft.backends.cpu.record import processor_name
from weft.control_group import usable_processors
from weft.errors import FormatError
from weft.file_lock import locked
from weft.files import read_json, write_text
from weft.flags import FLAGS
from weft.frontends.gguf import GGUFFile
from weft.records import dataclass

_MOST_ENTRIES = 200
"""The oldest entries beyond these are dropped."""
_LOCK_SECONDS = 10.0
_FASTEST = 1e9
"""Tokens per second that are not believed."""
_MOST = {"threads": 1 << 10, "threads_batch": 1 << 10, "ubatch": 1 << 20}
"""The values of an entry, and the largest of each that is believed."""


@dataclass(frozen=True, slots=True)
class Tuned:
    """The values that are better than the defaults; None: the default is the best."""

    threads: int | None = None
    """Threads for single tokens."""
    threads_batch: int | None = None
    """Threads for prompts."""
    ubatch: int | None = None
    """Most prompt tokens computed at once."""
    date: str = ""
    """The day of the measurement, YYYY-MM-DD."""
    speeds: Mapping[str, float] = field(default_factory=dict, compare=False)
    """Test, such as `tg128`, -> tokens per second that were measured with these values."""

    @property
    def values(self) -> dict[str, int]:
        """The values that differ from the defaults."""
        each = {"threads": self.threads, "threads_batch": self.threads_batch, "ubatch": self.ubatch}
        return {name: n for name, n in each.items() if n is not None}

    def __str__(self) -> str:
        flags = {"threads": "-t", "threads_batch": "-tb", "ubatch": "-ub"}
        return " ".join(f"{flags[name]} {n}" for name, n in self.values.items())


def tuned_file() -> Path:
    """The file that holds the entries."""
    return Path(FLAGS.cache) / "tuned.json"


def machine_name() -> str:
    """The processor, the number of processors that this process may use, at most as many as its
    control group grants, and a target that WEFT_TARGET names."""
    return f"{processor_name()}, {usable_processors()} processors" + (
        f", {FLAGS.target}" if FLAGS.target else ""
    )


def model_key(file: GGUFFile) -> str:
    """A name for the tensors of a file: architecture, names, types and sizes."""
    digest = sha256(file.architecture.encode())
    for name, tensor in file.tensors.items():
        digest.update(f"\n{name} {tensor.dtype.name} {tensor.ne}".encode())
    return digest.hexdigest()[:24]


def has_values(where: Path | None = None) -> bool:
    """Whether values were remembered for any model."""
    return any(entry.get("values") for entry in _entries(where or tuned_file()))


def find(file: GGUFFile, where: Path | None = None) -> Tuned | None:
    """The values that were remembered for a model on this machine; None: none, or none that can be
    read."""
    found = measured(file, where)
    return found if found is not None and found.values else None


def measured(file: GGUFFile, where: Path | None = None) -> Tuned | None:
    """What was remembered for a model on this machine, which may be speeds alone; None: nothing, or
    nothing that can be read."""
    entries = list(_entries(where or tuned_file()))
    mine = [entry for entry in entries if entry.get("machine") == machine_name()] if entries else []
    if not mine:
        return None
    key = model_key(file)
    return next((_tuned(entry) for entry in mine if entry.get("key") == key), None)


def remember(
    file: GGUFFile, name: str, tuned: Tuned, gains: Mapping[str, float], where: Path | None = None
) -> Path:
    """Writes the values of a model on this machine, in place of earlier ones; returns the file.

    `name` and `gains` (test -> times as fast) are for people. An entry without values and speeds is
    removed instead. Raises FormatError if the folder cannot be written."""
    path = where or tuned_file()
    key, machine = model_key(file), machine_name()
    try:
        with locked(path.with_name(path.name + ".lock"), _LOCK_SECONDS):
            others = [
                entry
                for entry in _entries(path)
                if (entry.get("key"), entry.get("machine")) != (key, machine)
            ]
            if tuned.values or tuned.speeds:
                tuned = replace(tuned, date=tuned.date or date.today().isoformat())
                about = {"machine": machine, "model": name, "key": key, "date": tuned.date}
                times = {test: round(gain, 3) for test, gain in gains.items()}
                speeds = {test: round(speed, 2) for test, speed in tuned.speeds.items()}
                found = {"values": tuned.values, "times_as_fast": times}
                others.append({**about, **found, "tokens_per_second": speeds})
            if others or path.exists():
                write_text(path, json.dumps(others[-_MOST_ENTRIES:], indent=1) + "\n")
    except OSError as error:
        raise FormatError(
            f"cannot write {str(path)!r}: {error.strerror or error}; WEFT_CACHE names another "
            "folder"
        ) from None
    return path


def forget(file: GGUFFile, where: Path | None = None) -> None:
    """Removes the entry of a model on this machine. Raises FormatError if it cannot."""
    if measured(file, where) is not None:
        remember(file, "", Tuned(), {}, where)


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    """The entries of a file, as far as it can be read; damage is no reason not to run a model."""
    if not path.exists():
        return
    try:
        entries = read_json(path, "tuned values")
    except FormatError:
        return
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            yield entry


def _tuned(entry: Mapping[str, Any]) -> Tuned | None:
    values = entry.get("values")
    if not isinstance(values, dict):
        return None
    good = {
        name: values[name]
        for name, most in _MOST.items()
        if type(values.get(name)) is int and 1 <= values[name] <= most
    }
    speeds = entry.get("tokens_per_second")
    speeds = {
        test: float(speed)
        for test, speed in (speeds.items() if isinstance(speeds, dict) else ())
        if isinstance(speed, int | float) and 0 < speed < _FASTEST
    }
    if not good and not speeds:
        return None
    return Tuned(**good, date=str(entry.get("date", "")), speeds=speeds)
