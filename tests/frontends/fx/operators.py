"""A fixture for tests that take many programs of PyTorch apart."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest

__all__ = ["operators_once"]


@pytest.fixture(scope="session", autouse=True)
def operators_once() -> Iterator[None]:
    """PyTorch finds its composite operators once, and again when there are more of them.

    It asks for each of them by name dozens of times while it takes a program apart, although only
    the first time adds anything to `torch.ops`; that is half of the time of a small test."""
    torch = pytest.importorskip("torch")
    utils = importlib.import_module("torch._export.utils")
    find = getattr(utils, "_materialize_cpp_cia_ops", None)
    if find is None:  # another version of PyTorch, which does it otherwise
        yield
        return
    known = 0

    def find_new() -> None:
        nonlocal known
        key = "CompositeImplicitAutograd"
        n = len(torch._C._dispatch_get_registrations_for_dispatch_key(key))
        if n != known:
            find()
            known = n

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(utils, "_materialize_cpp_cia_ops", find_new)
        yield
