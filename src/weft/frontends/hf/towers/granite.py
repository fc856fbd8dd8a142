"""The tower of Granite 4 Vision in folders."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from weft.errors import FormatError
from weft.frontends.hf.config import Config
from weft.frontends.hf.families.llama import granite_streams
from weft.frontends.hf.keys import Pairs
from weft.frontends.hf.towers.conformers import QFORMER
from weft.frontends.hf.towers.family import SIGLIP, TowerFamily, part_of, vision_keys
from weft.frontends.hf.towers.square import grid_pinpoints
from weft.frontends.hf.values import Values

_TOWER = ("vision_tower.vision_model", "vision_tower")
_NAMES = {
    "image_newline": "v.image_newline",
    **{
        f"{start}.{name}": file
        for start in _TOWER
        for name, file in (
            ("embeddings.patch_embedding", "v.patch_embd"),
            ("embeddings.position_embedding", "v.position_embd"), ("post_layernorm", "v.post_ln"),
        )
    },
    **SIGLIP,
}  # fmt: skip
_PROJECTOR = re.compile(
    r"(?:model\.)?((?:layerwise|spatial)_projectors\.\d+)\.(.+?)(\.weight|\.bias|)"
)
_PROJECTOR_NAMES = {
    "image_positions": "img_pos", "query": "query", "norm": "norm", "out_linear": "linear",
    "qformer.layernorm": "post_norm",
    **{f"qformer.encoder.layer.0.{name}": file for name, file in QFORMER.items()},
}  # fmt: skip


def _keys(c: Config) -> Pairs:
    _require(c, "vision_config", model_type="siglip_vision_model", hidden_act="gelu_pytorch_tanh")
    _require(
        c, "qformer_config", num_hidden_layers=1, cross_attention_frequency=1, hidden_act="gelu",
        layer_norm_eps=1e-12,
    )  # fmt: skip
    if c.get("vision_feature_select_strategy", "default") != "full":
        raise c.bad("vision_feature_select_strategy", "must be 'full' for a tower of SigLIP")
    rate = re.fullmatch(r"(\d{1,4})/(\d{1,4})", str(c.get("downsample_rate")))
    if rate is None:
        raise c.bad("downsample_rate", "must be queries and patches of a window's side, as '4/8'")
    streams = granite_streams(c)
    yield from vision_keys(c, "granite4_vision", alone=True)
    yield "use_gelu", True
    own = Config(c.folder, {**part_of(c, "vision_config"), **_shapes(c)})
    yield "vision.preproc_image_size", own.count("image_size")
    yield "vision.projector.query_side", int(rate[1])
    yield "vision.projector.window_side", int(rate[2])
    yield "vision.feature_layer", [stream.seen for stream in streams]
    yield "vision.projector.spatial_offsets", [stream.corner for stream in streams]
    yield "vision.image_grid_pinpoints", grid_pinpoints(own)


def _shapes(c: Config) -> Mapping[str, object]:
    if not c.get("image_grid_pinpoints"):
        raise c.bad("image_grid_pinpoints", "must have the shapes of tiles")
    return {"image_grid_pinpoints": c["image_grid_pinpoints"]}


def _require(c: Config, part: str, **known: object) -> None:
    """Raises FormatError for a setting of `part` that is another than these."""
    given = part_of(c, part)
    for key, value in known.items():
        if given.get(key, value) != value:
            raise c.bad(f"{part}.{key}", f"is {given[key]!r}; weft knows {value!r} only")


class _Granite(TowerFamily):
    """SigLIP, and a projector for each layer of the text model that adds rows."""

    def tensors(self, c: Config, stored: Mapping[str, Values]) -> Iterator[tuple[str, Values]]:
        """The tensors of projectors have the numbers of their streams."""
        numbers = {stream.name: i for i, stream in enumerate(granite_streams(c))}
        others = {}
        for full, values in stored.items():
            found = _PROJECTOR.fullmatch(full)
            if found is None:
                others[full] = values
            elif found[1] in numbers:
                new = _PROJECTOR_NAMES.get(found[2])
                if new is None:
                    raise FormatError(
                        f"{c.folder}: tensor {full} has no place in a tower of this kind; leaving "
                        "it out would give wrong results"
                    )
                yield f"v.proj_blk.{numbers[found[1]]}.{new}{found[3]}", values
        yield from super().tensors(c, others)


FAMILIES = {
    "Granite4VisionForConditionalGeneration": _Granite(
        _keys, ("vision_tower.", "image_newline"),
        {f"{start}.encoder.layers": "v.blk" for start in _TOWER}, _NAMES,
        unused=tuple(f"{start}.head." for start in _TOWER), f32=(".img_pos", ".query"),
    ),
}  # fmt: skip
