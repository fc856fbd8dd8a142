"""`TowerConfig`, the hyper-parameters of an `mmproj` file, and `Family`, what differs from tower to
tower."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from math import isqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.bounds import IMAGE_SHAPES, IMAGE_TILES, PIXELS, SEEN_LAYERS
from weft.errors import FormatError
from weft.frontends.gguf import GGUFFile
from weft.graph.tensor import Tensor
from weft.llm.config_keys import Keys
from weft.llm.senses.tower import projector_of
from weft.llm.vision.images import Pixels, resized
from weft.llm.vision.sam_config import SamConfig, read_sam_config
from weft.llm.weights import Row, Weights
from weft.records import dataclass


@dataclass(frozen=True, slots=True)
class TowerConfig:
    """The sizes of a tower for images."""

    projector: str
    """The kind of tower and projector, e.g. "gemma3"."""
    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    n_out: int
    """Width of the text model."""
    eps: float
    image_size: int
    """Pixels of each side of a square image; the size that positions were learned for, or 0."""
    patch_size: int
    mean: tuple[float, ...]
    std: tuple[float, ...]
    """Standard deviation of each colour, for values from 0 to 1."""
    act: str
    """Activation: "gelu", "silu" or "gelu_quick"."""
    merge: int
    """Patches of each side of a square that becomes one row."""
    full_every: int = 0
    """One layer in this many sees the whole image, the others windows; 0: all see it."""
    n_kv: int = 0
    """Number of heads of keys and values."""
    n_queries: tuple[int, int] = (0, 0)
    """Number of learned queries for a tile, and for the whole of an image."""
    sam: SamConfig | None = None
    """The encoder in front of the tower, whose patches are the image's, if there is one."""
    version: int = 0
    """Number of the version of MiniCPM-V, if the file says one."""
    merge_behind: int = 0
    """Number of the layer behind which squares of patches become one, in a tower that has one."""
    deepstack: tuple[int, ...] = ()
    """Layers whose outputs become further parts of a row."""
    layers: tuple[int, ...] = ()
    """Numbers of the layers whose rows go to the projector, side by side; empty: the last layer
    only."""
    swapped: bool = False
    """True if a file calls the first matrix of a feed-forward layer `ffn_down`."""
    pinpoints: tuple[tuple[int, int], ...] = ()
    """Heights and widths in pixels that the tiles of an image may have together; empty: the tower
    does not cut images so."""
    windows: tuple[int, int] = (0, 0)
    """Queries and patches of each side of a window of a Q-Former; zeros: there is none."""
    corners: tuple[int, ...] = ()
    """For each projector the patch of each 2 x 2 that its queries begin with; -1: the mean."""
    n_positions: int = 0
    """Number of learned positions along a side, where height and width have their own; 0: they have
    none."""
    n_learned: int = 0
    """Number of rows of `v.position_embd`; 0: there is none."""
    n_whole: int = 0
    """Number of rows of `v.position_embd_whole`; 0: there is none."""
    n_class: int = 0
    """Number of rows of `v.class_embd`; 0: there is none."""
    n_projector: int = 0
    """Width between the matrices of a projector `mm.1`, `mm.2` or `mm.up`, `mm.down` or
    `mm.model.mlp.1`, `mm.model.mlp.3`; 0: there are none."""
    n_fc: int = 0
    """Width in front of the last matrix of a projector `mm.model.fc`; 0: there is none."""
    experts: tuple[tuple[int, int], ...] = ()
    """Number of experts of each layer, 0 where it has none, and their width; empty: no layer has
    any."""
    n_used: int = 0
    """Number of experts that each row goes to."""
    whole_size: int = 0
    """Pixels of the longer side of an image before it is cut into tiles."""
    tile_size: int = 0
    """Pixels of each side of a tile, if it differs from the whole; 0: the file does not say."""
    least_tiles: int = 0
    most_tiles: int = 0
    """Maximum number of tiles of an image; 0: the file does not say."""
    least_pixels: int = 0
    most_pixels: int = 0
    """Maximum number of pixels of an image in its own proportions; 0: the file does not say."""

    @property
    def side(self) -> int:
        """Patches of each side of a square image."""
        return self.image_size // self.patch_size

    @property
    def patch_values(self) -> int:
        """Numbers of a patch."""
        return 3 * self.patch_size * self.patch_size


