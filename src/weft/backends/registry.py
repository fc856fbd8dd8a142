"""Finds backends by name and imports a backend's module on first use.

A backend is a module, announced by an entry point of group `weft.backends` whose name is the device
name (such as `cpu` or `opencl`). The module offers two functions:

    def describe() -> list[BackendInfo]
        One entry for each device of this machine, or one that says why there is none. It must be
        cheap: it creates no context. It must not raise.
    def make(suffix: str | None, **options: Any) -> Backend
        The device that a spec `name` or `name:suffix` means. Raises DeviceError when there is no
        such device or an option is unknown.

and may offer a third:

    def rules() -> Rules
        The nodes that all its devices take, where that needs no device: for pages about devices
        that the machine that writes them may not have. Default: `make(None)`.

A module imports an optional dependency at its top, or on first use with an error that names the
package extra, which has the backend's name. The backends of this package are known without an entry
point too, so that a source tree works before it is installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from weft.backends.base import Backend, Rules
from weft.errors import DeviceError, ScheduleError, WeftError
from weft.extras import how_to_install
from weft.records import dataclass

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

_CUDA = re.compile(r"^cuda:?(\d*)$", re.I)
"""A CUDA device as other engines write it: `CUDA0`."""
_OTHER_GPU = re.compile(r"(?:vulkan|metal|mtl|rocm|hip|sycl|musa|cann)[:\d]*$", re.I)
"""Names that other engines give to GPUs, and weft does not."""

GROUP = "weft.backends"
"""The entry point group in which backends are announced."""

BUILT_IN = {
    "cpu": "weft.backends.cpu",
    "blas": "weft.backends.blas",
    "cuda": "weft.backends.cuda",
    "opencl": "weft.backends.opencl",
    "webgpu": "weft.backends.webgpu",
    "reference": "weft.backends.reference",
    "remote": "weft.backends.remote",
    "null": "weft.backends.null",
}
"""Names and modules of the backends in this package."""
_OTHER_NAMES = {"gpu": "webgpu"}


@runtime_checkable
class SaysRules(Protocol):
    """(optional) a backend's module that has the rules of its devices without a device."""

    def rules(self) -> Rules:
        """The nodes that its devices take."""


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """A device as `weft devices` lists it."""

    name: str
    """The name for `make_backend`, e.g. `cpu` or `opencl:0`."""
    available: bool
    why_not: str
    """A sentence when the device is not available, else empty."""
    description: str
    details: dict[str, Any] = field(default_factory=dict)
    """(optional) more about it by name, for `weft devices --json`."""


def known_backends() -> list[BackendInfo]:
    """Every device of every backend, sorted by name; one that cannot be used has a reason."""
    infos: list[BackendInfo] = []
    for name, target in sorted(_modules().items()):
        try:
            module = _load(name, target)
            with _blamed(name, target, "cannot say what devices there are"):
                infos.extend(info for info in module.describe() if info.name)
        except DeviceError as error:
            infos.append(BackendInfo(name, False, str(error), ""))
    return infos


def make_backend(spec: str, **options: Any) -> Backend:
    """The backend that `spec` names, such as `cpu`, `reference` or `opencl:0`.

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
    """Raises DeviceError with the known names unless one is the backend of `spec`; opens
    nothing."""
    _find(spec)


def _find(spec: str) -> tuple[str, str]:
    """The name and the module of a backend."""
    name = spec.partition(":")[0]
    name = _OTHER_NAMES.get(name, name)
    if name in BUILT_IN:
        return name, BUILT_IN[name]
    modules = _modules()
    if name not in modules:
        raise DeviceError(f"unknown backend {name!r}; known backends: {', '.join(sorted(modules))}")
    return name, modules[name]


_DEVICES = '["gpu", "cpu"]'


def device_list(devices: str | Sequence[str | Backend]) -> Sequence[str | Backend]:
    """A list of devices, which may be given as text: `"gpu,cpu"`, as on the command line.

    Raises ScheduleError for an empty list, and for what is neither name nor backend."""
    if isinstance(devices, str):
        return device_names(devices)
    if not isinstance(devices, Sequence):
        raise ScheduleError(f"devices is {devices!r}; give a list such as {_DEVICES}")
    if not devices:
        raise ScheduleError("the list of devices is empty; name one, e.g. cpu")
    for device in devices:
        if not isinstance(device, str) and not hasattr(device, "supports_op"):
            raise ScheduleError(
                f"a device is {device!r}; give names or backends, in a list such as {_DEVICES}"
            )
    return devices


def device_names(text: str) -> list[str]:
    """The devices named in `text`: `opencl,cpu` gives ["opencl", "cpu"], `CUDA0` gives ["cuda:0"],
    and `none` gives ["cpu"].

    Raises ScheduleError if no device is named, or a GPU by another engine's name."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["none"]:
        return ["cpu"]
    if not names:
        raise ScheduleError(f"{text!r} names no device; write e.g. opencl:0,cpu")
    gpu = next((name for name in names if _OTHER_GPU.match(name)), None)
    if gpu is not None:
        raise ScheduleError(
            f"there is no device {gpu}: weft names GPUs cuda:N, opencl:N and webgpu:N (by Vulkan, "
            "Metal or Direct3D 12; the first is also gpu); `weft devices` lists those there are"
        )
    return [_CUDA.sub(lambda found: f"cuda:{found[1]}" if found[1] else "cuda", n) for n in names]


def device_name(spec: str) -> str:
    """The name that the device of `spec` has: `gpu:1` is `webgpu:1`."""
    name, colon, suffix = spec.partition(":")
    return f"{_OTHER_NAMES.get(name, name)}{colon}{suffix}"


def rules_of(name: str) -> Rules:
    """The rules of a backend, without opening a device where the backend allows that.

    Raises DeviceError as `make_backend` does."""
    module = _load(*_find(name))
    if not isinstance(module, SaysRules):
        return make_backend(name)
    rules: Rules = module.rules()
    return rules


def _modules() -> dict[str, str]:
    """Backend name to module name; other packages replace none of this package."""
    return {entry.name: entry.module for entry in entry_points(group=GROUP)} | BUILT_IN


def entry_points(group: str) -> Iterable[EntryPoint]:
    """The entry points of a group, by `importlib.metadata`.

    The import takes longer than all backends together, so it happens only for other packages'
    backends."""
    from importlib import metadata

    return metadata.entry_points(group=group)


@contextmanager
def _blamed(name: str, target: str, what: str) -> Iterator[None]:
    """Turns errors of a backend's module, except imports, into a DeviceError that names it."""
    try:
        yield
    except (WeftError, ImportError):
        raise
    except Exception as error:
        raise DeviceError(
            f"backend {name!r}: {what}: {error!r} in module {target}; update the package that "
            "brings it, or remove it"
        ) from error


_EXTRAS = {"webgpu": "gpu", "remote": "machines"}
"""The extras of backends that have another name than their extra."""


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
        hint = f"install it with `pip install {error.name}`"
        if ours:
            hint = how_to_install(_EXTRAS.get(name, name))
        raise DeviceError(
            f"backend {name!r} needs the Python package {error.name!r}; {hint}"
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
