"""`SamplingParams`: every option of sampling, checked when it is made.

The chain runs in the order of `SAMPLERS`, which is llama.cpp's default, unless `samplers` gives
another. The constraint and the logit bias are applied before the chain; the draw follows it. Each
sampler sees only the tokens that the samplers before have left, and their probabilities add up to
1. A sampler whose option has its neutral value is skipped. Mirostat replaces all samplers but
penalties, DRY and the temperature.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import field, fields
from numbers import Integral, Real
from typing import Any, TypedDict, TypeVar

from weft.bounds import DIFFUSION_STEPS
from weft.errors import ArgumentError, ContextError
from weft.options import Option, require_choice, require_options
from weft.records import dataclass

SAMPLERS = ("penalties", "dry", "top_n_sigma", "top_k", "typ_p", "top_p", "min_p", "xtc",
            "temperature", "adaptive_p")  # fmt: skip
"""The samplers of the chain in their default order; adaptive_p is last in any."""
ALGORITHMS = ("origin", "entropy", "margin", "random", "confidence")
"""The algorithms that choose the tokens of a step of diffusion, by llama.cpp's numbers."""
SCHEDULES = ("linear", "cosine")
"""How the number of tokens of such steps changes."""
BREAKERS: tuple[str, ...] = ("\n", ":", '"', "*")
"""Default sequence breakers of DRY."""
_ALIASES = {
    "typical": "typ_p", "typical_p": "typ_p", "temp": "temperature", "nucleus": "top_p",
}  # fmt: skip

_ALGORITHMS = {
    "maskgit_plus": "confidence",
    "low_confidence": "confidence",
    "topk_margin": "margin",
}
"""Names of these algorithms in other programs."""

_INF = math.inf
_MOST = 3e38
"""Largest finite number that is accepted; larger ones have no float32."""
_GONE = ("tfs", "tfs_z", "infill")
"""Names that llama.cpp has or had and clients still list: tail-free sampling, which no option here
turns on, and one for infilling."""
T = TypeVar("T")


