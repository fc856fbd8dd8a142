"""The options of every command that loads or plans a model, in one place.

    @loads_model
    def embed(model: ModelFile, load: dict[str, Any], ...) -> None: ...

A command states what is its own alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping
from functools import wraps
from typing import Any

from weft.cli.console import device_list
from weft.cli.options import (
    ActivationsName,
    ActivationsOption,
    CacheTypeK,
    CacheTypeV,
    CtxSize,
    Devices,
    Fallback,
    Fit,
    GpuLayers,
    Memory,
    NCopies,
    NoKvOffload,
    NoRewrite,
    Place,
    PlanFile,
    PolicyName,
    PolicyOption,
    ProfileFile,
    Repack,
    SwaFull,
    UbatchSize,
    placement_arguments,
)
from weft.cli.thread_options import (
    CpuMask,
    CpuRange,
    CpuStrict,
    NumaOption,
    Poll,
    Prio,
    Threads,
    ThreadsBatch,
    thread_options,
)

__all__ = ["load_arguments", "loads_model", "loads_model_with"]

Command = Callable[..., None]


def load_arguments(
    ctx_size: CtxSize = None,
    ubatch: UbatchSize = None,
    n_copies: NCopies = 1,
    swa_full: SwaFull = True,
    no_kv_offload: NoKvOffload = False,
    threads: Threads = None,
    threads_batch: ThreadsBatch = None,
    cpu_mask: CpuMask = None,
    cpu_range: CpuRange = None,
    cpu_strict: CpuStrict = False,
    prio: Prio = "normal",
    poll: Poll = 50,
    numa: NumaOption = None,
    devices: Devices = None,
    fallback: Fallback = None,
    gpu_layers: GpuLayers = None,
    place: Place = None,
    fit: Fit = False,
    memory: Memory = None,
    plan: PlanFile = None,
    policy: PolicyOption = PolicyName.ggml,
    speeds: ProfileFile = None,
    repack: Repack = None,
    no_rewrite: NoRewrite = None,
    type_k: CacheTypeK = None,
    type_v: CacheTypeV = None,
    activations: ActivationsOption = ActivationsName.native,
) -> dict[str, Any]:
    """The options as arguments of `LLM` and `Context`."""
    return {
        "n_ctx": ctx_size,
        "n_ubatch": ubatch,
        "n_copies": n_copies,
        "threads": thread_options(
            threads, threads_batch, cpu_mask, cpu_range, cpu_strict, prio, poll, numa
        ),
        "swa_full": None if swa_full else False,
        "offload_kv": not no_kv_offload,
        "type_k": type_k,
        "type_v": type_v,
        "activations": activations.value,
        "fallback": None if fallback is None else device_list(fallback),
        **placement_arguments(
            devices, gpu_layers, place, plan, fit, memory, policy, speeds, repack, no_rewrite
        ),
    }


def loads_model_with(
    *, without: Collection[str] = (), instead: Mapping[str, Any] | None = None
) -> Callable[[Command], Command]:
    """Gives a command the options of `load_arguments`; it gets their result as `load`.

    `without`: parameters of `load_arguments` that make no sense there, left at their defaults.
    `instead`: other annotations by parameter, for another help text or flag."""

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters
        shared = {
            name: p.replace(annotation=(instead or {}).get(name, p.annotation))
            for name, p in inspect.signature(load_arguments, eval_str=True).parameters.items()
            if name not in without
        }

        @wraps(command)
        def with_options(**given: Any) -> None:
            load = load_arguments(**{name: given.pop(name) for name in shared})
            command(**given, load=load)

        parameters = [
            p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for p in (*own.values(), *shared.values())
            if p.name != "load"
        ]
        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {p.name: p.annotation for p in parameters}
        del with_options.__wrapped__  # whose signature typer would read
        return with_options

    return decorate


loads_model = loads_model_with()
"""All of them."""
