"""Sounds from files, bytes and data URLs, as samples of one channel. WAV is read here; MP3, FLAC
and Ogg need the extra `weft[audio]`, which is soundfile."""

from __future__ import annotations

import importlib
import io
import os
import struct
from collections.abc import Callable
from math import gcd
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from weft.bounds import MEDIA_BYTES, RECORDING_BYTES, RECORDING_SAMPLES, SAMPLES
from weft.errors import ArgumentError, ContextError
from weft.extras import how_to_install
from weft.llm.senses.media import decoding, media_bytes

Samples: TypeAlias = NDArray[np.float32]
"""One channel, f32 [n], from -1 to 1."""

MOST_SAMPLES = SAMPLES
"""Maximum number of samples of a channel of a sound, at its own rate and at the wanted rate."""
LEAST_RATE, MOST_RATE = 1000, 768_000
"""Samples per second."""
MOST_CHANNELS = 64
_PCM, _FLOAT, _EXTENSIBLE = 1, 3, 0xFFFE
_BLOCK = 1 << 16
_MOST_SAID = 1 << 40
"""More samples than any file has: its program did not know how many there would be."""
_UNKNOWN = (0, 0xFFFFFFFF)
"""Sizes that programs write which do not know yet how long a sound becomes."""


class _Form(NamedTuple):
    """A sound that is not read yet."""

    rate: int
    n: int | None
    """Number of samples of a channel; None: the file does not say."""
    read: Callable[[], Samples]