def _option(
    default: T, about: str, low: float = 0, high: float = _INF, flags: tuple[str, ...] = ()
) -> T:
    """A field with its text for `help()`, the range of a number, and the names of its flags (empty:
    one like the field)."""
    option: T = field(
        default=default, metadata={"about": about, "range": (low, high), "flags": flags}
    )
    return option


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The options of sampling. Raises ContextError for a value out of range."""

    temperature: float = _option(
        0.8,
        "Divides the logits; larger is more varied, 0 always takes the most likely token.",
        flags=("--temp", "--temperature"),
    )
    top_k: int = _option(40, "Keep the k most likely tokens; 0 or less: all.", low=-_INF)
    top_p: float = _option(
        0.95,
        "Keep the smallest set of likeliest tokens whose probabilities sum to p; 1: all.",
        high=1,
    )
    min_p: float = _option(
        0.05, "Keep tokens at least this likely relative to the likeliest one; 0: all.", high=1
    )
    seed: int | None = _option(
        None,
        "Seed of the random numbers; the same seed gives the same draws. None: a random seed.",
        flags=("--seed", "-s"),
    )

    typical_p: float = _option(
        1.0,
        "Keep the tokens whose surprise is nearest to the entropy, until their probabilities sum "
        "to this; 1: all.",
        high=1,
        flags=("--typical", "--typical-p"),
    )
    top_n_sigma: float = _option(
        0.0,
        "Keep logits within this many standard deviations of the largest; 0 or less: all.",
        low=-1,
        flags=("--top-n-sigma", "--top-nsigma"),
    )
    xtc_probability: float = _option(
        0.0,
        "Probability that XTC removes the likeliest tokens, so that a rarer one is taken; 0: off.",
        high=1,
    )
    xtc_threshold: float = _option(
        0.1,
        "XTC removes tokens at least this likely, but for the least likely of them; above 0.5: "
        "off.",
        high=1,
    )
    min_keep: int = _option(
        0, "Fewest tokens that `top_p`, `min_p`, `typical_p` and XTC keep; 0 means 1."
    )
    dynatemp_range: float = _option(
        0.0,
        "The temperature varies by this much, down and up, with the entropy of the tokens left; "
        "0: fixed.",
    )
    dynatemp_exponent: float = _option(
        1.0,
        "Power of the relative entropy, 0 to 1, that sets the temperature in its range.",
        flags=("--dynatemp-exp",),
    )

    repeat_penalty: float = _option(
        1.0,
        "Positive logits of recent tokens are divided by this, negative ones multiplied; 1: off.",
        low=1e-6,
    )
    repeat_last_n: int = _option(
        64,
        "Number of last tokens, prompt included, that the three penalties apply to; 0: off, "
        "-1: all.",
        low=-1,
    )
    presence_penalty: float = _option(
        0.0, "Subtracted from the logit of every recent token; 0: off.", low=-_INF
    )
    frequency_penalty: float = _option(
        0.0,
        "Subtracted from the logit of a recent token for each of its occurrences; 0: off.",
        low=-_INF,
    )

    dry_multiplier: float = _option(
        0.0, "Weight of DRY, the penalty for continuing a repeated sequence; 0: off."
    )
    dry_base: float = _option(
        1.75, "The DRY penalty grows by this factor with each repeated token.", low=1
    )
    dry_allowed_length: int = _option(
        2, "Length in tokens of repetitions with penalty `dry_multiplier`; shorter ones are free."
    )
    dry_last_n: int = _option(
        -1,
        "Number of last tokens that DRY looks at; 0: off, -1: all.",
        low=-1,
        flags=("--dry-penalty-last-n",),
    )
    dry_sequence_breakers: tuple[str, ...] = _option(
        BREAKERS,
        "Texts that end a repetition; none extends across them.",
        flags=("--dry-sequence-breaker",),
    )

    mirostat: int = _option(
        0, "2 uses mirostat 2.0, which keeps the surprise of tokens steady; 0: off.", low=-_INF
    )
    mirostat_tau: float = _option(
        5.0, "The surprise that mirostat aims at, in bits.", flags=("--mirostat-ent",)
    )
    mirostat_eta: float = _option(0.1, "Learning rate of mirostat.", flags=("--mirostat-lr",))

    adaptive_target: float = _option(
        -1.0,
        "Average probability of drawn tokens that adaptive-p aims at; below 0: off.",
        low=-1,
        high=1,
    )
    adaptive_decay: float = _option(
        0.9, "Factor by which a token counts less in that average with each later one.", high=0.99
    )

    logit_bias: Mapping[int, float] | None = _option(
        None,
        "Added to logits by token id; minus infinity forbids a token.",
        flags=("--logit-bias", "-l"),
    )
    samplers: str | Sequence[str] = _option(
        SAMPLERS,
        "The samplers of the chain in order, as `'top_k;temperature'` or a sequence; others are "
        "left out.",
    )

    diffusion_steps: int = _option(
        128,
        "Maximum number of steps of a text by diffusion, shared out among its blocks.",
        low=1,
        high=DIFFUSION_STEPS,
    )
    diffusion_eps: float = _option(
        0.0,
        "Write anywhere in the text, and leave this part of the time at its end, e.g. 0.001; 0: in "
        "blocks, or as the model was made to.",
        high=0.999,
    )
    diffusion_block_length: int = _option(
        0,
        "Write the text in blocks of this number of tokens, one after another; 0: without blocks, "
        "or as the model was made to.",
        high=1 << 20,
    )
    diffusion_schedule: str = _option(
        "linear",
        "How many tokens each step writes: `linear` as many, `cosine` few at first and more later.",
    )
    diffusion_algorithm: str | int = _option(
        "confidence",
        "Which tokens a step writes: 0 or `origin` any, 1 `entropy` the least entropy, 2 `margin` "
        "the farthest above the next likely, 3 `random` any, 4 `confidence` the likeliest.",
    )
    diffusion_alg_temp: float = _option(
        0.0, "Draw the tokens that a step writes by that measure divided by this; 0: the best."
    )
    diffusion_cfg_scale: float = _option(
        0.0,
        "Weight of the difference that the prompt makes (classifier-free guidance), which takes "
        "twice the time; 0: off.",
    )
    diffusion_add_gumbel_noise: int = _option(
        0, "1 draws tokens by Gumbel noise and measures them without the temperature.", high=1
    )

    grammar: str | None = _option(
        None,
        "The text must match this grammar, in Lark's or llama.cpp's (GBNF) notation.",
        flags=("--grammar", "--grammar-file"),
    )
    json_schema: str | Mapping[str, Any] | type[Any] | None = _option(
        None,
        "The text must be JSON of this schema.",
        flags=("--json-schema", "-j", "--json-schema-file", "-jf"),
    )
    regex: str | None = _option(
        None, "The text must match this regular expression, from its start to its end."
    )

    def __post_init__(self) -> None:
        if isinstance(self.diffusion_add_gumbel_noise, bool):
            noise = int(self.diffusion_add_gumbel_noise)
            object.__setattr__(self, "diffusion_add_gumbel_noise", noise)
        for name, kind, low, high in _NUMBERS:
            value = getattr(self, name)
            if value is not None or name != "seed":
                _check(name, kind, value, low, high)
        if self.mirostat not in (0, 2):
            raise ContextError(f"is {self.mirostat}; it must be 0 (off) or 2", argument="mirostat")
        object.__setattr__(self, "samplers", _order(self.samplers))
        object.__setattr__(self, "diffusion_algorithm", _algorithm(self.diffusion_algorithm))
        schedule = str(self.diffusion_schedule)[:60]
        require_choice("diffusion_schedule", schedule, SCHEDULES, ContextError)
        if self.diffusion_eps and self.diffusion_block_length:
            raise ContextError(
                "`diffusion_eps` and `diffusion_block_length` are both given; a text has blocks or "
                "none"
            )
        breakers = self.dry_sequence_breakers
        whole = isinstance(breakers, Sequence) and not isinstance(breakers, str)
        if not whole or not all(isinstance(b, str) and b for b in breakers):
            raise ContextError(
                "must be a sequence of texts, none empty", argument="dry_sequence_breakers"
            )
        object.__setattr__(self, "dry_sequence_breakers", tuple(breakers))
        _check_bias(self.logit_bias)
        schema = getattr(self.json_schema, "model_json_schema", None)
        if schema is not None and isinstance(self.json_schema, type):  # a class of pydantic
            object.__setattr__(self, "json_schema", schema())
        for name in ("grammar", "json_schema", "regex"):
            what = getattr(self, name)
            if not (what is None or isinstance(what, str)):
                if name != "json_schema" or not isinstance(what, Mapping):
                    more = ", a dict or a class of pydantic" if name == "json_schema" else ""
                    raise ContextError(f"is {what!r:.60}; it must be a text{more}", argument=name)
        names = [n for n in ("grammar", "json_schema", "regex") if getattr(self, n) is not None]
        if len(names) > 1:
            raise ContextError(
                f"{' and '.join(f'`{n}`' for n in names)} are both given; a text has one constraint"
            )

    @property
    def order(self) -> tuple[str, ...]:
        """The samplers that run, in order, by the names of `SAMPLERS`."""
        assert isinstance(self.samplers, tuple)
        return self.samplers

    @property
    def constrained(self) -> bool:
        """True if there is a grammar, a JSON schema or a regular expression."""
        return not (self.grammar is None and self.json_schema is None and self.regex is None)

    @property
    def of_diffusion(self) -> list[str]:
        """The options of texts by diffusion that differ from their defaults."""
        names = (f.name for f in fields(self) if f.name.startswith("diffusion_"))
        return [name for name in names if getattr(self, name) != SAMPLING_OPTIONS[name].default]

    @staticmethod
    def combine(base: SamplingParams | None, options: Mapping[str, Any]) -> SamplingParams:
        """Replaces fields of `base` (None: of the defaults) by `options`.

        Raises ArgumentError for an unknown name and ContextError for a value out of range."""
        known = [f.name for f in fields(SamplingParams)]
        require_options("sampling", options, known, "help(weft.LLM.generate)")
        if not isinstance(base, SamplingParams | None):
            raise ArgumentError(
                f"is {base!r:.60}; it must be a SamplingParams", argument="sampling"
            )
        start = {} if base is None else {name: getattr(base, name) for name in known}
        return SamplingParams(**(start | dict(options)))


class SamplingOptions(TypedDict, total=False):
    """The fields of `SamplingParams` as keyword arguments."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int | None
    typical_p: float
    top_n_sigma: float
    xtc_probability: float
    xtc_threshold: float
    min_keep: int
    dynatemp_range: float
    dynatemp_exponent: float
    repeat_penalty: float
    repeat_last_n: int
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_last_n: int
    dry_sequence_breakers: tuple[str, ...]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    adaptive_target: float
    adaptive_decay: float
    logit_bias: Mapping[int, float] | None
    samplers: str | Sequence[str]
    diffusion_steps: int
    diffusion_eps: float
    diffusion_block_length: int
    diffusion_schedule: str
    diffusion_algorithm: str | int
    diffusion_alg_temp: float
    diffusion_cfg_scale: float
    diffusion_add_gumbel_noise: int
    grammar: str | None
    json_schema: str | Mapping[str, Any] | type[Any] | None
    regex: str | None


