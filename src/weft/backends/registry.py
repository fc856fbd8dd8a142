"""Finds backends by name and imports a backend's module on first use.

A backend is a module, announced by an entry point of group `weft.backends` whose name is the device
name (`cpu`, `opencl`, ...). The module offers two functions:

    def describe() -> list[BackendInfo]
        One entry a device that this machine has, or one that says why there is none. Cheap: no
        context is created. Must not raise.

    def make(suffix: str | None, **options: Any) -> Backend
        The device that a spec `name` or `name:suffix` means. Raises DeviceError when there is no
        such device or an option is unknown.

and may offer a third:

    def rules() -> Rules
        What all its devices take, where that needs no device: for pages about devices that the
        machine that writes them may not have. Default: `make(None)`.

An optional dependency is imported at the top of the module, or on first use with an error that
names the package extra; that has the backend's name. The backends of this package are known without
an entry point too, so that a source tree works before it is installed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from weft.backends.base import Backend, Rules
from weft.errors import DeviceError, WeftError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "BUILT_IN",
    "GROUP",
    "BackendInfo",
    "known_backends",
    "make_backend",
    "require_known",
    "rules_of",
]

GROUP = "weft.backends"
"""The entry point group that backends are announced in."""

BUILT_IN = {
    "cpu": "weft.backends.cpu",
    "blas": "weft.backends.blas",
    "opencl": "weft.backends.opencl",
    "reference": "weft.backends.reference",
    "null": "weft.backends.null",
}
"""Names and modules of the backends in this package."""


@runtime_checkable
class SaysRules(Protocol):
    """(optional) a backend's module that needs no device to say what its devices take."""

    def rules(self) -> Rules:
        """What any of them takes."""


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """A device as `weft devices` lists it."""

    name: str
    """What `make_backend` takes, e.g. `cpu` or `opencl:0`."""
    available: bool
    why_not: str
    """A sentence when it is not available, else empty."""
    description: str
    """What it is, in a line."""


def known_backends() -> list[BackendInfo]:
    """Every device of every backend, those that cannot be used with a reason; sorted by name."""
    found: list[BackendInfo] = []
    for name, target in sorted(_modules().items()):
        try:
            module = _load(name, target)
            with _blamed(name, target, "cannot say what devices there are"):
                found.extend(info for info in module.describe() if info.name)
        except DeviceError as error:
            found.append(BackendInfo(name, False, str(error), ""))
    return found


def make_backend(spec: str, **options: Any) -> Backend:
    """The backend that `spec` names: `cpu`, `reference`, `opencl:0`, ...

    `options` are the backend's own. Raises DeviceError with the known names when there is no such
    backend, with the package extra when a dependency is missing, and as the backend itself does."""
    name, target = _find(spec)
    _, colon, suffix = spec.partition(":")
    if colon and not suffix:
        raise DeviceError(f"backend {spec!r} ends in a colon; write {name!r} or {name + ':0'!r}")
    module = _load(name, target)
    with _blamed(name, target, f"{spec} could not be made"):
        backend: Backend | None = module.make(suffix if colon else None, **options)
    if backend is None:
        raise DeviceError(f"backend {name!r}: make() of module {target} returns no backend")
    return backend


def require_known(spec: str) -> None:
    """Raises DeviceError with the known names where no backend has this one; nothing is opened."""
    _find(spec)


def _find(spec: str) -> tuple[str, str]:
    """Name and module of a backend."""
    name = spec.partition(":")[0]
    if name in BUILT_IN:
        return name, BUILT_IN[name]
    modules = _modules()
    if name not in modules:
        raise DeviceError(f"unknown backend {name!r}; known backends: {', '.join(sorted(modules))}")
    return name, modules[name]


def rules_of(name: str) -> Rules:
    """What the devices of a backend take, asked without a device where the backend can say so.

    Raises DeviceError as `make_backend` does."""
    module = _load(*_find(name))
    if not isinstance(module, SaysRules):
        return make_backend(name)
    rules: Rules = module.rules()
    return rules


def _modules() -> dict[str, str]:
    """Backend name to module name; those of this package are not replaced by others."""
    return {entry.name: entry.module for entry in entry_points(group=GROUP)} | BUILT_IN


def entry_points(group: str) -> Iterable[EntryPoint]:
    """As in `importlib.metadata`, which takes longer to import than all backends and is not needed
    for those of this package."""
    from importlib import metadata

    return metadata.entry_points(group=group)


@contextmanager
def _blamed(name: str, target: str, what: str) -> Iterator[None]:
    """What goes wrong in a backend's module, besides imports, is a DeviceError that names it."""
    try:
        yield
    except (WeftError, ImportError):
        raise
    except Exception as error:
        raise DeviceError(
            f"backend {name!r}: {what}: {error!r} in module {target}; update the package that "
            "brings it, or remove it"
        ) from error


def _load(name: str, target: str) -> ModuleType:
    ours = target.startswith("weft.")
    try:
        with _blamed(name, target, "cannot be loaded"):
            module = import_module(target)
    except ModuleNotFoundError as error:
        if error.name == target:
            raise DeviceError(
                f"backend {name!r} is not part of this build (no module {target})"
            ) from error
        extra = f"weft[{name}]" if ours else str(error.name)
        raise DeviceError(
            f"backend {name!r} needs the Python package {error.name!r}; "
            f"install it with `pip install {extra}`"
        ) from error
    except ImportError as error:
        again = "weft, or build it again" if ours else f"the package that brings {target}"
        raise DeviceError(
            f"backend {name!r} cannot be loaded ({error}); reinstall {again}"
        ) from error
    for function in ("describe", "make"):
        if not callable(getattr(module, function, None)):
            raise DeviceError(f"backend {name!r}: module {target} has no function {function}()")
    return module
