"""The options of an export, and their form as compile specs."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from weft.errors import WeftError
from weft.schedule.profile import Profile, load_profile, parse_profile

__all__ = ["Options", "WeightFormat"]

WeightFormat = Literal["f32", "f16", "q8_0", "q4_0", "q4_k", "tq2_0"]

_KEY = "weft"


@dataclass(frozen=True, slots=True)
class Options:
    """The options of an export; raises WeftError for an unknown value."""

    weights: WeightFormat = "f32"
    """The format in which float weights of linear layers are stored. Where a row is not whole
    blocks of it, the next wider of q4_0, q8_0 and f16 that fits. `f32` changes none."""
    threads: int = 0
    """Threads of a call; 0: one for each core of the machine that runs it. The load-time option
    "threads" of the backend overrides it."""
    policy: Literal["ggml", "cost"] = "ggml"
    """The policy by which weft places the graph, see `weft.compile`. `cost` needs a `profile`."""
    profile: str | os.PathLike[str] | Profile | None = None
    """The machine that policy `cost` predicts time for: a profile, a file that `weft calibrate`
    wrote, the name of a shipped one, or the text of one. The last device is the delegate's cpu."""
    pack: bool = True
    """Store block-quantized weights in the layout of the kernels, so that a mapped file is used in
    place; False: as rows, used in place with slower kernels."""
    share_state: bool = False
    """Mutable buffers are one for all methods of a loaded file, by their name in the module (a
    prefill and a decode method with one KV cache); False: each method has its own, as without a
    delegate."""
    activations: Literal["auto", "native", "f32", "bf16"] = "auto"
    """The type to which products with block-quantized weights convert activations, see
    `weft.backends.cpu.backend.Activations`. `auto`: `f32` (unchanged) where a program quantizes
    weights alone, else `native`."""

    def __post_init__(self) -> None:
        if self.weights not in get_args(WeightFormat):
            known = ", ".join(get_args(WeightFormat))
            raise WeftError(f"weights must be one of {known}, got {self.weights!r}")
        if self.policy not in ("ggml", "cost"):
            raise WeftError(f"policy must be 'ggml' or 'cost', got {self.policy!r}")
        if self.policy == "cost" and self.profile is None:
            raise WeftError(
                "policy 'cost' needs profile=, the file of a machine as `weft calibrate` writes it"
            )
        if self.profile is not None:
            if self.policy != "cost":
                raise WeftError("a profile is for policy='cost'; leave it out with 'ggml'")
            self.machine()  # raises now rather than in the middle of an export
        if self.activations not in ("auto", "native", "f32", "bf16"):
            raise WeftError(
                f"activations must be 'auto', 'native', 'f32' or 'bf16', got {self.activations!r}"
            )
        if not 0 <= self.threads <= 1024:
            raise WeftError(f"threads must be 0 (all cores) to 1024, got {self.threads}")

    def machine(self) -> Profile | None:
        """The profile, loaded; raises FormatError naming the file and the fault."""
        if self.profile is None or isinstance(self.profile, Profile):
            return self.profile
        text = os.fspath(self.profile)
        return parse_profile(text, "of the options") if "\n" in text else load_profile(text)

    def to_specs(self) -> list[Any]:
        """A list of one ExecuTorch CompileSpec."""
        from executorch.exir.backend.compile_spec_schema import CompileSpec

        machine = self.machine()
        own = {f.name: getattr(self, f.name) for f in fields(self)}
        own["profile"] = None if machine is None else machine.to_toml()
        return [CompileSpec(_KEY, json.dumps(own).encode())]

    @classmethod
    def from_specs(cls, specs: Sequence[Any]) -> Options:
        """The options in a list of compile specs; raises WeftError for an unknown spec."""
        chosen: dict[str, Any] = {}
        known = {f.name: f for f in fields(cls)}
        for spec in specs:
            if spec.key == _KEY:
                chosen.update(json.loads(bytes(spec.value)))
            elif spec.key in known:
                text = bytes(spec.value).decode()
                chosen[spec.key] = _parsed(text, known[spec.key].default)
            else:
                raise WeftError(f"unknown compile spec {spec.key!r}; weft knows {', '.join(known)}")
        unknown = sorted(set(chosen) - set(known))
        if unknown:
            raise WeftError(f"unknown options {', '.join(unknown)}; weft knows {', '.join(known)}")
        return cls(**chosen)


def _parsed(text: str, default: Any) -> Any:
    """The value of a spec of its own, like CompileSpec("threads", b"2")."""
    if default is None or isinstance(default, str):
        return text
    try:
        value = json.loads(text.lower())
    except json.JSONDecodeError as error:
        raise WeftError(f"a compile spec has the value {text!r}, which cannot be read") from error
    if type(value) is not type(default):
        raise WeftError(f"a compile spec has the value {text!r}, wants {type(default).__name__}")
    return value
