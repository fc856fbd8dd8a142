"""`dataclass` of the standard library, made when it is used.

The standard library compiles up to six functions for every class when its module is imported: a
fifth of the time in which weft starts. Here a class gets its `__init__` when it has made some
objects, and `==`, `hash`, `repr` and the table of fields, which come from the standard library,
when one of them is first needed. What a class can do, and how it looks, is the same.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, FrozenInstanceError
from functools import partial
from inspect import get_annotations
from threading import RLock
from typing import TYPE_CHECKING, Any

__all__ = ["dataclass"]

if TYPE_CHECKING:
    from dataclasses import dataclass
else:

    def dataclass(cls=None, /, **options):
        """The same decorator as `dataclasses.dataclass`."""

        def decorate(cls):
            return _record(cls, options) if _is_usual(cls, options) else _whole(cls, options)

        return decorate if cls is None else decorate(cls)


_OPTIONS = {"frozen", "slots", "eq", "repr"}
_ABOUT = "__record__"
_LOCK = RLock()


def _whole(cls: type, options: dict[str, bool]) -> type:
    made: type = dataclasses.dataclass(**options)(cls)
    return made


def _is_usual(cls: type, options: dict[str, bool]) -> bool:
    """Whether a class can wait: usual options, no special fields, no unfinished methods."""
    if not options.keys() <= _OPTIONS or hasattr(cls, "__abstractmethods__"):
        return False
    for base in cls.__mro__[1:]:
        if "__dataclass_fields__" in base.__dict__ and _ABOUT not in base.__dict__:
            return False  # made by the standard library
    kinds = get_annotations(cls).values()
    if not all(isinstance(kind, str) for kind in kinds):
        return False
    return not any(word in kind for kind in kinds for word in ("ClassVar", "InitVar", "KW_ONLY"))


class _About:
    """The definition of a class."""

    __slots__ = ("fields", "left", "methods", "options")

    def __init__(self, fields: dict[str, tuple[str, Any]], options: dict[str, bool]) -> None:
        specs = [default for _, default in fields.values() if isinstance(default, Field)]
        is_plain = all(spec.init and spec.kw_only is not True for spec in specs)
        self.left = _FEW if is_plain else 0
        """The number of objects that are still made without a compiled `__init__`."""
        self.fields = fields
        """Name -> (annotation, default, `Field` or MISSING), fields of bases first."""
        self.methods: dict[str, Callable[..., Any]] = {}
        """Name -> what stands for a method until it is called."""
        self.options = options


class _Later:
    """An attribute of a class that is made when somebody asks for it."""

    __slots__ = ("_cls", "_name")

    def __init__(self, cls: type, name: str) -> None:
        self._cls, self._name = cls, name

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is not None and self._name == "__init__":
            return partial(_init_one, self._cls, instance)
        with _LOCK:
            if self._cls.__dict__[self._name] is self:
                _MAKERS.get(self._name, _make_rest)(self._cls)
        value = self._cls.__dict__[self._name]
        return value.__get__(instance, owner) if hasattr(value, "__get__") else value


def _called_later(cls: type, name: str) -> Callable[..., Any]:
    """A method that is made when it is first called.

    It is not a `_Later`: `hash`, `==` and `repr` take any exception of a lookup, such as an
    exception from a signal, for a method that does not exist."""

    def method(self: Any, *others: Any) -> Any:
        with _LOCK:
            if cls.__dict__[name] is method:
                _make_rest(cls)
        return cls.__dict__[name](self, *others)

    method.__name__, method.__qualname__ = name, f"{cls.__qualname__}.{name}"
    method.__module__ = cls.__module__
    return method


def _record(cls: type, options: dict[str, bool]) -> type:
    names: dict[str, str] = get_annotations(cls)
    own = {name: (kind, cls.__dict__.get(name, MISSING)) for name, kind in names.items()}
    fields: dict[str, tuple[str, Any]] = {}
    for base in cls.__mro__[-1:0:-1]:
        about = base.__dict__.get(_ABOUT)
        if about is not None:
            fields.update(about.fields)
    fields.update(own)
    for name, (_, default) in own.items():
        if default.__class__.__hash__ is None:
            kind = type(default)
            raise ValueError(f"mutable default {kind} for field {name}: use default_factory")
    frozen, eq = options.get("frozen", False), options.get("eq", True)
    given = cls.__dict__
    hashes = "__hash__" in given and not (given["__hash__"] is None and "__eq__" in given)
    cls = _with_slots(cls, fields) if options.get("slots") else _with_defaults(cls, own)
    about = _About(fields, options)
    setattr(cls, _ABOUT, about)
    if frozen:
        _freeze(cls, frozenset(fields))
    if eq and not hashes:
        cls.__hash__ = None  # type: ignore[assignment]
        if frozen:
            about.methods["__hash__"] = _called_later(cls, "__hash__")
    for name in ["__eq__"] * eq + ["__repr__"] * options.get("repr", True):
        if name not in cls.__dict__:
            about.methods[name] = _called_later(cls, name)
    for name, method in about.methods.items():
        setattr(cls, name, method)
    for name in ("__init__", "__dataclass_fields__", "__dataclass_params__", "__match_args__"):
        if name not in cls.__dict__:
            setattr(cls, name, _Later(cls, name))
    return cls


def _with_defaults(cls: type, own: dict[str, tuple[str, Any]]) -> type:
    """The class, with defaults in the place of `field(...)`."""
    for name, (_, default) in own.items():
        if isinstance(default, Field):
            if default.default is MISSING:
                delattr(cls, name)
            else:
                setattr(cls, name, default.default)
    return cls


def _with_slots(cls: type, fields: dict[str, tuple[str, Any]]) -> type:
    """The class again, with slots for its fields."""
    inherited = {slot for base in cls.__mro__[1:-1] for slot in _slots(base)}
    attributes = {k: v for k, v in cls.__dict__.items() if k not in fields}
    for name in ("__dict__", "__weakref__"):
        attributes.pop(name, None)
    attributes["__slots__"] = tuple(name for name in fields if name not in inherited)
    made = type(cls)(cls.__name__, cls.__bases__, attributes)
    made.__qualname__ = cls.__qualname__
    return made


def _slots(cls: type) -> tuple[str, ...]:
    slots = cls.__dict__.get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _freeze(cls: Any, names: frozenset[str]) -> None:
    def __setattr__(self: Any, name: str, value: Any) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot assign to field {name!r}")
        super(cls, self).__setattr__(name, value)

    def __delattr__(self: Any, name: str) -> None:
        if type(self) is cls or name in names:
            raise FrozenInstanceError(f"cannot delete field {name!r}")
        super(cls, self).__delattr__(name)

    cls.__setattr__, cls.__delattr__ = __setattr__, __delattr__
    if "__slots__" in cls.__dict__:  # whose values copies and pickles could not set
        for name, function in (("__getstate__", _state_of), ("__setstate__", _set_state)):
            if name not in cls.__dict__:
                setattr(cls, name, function)


def _state_of(self: Any) -> list[Any]:
    return [getattr(self, name) for name in type(self).__dataclass_fields__]


def _set_state(self: Any, state: list[Any]) -> None:
    for name, value in zip(type(self).__dataclass_fields__, state, strict=True):
        object.__setattr__(self, name, value)


# ---- what is made later --------------------------------------------------------------------------


class _Factory:
    def __repr__(self) -> str:
        return "<factory>"


_NEW = _Factory()
"""Stands for a value that the factory of a field makes."""


_FEW = 8
"""Objects that are made before `__init__` is compiled, which takes as long as twenty of them: most
classes of options and plans have fewer."""


def _init_one(cls: Any, instance: Any, /, *args: Any, **kwargs: Any) -> None:
    """Does what `__init__` would do, field by field. Arguments that do not fit are left to the
    compiled function, which says so."""
    about: _About = cls.__dict__[_ABOUT]
    about.left -= 1
    values = dict(zip(about.fields, args, strict=False))
    fits = len(args) <= len(about.fields) and kwargs.keys() <= about.fields.keys() - values.keys()
    values |= kwargs
    for name, (_, default) in about.fields.items():
        fits = fits and (name in values or not _is_needed(default))
    if about.left < 0 or not fits:
        cls.__init__(instance, *args, **kwargs)
        return
    for name, (_, default) in about.fields.items():
        if name not in values:
            new = default.default_factory if isinstance(default, Field) else MISSING
            plain = default.default if isinstance(default, Field) else default
            values[name] = plain if new is MISSING else new()
    put = object.__setattr__ if about.options.get("frozen", False) else setattr
    for name in about.fields:
        put(instance, name, values[name])
    if hasattr(cls, "__post_init__"):
        instance.__post_init__()


def _is_needed(default: Any) -> bool:
    """Whether a field without an argument is an error."""
    if isinstance(default, Field):
        return default.default is MISSING and default.default_factory is MISSING
    return default is MISSING


def _make_init(cls: Any) -> None:
    """Compiles `__init__`, with the signature that the standard library gives it."""
    about: _About = cls.__dict__[_ABOUT]
    scope: dict[str, Any] = {"_set": object.__setattr__, "_NEW": _NEW}
    usual, by_name, body = ["self"], list[str](), list[str]()
    kinds: dict[str, Any] = {}
    frozen = about.options.get("frozen", False)
    for name, (kind, default) in about.fields.items():
        value, text = name, name
        spec = default if isinstance(default, Field) else None
        if spec is not None:
            default = spec.default
        if spec is not None and spec.default_factory is not MISSING:
            scope[f"_new_{name}"] = spec.default_factory
            value = f"_new_{name}() if {name} is _NEW else {name}"
            text = f"{name}=_NEW"
        elif default is not MISSING:
            scope[f"_default_{name}"] = default
            text = f"{name}=_default_{name}"
        if spec is not None and not spec.init:
            if text == name:
                continue
            value = text.partition("=")[2]
            value = f"_new_{name}()" if value == "_NEW" else value
        else:
            (by_name if spec is not None and spec.kw_only is True else usual).append(text)
            kinds[name] = kind
        body.append(f"_set(self, {name!r}, {value})" if frozen else f"self.{name} = {value}")
    if hasattr(cls, "__post_init__"):
        body.append("self.__post_init__()")
    arguments = ", ".join([*usual, *(["*", *by_name] if by_name else [])])
    exec(f"def __init__({arguments}):\n " + "\n ".join(body or ["pass"]), scope)
    init = scope["__init__"]
    init.__annotations__ = {**kinds, "return": None}
    init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
    cls.__init__ = init


def _make_fields(cls: Any) -> None:
    """Takes the table of fields, which `replace` asks for, from a class without any method: methods
    take five times as long to make."""
    _take(cls, _twin(cls, {"init": False, "repr": False, "eq": False}), _OF_FIELDS)


def _make_rest(cls: Any) -> None:
    """Takes everything else from a class that the standard library makes of the same fields."""
    about: _About = cls.__dict__[_ABOUT]
    options = {k: v for k, v in about.options.items() if k != "slots"}
    _take(cls, _twin(cls, options), cls.__dict__.keys() - {"__init__"})


_OF_FIELDS = ("__dataclass_fields__", "__match_args__")
_MAKERS = {"__init__": _make_init, **dict.fromkeys(_OF_FIELDS, _make_fields)}


def _twin(cls: Any, options: dict[str, bool]) -> Any:
    about: _About = cls.__dict__[_ABOUT]
    attributes = {name: default for name, (_, default) in about.fields.items()
                  if default is not MISSING}  # fmt: skip
    attributes |= {
        "__annotations__": {name: kind for name, (kind, _) in about.fields.items()},
        "__module__": cls.__module__,
        "__qualname__": cls.__qualname__,
        "__doc__": "as the other",
    }
    return _whole(type(cls.__name__, (), attributes), options)


def _take(cls: Any, twin: Any, names: Iterable[str]) -> None:
    """Puts attributes of `twin` where `cls` has what stands for them."""
    methods = cls.__dict__[_ABOUT].methods
    for name in names:
        value = cls.__dict__[name]
        if isinstance(value, _Later) or value is methods.get(name, cls):
            setattr(cls, name, twin.__dict__[name])