SAMPLING_OPTIONS: dict[str, Option] = {
    f.name: Option(
        f.default, f.metadata["about"], f.metadata["flags"] or (f"--{f.name.replace('_', '-')}",)
    )
    for f in fields(SamplingParams)
}
"""The fields of `SamplingParams`, from which flags, fields of requests and `help()` are made."""
_KINDS: dict[str, type] = {"float": Real, "int": Integral, "int | None": Integral}
_NUMBERS = [
    (f.name, _KINDS[str(f.type)], *f.metadata["range"])
    for f in fields(SamplingParams)
    if f.type in _KINDS
]


def _check(name: str, kind: type, value: Any, low: float, high: float) -> None:
    if not isinstance(value, kind) or isinstance(value, bool):
        what = "a whole number" if kind is Integral else "a number"
        raise ContextError(f"is {value!r}; it must be {what}", argument=name)
    number: float = value  # type: ignore[assignment]
    if kind is Real:
        try:
            number = float(number)
        except OverflowError:
            raise ContextError("is too large; it must be of float64", argument=name) from None
    if not low <= number <= high or abs(number) == _INF:
        if low == -_INF:
            raise ContextError(f"is {value}; it must be finite", argument=name)
        end = " or more" if high == _INF else f" to {high:.7g}"
        raise ContextError(f"is {value}; it must be {low:.7g}{end}", argument=name)


