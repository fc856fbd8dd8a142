"""`SamConfig`: the sizes of SAM's encoder in an `mmproj` file, most of which its tensors tell."""

from __future__ import annotations

from weft.errors import FormatError
from weft.frontends.gguf import GGUFFile
from weft.llm.config_keys import Keys
from weft.records import dataclass

MOST_SIDE, MOST_PATCH = 128, 32
"""Maximum number of patches of a side, and of pixels of a patch, twice the published ones."""
_POSITIONS, _PATCHES = "v.sam.pos_embd.weight", "v.sam.patch_embd.weight"


@dataclass(frozen=True, slots=True)
class SamConfig:
    """The sizes of SAM's encoder (arXiv 2304.02643)."""

    n_embd: int
    n_ff: int
    n_layer: int
    n_head: int
    patch_size: int
    side: int
    """Number of patches of each side of the square that positions were learned for."""
    window: int
    """Number of patches of each side of a window."""
    n_neck: int
    n_middle: int
    """Widths behind the layers, and behind the first of two convolutions that halve a side."""

    @property
    def n_windows(self) -> int:
        """Number of windows of an image of `side` patches."""
        return (-(-self.side // self.window)) ** 2


def read_sam_config(file: GGUFFile) -> SamConfig | None:
    """The sizes of SAM's encoder; None for a file without one. Raises FormatError for a wrong
    key."""
    positions, patches = file.tensors.get(_POSITIONS), file.tensors.get(_PATCHES)
    if positions is None or patches is None:
        return None
    keys = Keys(file)
    n_embd = keys.count("vision.sam.embedding_length")
    n_head = keys.count("vision.sam.head_count")
    if n_embd % n_head:
        raise keys.bad("vision.sam.head_count", n_head, f"a divisor of {n_embd}")
    patch, side = patches.ne[0], positions.ne[1]
    if side % 32 or not 1 <= side <= MOST_SIDE or not 1 <= patch <= MOST_PATCH:
        raise FormatError(
            f"{file.path}: {_POSITIONS} has sides of {side} patches of {patch} pixels; weft takes "
            f"multiples of 32 up to {MOST_SIDE} and patches of up to {MOST_PATCH} pixels"
        )
    return SamConfig(
        n_embd=n_embd,
        n_ff=_rows_of(file, "v.sam.blk.0.mlp.lin1.weight", 1),
        n_layer=keys.count("vision.sam.block_count", most=1 << 10),
        n_head=n_head,
        patch_size=patch,
        side=side,
        window=keys.count("vision.window_size", most=side),
        n_neck=_rows_of(file, "v.sam.neck.0.weight", 3),
        n_middle=_rows_of(file, "v.sam.net_2.weight", 3),
    )


def _rows_of(file: GGUFFile, name: str, dim: int) -> int:
    info = file.tensors.get(name)
    if info is None:
        raise FormatError(f"{file.path}: there is no tensor {name}; convert the model again")
    return info.ne[dim]
