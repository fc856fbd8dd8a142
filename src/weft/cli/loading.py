"""The options of every command that loads or plans a model, in one place.

    @loads_model
    def embed(model: ModelFile, load: Annotated[dict[str, Any], Load], ...) -> None: ...

A command declares only its own options.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple

import typer

from weft.backends.cpu.experts import ExpertPolicy
from weft.cli.adapter_options import AdapterFlags
from weft.cli.command import SWITCH, usage_error
from weft.cli.console import LoadProgress, chosen_devices, say
from weft.cli.groups import ABSENT, Group, changed, grouped
from weft.cli.machine_options import MACHINE_OPTIONS, machines_of
from weft.cli.metadata_options import MetadataFlags
from weft.cli.model_file import takes_model
from weft.cli.thread_options import ThreadFlags
from weft.cli.tuned_options import take_tuned
from weft.cli.unused_options import (
    NO_EFFECT,
    UNUSED,
    Unused,
    note_devices,
    note_memory,
    note_threads,
    note_unused,
    takes_layers,
    unused_option,
)
from weft.cli.value_lists import MOST_VALUES, numbers, switches, words
from weft.errors import ContextError, ScheduleError
from weft.flags import FLAGS
from weft.frontends.models import open_model
from weft.graph.rewrite import REWRITES, chosen_rewrites
from weft.llm.config_keys import read_config
from weft.llm.model import Model
from weft.llm.planning.options import LLM_OPTIONS
from weft.options import ADVANCED, PLACEMENT, Option, option, parse_tokens
from weft.schedule.profile import parse_size


def parse_switch(text: str) -> bool:
    """True for `on` and `auto`, False for `off`."""
    value = SWITCH.get(text.strip().lower())
    if value is None:
        raise ContextError(f"-fa {text}: write on, off or auto")
    return value


def _list_devices(wanted: bool) -> None:
    if wanted:
        from weft.cli.devices import print_devices

        print_devices()
        raise typer.Exit


class _Planning(Group):
    """The options of sizes, devices and placement."""

    table = LLM_OPTIONS | MACHINE_OPTIONS
    on_paper = False
    """True for objects whose devices are in a machine profile, and not here."""
    n_ctx: int | None
    n_ubatch: int | None
    type: str | None
    flash: str = "auto"
    type_k: str | None
    type_v: str | None
    devices: str | None
    n_gpu_layers: int | None
    n_threads: int | None
    n_threads_batch: int | None
    fallback: str | None
    machines: str | None
    ray: str | None
    machine_key_file: Path | None
    no_kv_offload: bool = changed(LLM_OPTIONS["offload_kv"], default=False)
    no_op_offload: bool = changed(LLM_OPTIONS["op_offload"], default=False)
    op_offload_min_batch: str | None = option(
        None,
        "Least batch for which a device takes ops whose weights are in host memory, sending the "
        "weights, e.g. 64, or by device and op: cuda:0=64,MUL_MAT_ID@cuda:1=off. Default: by "
        "--speeds, else each device decides (a GPU: 32).", panel=PLACEMENT,
        metavar="N|DEVICE=N,...",
    )  # fmt: skip
    place: list[str] | None
    fit: bool
    memory: list[str] | None
    plan: Path | None
    policy: Literal["ggml", "cost"]
    profile: str | None
    old_speeds: str | None = option(None, "", "--profile", metavar="FILE", hidden=True)
    """The former name of --speeds, for commands in which --profile does not mean to measure."""
    activations: Literal["native", "f32", "bf16"]
    swa_full: bool = True
    n_copies: int | None
    repack: bool | None
    no_rewrite: list[str] | None = option(
        None,
        f"Leave out a fusion of nodes, or `all`; repeatable. There are {', '.join(REWRITES)}.",
        panel=ADVANCED, metavar="NAME",
    )  # fmt: skip
    expert_budget: str | None
    expert_policy: ExpertPolicy | None

    def plan_arguments(self) -> dict[str, Any]:
        """Converts these options to arguments of `Context`, `LLM` and `prepare`. One that is not
        converted here is the argument of its name."""
        converted = {
            "swa_full": None if self.swa_full else False,
            "offload_kv": not self.no_kv_offload,
            "op_offload": self._op_offload(),
            "flash": None if parse_switch(self.flash) else False,
            # None: the devices of the plan file, or the cpu
            "devices": self._devices(),
            "n_gpu_layers": self.n_gpu_layers if self.plan is not None else self._layers(),
            "place": dict(_pairs("--place", self.place)),
            "memory": {name: parse_size(size) for name, size in _pairs("--memory", self.memory)},
            "profile": self.profile or self.old_speeds,
            "rewrites": _without(self.no_rewrite),
            "fallback": None if self.fallback is None else chosen_devices(self.fallback),
            **machines_of(self.machines, self.ray, self.machine_key_file),
        }
        done = converted.keys() | ThreadFlags.options()
        names = [name for name in _Planning.options() if name in LLM_OPTIONS and name not in done]
        return converted | {name: getattr(self, name) for name in names}

    def _op_offload(self) -> str | bool | None:
        if not self.no_op_offload:
            return self.op_offload_min_batch
        if self.plan is not None:
            raise usage_error("--plan says where everything is; leave out --no-op-offload")
        if self.op_offload_min_batch is not None:
            raise usage_error("--no-op-offload leaves nothing for --op-offload-min-batch to say")
        return False

    def _devices(self) -> list[str] | None:
        if self.on_paper:
            return None if self.devices is None else words("--devices", [self.devices])
        says = self.devices is not None or (self.plan is None and bool(FLAGS.devices))
        return chosen_devices(self.devices) if says else None

    def _layers(self) -> int | None:
        """The number of layers for devices; None: all. Prints notes about surprising values, unless
        other machines have devices, which are not known yet."""
        n = None if self.n_gpu_layers is None or self.n_gpu_layers < 0 else self.n_gpu_layers
        if self.on_paper:
            return n
        names = chosen_devices(self.devices)
        if self.devices is not None:
            note_devices(names)
        return n if self.machines or self.ray is not None or takes_layers(names, n) else None


class Load(MetadataFlags, AdapterFlags, ThreadFlags, _Planning):
    """The options of a command that loads or plans a model. The command gets them as arguments of
    `LLM`, or of `open_with` and `Context`."""

    table = _Planning.table
    last = True
    unused: ClassVar[Sequence[Unused]] = UNUSED
    """Options without an effect."""
    batch_size: int | None = option(
        None, "Changes nothing: prompts of any length are taken, -ub at once.", "--batch-size -b",
        metavar="TOKENS", read=parse_tokens, hidden=True,
    )  # fmt: skip
    mlock: bool = option(False, "", hidden=True)
    no_mmap: bool = option(False, "", hidden=True)
    no_effect: bool = NO_EFFECT
    tuned: bool = option(
        True,
        "Use the threads and the -ub that `weft bench --tune` found best for this model here.",
        "--tuned/--no-tuned", ADVANCED,
    )  # fmt: skip
    list_devices: bool = option(False, "", callback=_list_devices, is_eager=True, hidden=True)
    """Lists the devices as `weft devices` does, and nothing else."""

    @classmethod
    def options(cls) -> dict[str, tuple[Any, Option]]:
        """The type and the option of each field, and those without an effect."""
        return super().options() | dict(map(unused_option, cls.unused))

    def made(self, given: Mapping[str, Any]) -> Any:
        """The arguments of `LLM`, with what was tuned for the model of the command."""
        note_unused(self.unused, [getattr(self, unused_option(u)[0]) for u in self.unused])
        load = self.arguments()
        model = given.get("model")
        if self.tuned is True and model is not None and not self.on_paper:
            found = take_tuned(load, vars(self), model)
            if found is not None and given.get("verbose"):
                say(f"tuned: {found} (weft bench --tune, {found.date}; not with --no-tuned)")
        if load["n_ctx"] == 0 and model is not None:
            load["n_ctx"] = trained_context(model, load.get("metadata"))
        return load

    def arguments(self) -> dict[str, Any]:
        """Converts the options; an `n_ctx` of 0 means the length that the model was trained
        for."""
        note_memory(self.mlock, self.no_mmap)
        threads = self.thread_options()
        if not self.on_paper:
            note_threads(t=threads.n_threads, tb=threads.n_threads_batch)
        return {
            **self.plan_arguments(), "threads": threads, **self.adapter_arguments(),
            **self.metadata_arguments(),
        }  # fmt: skip


class Untuned(Load):
    """The same without the values that `weft bench --tune` remembers."""

    tuned = ABSENT


class LoadList(Load):
    """Options of which some take several values. The command gets a `Loading` for every
    combination, in which the first option of `lists` varies least."""

    lists: ClassVar[Collection[str]] = ()
    """Fields that take several values, separated by commas or repeated."""

    @classmethod
    def options(cls) -> dict[str, tuple[Any, Option]]:
        """The type and the option of each field; elements of lists are texts, which may be
        repeated."""
        own = super().options()
        for name in cls.lists:
            kind, one = own[name]
            metavar = "0|1,..." if "bool" in str(kind) else f"{one.metavar or 'N'},..."
            listed = one._replace(default=None, read=None, metavar=metavar)
            own[name] = (list[str] | None, listed)
        return own

    def made(self, given: Mapping[str, Any]) -> list[Loading]:
        """Every combination of the values of options."""
        note_unused(self.unused, [getattr(self, unused_option(u)[0]) for u in self.unused])
        single = super().options()
        each = []
        for name in self.lists:
            kind, one = single[name]
            texts = getattr(self, name)
            each.append(_values(kind, one, texts) if texts else [one.default])
        if prod(map(len, each)) > MOST_VALUES:
            raise usage_error(f"these lists have more than {MOST_VALUES} combinations")
        loadings = []
        for combination in product(*each):
            vars(self).update(zip(self.lists, combination, strict=True))
            loadings.append(Loading(dict(vars(self)), self.arguments()))
        return loadings


def _without(names: Sequence[str] | None) -> list[str] | None:
    """The rewrites to use without those in `names`; None: the default."""
    if not names:
        return None
    excluded = set(REWRITES) if "all" in names else chosen_rewrites(names)
    return sorted(chosen_rewrites() - excluded)


def _pairs(flag: str, texts: Sequence[str] | None) -> Iterator[tuple[str, str]]:
    """Yields the two sides of each `a=b`; a text may have several, separated by commas."""
    for text in texts or ():
        for part in text.split(","):
            left, equals, right = (p.strip() for p in part.rpartition("="))
            if not (left and equals and right):
                raise ScheduleError(f"{flag} {part!r}: write NAME=VALUE")
            yield left, right


_OF_MODELS = ("type", "adapters", "control_vectors", "control_vector_layers", "metadata")


def open_with(path: Path, load: dict[str, Any], *, planned: bool = False) -> Model:
    """Opens a model in the type and with the adapters and control vectors of `load`, which is left
    with arguments of `Context`. With `planned` no matrix is quantized to the type, which is enough
    to name and to plan the model."""
    given = {name: load.pop(name, None) for name in _OF_MODELS}
    to, metadata = given.pop("type"), given.pop("metadata")
    with LoadProgress() as progress:
        file = open_model(path, to, progress=progress, planned=planned, metadata=metadata)
    return Model(file, **given)


def context_arguments(load: Mapping[str, Any]) -> dict[str, Any]:
    """The options of `load` for a `Context`."""
    return {name: value for name, value in load.items() if name not in _OF_MODELS}


def trained_context(path: Path, metadata: Mapping[str, object] | None = None) -> int:
    """The length in tokens that a model was trained for, by its file and `metadata`."""
    with open_model(path, whole=False, metadata=metadata) as file:
        return read_config(file).n_ctx_train


class Loading(NamedTuple):
    """One combination of the values of options."""

    typed: Mapping[str, Any]
    """The fields of the group, as they were typed."""
    arguments: dict[str, Any]
    """The arguments of `LLM`."""


def _values(kind: Any, one: Option, texts: Sequence[str]) -> Sequence[Any]:
    """The values of an option of which several texts were given."""
    flag = one.flags[0]
    if "bool" in str(kind):
        return switches(flag, texts)
    if "int" in str(kind):
        return numbers(flag, texts, one.read or int)
    return one.read(texts) if one.read else words(flag, texts)


def loads_model(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of its groups, and all ways to name a model."""
    return takes_model(grouped(command))
