"""The options of `weft quantize`, and the lines that it shows."""

from __future__ import annotations

from pathlib import Path

from weft.cli.command import FIT, usage_error
from weft.cli.console import PATIENCE, WaitingBar, errors, note, size_text
from weft.cli.groups import Group
from weft.frontends.gguf.imatrix_file import Importance, read_importance
from weft.frontends.gguf.quantize import QuantizedTensor
from weft.llm.cache.cache_types import CacheTypes
from weft.options import option, parse_tokens

_MOST_THREADS = 1024


class QuantizeFlags(Group):
    """The options of `weft quantize`."""

    imatrix: Path | None = option(
        None, "An importance matrix, as `weft imatrix` or llama-imatrix measures it.",
        metavar="FILE", show_default=False,
    )  # fmt: skip
    include_weights: list[str] | None = option(
        None, "Use it only for tensors whose name has this part; repeatable.", metavar="PART",
        show_default=False,
    )  # fmt: skip
    exclude_weights: list[str] | None = option(
        None, "Do not use it for tensors whose name has this part; repeatable.", metavar="PART",
        show_default=False,
    )  # fmt: skip
    prune_layers: str | None = option(
        None, "Leave these layers out, counted from 0; later ones move up.", metavar="L,L,...",
        show_default=False,
    )  # fmt: skip
    pure: bool = option(False, "One type for every matrix, without more bits for some.")
    leave_output: bool = option(False, "Leave output.weight as it is.", "--leave-output-tensor")
    output_type: str | None = option(
        None, "The type of output.weight, and of embeddings that serve as output.",
        "--output-tensor-type", metavar="TYPE",
    )  # fmt: skip
    embedding_type: str | None = option(
        None, "The type of the token embeddings.", "--token-embedding-type", metavar="TYPE"
    )
    tensor_type: list[str] | None = option(
        None,
        "The type of tensors whose name has a match, as attn_v=q8_0; repeatable, the first one "
        "counts.", metavar="REGEX=TYPE", show_default=False,
    )  # fmt: skip
    tensor_type_file: Path | None = option(
        None, "A file of the same, separated by spaces or lines.", metavar="FILE",
        show_default=False,
    )  # fmt: skip
    override_kv: list[str] | None = option(
        None, "A metadata key of the new file; TYPE is int, float, bool or str. Repeatable.",
        metavar="KEY=TYPE:VALUE", show_default=False,
    )  # fmt: skip
    keep_split: bool = option(False, "Write as many files as the model has.")
    dry_run: bool = option(False, "Show types, sizes and memory of the new model; write nothing.")
    n_ctx: int | None = option(
        None, "With --dry-run and --fit: the context that is planned, as 4096 or 32k.",
        "-c --ctx-size", metavar="TOKENS", read=parse_tokens,
    )  # fmt: skip
    speeds: Path | None = option(
        None,
        "A machine's speeds, of `weft calibrate`, by which --dry-run and --fit predict tokens/s.",
        metavar="FILE",
    )  # fmt: skip
    allow_requantize: bool = option(False, "Quantize tensors again that are quantized already.")
    fit: str | None = option(
        None, "Memory that a context of -c tokens may take, as 8GiB: weights, cache and buffers.",
        panel=FIT, metavar="SIZE",
    )  # fmt: skip
    fit_file: str | None = option(None, "Bytes of weights in the file.", panel=FIT, metavar="SIZE")
    speed: float | None = option(
        None, "Tokens per second that are predicted at least, with a full cache.", panel=FIT,
        metavar="TOKENS",
    )  # fmt: skip
    text: Path | None = option(
        None, "The text to measure on; default: one that the model writes.", "--file -f", FIT,
        metavar="FILE",
    )  # fmt: skip
    probe_tokens: int = option(2048, "Tokens of it that are computed.", panel=FIT, metavar="N")
    probe: str | None = option(
        None,
        "each: measure every tensor in every type; scaled: in one, others by their error; error: "
        "by error alone. Default: each for small models, or scaled.", panel=FIT,
        metavar="MANNER",
    )  # fmt: skip
    fit_types: str | None = option(
        None, "Types to choose from. Default: all that weft writes.", panel=FIT, metavar="TYPE,..."
    )
    type_k: str | None = option(
        None, "Type of cached keys. Default: f16, or what --fit recommends.", "-ctk --cache-type-k",
        FIT, metavar="TYPE",
    )  # fmt: skip
    type_v: str | None = option(
        None, "Type of cached values. Default: the same.", "-ctv --cache-type-v", FIT,
        metavar="TYPE",
    )  # fmt: skip
    fit_plan: Path | None = option(
        None, "Take the types of a plan that --fit saved, without measuring.", panel=FIT,
        metavar="FILE",
    )  # fmt: skip
    html: Path | None = option(
        None, "Write the choice to look at, with the curve of KL by size: one HTML file.",
        panel=FIT, metavar="FILE",
    )  # fmt: skip
    as_json: bool = option(False, "Print the plan as JSON, too.", "--json", FIT)

    @property
    def cache_types(self) -> CacheTypes | None:
        """The types of the cache that the options ask for; None: they name no type."""
        k, v = self.type_k, self.type_v
        return None if k is None and v is None else CacheTypes(k or "f16", v or "f16")

    @property
    def is_fit(self) -> bool:
        """Whether there is a budget to choose types for, or a plan with them."""
        limits = (self.fit, self.fit_file, self.speed, self.fit_plan)
        return any(value is not None for value in limits)

    def refuse_others(self) -> None:
        """Raises a usage error for options that mean nothing without a budget."""
        given = self._others()
        if given:
            raise usage_error(
                f"{given[0]} goes with --fit SIZE, --fit-file SIZE or --speed N; give one, too"
            )

    def refuse_with_plan(self) -> None:
        """Raises a usage error for options that mean nothing with a plan file."""
        limits = {"--fit": self.fit, "--fit-file": self.fit_file, "--speed": self.speed}
        given = [flag for flag, value in limits.items() if value is not None] + self._others()
        if given:
            raise usage_error(f"--fit-plan has the types already; leave out {given[0]}")

    def _others(self) -> list[str]:
        values = {
            "--file": self.text, "--probe": self.probe, "--fit-types": self.fit_types,
            "-ctk": self.type_k, "-ctv": self.type_v, "--html": self.html,
            "--json": self.as_json or None,
        }  # fmt: skip
        return [flag for flag, value in values.items() if value is not None]

    def importance(self) -> Importance | None:
        """The importance matrix that --imatrix names, for the tensors that the other two choose."""
        path, include, exclude = self.imatrix, self.include_weights, self.exclude_weights
        if path is None:
            if include or exclude:
                flag = "--include-weights" if include else "--exclude-weights"
                raise usage_error(f"{flag} chooses from an importance matrix: add --imatrix FILE")
            return None
        if include and exclude:
            raise usage_error("give --include-weights or --exclude-weights, not both")
        found = read_importance(path, include or (), exclude or ())
        if found is None:
            note(f"{path}: no tensor is left of the importance matrix, which changes nothing")
        return found

    def layers(self) -> tuple[int, ...]:
        """The layers that --prune-layers names."""
        text = self.prune_layers
        words = [] if text is None else text.split(",")
        if not all(word.strip().isdecimal() for word in words):
            raise usage_error(f"--prune-layers {text}: write numbers of layers, as in 3,4,5")
        return tuple(int(word) for word in words)


def threads_from(n: int | None) -> int | None:
    """The number of threads; None: all processors."""
    if n is not None and not 1 <= n <= _MOST_THREADS:
        raise usage_error(f"{n} threads: give 1 to {_MOST_THREADS}")
    return n


class Shown:
    """A bar of the tensors that are done."""

    def __init__(self, nbytes: int) -> None:
        """`nbytes` are those of all tensors before."""
        self._bar = WaitingBar("quantizing", "bytes", PATIENCE)
        self._done, self._total = 0, nbytes

    def __enter__(self) -> Shown:
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def __call__(self, t: QuantizedTensor) -> None:
        """Counts a tensor."""
        self._done += t.old_bytes
        self._bar(self._done, self._total)


def show_tensor(t: QuantizedTensor) -> None:
    """A line for a tensor, on stderr."""
    kept = t.before is t.after
    errors.print(
        f"{t.name:<40} {t.before.name:>7} {'kept' if kept else '-> ' + t.after.name:<10} "
        f"{size_text(t.old_bytes):>12} -> {size_text(t.new_bytes)}",
        markup=False,
        soft_wrap=True,
    )
