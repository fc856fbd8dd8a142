"""`weft.records.dataclass` beside that of the standard library: the same classes, made later."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from collections.abc import Callable
from dataclasses import field
from functools import partial
from threading import Thread
from typing import Any, ClassVar, Generic, TypeVar

import pytest

from weft import records

T = TypeVar("T")
Decorator = Callable[..., Any]


def _alike(a: object, b: object) -> bool:
    return hash(a) == hash(b)


def classes(dataclass: Decorator) -> dict[str, type]:
    """The same classes with either decorator."""

    @dataclass(frozen=True, slots=True)
    class Point:
        """A place."""

        x: int
        y: float = 2.5
        tags: list[str] = field(default_factory=list)
        hidden: str = field(default="h", repr=False, compare=False)

        def __post_init__(self) -> None:
            if self.x < 0:
                raise ValueError("x is negative")

        @property
        def far(self) -> bool:
            """Whether it is far."""
            return self.x > 100

    @dataclass(frozen=True, slots=True)
    class Place(Point):
        """A named place."""

        name: str = "here"
        y: float = 7.5

    @dataclass(slots=True)
    class Counter(Generic[T]):
        """Counts."""

        n: int = 0
        seen: dict[str, T] = field(default_factory=dict)
        last: int = field(default=3, init=False)

    @dataclass(slots=True, eq=False)
    class Same:
        """Equal to itself only."""

        a: int
        b: int = field(default=1, kw_only=True)

    @dataclass(frozen=True)
    class Plain:
        """Has a dict of its own, and its own text."""

        a: int
        b: tuple[int, ...] = ()

        def __repr__(self) -> str:
            return f"plain {self.a}"

    @dataclass
    class Open:
        """No option at all, its own order of equals."""

        a: int
        b: int = field(default=4)
        kind: ClassVar[str] = "open"

        def __eq__(self, other: object) -> bool:
            return isinstance(other, type(self)) and self.a == other.a

    @dataclass(frozen=True, slots=True)
    class Nothing:
        """No fields."""

    each = [Point, Place, Counter, Same, Plain, Open, Nothing]
    return {cls.__name__: cls for cls in each}


OURS, THEIRS = classes(records.dataclass), classes(dataclasses.dataclass)
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("Point", (1,), {}),
    ("Point", (1, 2.0, ["a"], "z"), {}),
    ("Point", (), {"x": 3, "hidden": "q"}),
    ("Point", (-1,), {}),
    ("Point", (), {}),
    ("Point", (1, 2, [], "", 5), {}),
    ("Point", (1,), {"z": 2}),
    ("Place", (1,), {}),
    ("Place", (1, 2.0, [], "h", "there"), {}),
    ("Counter", (), {}),
    ("Counter", (5, {"a": 1}), {}),
    ("Counter", (), {"last": 4}),
    ("Same", (1,), {"b": 2}),
    ("Same", (1, 2), {}),
    ("Plain", (1, (2, 3)), {}),
    ("Open", (1,), {}),
    ("Nothing", (), {}),
]


def outcome(call: Callable[[], Any]) -> Any:
    try:
        return call()
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("compiled_after", [0, 1, 100])
@pytest.mark.parametrize(("name", "arguments", "by_name"), CALLS)
def test_objects_are_the_same(
    name: str,
    arguments: tuple[Any, ...],
    by_name: dict[str, Any],
    compiled_after: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(records, "_FEW", compiled_after)
    results = []
    for cls in (classes(records.dataclass)[name], THEIRS[name]):
        made = outcome(lambda cls=cls: cls(*arguments, **by_name))
        if isinstance(made, tuple):
            results.append(made)
            continue
        values = {f.name: getattr(made, f.name) for f in dataclasses.fields(made)}
        text = repr(made) if name != "Same" else repr(made).split(" at ")[0]
        results.append((values, text, dataclasses.asdict(made), hasattr(made, "__dict__")))
        again = cls(*arguments, **by_name)
        results[-1] += (made == again, made == 3, outcome(partial(_alike, made, again)))
        # Python 3.11 raises TypeError for names that are no field where a class has slots
        results[-1] += tuple(isinstance(outcome(partial(setattr, made, n, 1)), tuple) for n in "az")
        if name != "Same":
            results[-1] += (copy.deepcopy(made) == made, dataclasses.replace(made) == made)
    ours, theirs = results
    assert str(ours) == str(theirs)


@pytest.mark.parametrize("name", OURS)
def test_classes_look_the_same(name: str) -> None:
    ours, theirs = OURS[name], THEIRS[name]
    assert str(inspect.signature(ours)) == str(inspect.signature(theirs))
    assert ours.__doc__ == theirs.__doc__ and ours.__qualname__ == theirs.__qualname__
    assert ours.__dict__.get("__slots__") == theirs.__dict__.get("__slots__")
    assert ours.__match_args__ == theirs.__match_args__  # type: ignore[attr-defined]
    described = [
        [(f.name, f.type, f.default, f.init, f.repr, f.compare, f.kw_only) for f in
         dataclasses.fields(cls)]
        for cls in (ours, theirs)
    ]  # fmt: skip
    assert described[0] == described[1]
    assert repr(ours.__dataclass_params__) == repr(theirs.__dataclass_params__)  # type: ignore[attr-defined]
    assert dataclasses.is_dataclass(ours)
    assert (ours.__hash__ is None) == (theirs.__hash__ is None)


def test_nothing_is_made_before_it_is_used() -> None:
    fresh = classes(records.dataclass)["Point"]

    def waits(name: str) -> bool:
        value = vars(fresh)[name]
        code = getattr(value, "__code__", None)
        by_us = code is not None and code.co_filename == records.__file__
        return type(value).__name__ == "_Later" or by_us

    names = ("__init__", "__eq__", "__hash__", "__repr__", "__dataclass_fields__")
    assert all(map(waits, names))
    for x in range(8):
        assert fresh(x).x == x and all(map(waits, names))
    made = fresh(1)
    assert [name for name in names if not waits(name)] == ["__init__"]
    assert dataclasses.replace(made, x=2).x == 2
    assert [name for name in names if not waits(name)] == ["__init__", "__dataclass_fields__"]
    assert made == fresh(1)
    assert not any(map(waits, names[1:4]))
    assert not any(type(value).__name__ == "_Later" for value in vars(fresh).values())


@pytest.mark.parametrize("use", [hash, repr, lambda point: point == point])
def test_a_signal_while_a_method_is_made_is_raised(
    use: Callable[[object], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python takes an error of the lookup of these methods for a class that has none."""

    def told(_: type) -> None:
        raise KeyboardInterrupt

    @records.dataclass(frozen=True)
    class Place:
        x: int

    point = Place(1)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(records, "_make_rest", told)
        use(point)
    assert hash(point) == hash(Place(1)) and use(point)


def test_a_class_of_the_standard_library_may_follow() -> None:
    base = classes(records.dataclass)["Point"]

    @dataclasses.dataclass(frozen=True)
    class After(base):  # type: ignore[misc, valid-type]
        more: int = 1

    assert [f.name for f in dataclasses.fields(After)] == ["x", "y", "tags", "hidden", "more"]
    assert After(1, more=2) == After(1, 2.5, [], "h", 2)


def test_a_default_that_is_shared_is_refused() -> None:
    with pytest.raises(ValueError, match=r"mutable default .*list.* for field a"):

        @records.dataclass(slots=True)
        class _Wrong:
            a: list[int] = []  # noqa: RUF012


@records.dataclass(frozen=True, slots=True)
class Kept:
    """Of a module, as pickles need it."""

    a: int
    b: str = "b"


def test_pickles_and_threads() -> None:
    assert pickle.loads(pickle.dumps(Kept(1, "c"))) == Kept(1, "c")
    fresh = classes(records.dataclass)["Point"]
    got: list[Any] = []
    threads = [Thread(target=lambda i=i: got.append(fresh(i) == fresh(i))) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got == [True] * 8
