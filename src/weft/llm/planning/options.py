"""The options of a context: what callers may give (`PlanArguments`), and what they come to
(`ContextOptions` for the graphs, `Placement` for where things are)."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from weft.backends.base import Backend
from weft.backends.cpu import ThreadOptions
from weft.dtype import find_dtype
from weft.errors import ContextError, ScheduleError
from weft.execute import Progress
from weft.llm.cache.kv_cache import CACHE_TYPES
from weft.llm.cache.window import window_size
from weft.llm.config import ModelConfig, Pooling
from weft.llm.model import Model
from weft.llm.planning.saved_plan import SavedPlan
from weft.options import Option, require_choice
from weft.schedule import Policy, Profile

__all__ = [
    "DEFAULT_N_UBATCH",
    "DEVICE_OPTIONS",
    "LLM_OPTIONS",
    "PLAN_OPTIONS",
    "ContextArguments",
    "ContextOptions",
    "Placement",
    "PlanArguments",
    "context_options",
]

DEFAULT_N_UBATCH = 512

DEVICE_OPTIONS = ("n_threads", "n_threads_batch", "threads", "activations")
"""Arguments that only devices read."""


class PlanArguments(TypedDict, total=False):
    """What decides the plan of a context, besides its size; `Context` says what each means."""

    n_batch: int | None
    n_ubatch: int | None
    n_outputs: int | None
    n_seq_max: int | None
    n_copies: int | None
    type_k: str | None
    type_v: str | None
    flash: bool | None
    swa_full: bool | None
    embeddings: bool | None
    n_threads: int | None
    n_threads_batch: int | None
    threads: ThreadOptions | None
    activations: Literal["native", "f32", "bf16"]
    devices: Sequence[str | Backend] | None
    fallback: Sequence[str | Backend] | None
    n_gpu_layers: int | None
    offload_kv: bool
    place: Mapping[str, str] | None
    plan: str | os.PathLike[str] | Mapping[str, Any] | None
    fit: bool
    memory: Mapping[str, int] | None
    policy: Policy
    profile: Profile | str | os.PathLike[str] | None
    repack: bool | None
    rewrites: Sequence[str] | None


PLAN_OPTIONS: dict[str, Option] = {
    "n_batch": Option(None, "Tokens of one `decode` at most; None: n_ctx."),
    "n_ubatch": Option(None, "Tokens computed together at most; None: 512, at most n_batch."),
    "n_outputs": Option(None, "Rows of logits computed together at most; None: n_ubatch."),
    "n_seq_max": Option(None, "Sequences (texts) of the cache at most; None: 1."),
    "n_copies": Option(
        None,
        "Ubatches that are under way at the same time where a model is on several devices, so "
        "that all have work; each takes compute memory of its own. None: 1.",
    ),
    "type_k": Option(None, "Type of the keys in the cache: f32, f16, bf16, q8_0, ...; None: f16."),
    "type_v": Option(None, "Type of the values in the cache; None: f16."),
    "flash": Option(None, "Attention as one op; None: yes."),
    "swa_full": Option(
        None,
        "Layers with a sliding window have as many cells as the others, so that tokens can be "
        "taken back at will; False: as many as they can see. None: yes.",
    ),
    "embeddings": Option(
        None,
        "`decode` gives the rows that logits would be made of; models without logits (BERT) "
        "always do. None: no.",
    ),
    "n_threads": Option(None, "Threads of the cpu device for single tokens; None: physical cores."),
    "n_threads_batch": Option(None, "Threads for more tokens than one; None: n_threads."),
    "threads": Option(
        None, "Threads, and where and how they run, as a `weft.ThreadOptions`; None: its defaults."
    ),
    "activations": Option(
        "native",
        '"f32" keeps activations in float32 where kernels would rather quantize them; "bf16" '
        "computes prompts with f16 and f32 weights in bf16, faster and rounded to 8 bits, where "
        "the processor has bf16 dot products.",
    ),
    "devices": Option(
        None,
        "Names or backends, highest priority first; behind a last name that is no cpu stands the "
        "cpu. None: cpu.",
    ),
    "fallback": Option(
        None,
        "Devices to go on with, placed as by default, when one of `devices` fails; None: an error.",
    ),
    "n_gpu_layers": Option(
        None,
        "Layers, from the last to the first, that live on the first device with memory of its "
        "own; one more than there are takes the output too. None: all.",
    ),
    "offload_kv": Option(True, "The cache of a layer lives with the layer; False: in host memory."),
    "place": Option(None, "Glob over weight names -> device; the first match wins."),
    "plan": Option(None, "A plan file, or what it holds, to follow."),
    "fit": Option(False, "As many layers on the first device as fit."),
    "memory": Option(None, "Device -> bytes that plans may use there."),
    "policy": Option(
        "ggml", '"cost": the placement that takes least time, as `profile` predicts it.'
    ),
    "profile": Option(
        None,
        "Speeds of the devices: a `weft.schedule.Profile`, a file of `weft calibrate`, or the "
        "name of one that weft has.",
    ),
    "repack": Option(
        None,
        "Weights that only matmuls read are brought into the layout that the kernels like best, "
        "and shared by the contexts of a model; False: all are used in place, mapped from the "
        "file. None: yes.",
    ),
    "rewrites": Option(None, "Names of the fusions to use; None: what WEFT_REWRITES says, or all."),
}
"""Every key of `PlanArguments`, with default and meaning."""


LLM_OPTIONS: dict[str, Option] = {
    "n_ctx": Option(
        None,
        "Tokens of prompt and text together; None: what the model was trained for, at most 4096.",
    ),
    "context_shift": Option(
        False,
        "A text goes on when the context is full: the older half of what follows the first "
        "`n_keep` tokens (and the token that begins every text) is dropped, see "
        "`Context.drop_oldest`.",
    ),
    "n_keep": Option(0, "First tokens that stay when the context is shifted."),
    "chat_template": Option(None, "Jinja text; None: the model's own template."),
    "progress": Option(
        None, "Called with (bytes done, bytes in all) while weights are repacked or sent."
    ),
    "eval_callback": Option(
        None, "Sees tensors as they are computed, see `Context.set_eval_callback`."
    ),
    **PLAN_OPTIONS,
}
"""Every option of `LLM`, with default and meaning."""


class ContextArguments(PlanArguments, total=False):
    """What `Context` takes, besides its size."""

    kv_unified: bool
    pooling: Pooling | None
    warm_up: bool
    progress: Progress | None


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """What decides the graphs of a context; see `Context`."""

    n_ctx: int
    n_ubatch: int
    n_outputs: int
    n_seq_max: int = 1
    type_k: str = "f16"
    type_v: str = "f16"
    flash: bool = True
    embeddings: bool = False
    repack: bool = True
    swa_full: bool = True
    n_copies: int = 1

    def window_size(self, config: ModelConfig) -> int:
        """Cells of sliding-window layers, 0 where they have as many as the others."""
        if self.swa_full:
            return 0
        return window_size(config, self.n_ctx, self.n_seq_max, self.n_ubatch)


@dataclass(frozen=True, slots=True)
class Placement:
    """Who decides where things are; see `Context`."""

    n_gpu_layers: int | None = None
    place: Mapping[str, str] = field(default_factory=dict)
    saved: SavedPlan | None = None
    fit: bool = False
    memory: Mapping[str, int] = field(default_factory=dict)
    """Device -> bytes of its memory that the plan may use."""
    policy: Policy = "ggml"
    profile: Profile | None = None
    offload_kv: bool = True
    """Whether the cache of a layer lives with the layer; else in host memory."""

    def __post_init__(self) -> None:
        others = self.fit or self.n_gpu_layers is not None or self.place or not self.offload_kv
        if self.saved is not None and (others or self.policy != "ggml"):
            raise ScheduleError(
                "a plan file says where everything is; leave out n_gpu_layers, offload_kv, place, "
                "fit, policy"
            )
        if self.fit and self.n_gpu_layers is not None:
            raise ScheduleError("fit chooses the number of layers; leave out n_gpu_layers")
        if self.policy == "cost" and self.profile is None:
            raise ScheduleError(
                "policy 'cost' needs a machine profile; measure one with `weft calibrate`"
            )
        require_choice("policy", self.policy, ("ggml", "cost"), ScheduleError)


def context_options(
    model: Model, n_ctx: int | None, given: PlanArguments, saved: SavedPlan | None = None
) -> ContextOptions:
    """The options with their defaults. With a plan file, what is not given is as the file says.

    Raises ContextError for an argument out of range or two that contradict each other, FormatError
    where the caller contradicts the plan file."""

    def option(name: str, value: Any, default: Any) -> Any:
        if saved is not None:
            value = saved.option(name, value, type(default))
        return default if value is None else value

    n_batch, n_ubatch = given.get("n_batch"), given.get("n_ubatch")
    for name in ("n_batch", "n_threads", "n_threads_batch", "n_copies"):
        _require_count(name, given.get(name))
    default = DEFAULT_N_UBATCH
    if isinstance(n_batch, int):
        default = min(default, n_batch)
    sizes = {
        "n_ctx": option("n_ctx", n_ctx, model.config.n_ctx_train),
        "n_ubatch": option("n_ubatch", n_ubatch, default),
        "n_seq_max": option("n_seq_max", given.get("n_seq_max"), 1),
    }
    sizes["n_outputs"] = option("n_outputs", given.get("n_outputs"), sizes["n_ubatch"])
    for name, value in sizes.items():
        _require_count(name, value, missing=False)
    if n_batch is not None and sizes["n_ubatch"] > n_batch:
        raise ContextError(
            f"n_ubatch is {sizes['n_ubatch']}, but n_batch is {n_batch}: a call has at most "
            "n_batch tokens; make n_batch larger or n_ubatch smaller"
        )
    sizes["n_ubatch"] = min(sizes["n_ubatch"], sizes["n_ctx"])
    sizes["n_outputs"] = min(sizes["n_outputs"], sizes["n_ubatch"])
    embeds = option("embeddings", given.get("embeddings") or None, False)
    found = ContextOptions(
        **sizes,
        type_k=option("type_k", given.get("type_k"), "f16"),
        type_v=option("type_v", given.get("type_v"), "f16"),
        flash=option("flash", given.get("flash"), True),
        embeddings=embeds or model.architecture.embeds,
        repack=option("repack", given.get("repack"), True),
        swa_full=option("swa_full", given.get("swa_full"), True),
        n_copies=given.get("n_copies") or 1,
    )
    _require_flash(found)
    return found


def _require_count(name: str, value: Any, *, missing: bool = True) -> None:
    if value is None and missing:
        return
    if not isinstance(value, int) or not 1 <= value < 1 << 31:
        raise ContextError(f"{name} is {value}; it must be 1 or more")


def _require_flash(options: ContextOptions) -> None:
    name = options.type_v
    if not options.flash and name in CACHE_TYPES and find_dtype(name).is_quantized:
        raise ContextError(
            f"type_v is {name}, but attention without flash reads values column by column and "
            "cannot cut blocks; leave flash on, or make type_v f16"
        )
