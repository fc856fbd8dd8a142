"""Images from files, bytes and data URLs, as pixels; what is hostile is refused before it is
decoded. Needs the extra `weft[vision]`, which is Pillow."""

from __future__ import annotations

import io
import os
import re
import warnings
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.bounds import IMAGE_PARTS, JPEG_PIXELS, PIXELS, RESIZED_PIXELS
from weft.errors import ArgumentError, ContextError, WeftError
from weft.extras import how_to_install
from weft.llm.senses.media import MOST_BYTES, decoding, media_bytes

if TYPE_CHECKING:
    from PIL.Image import Image

__all__ = ["MOST_BYTES", "MOST_PIXELS", "Pixels", "open_picture", "pillow", "resized"]

Pixels: TypeAlias = NDArray[np.uint8]
"""RGB, u8 [height, width, 3]."""

MOST_PIXELS = PIXELS
"""Maximum number of pixels of an image; larger images are refused before any is decoded."""
MOST_SIDE = (1 << 16) - 1
"""Maximum number of pixels of a side of an image, as JPEG has it."""
_STRIP = 256
"""Lines of an image that are converted at a time."""
_FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")


def open_picture(picture: Any, *, files: bool = True) -> Pixels:
    """Decodes an image, turned as its camera was held, without transparency.

    With `files`, a text that is no data URL is a path. Raises ContextError for what is no image, is
    damaged, or is larger than `MOST_BYTES`, `MOST_PIXELS` or `MOST_SIDE`, and without Pillow;
    ArgumentError for an object of another type."""
    if isinstance(picture, np.ndarray):
        return _array(picture)
    what = "an image"
    if isinstance(picture, str | os.PathLike) and os.fspath(picture)[:5].lower() != "data:":
        what = f"image {os.fspath(picture)[:200]!r}"
    picture = media_bytes(picture, "an image", "image/png", files=files)
    image_module = pillow()
    if isinstance(picture, bytes):
        _require_few_parts(picture, what)
        return _decoded(lambda: image_module.open(io.BytesIO(picture), formats=_FORMATS), what)
    if isinstance(picture, image_module.Image):
        return _decoded(lambda: picture, what, picture)
    raise ArgumentError(
        f"an image is {type(picture).__name__}; give a path, bytes, a data: URL, pixels "
        "[height, width, 3] or an image of Pillow"
    )


def resized(pixels: Pixels, width: int, height: int, resampling: str = "bilinear") -> Pixels:
    """The image in another size. `resampling` is "nearest", "bilinear", "bicubic" or "lanczos".
    Raises ContextError for more than `RESIZED_PIXELS`."""
    if pixels.shape[:2] == (height, width):
        return pixels
    require_resized(width, height)
    module = pillow()
    how = module.Resampling[resampling.upper()]
    return np.asarray(module.fromarray(pixels).resize((width, height), how))


def require_resized(width: int, height: int) -> None:
    """Raises ContextError for a size that a damaged or hostile file asks for."""
    if width * height > RESIZED_PIXELS:
        raise ContextError(
            f"the tower takes this image as {width} x {height} pixels, more than {RESIZED_PIXELS}; "
            "give an image that is not so long, or convert the tower again"
        )


def pillow() -> Any:
    """The module `PIL.Image`. Raises ContextError if the extra `weft[vision]` is missing."""
    try:
        from PIL import Image
    except ImportError:
        raise ContextError(f"images need Pillow; {how_to_install('vision')}") from None
    return Image


def _array(pixels: NDArray[Any]) -> Pixels:
    if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or not pixels.size:
        raise ContextError(
            f"pixels are u8 [height, width, 3], not {pixels.dtype} {list(pixels.shape)}"
        )
    _require_size(pixels.shape[1], pixels.shape[0])
    return np.ascontiguousarray(pixels)


def _rgb(image: Image) -> Pixels:
    """The pixels of an image, by strips: a conversion of the whole would be a second copy."""
    if image.mode == "F":
        raise ContextError(
            "a grey image of floats (Pillow's mode F) does not say which numbers are black and "
            "white; convert it to 8 or 16 bits"
        )
    # Pillow would cut grey of 16 bits at 255; its mode I has numbers of 8 bits or of 16
    deep = image.mode.startswith("I;16") or (image.mode == "I" and image.getextrema()[1] > 255)  # type: ignore[operator]
    width, height = image.size
    out = np.empty((height, width, 3), np.uint8)
    for top in range(0, height, _STRIP):
        bottom = min(top + _STRIP, height)
        strip = image.crop((0, top, width, bottom))
        if deep:
            out[top:bottom] = (np.asarray(strip).clip(0, 65535) >> 8)[..., None]
        else:
            out[top:bottom] = np.asarray(strip.convert("RGB"))
    return out


