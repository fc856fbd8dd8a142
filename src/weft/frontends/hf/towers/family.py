"""`TowerFamily`: how the towers of a folder differ from kind to kind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.family import Family, Named, as_is
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.values import Values
from weft.frontends.hf.vocab import Vocabulary
from weft.records import dataclass

_LAYER = re.compile(r"(.*\.(?:layers|blocks|resblocks|layer))\.(\d+)\.(.+)")
_KINDS = (".weight", ".bias")

ANY_SIZE = 0
"""The size of images that converters write for a tower that takes them in any size."""
SIGLIP = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.out_proj": "attn_out", "layer_norm1": "ln1", "layer_norm2": "ln2",
    "mlp.fc1": "ffn_up", "mlp.fc2": "ffn_down",
}  # fmt: skip
"""Names of the tensors of a layer of SigLIP."""


def nowhere(c: Config) -> Path | None:
    """No further folder."""
    return None


@dataclass(frozen=True)
class TowerFamily:
    """A kind of tower in folders."""

    keys: Callable[[Config], Pairs]
    """Metadata, without `clip.` in front."""
    starts: tuple[str, ...]
    """Beginnings of the names of this tower's tensors, without `model.`; other tensors belong to
    the text model."""
    layers: Mapping[str, str]
    """The text in front of the number of a layer: in the folder -> in a file."""
    names: Mapping[str, str]
    """Names of a layer's tensors, and of others: in the folder -> in a file."""
    change: Callable[[Config, str, Values], Named] = as_is
    """Converts one folder tensor, given by its name in a file, into the tensors of the file."""
    unused: tuple[str, ...] = ()
    """Beginnings of the names of tensors that serve another task."""
    kernels: tuple[str, ...] = ()
    """Parts of the names of matrices that are f16 in a file of any type."""
    f32: tuple[str, ...] = ()
    """Parts of the names of matrices that are f32 in a file of any type; ^ begins a name."""

    beside: Callable[[Config], Path | None] = nowhere
    """A further folder whose tensors belong to the tower, as `codec.NAME`; None: there is none."""

    def tensors(self, c: Config, stored: Mapping[str, Values]) -> Iterator[tuple[str, Values]]:
        """GGUF names and values of all tensors. Raises FormatError for one without a place."""
        for full, values in stored.items():
            name = full.removeprefix("thinker.").removeprefix("model.")
            if name.startswith(self.starts) and not name.startswith(self.unused):
                yield from self.change(c, self.gguf_name(c, name), values)

    def gguf_name(self, c: Config, name: str) -> str:
        """The name in a file of the folder's tensor `name`, without `model.`."""
        layer = _LAYER.fullmatch(name)
        inner = layer[3] if layer else name
        kind = next((kind for kind in _KINDS if inner.endswith(kind)), "")
        found = self.names.get(inner.removesuffix(kind))
        start = self.layers.get(layer[1]) if layer else ""
        if found is None or start is None:
            raise FormatError(
                f"{c.folder}: tensor {name} has no place in a tower of this kind; leaving it out "
                "would give wrong results"
            )
        return f"{start}.{layer[2]}.{found}{kind}" if layer else f"{found}{kind}"


@dataclass(frozen=True)
class Both(TowerFamily):
    """A tower for images and one for sound in one folder; without `audio_config` there is only the
    first."""

    seen: TowerFamily | None = None
    heard: TowerFamily | None = None

    def tensors(self, c: Config, stored: Mapping[str, Values]) -> Iterator[tuple[str, Values]]:
        """The tensors of both."""
        for tower in _there(c, self.seen, self.heard):
            yield from tower.tensors(c, stored)


def both(seen: TowerFamily, heard: TowerFamily) -> Both:
    """The family of a folder with these towers, whose files name the projector of each sense."""

    def keys(c: Config) -> Pairs:
        for tower, sense in zip(_there(c, seen, heard), ("vision", "audio"), strict=False):
            for key, value in tower.keys(c):
                if key != "general.file_type" or sense == "vision":
                    yield (f"{sense}.{key}" if key == "projector_type" else key), value

    return Both(
        keys, (), {}, {}, kernels=seen.kernels + heard.kernels, f32=seen.f32 + heard.f32,
        seen=seen, heard=heard,
    )  # fmt: skip


def _there(c: Config, seen: TowerFamily | None, heard: TowerFamily | None) -> list[TowerFamily]:
    """The towers that a folder has."""
    found = [seen, heard if has_part(c, "audio_config") else None]
    return [tower for tower in found if tower is not None]


def colours_first(values: Values) -> Values:
    """The kernel of patches whose colours are innermost, [n, p p 3], as [n, 3, p, p]."""
    n, size = values.shape[0], values.size // values.shape[0]
    p = round((size / 3) ** 0.5)
    return values.through(lambda x: x.reshape(n, p, p, 3).transpose(0, 3, 1, 2), (n, 3, p, p))


def no_vocabulary(c: Config) -> Vocabulary:
    """A tower has none."""
    return iter(())