def open_sound(sound: Any, rate: int, *, files: bool = True, long: bool = False) -> Samples:
    """Decodes a sound to one channel of `rate` samples per second.

    With `files`, a text that is no data URL is a path; with `long` as well, the file may have
    `RECORDING_BYTES`, and it or an array `RECORDING_SAMPLES`. Raises ContextError for what is no
    sound, is damaged, empty, or longer than `MOST_SAMPLES`, and for other files than WAV without
    soundfile; ArgumentError for an object of another type."""
    most_samples = RECORDING_SAMPLES if long and files else MOST_SAMPLES
    if isinstance(sound, np.ndarray):
        return _array(sound, most_samples)
    data = _recording(sound) if long and files else None
    if data is None:
        data = media_bytes(sound, "a sound", "audio/wav", files=files)
    if not isinstance(data, bytes):
        raise ArgumentError(
            f"a sound is {type(data).__name__}; give a path, bytes, a data: URL, or samples [n]"
        )
    form = _wav(data) if _is_wav(data) else _opened(data, most_samples)

    def longest(n: int) -> int:
        _require_length(n, most_samples)
        most = max(n, -(-n * rate // form.rate))
        _require_length(most, most_samples)
        return most

    known = most_samples if form.n is None else longest(form.n)
    with decoding(known), np.errstate(over="ignore", invalid="ignore"):
        samples = form.read()
        longest(len(samples))
        if not np.isfinite(samples).all():
            raise ContextError("a sound has samples that are not finite; it is damaged")
        return resampled(samples, form.rate, rate)


def _recording(sound: Any) -> bytes | None:
    """The bytes of a file that is larger than a request may give; None for any other sound."""
    if not isinstance(sound, str | os.PathLike) or os.fspath(sound)[:5].lower() == "data:":
        return None
    path = Path(sound)
    try:
        size = path.stat().st_size
        if not MEDIA_BYTES < size <= RECORDING_BYTES:
            return None
        return path.read_bytes()
    except (OSError, ValueError):
        return None  # which is told where the file is read as others are


def _array(samples: NDArray[Any], most: int) -> Samples:
    if samples.ndim != 1 or samples.dtype.kind != "f":
        raise ContextError(
            f"samples are floats [n] from -1 to 1, not {samples.dtype} {list(samples.shape)}"
        )
    _require_length(len(samples), most)
    with np.errstate(over="ignore"):  # f64 may be infinite as f32
        out = np.ascontiguousarray(samples, np.float32)
    if not np.isfinite(out).all():
        raise ContextError("a sound has samples that are not finite")
    return out


def _is_wav(data: bytes) -> bool:
    return data[:4] in (b"RIFF", b"RF64") and data[8:12] == b"WAVE"


def _wav(data: bytes) -> _Form:
    """The form of a WAV file: 8 to 32 bits, or floats of 32 or 64."""
    form: tuple[int, ...] | None = None
    at = 12
    while at + 8 <= len(data):
        name, size = data[at : at + 4], struct.unpack_from("<I", data, at + 4)[0]
        at += 8
        if name == b"fmt " and size >= 16 and at + size <= len(data):
            form = struct.unpack_from("<HHIIHH", data, at)
            if form[0] == _EXTENSIBLE and size >= 26:
                form = (*struct.unpack_from("<H", data, at + 24), *form[1:])
        elif name == b"data":
            if form is None:
                raise ContextError(
                    "a WAV file has no format in front of its samples; it is damaged"
                )
            left = len(data) - at
            if size > left and size not in _UNKNOWN:
                raise ContextError(
                    f"a WAV file has {left} of {size} bytes of samples; it is cut off"
                )
            end = at + (left if size in _UNKNOWN else size)
            return _pcm(memoryview(data)[at:end], form)
        at += size + size % 2
    raise ContextError("a WAV file has no samples; it is damaged")


def _pcm(data: memoryview, form: tuple[int, ...]) -> _Form:
    kind, channels, rate, _, _, bits = form
    _require_form(channels, rate)
    width = bits // 8
    if bits % 8 or (kind, width) not in _WIDTHS:
        raise ContextError(
            f"a WAV file of encoding {kind} with {bits} bits is not known; known are PCM of 8, 16, "
            "24 and 32 bits, and floats of 32 and 64"
        )
    frames = len(data) // (width * channels)
    whole = frames * width * channels

    def read() -> Samples:
        out = np.empty(frames, np.float32)
        raw = np.frombuffer(data, np.uint8, whole)
        for at in range(0, frames, _BLOCK):
            end = min(at + _BLOCK, frames)
            block = _floats(raw[at * width * channels : end * width * channels], kind, width)
            out[at:end] = block.reshape(-1, channels).mean(axis=1)
        return out

    return _Form(rate, frames, read)


def _floats(raw: NDArray[np.uint8], kind: int, width: int) -> NDArray[Any]:
    """The samples of bytes."""
    if kind == _FLOAT:
        return raw.view(f"<f{width}").astype(np.float32)
    if width == 1:
        return (raw.astype(np.float32) - 128) / 128
    if width == 3:
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = raw.reshape(-1, 3)
        return np.asarray(wide.reshape(-1).view("<i4") / np.float32(1 << 31))
    return np.asarray(raw.view(f"<i{width}") / np.float32(1 << (8 * width - 1)))


_WIDTHS = {(_PCM, 1), (_PCM, 2), (_PCM, 3), (_PCM, 4), (_FLOAT, 4), (_FLOAT, 8)}


def _opened(data: bytes, most: int) -> _Form:
    """The form of a file that is not a WAV."""
    known = (b"ID3", b"fLaC", b"OggS")
    if not data.startswith(known) and not (data[:1] == b"\xff" and data[1:2] >= b"\xe0"):
        raise ContextError("a sound is none of WAV, MP3, FLAC and Ogg, or it is damaged")
    try:
        soundfile = importlib.import_module("soundfile")
    except (ImportError, OSError):
        raise ContextError(
            f"sounds other than WAV need soundfile; {how_to_install('audio')}"
        ) from None
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            rate, n = int(file.samplerate), int(file.frames)
            _require_form(file.channels, rate)
    except soundfile.SoundFileError as error:
        raise _undecodable(error) from None
    # the number of samples is what the file says; a block at a time shows whether it is true
    return _Form(rate, n if 0 < n <= _MOST_SAID else None, lambda: _blocks(data, soundfile, most))


def _blocks(data: bytes, soundfile: Any, most: int) -> Samples:
    parts: list[Samples] = []
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            n = 0
            for block in file.blocks(_BLOCK, dtype="float32", always_2d=True):
                n += len(block)
                _require_length(n, most)
                parts.append(np.asarray(block.mean(axis=1), np.float32))
    except soundfile.SoundFileError as error:
        raise _undecodable(error) from None
    return np.concatenate([np.empty(0, np.float32), *parts])


def _undecodable(error: Exception) -> ContextError:
    return ContextError(f"a sound cannot be decoded ({str(error)[:80]}); it is damaged")


def _require_form(channels: int, rate: int) -> None:
    if not 1 <= channels <= MOST_CHANNELS or not LEAST_RATE <= rate <= MOST_RATE:
        raise ContextError(
            f"a sound has {channels} channels of {rate} samples per second; it may have 1 to "
            f"{MOST_CHANNELS} of {LEAST_RATE} to {MOST_RATE}"
        )


def _require_length(n: int, most: int) -> None:
    if n < 1:
        raise ContextError("a sound has no samples; it must have some")
    if n > most:
        raise ContextError(f"a sound has more than {most} samples; cut it into shorter ones")


ZEROS = 32
ROLL_OFF = 0.945
"""End of the filter, as a fraction of the lower of the two bandwidths."""
BETA = 9.0
"""Parameter of the Kaiser window; the stop band is below -90 dB."""
_RESULTS_AT_ONCE = 1 << 13


def resampled(samples: NDArray[np.float32], rate: int, new: int) -> NDArray[np.float32]:
    """Samples f32 [n] of `rate` per second as f32 [ceil(n new / rate)] of `new` per second.

    This interpolates with a windowed sinc whose filters depend on the place between two samples (a
    polyphase filter)."""
    if rate == new or not len(samples):
        return samples
    step = gcd(rate, new)
    up, down = new // step, rate // step
    cut = min(1.0, new / rate) * ROLL_OFF  # in samples of the old rate
    reach = int(np.ceil(ZEROS / cut))
    n = -(-len(samples) * up // down)
    padded = np.pad(samples, (reach, reach + down))
    out = np.empty(n, np.float32)
    offsets = np.arange(1 - reach, reach + 1)
    for phase in range(min(up, n)):  # results phase, phase + up, ... lie alike between samples
        first, part = divmod(phase * down, up)
        filter_ = _kernel(offsets - part / up, cut, reach)
        windows = sliding_window_view(padded[first + 1 :], 2 * reach)[::down]
        count = len(out[phase::up])
        for at in range(0, count, _RESULTS_AT_ONCE):
            end = min(at + _RESULTS_AT_ONCE, count)
            out[phase + at * up : phase + (end - 1) * up + 1 : up] = windows[at:end] @ filter_
    return out


def _kernel(at: NDArray[np.floating[Any]], cut: float, reach: int) -> NDArray[np.float32]:
    window = np.i0(BETA * np.sqrt(np.maximum(1 - (at / reach) ** 2, 0))) / np.i0(BETA)
    return np.asarray(cut * np.sinc(cut * at) * window, np.float32)
