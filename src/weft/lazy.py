"""Names of a package that are imported when they are first used."""

from __future__ import annotations

import sys

TYPE_CHECKING = False  # as in typing, which is slow to import: Ctrl-C could come in between
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import ModuleType
    from typing import Any


def import_at_once(name: str) -> ModuleType:
    """The module `name`, imported without pauses of the garbage collector: what an import makes
    stays, and going through it again and again takes a tenth of the time."""
    import gc
    from importlib import import_module

    was_on = gc.isenabled()
    gc.disable()
    try:
        return import_module(name)
    finally:
        if was_on:
            gc.enable()


def imported_when_used(
    package: str, homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Makes the `__getattr__` and `__dir__` of `package` from modules and the names they define.

        __getattr__, __dir__ = imported_when_used(__name__, {"weft.llm.llm": ("LLM", "Stats")})

    Where a listed name names the module itself (`package.name`), the value is the module."""
    home_of = {name: home for home, names in homes.items() for name in names}

    def get(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = home_of[name]
        module = import_at_once(home)
        value = module if home == f"{package}.{name}" else getattr(module, name)
        setattr(sys.modules[package], name, value)
        return value

    return get, lambda: sorted(home_of)
