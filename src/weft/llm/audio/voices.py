"""Voices of a model that speaks: files beside it, by name, or given as files and sounds."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.bounds import VOICE_BYTES, VOICE_SECONDS, VOICES
from weft.errors import ArgumentError, ContextError, FormatError
from weft.frontends.gguf.filemap import FileMap
from weft.frontends.hf.safetensors import read_safetensors
from weft.frontends.hf.values import stored_values
from weft.llm.audio.pocket import Pocket
from weft.llm.audio.sounds import open_sound

_FOLDERS = ("voices", "embeddings")
_SOUNDS = (".wav", ".mp3", ".flac", ".ogg")
_KINDS = (".safetensors", ".json", *_SOUNDS)


def voices_beside(path: Path) -> dict[str, Path]:
    """The files of voices of a model, a folder or a file, by their names: those in the folders
    `voices` and `embeddings` beside its tensors."""
    found: dict[str, Path] = {}
    folder = path if path.is_dir() else path.parent
    for name in _FOLDERS:
        try:
            files = sorted((folder / name).iterdir())
        except OSError:
            continue
        for file in files:
            if file.suffix.lower() in _KINDS and len(found) < VOICES:
                found.setdefault(file.stem, file)
    return found


def voice_rows(model: Pocket, voice: Any, named: Mapping[str, Path], *, files: bool) -> Any:
    """The rows f32 [n, n_embd] of a voice: a name, a path (with `files`), the bytes of a sound, or
    samples. Raises ArgumentError for an unknown voice."""
    if isinstance(voice, str) and voice in named:
        voice = named[voice]
    elif isinstance(voice, str | os.PathLike):
        known = ", ".join(named) or "none: the model has no folder of voices"
        if not files or not os.path.isfile(voice):
            also = "" if not files else ", or the path of a sound or a .safetensors file"
            raise ArgumentError(f"voice is {str(voice)[:60]!r}; known are {known}{also}")
        voice = Path(voice)
    if isinstance(voice, Path):
        if voice.stat().st_size > VOICE_BYTES:
            raise ContextError(
                f"{voice}: larger than {VOICE_BYTES >> 20} MiB; give a shorter voice"
            )
        if voice.suffix.lower() == ".safetensors":
            return _kept(model, voice)
    if model.encoder is None:
        raise ContextError(
            f"{model.heads.path}: the model has no encoder for sounds of voices; give a "
            ".safetensors file of a voice"
        )
    samples = open_sound(voice, model.config.rate)
    seconds = len(samples) / model.config.rate
    if seconds > VOICE_SECONDS:
        raise ContextError(
            f"the sound of the voice has {seconds:.1f} seconds; give at most {VOICE_SECONDS:.0f}"
        )
    return model.project(model.listen(ends_in_pause(samples, model.config.rate)))


def _kept(model: Pocket, path: Path) -> NDArray[np.float32]:
    """The rows of a voice that was heard before: rows of the model's width, or latents."""
    tensors = list(read_safetensors(FileMap(path)).values())
    c = model.config
    if len(tensors) == 1 and tensors[0].kind in ("F32", "F16", "BF16"):
        shape = tensors[0].shape
        if len(shape) >= 2 and shape[-1] in (c.n_embd, c.n_latent) and 0 not in shape:
            rows = stored_values(tensors[0]).load().astype(np.float32).reshape(-1, shape[-1])
            if not np.isfinite(rows).all():
                raise FormatError(f"{path}: a voice has numbers that are not finite; it is damaged")
            if len(rows) > VOICE_SECONDS * c.rate / model.frame:
                raise ContextError(f"{path}: a voice of {len(rows)} frames; that is too long")
            return rows if shape[-1] == c.n_embd else model.project(rows)
    raise FormatError(
        f"{path}: no voice that weft reads, which is one tensor of rows with {c.n_embd} numbers, "
        f"or of latents with {c.n_latent}; keys and values of a voice are not read: give its sound"
    )


_FRAME, _FLOOR, _FADE, _PAUSE = 0.02, 35.0, 0.02, 0.08
"""Seconds whose loudness is measured, decibels below the loudest that count as silence, and the
seconds of the end that fades and of the pause behind."""


def ends_in_pause(samples: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    """The sound of a voice without the silence at its end, which a short pause replaces: a model
    goes on with speech that is cut off."""
    n = max(1, int(_FRAME * rate))
    n_frames = len(samples) // n
    if not n_frames:
        return samples
    power = np.square(samples[: n_frames * n].reshape(n_frames, n)).mean(axis=1)
    level = 20 * np.log10(np.sqrt(power) + 1e-12)
    end = (int(np.flatnonzero(level > level.max() - _FLOOR)[-1]) + 1) * n
    out = np.array(samples[:end], np.float32)
    fade = min(int(_FADE * rate), end)
    out[end - fade :] *= np.linspace(1, 0, fade, dtype=np.float32)
    return np.concatenate([out, np.zeros(int(_PAUSE * rate), np.float32)])
