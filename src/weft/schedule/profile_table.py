"""The tables of a machine profile as they are read, with errors that name file, table and key."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, NoReturn

from weft.errors import FormatError


class Table:
    """A table of the file, whose errors name the file and the table."""

    def __init__(self, where: str, what: str, data: Mapping[str, Any]) -> None:
        self._where = where
        self._what = what
        self._data = data
        self._asked: set[str] = set()

    def fail(self, why: str) -> NoReturn:
        """Raises FormatError with this sentence."""
        raise FormatError(f"machine profile {self._where}: {self._what}: {why}")

    def take(self, key: str, kind: Any, *default: Any) -> Any:
        """The value of a key, of a type or several; raises FormatError where it is missing and has
        no default."""
        self._asked.add(key)
        value = self._data.get(key)
        if value is None:
            if default:
                return default[0]
            self.fail(f"{key!r} is missing")
        wrong = not isinstance(value, kind)
        if wrong or (isinstance(value, bool) and kind is not bool):
            self.fail(f"{key!r} is {value!r}, which is not of the right type")
        return value

    def number(self, key: str, *default: float) -> float:
        """A number above 0; where there is a default, 0 is allowed, too."""
        value = float(self.take(key, (int, float), *default))
        if value < 0 or (value == 0 and not default) or value != value:
            self.fail(f"{key!r} is {value}; it must be positive")
        return value

    def tables(self, key: str) -> Iterator[Table]:
        """The tables of a list of tables."""
        for number, data in enumerate(self.take(key, list, [])):
            if not isinstance(data, dict):
                self.fail(f"{key!r} must be a list of tables, [[{key}]]")
            name = data.get("name", data.get("between", number))
            yield Table(self._where, f"{key} {name}", data)

    def end(self, *others: str) -> None:
        """Raises FormatError for a key that nothing has asked for and that is none of `others`."""
        self._require_known(self._data, self._asked.union(others))

    def _require_known(self, keys: Iterable[str], known: Collection[str]) -> None:
        from difflib import get_close_matches  # only for mistakes

        for key in keys:
            if key not in known:
                near = get_close_matches(key, known, n=2) or sorted(known)[:12]
                self.fail(f"{key!r} is unknown; did you mean {' or '.join(near)}?")

    def rates(self, key: str, known: Collection[str]) -> dict[str, float]:
        """Name, one of `known` -> operations per second, of a table in 10^9 operations per
        second."""
        table = Table(self._where, f"{self._what}: {key}", self.take(key, dict, {}))
        table._require_known(table._data, known)
        return {name: 1e9 * table.number(name) for name in table._data}

    def names(self, key: str) -> tuple[str, ...]:
        """A list of names; absent: none."""
        names = tuple(self.take(key, list, []))
        if not all(isinstance(name, str) for name in names):
            self.fail(f"{key!r} must be a list of names")
        return names
