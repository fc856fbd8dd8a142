"""What images and sounds may cost: their sizes are known, and their turn has come, before they are
decoded."""

from __future__ import annotations

import io
import struct
import threading
from typing import Any

import numpy as np
import pytest
from PIL import Image

from weft.bounds import DECODED_AT_ONCE, DECODED_OF_REQUEST, DECODINGS_WAITING, JPEG_PIXELS, PIXELS
from weft.errors import BusyError, ContextError
from weft.llm.audio.sounds import open_sound
from weft.llm.senses import media as decoding_module
from weft.llm.senses.media import _Room, decoding, one_request
from weft.llm.vision import images
from weft.llm.vision.images import open_picture


def encoded(image: Image.Image, form: str, **more: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, form, **more)
    return out.getvalue()


def wav(rate: int, n: int) -> bytes:
    """A WAV file of 8 bits."""
    form = struct.pack("<HHIIHH", 1, 1, rate, rate, 1, 8)
    chunks = b"fmt " + struct.pack("<I", 16) + form + b"data" + struct.pack("<I", n) + b"\x80" * n
    return b"RIFF" + struct.pack("<I", 4 + len(chunks)) + b"WAVE" + chunks


def unread(*_: Any) -> Any:
    raise AssertionError("it was decoded")


@pytest.mark.parametrize("form", ["PNG", "WEBP", "GIF", "BMP"])
def test_large_images_are_refused_before_they_are_decoded(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(images, "MOST_PIXELS", 4999)
    monkeypatch.setattr(images, "_rgb", unread)
    data = encoded(Image.new("RGB", (100, 50)), form)
    with pytest.raises(ContextError, match="100 x 50 pixels, more than 4999"):
        open_picture(data)


def test_a_huge_jpeg_is_decoded_at_a_part_of_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    image = Image.linear_gradient("L").resize((400, 200)).convert("RGB")
    data = encoded(image, "JPEG", quality=95)
    whole = open_picture(data)
    monkeypatch.setattr(images, "MOST_PIXELS", 400 * 200 // 3)
    half = open_picture(data)
    assert whole.shape == (200, 400, 3) and half.shape == (100, 200, 3)
    near = np.abs(half.astype(int) - whole[::2, ::2].astype(int))
    assert near.max() < 8
    monkeypatch.setattr(images, "JPEG_PIXELS", 400 * 200 - 1)
    with pytest.raises(ContextError, match="400 x 200 pixels, more than"):
        open_picture(data)
    assert JPEG_PIXELS // 4 <= PIXELS


@pytest.mark.parametrize("mode", ["L", "LA", "P", "RGBA", "1", "CMYK", "RGB"])
def test_strips_are_the_conversion_of_the_whole(mode: str) -> None:
    noise = np.random.default_rng(3).integers(0, 256, (700, 30, 3), np.uint8)
    image = Image.fromarray(noise).convert(mode)
    assert (open_picture(image) == np.asarray(image.convert("RGB"))).all()


@pytest.mark.parametrize("mode", ["I;16", "I;16B", "PNG", "I", "I of 8 bits"])
def test_grey_of_16_bits_has_the_shades_of_8(mode: str) -> None:
    grey = np.random.default_rng(3).integers(0, 256, (700, 30), np.uint8)
    deep = grey.astype(np.uint16) * 257
    given: Any = Image.fromarray(deep)
    if mode == "I;16B":
        given = Image.frombytes(mode, (30, 700), deep.astype(">u2").tobytes())
    elif mode == "PNG":
        given = encoded(given, "PNG")
    elif mode != "I;16":
        given = Image.fromarray((deep if mode == "I" else grey).astype(np.int32))
    assert (open_picture(given) == grey[..., None]).all()


def test_grey_of_floats_is_refused() -> None:
    with pytest.raises(ContextError, match=r"mode F.*convert it to 8 or 16 bits"):
        open_picture(Image.new("F", (3, 2)))


def test_an_image_of_the_caller_is_not_turned() -> None:
    image = Image.new("RGB", (30, 20))
    image.getexif()[0x0112] = 6
    assert open_picture(image).shape == (30, 20, 3)
    assert image.size == (30, 20)
    data = encoded(Image.new("RGB", (30, 20)), "JPEG", exif=image.getexif())
    assert open_picture(data).shape == (30, 20, 3)


def test_a_sound_that_grows_by_its_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("weft.llm.audio.sounds.MOST_SAMPLES", 50_000)
    assert len(open_sound(wav(1000, 3000), 16_000)) == 48_000
    monkeypatch.setattr("weft.llm.audio.sounds.resampled", unread)
    with pytest.raises(ContextError, match="more than 50000 samples"):
        open_sound(wav(1000, 3200), 16_000)


def test_blocks_of_a_sound_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    data = wav(16_000, 300)[:-300] + bytes(range(150)) * 2
    whole = open_sound(data, 16_000)
    monkeypatch.setattr("weft.llm.audio.sounds._BLOCK", 7)
    assert (open_sound(data, 16_000) == whole).all()


def test_a_request_has_so_many_pixels() -> None:
    with one_request():
        for _ in range(DECODED_OF_REQUEST // PIXELS):
            with decoding(PIXELS):
                pass
        with pytest.raises(ContextError, match=f"more than {DECODED_OF_REQUEST} pixels"):
            with decoding(1):
                pass
    with one_request(), decoding(1):  # the next request
        pass


def test_images_wait_for_each_other() -> None:
    room = _Room()
    order: list[str] = []

    def second() -> None:
        with room.taken(PIXELS):
            order.append("second")

    with room.taken(DECODED_AT_ONCE):
        thread = threading.Thread(target=second)
        thread.start()
        order.append("first")
    thread.join(60)
    assert order == ["first", "second"]


def test_few_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    room = _Room()
    with room.taken(DECODED_AT_ONCE):
        room._n_waiting = DECODINGS_WAITING
        with pytest.raises(BusyError, match="too many images"), room.taken(1):
            pass
        room._n_waiting = 0
        monkeypatch.setattr(decoding_module, "DECODING_SECONDS", 0.01)
        with pytest.raises(BusyError, match="too many images"), room.taken(1):
            pass
    assert room._n_waiting == 0
    with room.taken(1):
        pass


def test_a_failed_decoding_leaves_its_room() -> None:
    data = encoded(Image.effect_noise((64, 64), 50), "PNG")
    for _ in range(3):
        with pytest.raises(ContextError, match="cannot be decoded"):
            open_picture(data[:-2000])
    assert decoding_module._room._n == 0