def no_keys(c: Config) -> Pairs:
    """There are no common keys."""
    return ()


def as_file(tower: TowerFamily) -> Family:
    """The family of the file that has the tower."""
    return Family(
        "clip", tower.keys, no_keys, vocab=no_vocabulary, f32=("position_embd", *tower.f32),
        kernels=tower.kernels,
    )  # fmt: skip


def part_of(c: Config, name: str) -> Mapping[str, Any]:
    """The object `name` of config.json. Raises FormatError if there is none."""
    part = _part(c, name)
    if not isinstance(part, dict):
        raise c.bad(name, "must be an object with the sizes of the tower")
    return part


def has_part(c: Config, name: str) -> bool:
    """True if config.json has `name`, which null does not count for."""
    return _part(c, name) is not None


def _part(c: Config, name: str) -> Any:
    thinker = c.get("thinker_config")  # of Qwen's models that speak
    return thinker.get(name) if isinstance(thinker, dict) else c.get(name)


def count_of(c: Config, part: str, *keys: str, default: int | None = None) -> int:
    """The first of `keys` of the object `part` of config.json as a count of 1 or more."""
    values = part_of(c, part)
    value = next((values[key] for key in keys if values.get(key) is not None), default)
    if isinstance(value, list) and value:  # height and width, which are the same
        value = value[0]
    if type(value) is not int or not 1 <= value < 1 << 31:
        raise c.bad(f"{part}.{keys[0]}", f"is {value!r}, and must be an integer of 1 or more")
    return value


def vision_keys(
    c: Config,
    projector: str,
    *,
    image_size: int | None = None,
    mean: Sequence[float] = (),
    std: Sequence[float] = (),
    defaults: Mapping[str, int] | None = None,
    alone: bool = False,
) -> Pairs:
    """The keys of all towers for images; `defaults` are of vision_config. Without `mean` and `std`
    they come from preprocessor_config.json; without `image_size` it comes from config.json. `alone`
    is for a kind whose files name the projector without the sense."""
    part = "vision_config"

    def count(key: str) -> int:
        return count_of(c, part, key, default=(defaults or {}).get(key))

    yield "general.file_type", 0
    yield "has_vision_encoder", True
    yield "vision.projection_dim", c.n_embd
    yield "vision.image_size", count("image_size") if image_size is None else image_size
    yield "vision.patch_size", count("patch_size")
    yield "vision.embedding_length", count("hidden_size")
    yield "vision.feed_forward_length", count("intermediate_size")
    yield "vision.block_count", count("num_hidden_layers")
    yield "vision.attention.head_count", count("num_attention_heads")
    for name, given in (("image_mean", mean), ("image_std", std)):
        yield f"vision.{name}", np.array(given or _colours(c, name), np.float32)
    yield ("projector_type" if alone else "vision.projector_type"), projector
    values = part_of(c, part)
    eps = values.get("layer_norm_eps", values.get("rms_norm_eps", 1e-6))
    yield "vision.attention.layer_norm_epsilon", eps


def keys_and_eps(
    c: Config, projector: str, *, image_size: int, default: float
) -> tuple[dict[str, Any], tuple[str, Any]]:
    """`vision_keys` of a kind whose files name the projector without the sense, and the eps of
    norms, which they have behind keys of their own; `default` is the eps of a folder without."""
    keys: dict[str, Any] = dict(vision_keys(c, projector, image_size=image_size, alone=True))
    name, values = "vision.attention.layer_norm_epsilon", part_of(c, "vision_config")
    given = (values[key] for key in ("layer_norm_eps", "rms_norm_eps") if key in values)
    del keys[name]
    return keys, (name, next(given, default))


def image_processor(c: Config) -> Mapping[str, Any]:
    """The settings of the folder's image processor, in either of its files."""
    older, newer = c.json("preprocessor_config.json"), c.json("processor_config.json")
    out = older | newer
    for part in (older.get("media_proc_cfg"), newer.get("image_processor")):
        out |= part if isinstance(part, dict) else {}
    return out


def pixel_keys(c: Config, least: int, most: int) -> Iterator[tuple[str, int]]:
    """The limits of the pixels of an image, by the image processor or these."""
    given = image_processor(c)
    size = given.get("size")
    size = size if isinstance(size, dict) else {}
    for key, edge, usual in (("min", "shortest_edge", least), ("max", "longest_edge", most)):
        value = next(
            (v for v in (given.get(f"{key}_pixels"), size.get(edge)) if v is not None), usual
        )
        if type(value) is not int or not 1 <= value < 1 << 31:
            raise c.bad(f"{key}_pixels", f"of the image processor is {value!r}; it is a count")
        yield f"vision.image_{key}_pixels", value


def _colours(c: Config, name: str) -> Sequence[float]:
    values = image_processor(c).get(name)
    if not isinstance(values, list) or len(values) != 3:
        raise FormatError(
            f"{c.folder}: preprocessor_config.json has no {name} with three numbers; download the "
            "whole folder"
        )
    return values
