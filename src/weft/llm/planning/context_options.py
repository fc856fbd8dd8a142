"""`ContextOptions`: the values of the options that decide the graphs of a context."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from weft.backends.cpu.experts import POLICIES, ExpertPolicy
from weft.dtype import find_dtype
from weft.errors import ContextError, FormatError
from weft.llm.cache.cache_types import CACHE_TYPES, CacheTypes
from weft.llm.cache.cells import window_size
from weft.llm.cache.kv_cache import cache_bytes
from weft.llm.config import ModelConfig
from weft.llm.model import Model
from weft.llm.planning.options import DEFAULT_N_UBATCH, PlanArguments
from weft.llm.planning.saved_plan import SavedPlan
from weft.options import require_choice, whole_number
from weft.records import dataclass
from weft.schedule.profile import parse_size


@dataclass(frozen=True, slots=True)
class ContextOptions:
    """The values of the options that decide the graphs of a context; see `PLAN_OPTIONS`."""

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
    expert_budget: int | None = None
    expert_policy: ExpertPolicy = "auto"
    states: bool | tuple[int, ...] = False

    @property
    def types(self) -> CacheTypes:
        """The types of cached keys and values."""
        return CacheTypes(self.type_k, self.type_v)

    def window_size(self, config: ModelConfig) -> int:
        """The number of cells of sliding-window layers; 0: as many as the others have."""
        if self.swa_full and config.compression is None:
            return 0
        return window_size(config, self.n_ctx, self.n_seq_max, self.n_ubatch)

    def cache_bytes(self, config: ModelConfig) -> int:
        """Bytes of the keys, values and states of the cache."""
        window = self.window_size(config)
        return cache_bytes(config, self.n_ctx, *self.types, self.n_seq_max, window)


def context_options(
    model: Model, n_ctx: int | None, arguments: PlanArguments, saved: SavedPlan | None = None
) -> ContextOptions:
    """Replaces missing options by values of the plan file, if there is one, or by defaults.

    Raises ContextError for an argument out of range or two that contradict each other, and
    FormatError if an argument contradicts the plan file."""

    def option(name: str, value: Any, default: Any) -> Any:
        if saved is not None:
            value = saved.option(name, value, type(default))
        return default if value is None else value

    n_batch, n_ubatch = arguments.get("n_batch"), arguments.get("n_ubatch")
    for name in ("n_batch", "n_threads", "n_threads_batch", "n_copies"):
        _require_count(name, arguments.get(name))
    default = DEFAULT_N_UBATCH
    if isinstance(n_batch, int):
        default = min(default, n_batch)
    sizes = {
        "n_ctx": option("n_ctx", n_ctx, model.config.n_ctx_train),
        "n_ubatch": option("n_ubatch", n_ubatch, default),
        "n_seq_max": option("n_seq_max", arguments.get("n_seq_max"), 1),
    }
    sizes["n_outputs"] = option("n_outputs", arguments.get("n_outputs"), sizes["n_ubatch"])
    for name, value in sizes.items():
        _require_count(name, value, missing=False)
    trained = model.config.n_ctx_train
    if model.config.rope.dynamic and sizes["n_ctx"] > trained:
        raise ContextError(
            f"is {sizes['n_ctx']}, but the rotation of this model (rope_scaling dynamic) changes "
            f"with the length of a text beyond {trained} tokens, which weft does not compute; give "
            f"up to {trained}",
            argument="n_ctx",
        )
    if n_batch is not None and sizes["n_ubatch"] > n_batch:
        raise ContextError(
            f"is {sizes['n_ubatch']}, but `n_batch` is {n_batch}: a call has at most `n_batch` "
            "tokens; make `n_batch` larger or `n_ubatch` smaller",
            argument="n_ubatch",
        )
    sizes["n_ubatch"] = min(sizes["n_ubatch"], sizes["n_ctx"])
    sizes["n_outputs"] = min(sizes["n_outputs"], sizes["n_ubatch"])
    embeds = option("embeddings", arguments.get("embeddings") or None, False)
    options = ContextOptions(
        **sizes,
        type_k=option("type_k", arguments.get("type_k"), "f16"),
        type_v=option("type_v", arguments.get("type_v"), "f16"),
        flash=option("flash", arguments.get("flash"), True),
        embeddings=embeds or not model.writes,
        repack=option("repack", arguments.get("repack"), True),
        swa_full=option("swa_full", arguments.get("swa_full"), True),
        n_copies=arguments.get("n_copies") or 1,
        states=_kept(model, arguments.get("states", False)),
        **_expert_options(arguments),
    )
    _require_flash(options, model.config)
    return options


def _kept(model: Model, states: bool | Sequence[int]) -> bool | tuple[int, ...]:
    """The option `states`. Raises ContextError for layers that the model has not."""
    if isinstance(states, bool):
        return states
    n_layer = model.config.n_layer
    if not all(isinstance(il, int) and 1 <= il <= n_layer for il in states):
        raise ContextError(
            f"is {list(states)}; the inputs of layers 1..{n_layer} can be kept ({n_layer} stands "
            "for the output of the last)", argument="states",
        )  # fmt: skip
    return tuple(states) or False


def _require_count(name: str, value: Any, *, missing: bool = True) -> None:
    if value is None and missing:
        return
    number = whole_number(name, value)
    if not 1 <= number < 1 << 31:
        end = "1 or more" if number < 1 else f"at most {(1 << 31) - 1}"
        raise ContextError(f"is {number}; it must be {end}", argument=name)


def _expert_options(arguments: PlanArguments) -> dict[str, Any]:
    """A plan file has none of them: they change no placement."""
    budget, policy = arguments.get("expert_budget"), arguments.get("expert_policy")
    if policy is not None:
        require_choice("expert_policy", policy, POLICIES, ContextError)
        if budget is None:
            raise ContextError(
                "says what `expert_budget` holds; give a budget, too, or leave it out",
                argument="expert_policy",
            )
    if budget is None:
        return {}
    try:
        size = parse_size(budget)
    except FormatError as error:
        raise ContextError(f": {error}", argument="expert_budget") from None
    if size < 1:
        raise ContextError(f"is {size}; it must be 1 or more bytes", argument="expert_budget")
    return {"expert_budget": size, "expert_policy": policy or "auto"}


def _require_flash(options: ContextOptions, config: ModelConfig) -> None:
    # without values of their own, keys are the values as well
    argument = "type_v" if config.head_dim_v else "type_k"
    name: str = getattr(options, argument)
    if name not in CACHE_TYPES or not find_dtype(name).is_quantized:
        return
    biased = config.n_buckets > 0
    if biased or not options.flash:
        way = "with biases of distances" if biased else "without flash"
        more = "" if biased else "leave `flash` on, or "
        raise ContextError(
            f"is {name}, but attention {way} reads values column by column and cannot cut blocks; "
            f"{more}make `{argument}` f16",
            argument=argument,
        )
