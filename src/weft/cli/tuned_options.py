"""Takes what `weft bench --tune` remembered, where the command line says nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from weft.errors import WeftError
from weft.flags import FLAGS
from weft.frontends.models import open_model
from weft.llm.tuned import Tuned, find, has_values

_PLACES = ("devices", "n_gpu_layers", "place", "fit", "memory", "plan", "profile", "old_speeds")
_THREADS = ("n_threads", "n_threads_batch", "cpu_mask", "cpu_range", "cpu_strict", "numa")


def take_tuned(load: dict[str, Any], typed: Mapping[str, Any], model: Path) -> Tuned | None:
    """Puts remembered values into the arguments of `LLM`, and returns those that were taken; None:
    there are none, or the command line or the environment has its own.

    `typed` are the fields of `Load` as they were typed. None of the values changes a
    result."""
    if FLAGS.devices or any(typed.get(name) for name in _PLACES) or not has_values():
        return None
    try:
        with open_model(model, typed.get("type"), whole=False, planned=True) as file:
            found = find(file)
    except WeftError:  # a graph as text, a .pte, or a damaged file: the command says so
        return None
    if found is None:
        return None
    if FLAGS.threads or any(typed.get(name) for name in _THREADS):
        found = replace(found, threads=None, threads_batch=None)
    if typed.get("n_ubatch") is not None:
        found = replace(found, ubatch=None)
    if not found.values:
        return None
    load["threads"] = replace(
        load["threads"],
        n_threads=found.threads or load["threads"].n_threads,
        n_threads_batch=found.threads_batch or load["threads"].n_threads_batch,
    )
    load["n_ubatch"] = found.ubatch or load["n_ubatch"]
    return found