def _algorithm(given: str | int) -> str:
    name = str(given).strip().lower().replace("-", "_")
    if name.isdecimal() and int(name) < len(ALGORITHMS):
        return ALGORITHMS[int(name)]
    name = _ALGORITHMS.get(name, name)[:60]
    if name.lstrip("_").isdecimal():
        raise ContextError(
            f"is {given}; it must be 0 to {len(ALGORITHMS) - 1}, or a name: "
            f"{', '.join(ALGORITHMS)}", argument="diffusion_algorithm",
        )  # fmt: skip
    require_choice("diffusion_algorithm", name, ALGORITHMS, ContextError)
    return name


def _check_bias(bias: Mapping[int, float] | None) -> None:
    if not isinstance(bias, Mapping | None):
        raise ContextError(
            f"is {bias!r:.60}; it must be a dict of token ids and numbers", argument="logit_bias"
        )
    for id_, value in (bias or {}).items():
        if not isinstance(id_, Integral) or not 0 <= id_ < 1 << 31:
            raise ContextError(f"has the key {id_!r}; keys are token ids", argument="logit_bias")
        if not isinstance(value, Real) or not (value == -_INF or abs(value) <= _MOST):
            raise ContextError(
                f"of token {id_} is {value!r}; it must be a number, of float32, or minus infinity",
                argument="logit_bias",
            )


def _order(samplers: str | Sequence[str]) -> tuple[str, ...]:
    if not isinstance(samplers, Sequence) or not all(isinstance(name, str) for name in samplers):
        raise ContextError(
            f"is {samplers!r:.60}; it must be names: {';'.join(SAMPLERS)}", argument="samplers"
        )
    names = samplers.replace(",", ";").split(";") if isinstance(samplers, str) else samplers
    order = []
    for name in names:
        short = name.strip().lower().replace("-", "_")
        if not short or short in _GONE:
            continue
        short = _ALIASES.get(short, short)
        if short not in SAMPLERS:
            raise ContextError(f"no sampler {name!r}; there are {', '.join(SAMPLERS)}")
        if short in order:
            raise ContextError(f"samplers names {short} twice")
        order.append(short)
    return tuple(order)