def _reduced(image: Image) -> tuple[int, int]:
    """The size in which an image is decoded: that of a huge JPEG is a part of its own."""
    width, height = image.size
    if image.format == "JPEG" and MOST_PIXELS < width * height <= JPEG_PIXELS:
        scale = 2 if width * height <= 4 * MOST_PIXELS else 4
        image.draft("RGB", (width // scale, height // scale))
    return image.size


_MARKER = re.compile(rb"\xff[^\x00\x01\xd0-\xd7\xff]")
"""The start of a part of a JPEG, which cannot be inside a scan."""
_SOS, _EOI = 0xDA, 0xD9


def _require_few_parts(data: bytes, what: str) -> None:
    """Raises ContextError for a file of more than `IMAGE_PARTS` parts: Pillow reads most of them in
    Python, and each scan of a JPEG goes through all pixels."""
    if any(n > IMAGE_PARTS for n in accumulate(_parts(data))):
        raise ContextError(
            f"{what} has too many segments, chunks, blocks or scans; save it again, without "
            "metadata"
        )


def _parts(data: bytes) -> Iterator[int]:
    """The weight of each part of a file: 1 and one more for each 256 bytes of a JPEG's metadata,
    1024 for a scan of a JPEG."""
    if data.startswith(b"\xff\xd8"):
        at, n_scans = 2, 0
        while (marker := _MARKER.search(data, at)) and data[marker.end() - 1] != _EOI:
            filled, at = marker.start() - at, marker.end()
            nbytes = int.from_bytes(data[at : at + 2], "big")
            scan = data[at - 1] == _SOS
            n_scans += scan
            yield 1024 if scan else 1 + (nbytes >> 8) + (0 if n_scans else filled)
            at += nbytes
    elif data.startswith(b"\x89PNG"):
        at = 8
        while at < len(data):
            at += 12 + int.from_bytes(data[at : at + 4], "big")
            yield 1
    elif data.startswith(b"GIF"):
        at = 13 + (6 << (data[10] & 7) if data[10:11] >= b"\x80" else 0)
        while at < len(data) and data[at] != ord(","):
            yield 1
            if data[at] != ord("!"):  # which Pillow skips, byte by byte
                at += 1
                continue
            at += 2
            while at < len(data) and data[at]:
                at += 1 + data[at]
                yield 1
            at += 1


def _decoded(opened: Any, what: str, given: Any = None) -> Pixels:
    """The pixels of an image that `opened` opens; `given` is the caller's, which is not changed."""
    from PIL import ImageOps

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # sizes are checked here
            image = opened()
            whole = image.width * image.height
            width, height = _reduced(image)
            _require_size(width, height, what)
            # all coefficients of a progressive JPEG are in memory, whatever its size becomes
            with decoding(whole if "progressive" in image.info else width * height):
                if image is not given:
                    ImageOps.exif_transpose(image, in_place=True)
                else:
                    image = ImageOps.exif_transpose(image)
                return _rgb(image)
    except WeftError:
        raise
    except Exception as error:
        if type(error).__name__ == "DecompressionBombError":
            raise ContextError(
                f"{what} has more than {MOST_PIXELS} pixels; make it smaller"
            ) from None
        unknown = type(error).__name__ == "UnidentifiedImageError"
        why = "" if unknown else f" ({str(error)[:80]})"
        raise ContextError(
            f"{what} cannot be decoded{why}; it is damaged, or none of {', '.join(_FORMATS)}"
        ) from None


def _require_size(width: int, height: int, what: str = "an image") -> None:
    if width < 1 or height < 1:
        raise ContextError(f"{what} is {width} x {height} pixels; it must have some")
    if max(width, height) > MOST_SIDE:
        raise ContextError(
            f"{what} is {width} x {height} pixels, but a side has at most {MOST_SIDE}; cut it"
        )
    if width * height > MOST_PIXELS:
        raise ContextError(
            f"{what} is {width} x {height} pixels, more than {MOST_PIXELS}; make it smaller"
        )
