"""The options of every command that loads or plans a model, in one place.

    @loads_model
    def embed(model: ModelFile, load: dict[str, Any], ...) -> None: ...

A command declares only its own options.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from functools import wraps
from itertools import product
from math import prod
from pathlib import Path
from typing import Annotated, Any, NamedTuple, get_args

import typer

from weft.cli.adapter_options import (
    ControlVector,
    ControlVectorLayers,
    ControlVectorScaled,
    Lora,
    LoraScaled,
    adapter_arguments,
    vector_arguments,
)
from weft.cli.command import usage_error
from weft.cli.console import device_list, say
from weft.cli.machine_options import MachineKeyFile, Machines, RayNodes, machines_of
from weft.cli.metadata_options import (
    OverrideKv,
    RopeFreqBase,
    RopeFreqScale,
    RopeScale,
    RopeScaling,
    YarnAttnFactor,
    YarnBetaFast,
    YarnBetaSlow,
    YarnExtFactor,
    YarnOrigCtx,
    metadata_arguments,
)
from weft.cli.model_file import takes_model
from weft.cli.options import (
    ActivationsName,
    ActivationsOption,
    BatchSize,
    CacheTypeK,
    CacheTypeV,
    CtxSize,
    Devices,
    ExpertBudget,
    ExpertPolicyOption,
    Fallback,
    Fit,
    FlashAttention,
    GpuLayers,
    ListDevices,
    Memory,
    NCopies,
    NoKvOffload,
    NoRewrite,
    OldSpeedsFile,
    Place,
    PlanFile,
    PolicyName,
    PolicyOption,
    Repack,
    SpeedsFile,
    SwaFull,
    UbatchSize,
    parse_switch,
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
from weft.cli.tuned_options import TunedOption, take_tuned
from weft.cli.unused_options import (
    UNUSED,
    NoEffect,
    Unused,
    note_devices,
    note_memory,
    note_threads,
    note_unused,
    takes_layers,
    unused_parameter,
)
from weft.cli.value_lists import MOST_VALUES, numbers, switches, words
from weft.frontends.models import open_model
from weft.llm.config_keys import read_config
from weft.llm.model import Model

__all__ = [
    "Loading",
    "context_arguments",
    "load_arguments",
    "loads_model",
    "loads_model_untuned",
    "loads_model_with",
    "open_with",
    "trained_context",
]

Command = Callable[..., None]


def load_arguments(
    ctx_size: CtxSize = None,
    ubatch: UbatchSize = None,
    flash_attn: FlashAttention = "auto",
    type_k: CacheTypeK = None,
    type_v: CacheTypeV = None,
    devices: Devices = None,
    gpu_layers: GpuLayers = None,
    threads: Threads = None,
    threads_batch: ThreadsBatch = None,
    fallback: Fallback = None,
    machines: Machines = None,
    ray: RayNodes = None,
    machine_key_file: MachineKeyFile = None,
    no_kv_offload: NoKvOffload = False,
    place: Place = None,
    fit: Fit = False,
    memory: Memory = None,
    plan: PlanFile = None,
    policy: PolicyOption = PolicyName.ggml,
    speeds: SpeedsFile = None,
    old_speeds: OldSpeedsFile = None,
    cpu_mask: CpuMask = None,
    cpu_range: CpuRange = None,
    cpu_strict: CpuStrict = False,
    prio: Prio = "normal",
    poll: Poll = 50,
    numa: NumaOption = None,
    activations: ActivationsOption = ActivationsName.native,
    swa_full: SwaFull = True,
    n_copies: NCopies = None,
    repack: Repack = None,
    no_rewrite: NoRewrite = None,
    expert_budget: ExpertBudget = None,
    expert_policy: ExpertPolicyOption = None,
    lora: Lora = None,
    lora_scaled: LoraScaled = None,
    control_vector: ControlVector = None,
    control_vector_scaled: ControlVectorScaled = None,
    control_vector_layers: ControlVectorLayers = None,
    batch_size: BatchSize = None,
    override_kv: OverrideKv = None,
    rope_scaling: RopeScaling = None,
    rope_scale: RopeScale = None,
    rope_freq_base: RopeFreqBase = None,
    rope_freq_scale: RopeFreqScale = None,
    yarn_orig_ctx: YarnOrigCtx = None,
    yarn_ext_factor: YarnExtFactor = None,
    yarn_attn_factor: YarnAttnFactor = None,
    yarn_beta_slow: YarnBetaSlow = None,
    yarn_beta_fast: YarnBetaFast = None,
    mlock: Annotated[bool, typer.Option("--mlock", hidden=True)] = False,
    no_mmap: Annotated[bool, typer.Option("--no-mmap", hidden=True)] = False,
    no_effect: NoEffect = False,
    tuned: TunedOption = True,
    list_devices: ListDevices = False,
) -> dict[str, Any]:
    """Converts options to arguments of `LLM`, or of `open_with` and `Context`; an `n_ctx` of 0
    means the length that the model was trained for."""
    note_memory(mlock, no_mmap)
    threads, threads_batch = (None if n == -1 else n for n in (threads, threads_batch))
    note_threads(t=threads, tb=threads_batch)
    if plan is None:
        gpu_layers = _layers(devices, gpu_layers)
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
        "flash": None if parse_switch(flash_attn) else False,
        "activations": activations.value,
        "expert_budget": expert_budget,
        "expert_policy": None if expert_policy is None else expert_policy.value,
        "adapters": adapter_arguments(lora, lora_scaled),
        **vector_arguments(control_vector, control_vector_scaled, control_vector_layers),
        **metadata_arguments(
            override_kv, rope_scaling, rope_scale, rope_freq_base, rope_freq_scale,
            yarn_orig_ctx, yarn_ext_factor, yarn_attn_factor, yarn_beta_slow, yarn_beta_fast,
        ),
        "fallback": None if fallback is None else device_list(fallback),
        **machines_of(machines, ray, machine_key_file),
        **placement_arguments(
            devices, gpu_layers, place, plan, fit, memory, policy, speeds or old_speeds, repack,
            no_rewrite,
        ),
    }  # fmt: skip


def _layers(devices: str | None, n: int | None) -> int | None:
    """The number of layers for devices; None: all. Prints notes about surprising values."""
    names = device_list(devices)
    if devices is not None:
        note_devices(names)
    return None if not takes_layers(names, n) or n is None or n < 0 else n


_OF_MODELS = ("adapters", "control_vectors", "control_vector_layers", "metadata")


def open_with(path: Path, load: dict[str, Any], *, whole: bool = True) -> Model:
    """Opens a model with the adapters and control vectors of `load`, which is left with arguments
    of `Context`. With `whole` False the beginning of a GGUF file is enough, for plans."""
    given = {name: load.pop(name, None) for name in _OF_MODELS}
    metadata = given.pop("metadata")
    return Model(open_model(path, whole=whole, metadata=metadata), **given)


def context_arguments(load: Mapping[str, Any]) -> dict[str, Any]:
    """What is left of `load` for a `Context`."""
    return {name: value for name, value in load.items() if name not in _OF_MODELS}


def trained_context(path: Path, metadata: Mapping[str, object] | None = None) -> int:
    """The length in tokens that a model was trained for, by its file and `metadata`."""
    with open_model(path, whole=False, metadata=metadata) as file:
        return read_config(file).n_ctx_train


class Loading(NamedTuple):
    """One combination of the values of options."""

    typed: Mapping[str, Any]
    """The parameters of `load_arguments`, as they were typed."""
    arguments: dict[str, Any]
    """The result of `load_arguments`."""


def loads_model_with(
    *,
    without: Collection[str] = (),
    instead: Mapping[str, Any] | None = None,
    lists: Collection[str] = (),
    unused: Sequence[Unused] = UNUSED,
) -> Callable[[Command], Command]:
    """Gives a command the options of `load_arguments`, whose result it gets as `load`.

    `without` names parameters of `load_arguments` that the command does not have. `instead` has
    other annotations for parameters, with another help text or flag. `lists` names parameters that
    take several values, separated by commas or repeated; `load` is then a list with a `Loading` for
    every combination, in which the first parameter varies least. `unused` are options without an
    effect."""

    def decorate(command: Command) -> Command:
        own = inspect.signature(command, eval_str=True).parameters
        shared = {
            name: p.replace(annotation=(instead or {}).get(name, p.annotation))
            for name, p in inspect.signature(load_arguments, eval_str=True).parameters.items()
            if name not in without
        }
        kinds = {name: shared[name].annotation for name in lists}
        shared |= {name: _as_list(shared[name]) for name in lists}
        ignored = {p.name: p for p in map(unused_parameter, unused)}

        @wraps(command)
        def with_options(**given: Any) -> None:
            note_unused(unused, [given.pop(name) for name in ignored])
            values = {name: given.pop(name) for name in shared}
            if lists:
                command(**given, load=_loadings(values, kinds))
                return
            load = load_arguments(**values)
            if values.get("tuned") and given.get("model") is not None:
                found = take_tuned(load, values, given["model"])
                if found is not None and given.get("verbose"):
                    say(f"tuned: {found} (weft bench --tune, {found.date}; not with --no-tuned)")
            if load["n_ctx"] == 0 and given.get("model") is not None:
                load["n_ctx"] = trained_context(given["model"], load.get("metadata"))
            command(**given, load=load)

        parameters = [
            p.replace(kind=inspect.Parameter.KEYWORD_ONLY)
            for p in (*own.values(), *shared.values(), *ignored.values())
            if p.name != "load"
        ]
        with_options.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        with_options.__annotations__ = {p.name: p.annotation for p in parameters}
        del with_options.__wrapped__  # typer would read its signature
        return takes_model(with_options)

    return decorate


def _as_list(parameter: inspect.Parameter) -> inspect.Parameter:
    """The option as a text with several values, which may be repeated."""
    option = copy(get_args(parameter.annotation)[1])
    flag = "bool" in str(get_args(parameter.annotation)[0])
    option.parser, option.metavar = None, "0|1,..." if flag else f"{option.metavar or 'N'},..."
    annotation = Annotated[list[str] | None, option]
    return parameter.replace(annotation=annotation, default=None)


def _loadings(values: Mapping[str, Any], kinds: Mapping[str, Any]) -> list[Loading]:
    """Yields every combination of the values of options."""
    defaults = inspect.signature(load_arguments).parameters
    each = []
    for name, kind in kinds.items():
        texts = values[name]
        each.append(_values(kind, texts) if texts else [defaults[name].default])
    if prod(map(len, each)) > MOST_VALUES:
        raise usage_error(f"these lists have more than {MOST_VALUES} combinations")
    chosen = [dict(zip(kinds, combination, strict=True)) for combination in product(*each)]
    return [Loading({**values, **typed}, load_arguments(**{**values, **typed})) for typed in chosen]


def _values(kind: Any, texts: Sequence[str]) -> Sequence[Any]:
    """The values of an option whose annotation is `kind`."""
    type_, option, *_ = get_args(kind)
    flag = (option.default, *option.param_decls)[-1]  # the first name is taken for a default
    if "bool" in str(type_):
        return switches(flag, texts)
    if "int" in str(type_):
        return numbers(flag, texts, option.parser or int)
    return option.parser(texts) if option.parser else words(flag, texts)


loads_model = loads_model_with()
"""Gives a command all options of `load_arguments`."""
loads_model_untuned = loads_model_with(without=("tuned",))
"""The same without the values that `weft bench --tune` remembers."""