def read_tower_config(file: GGUFFile, merge: int = 1) -> TowerConfig:
    """Reads the keys `clip.*`; `merge` is what `clip.vision.projector.scale_factor` is if the file
    does not say. Raises FormatError for a wrong key."""
    keys = Keys(file)
    size = keys.count("vision.image_size", least=_least_size(file), most=isqrt(PIXELS))
    patch = keys.count("vision.patch_size", most=size or 1 << 10)
    sam = read_sam_config(file)
    if sam is not None:  # the keys are of the encoder behind it
        size, patch = sam.side * sam.patch_size, sam.patch_size
    least = _least(file)
    n_embd, n_head = (
        keys.count("vision.embedding_length"),
        keys.count("vision.attention.head_count", least=least),
    )
    if n_embd % (n_head or 1):
        raise keys.bad("vision.attention.head_count", n_head, f"a divisor of {n_embd}")
    n_kv = keys.count("vision.attention.head_count_kv", n_head, least=least)
    if n_head % (n_kv or 1):
        raise keys.bad("vision.attention.head_count_kv", n_kv, f"a divisor of {n_head}")
    n_layer = keys.count("vision.block_count", least=least, most=1 << 10)
    act = "gelu" if keys.flag("use_gelu", False) else "gelu_quick"
    return TowerConfig(
        projector=projector_of(file, "vision"),
        n_embd=n_embd,
        n_ff=_width(file, keys),
        n_layer=n_layer,
        n_head=n_head,
        n_out=_n_out(file, keys),
        eps=keys.number("vision.attention.layer_norm_epsilon", 1e-6, above=0),
        image_size=size,
        patch_size=patch,
        mean=_colours(file, "image_mean"),
        std=_colours(file, "image_std"),
        act="silu" if keys.flag("use_silu", False) else act,
        merge=_merge(keys, merge, size // patch or 64),
        full_every=keys.count("vision.n_wa_pattern", 0, least=0),
        n_kv=n_kv,
        n_queries=_queries(file, sam),
        sam=sam,
        version=_version(file, keys),
        merge_behind=_merge_behind(file, n_layer),
        deepstack=_deepstack(file),
        layers=_layers(file, n_layer),
        swapped=_swapped(file, n_embd),
        pinpoints=_pinpoints(file, size),
        windows=_windows(keys),
        corners=_corners(file),
        n_positions=_positions(file),
        n_learned=_rows(file, "v.position_embd.weight"),
        n_whole=_rows(file, "v.position_embd_whole.weight"),
        n_class=_rows(file, "v.class_embd"),
        n_projector=_rows(
            file,
            "mm.1.weight",
            "mm.up.weight",
            "mm.model.mlp.1.weight",
            "v.proj_blk.0.ffn_up.weight",
        ),
        n_fc=_rows(file, "mm.model.mlp.2.weight"),
        experts=_experts(file, n_layer),
        n_used=keys.count("vision.expert_used_count", 0, least=0),
        whole_size=keys.count("vision.preproc_image_size", 0, least=0, most=1 << 14),
        tile_size=keys.count("vision.preproc_tile_size", 0, least=0, most=1 << 14),
        least_tiles=keys.count("vision.preproc_min_tiles", 0, least=0, most=64),
        most_tiles=keys.count("vision.preproc_max_tiles", 0, least=0, most=64),
        least_pixels=keys.count("vision.image_min_pixels", 0, least=0),
        most_pixels=keys.count("vision.image_max_pixels", 0, least=0),
    )


def _least(file: GGUFFile) -> int:
    """Minimum number of layers and heads: one tower has none."""
    return 0 if projector_of(file, "vision") == "gemma4uv" else 1


def _least_size(file: GGUFFile) -> int:
    """Minimum number of pixels: some kinds of towers see images of any size, which converters write
    as 0."""
    return 0 if projector_of(file, "vision") in ("dots_ocr", "dots3note_v") else 1


def _positions(file: GGUFFile) -> int:
    info = file.tensors.get("v.position_embd.weight")
    return info.ne[1] if info is not None and info.ne[2] == 2 else 0


def _rows(file: GGUFFile, *names: str) -> int:
    """The number of rows of the first of these tensors that the file has; 0: it has none."""
    found = (file.tensors[name] for name in names if name in file.tensors)
    return next((info.ne[1] for info in found), 0)


def _experts(file: GGUFFile, n_layer: int) -> tuple[tuple[int, int], ...]:
    found = (file.tensors.get(f"v.blk.{il}.ffn_gate_exps.weight") for il in range(n_layer))
    sizes = tuple((0, 0) if info is None else (info.ne[2], info.ne[1]) for info in found)
    return sizes if any(n for n, _ in sizes) else ()


def _deepstack(file: GGUFFile) -> tuple[int, ...]:
    key = "clip.vision.is_deepstack_layers"
    if key not in file.metadata:
        return ()
    return tuple(np.flatnonzero(file.get_array(key)).tolist())


_VERSIONS = (2, 3, 4, 5, 6, 100045)
"""Versions of MiniCPM-V whose files have learned queries."""


def _version(file: GGUFFile, keys: Keys) -> int:
    if projector_of(file, "vision") != "resampler":
        return 0
    version = keys.count("minicpmv_version", _VERSIONS[0])
    if version not in _VERSIONS:
        raise keys.bad("minicpmv_version", version, f"one of {', '.join(map(str, _VERSIONS))}")
    return version


def _queries(file: GGUFFile, sam: SamConfig | None) -> tuple[int, int]:
    if "resampler.query" in file.tensors:
        return (file.tensors["resampler.query"].ne[1],) * 2
    infos = [file.tensors.get(f"v.resample_query_{n}.weight") for n in (768, 1024)]
    small, large = (0 if info is None else info.ne[1] for info in infos)
    if small or large:
        fits = sam is not None and 0 < small < large == (sam.side // 4) ** 2
        if not fits or isqrt(small) ** 2 != small:
            raise FormatError(
                f"{file.path}: there are {small} and {large} learned queries; weft takes a square "
                "of them for a tile, and one for each 4 x 4 patches of the whole of an image"
            )
    return small, large


def _merge_behind(file: GGUFFile, n_layer: int) -> int:
    key = "clip.vision.wa_layer_indexes"
    if key not in file.metadata:
        return 0
    layers = np.asarray(file.get_array(key)).tolist()
    if not layers or not 0 <= layers[0] < n_layer:
        raise FormatError(f"{file.path}: {key} must begin with a number below {n_layer}")
    return int(layers[0])


def _width(file: GGUFFile, keys: Keys) -> int:
    """The width of feed-forward layers; files of Qwen2-VL have another number in the metadata."""
    info = file.tensors.get("v.blk.0.ffn_up.weight")
    if info is None:
        return keys.count("vision.feed_forward_length", least=_least(file))
    return info.ne[0] if _swapped(file, keys.count("vision.embedding_length")) else info.ne[1]


def _swapped(file: GGUFFile, n_embd: int) -> bool:
    info = file.tensors.get("v.blk.0.ffn_up.weight")
    return info is not None and info.ne[0] != n_embd == info.ne[1]


def _n_out(file: GGUFFile, keys: Keys) -> int:
    """The width of rows; files of LLaVA have the width of CLIP in the metadata, and files of
    MiniCPM-V have 0."""
    query = file.tensors.get("resampler.query")
    if query is not None:
        if query.ne[0] % 128:
            raise FormatError(
                f"{file.path}: resampler.query has rows of {query.ne[0]} numbers; this must "
                "be a multiple of 128"
            )
        return query.ne[0]
    if projector_of(file, "vision") == "mlp":
        for name in ("mm.2.weight", "mm.0.weight"):
            if name in file.tensors:
                return file.tensors[name].ne[1]
    return keys.count("vision.projection_dim")


def _merge(keys: Keys, merge: int, most: int) -> int:
    merge = keys.count("vision.spatial_merge_size", merge, most=most)
    return keys.count("vision.projector.scale_factor", merge, most=most)


def _layers(file: GGUFFile, n_layer: int) -> tuple[int, ...]:
    key = "clip.vision.feature_layer"
    if key not in file.metadata:
        return ()
    given = np.asarray(file.get_array(key))
    layers = tuple(int(layer) for layer in given[: SEEN_LAYERS + 1].tolist())
    if not 0 < len(layers) <= SEEN_LAYERS or min(layers) < 0 or max(layers) > n_layer:
        raise FormatError(
            f"{file.path}: {key} must have numbers from 0 to {n_layer}, at most {SEEN_LAYERS}"
        )
    return layers


def _windows(keys: Keys) -> tuple[int, int]:
    names = (f"vision.projector.{name}_side" for name in ("query", "window"))
    n_queries, n_patches = (keys.count(name, 0, least=0, most=1 << 10) for name in names)
    return n_queries, n_patches


def _corners(file: GGUFFile) -> tuple[int, ...]:
    key = "clip.vision.projector.spatial_offsets"
    if key not in file.metadata:
        return ()
    given = np.asarray(file.get_array(key))
    known = given.dtype.kind in "iu" and 0 < given.size <= SEEN_LAYERS
    if not known or given.min() < -1 or given.max() > 3:
        raise FormatError(f"{file.path}: {key} must have numbers from -1 to 3")
    return tuple(int(n) for n in given)


def _pinpoints(file: GGUFFile, side: int) -> tuple[tuple[int, int], ...]:
    """The sizes of LLaVA 1.6, which files have as widths and heights in turns."""
    key, how = "clip.vision.image_grid_pinpoints", "clip.vision.mm_patch_merge_type"
    if key not in file.metadata:
        return ()
    given = np.asarray(file.get_array(key))
    n = given.size
    if given.dtype.kind not in "iu" or not n or n % 2 or n > 2 * IMAGE_SHAPES:
        raise FormatError(
            f"{file.path}: {key} must have pairs of widths and heights, at most {IMAGE_SHAPES}"
        )
    pairs = tuple((int(high), int(wide)) for wide, high in given.reshape(-1, 2).tolist())
    for high, wide in pairs:
        whole = min(high, wide) >= side and high % side == 0 == wide % side
        if not whole or high * wide > IMAGE_TILES * side * side:
            raise FormatError(
                f"{file.path}: {key} has {wide} x {high} pixels; sides must be multiples of "
                f"{side}, with at most {IMAGE_TILES} tiles"
            )
    if how in file.metadata and file.get_str(how) != "spatial_unpad":
        raise FormatError(
            f"{file.path}: {how} is {file.get_str(how)[:40]!r}; the rows of tiles are joined as "
            "'spatial_unpad' says, and in no other way"
        )
    return pairs


def _colours(file: GGUFFile, name: str) -> tuple[float, ...]:
    key = f"clip.vision.{name}"
    values = np.asarray(file.get_array(key), np.float64)
    if values.shape != (3,) or not np.isfinite(values).all():
        raise FormatError(f"{file.path}: {key} must have three numbers")
    return tuple(values.tolist())


SizeOf = Callable[[TowerConfig, int, int], tuple[int, int]]
"""The height and width in which a tower takes an image of a height and a width."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A part of an image that the tower sees by itself."""

    pixels: Pixels
    """Pixels in the size that the tower takes."""
    before: str = ""
    after: str = ""
    """Text in front of its rows and behind them."""


@dataclass(frozen=True, slots=True)
class Family:
    """A kind of tower."""

    rows: Callable[[TowerConfig], Iterable[Row]]
    inputs: Callable[[TowerConfig], dict[str, Tensor]]
    forward: Callable[[TowerConfig, Weights, Mapping[str, Tensor]], Tensor]
    """Computes rows [n_out, n] from the inputs."""
    sized: Callable[[TowerConfig, Pixels], Pixels]
    """An image in a size that the tower takes."""
    values: Callable[[TowerConfig, Pixels], dict[str, NDArray[Any]]]
    """Values of the inputs for an image of such a size."""
    n_rows: Callable[[TowerConfig, int, int], int]
    """Number of rows of an image of any height and width."""
    tiles: Callable[[TowerConfig, Pixels], Sequence[Tile]] | None = None
    """The tiles of an image in any size, if the tower sees several."""
    arranged: Callable[[TowerConfig, int, int], NDArray[np.int64]] | None = None
    """Numbers of the rows of an image of a height and a width among the rows of all its tiles,
    where they stand in another order, or some more than once."""
    merge: int = 1
    """`TowerConfig.merge`, if the file does not say."""
    before: str = ""
    after: str = ""
    """Text in front of an image and behind it; `{number}` is the number of images in front of it in
    the prompt."""
    before_of: Callable[[TowerConfig], str] | None = None
    """Text in front of an image, where it depends on the file."""
    together: bool = False
    """True if the rows of an image see one another in the decoder."""
    line: Callable[[TowerConfig, int, int], int] | None = None
    """Rows of a line of an image of a height and a width, if a token stands between lines."""
    line_end: str = ""
    """Text of the token between lines."""
    lines: bool = False
    """True if the decoder's positions have height and width (M-RoPE)."""
    framed: bool = False
    """True if the rows have one in front of the image, one behind each line and one behind all; see
    `Run.framed`."""


def limited(c: TowerConfig, least: int, most: int) -> TowerConfig:
    """The config with these limits of pixels, where the file has none."""
    return replace(c, least_pixels=c.least_pixels or least, most_pixels=c.most_pixels or most)


def sized_by(size_of: SizeOf) -> Callable[[TowerConfig, Pixels], Pixels]:
    """`Family.sized` of a tower that takes an image in the size of `size_of`."""

    def sized(c: TowerConfig, pixels: Pixels) -> Pixels:
        height, width = size_of(c, *pixels.shape[:2])
        return resized(pixels, width, height, "bicubic")

    return sized


def rows_by(size_of: SizeOf) -> Callable[[TowerConfig, int, int], int]:
    """`Family.n_rows` of a tower that makes a row of each `merge` x `merge` patches."""

    def n_rows(c: TowerConfig, height: int, width: int) -> int:
        h, w = size_of(c, height, width)
        return h * w // (c.patch_size * c.merge) ** 2

    return n_rows


def normalised(c: TowerConfig, pixels: Pixels) -> NDArray[np.float32]:
    """Values [height, width, 3] less the mean of each colour, in standard deviations."""
    mean, std = (np.array(values, np.float32) for values in (c.mean, c.std))
    return np.asarray((pixels.astype(np.float32) / np.float32(255) - mean) / std)


def patches_of(c: TowerConfig, pixels: Pixels, merge: int = 1) -> NDArray[np.float32]:
    """The normalised values of an image, a row for each patch, f32 [n_patches, 3 p p], colours
    outermost. Squares of `merge` patches follow one another, row by row."""
    p, m = c.patch_size, merge
    h, w = pixels.shape[0] // (p * m), pixels.shape[1] // (p * m)
    blocks = normalised(c, pixels).reshape(h, m, p, w, m, p, 3).transpose(0, 3, 1, 4, 6, 2, 5)
    return np.ascontiguousarray(blocks.reshape(h * w * m * m, c.patch_values))
