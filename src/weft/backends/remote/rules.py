"""The rules of a worker's device: those of the same kind of device, made here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from weft.backends.base import Backend
from weft.backends.remote.machine import Machine
from weft.errors import DeviceError
from weft.graph.tensor import Tensor

__all__ = ["rules_like"]


def rules_like(facts: Mapping[str, Any], name: str, machine: Machine) -> Backend:
    """A backend here that answers for the device `name` of a worker, with these facts.

    Raises DeviceError for a kind of device whose rules are not known here."""
    kind = str(facts.get("kind"))
    if kind == "cpu":
        return _like_cpu(facts, name)
    if kind == "reference":
        from weft.backends.reference import ReferenceBackend

        return _named(ReferenceBackend(), name)
    raise DeviceError(
        f"{machine.name}: its device {facts.get('name')!r} is of a kind that is not used over "
        "links yet; start the worker with --devices cpu"
    )


def _like_cpu(facts: Mapping[str, Any], name: str) -> Backend:
    from weft.backends.cpu import CpuBackend

    class CpuRules(CpuBackend):
        """A cpu that plans for more threads than it has."""

        def work_bytes(self, node: Tensor) -> int:
            """The scratch bytes for the worker's threads."""
            return super().work_bytes(node) * int(facts.get("n_threads", 1))

    return CpuRules(
        n_threads=1,
        target=str(facts["target"]),
        activations=facts.get("activations", "native"),
        name=name,
        even_if_failing=True,
    )


def _named(backend: Any, name: str) -> Backend:
    backend.name = name
    result: Backend = backend
    return result
