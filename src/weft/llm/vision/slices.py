"""Slices of an image, by MiniCPM-V (arXiv 2408.01800): a small image is enlarged to the area that
the tower was made for. A larger image is shrunk to that area, and behind it come its slices, in the
grid whose proportions are nearest, each enlarged to the same area."""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.errors import ContextError
from weft.llm.vision.config import Tile, TowerConfig
from weft.llm.vision.images import Pixels, resized

SLICES = 9
"""Maximum number of slices, if the file says nothing else."""
LONGEST = 200
"""Maximum length of an image in units of its breadth."""

Shape = tuple[int, int]
"""Height and width."""


def whole(length: float, unit: int) -> int:
    """The multiple of `unit` nearest to a length, and 1 or more of them."""
    return max(round(length / unit) * unit, unit)


def size_of(c: TowerConfig, height: float, width: float, *, larger: bool) -> Shape:
    """Height and width of whole units, in the proportions of an image and with the tower's area;
    with `larger` also of an image that has less."""
    if height * width > c.image_size**2 or larger:
        ratio = width / height
        height = int(c.image_size / math.sqrt(ratio))
        width = int(height * ratio)
    unit = c.patch_size * c.merge
    return whole(height, unit), whole(width, unit)


def grid_of(c: TowerConfig, height: int, width: int) -> Shape | None:
    """Lines and places of the slices of an image; None: it is not cut."""
    most = c.most_tiles or SLICES
    n = min(math.ceil(width * height / c.image_size**2), most)
    if n <= 1:
        return None
    wanted = math.log(width / height)
    best, least = (1, 1), math.inf
    for n_slices in (n - 1, n, n + 1):
        if not 1 < n_slices <= most:
            continue
        for lines in range(1, n_slices + 1):
            if n_slices % lines:
                continue
            error = abs(wanted - math.log(n_slices // lines / lines))
            if error < least or (error == least and lines > best[0]):
                best, least = (lines, n_slices // lines), error
    return best


def sizes_of(c: TowerConfig, height: int, width: int) -> tuple[Shape, Shape | None, Shape]:
    """The size of the whole of an image, the grid of its slices, and the size of each slice.
    Raises ContextError for an image that is `LONGEST` times as long as wide."""
    if max(height, width) > LONGEST * min(height, width):
        raise ContextError(
            f"an image is {width} x {height} pixels; one side is more than {LONGEST} times the "
            "other: cut it"
        )
    grid = grid_of(c, height, width)
    first = size_of(c, height, width, larger=grid is None)
    if grid is None:
        return first, None, (0, 0)
    lines, places = grid
    each = size_of(c, whole(height, lines) / lines, whole(width, places) / places, larger=True)
    return first, grid, each


def n_patches(c: TowerConfig) -> int:
    """Maximum number of squares of `merge` patches of an image that the tower sees at once."""
    side = c.image_size // (c.patch_size * c.merge) + 1
    return side * side + side * math.isqrt(LONGEST) + 1


def n_squares(c: TowerConfig, height: int, width: int) -> Sequence[int]:
    """Number of squares of `merge` patches of each part of an image."""
    (h, w), grid, (slice_h, slice_w) = sizes_of(c, height, width)
    area = (c.patch_size * c.merge) ** 2
    lines, places = grid or (0, 0)
    return [h * w // area, *[slice_h * slice_w // area] * (lines * places)]


def tiles(c: TowerConfig, pixels: Pixels, before: str, after: str, all_in: str = "") -> list[Tile]:
    """The whole of an image and its slices, line by line, with a line end between lines. Each slice
    stands between the texts `before` and `after`, and all slices in a tag of the name `all_in`."""
    (h, w), grid, (slice_h, slice_w) = sizes_of(c, *pixels.shape[:2])
    out = [Tile(resized(pixels, w, h, "bicubic"), "<image>", "</image>")]
    if grid is None:
        return out
    lines, places = grid
    first, last = (f"<{all_in}>", f"</{all_in}>") if all_in else ("", "")
    large = resized(pixels, places * slice_w, lines * slice_h, "bicubic")
    for y in range(lines):
        for x in range(places):
            part = large[y * slice_h : (y + 1) * slice_h, x * slice_w : (x + 1) * slice_w]
            end = "" if x < places - 1 else "\n" if y < lines - 1 else last
            out.append(Tile(part, (first if x == y == 0 else "") + before, after + end))
    return out
