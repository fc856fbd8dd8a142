"""`Speaker`: a text as sound, in a voice.

A text is spoken in parts of a few sentences, since models skip words of longer ones. Each part is
read behind the voice, and its samples come frame by frame.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import Backend
from weft.compiler import resolve_devices
from weft.errors import ArgumentError, FormatError
from weft.frontends.gguf import GGUFFile
from weft.frontends.models import open_model
from weft.llm.audio.any_speaker import AnySpeaker
from weft.llm.audio.pocket import Pocket, open_heads
from weft.llm.audio.voices import voice_rows, voices_beside
from weft.llm.hub import local_path
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.records import dataclass

PART_TOKENS = 50
"""Maximum number of tokens of a part, unless a clause has more."""
FIRST, BEFORE_VOICE = "<|audio_bos|>", "<|bos_before_voice|>"
_FADE = 0.005
"""Seconds at the beginning of a part in which it becomes louder."""
_SHORT = 4
"""Maximum number of words of a short text."""
_AFTER, _AFTER_SHORT = 2, 4
"""Frames behind the one in which speech ends, and the number behind a short text."""
_SENTENCES, _CLAUSES = (".", "!", "...", "?"), (",", ";", ":")


@dataclass(frozen=True, slots=True)
class _Variant:
    """Settings of a published model that its files do not have."""

    temperature: float = 0.7
    after: int = 0
    """Frames behind the one in which speech ends; 0: as the text is short or long."""
    padded: bool = False
    """True if spaces are put in front of short texts."""


_VARIANTS = {
    "english": _Variant(0.3), "english_2026-01": _Variant(0.7, padded=True),
    "english_2026-04": _Variant(0.3), "french_24l": _Variant(0.7, 7),
}  # fmt: skip


class Speaker(AnySpeaker):
    """A model of Pocket TTS with its tokenizer and voices; `rate` is the number of samples per
    second. One thread at a time may use it."""

    def __init__(
        self,
        path: str | os.PathLike[str] | GGUFFile,
        mmproj: str | os.PathLike[str] | GGUFFile | None = None,
        *,
        devices: Sequence[str | Backend] = ("cpu",),
        type_kv: str = "f32",
        n_ctx: int = 0,
        steps: int = 0,
        **cpu: Any,
    ) -> None:
        """Opens the folder or GGUF file at `path`. `mmproj` is the file that makes sound of its
        states; None: of a folder, what it has, and of a file, the one beside it.

        `type_kv` is the type of the caches: what a frame lacks goes on into all that follow, so it
        is f32. `n_ctx` is the number of rows of voice, text and speech of a part (0: 1024), `steps`
        the number of steps that make a frame (0: the model's). `cpu` has options of the device cpu,
        such as `n_threads`. Raises FormatError for another model and for one that is damaged."""
        backends = resolve_devices(devices, **cpu)
        file = path if isinstance(path, GGUFFile) else open_model(local_path(path))
        if file.architecture != "pockettts":
            raise FormatError(
                f"{file.path}: a {file.architecture} model; weft speak takes Pocket TTS (of "
                "Hugging Face, PocketTTSForConditionalGeneration)"
            )
        heads = open_heads(_beside(file.path) if mmproj is None else mmproj, file)
        self.model = Pocket(file, heads, backends, type_kv=type_kv, n_ctx=n_ctx, steps=steps)
        self.rate = self.model.config.rate
        self.file = file
        self.tokenizer = Tokenizer.from_gguf(file)
        pieces = file.get_str_list("tokenizer.ggml.tokens")
        self._ids = {text: id_ for id_, text in enumerate(pieces)}
        self._begins = [piece.startswith("\u2581") for piece in pieces]
        if FIRST not in self._ids:
            raise FormatError(
                f"{file.path}: the vocabulary has no token {FIRST}; convert the model again"
            )
        beside = voices_beside(file.path)
        self._files = {name: path for name, path in beside.items() if path.suffix != ".json"}
        variant = heads.get_str("clip.gen.audio.model_variant", "")
        self._variant = _VARIANTS.get(variant, _Variant())
        known = "pockettts.speech.temperature" in file.metadata
        self.temperature = self.model.config.temperature if known else self._variant.temperature
        self._voice: object = None
        self._n_voice = -1
        """Rows of the voice that are in the caches; -1: none were read."""

    def explain(self) -> str:
        """The graphs and the bytes of what is in memory."""
        return self.model.explain()

    # ---- what is asked ---------------------------------------------------------------------------

    def speak(
        self,
        text: str,
        *,
        voice: Any = None,
        temperature: float | None = None,
        seed: int = 0,
        files: bool = True,
        part_tokens: int = PART_TOKENS,
        noise: NDArray[np.float32] | None = None,
    ) -> Iterator[NDArray[np.float32]]:
        """Yields the samples of a text from -1 to 1, frame by frame, as they are made.

        `voice` is the name of one of `voices`, the path of a sound or a .safetensors file, bytes of
        a sound, or its samples at `rate`; None: no voice is given, and the model chooses one. With
        `files` False, a text is only a name. `temperature` is the variance of the noise of which
        frames are made (0: none). `noise` f32 [n, n_latent] replaces it, a row for each frame in
        turn. `part_tokens` is the maximum number of tokens that are spoken in one go. Raises
        ArgumentError for an empty or a very long text and for an unknown voice."""
        heat = self._heat(temperature, seed)
        if part_tokens < 1:
            raise ArgumentError(f"part_tokens is {part_tokens}; it is 1 or more")
        parts = self.parts(text, part_tokens)
        self._use(voice, files)
        return self._spoken(self._begun(), parts, heat, seed, noise)

    # ---- texts -----------------------------------------------------------------------------------

    def parts(self, text: str, part_tokens: int = PART_TOKENS) -> list[str]:
        """The parts in which a text is spoken: sentences, together while they are short, or
        clauses. Raises ArgumentError for an empty or a very long text."""
        self._require_short(text)
        text = prepared(text)
        if not text:
            raise ArgumentError("the text is empty; there is nothing to say")
        segments: list[list[int]] = []
        for sentence in self._cut(self._encoded(text), _SENTENCES, numbers=True):
            clauses = [sentence]
            if len(sentence) > part_tokens:
                clauses = self._cut(sentence, _CLAUSES)
            for clause in clauses:
                segments += self._short(clause, part_tokens)
        parts, part, n = [], "", 0
        for segment in segments:
            if part and n + len(segment) > part_tokens:
                parts.append(part.strip())
                part, n = "", 0
            words = self.tokenizer.decode(segment).strip()
            part = f"{part} {words}" if part else words
            n += len(segment)
        parts.append(part.strip())
        return [prepared(part) for part in parts if part]

    def _encoded(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special=False, parse_special=False)

    def _cut(
        self, ids: list[int], marks: Sequence[str], *, numbers: bool = False
    ) -> list[list[int]]:
        """Cuts behind runs of marks; with `numbers`, not within a decimal number."""
        ends = {self._ids[mark] for mark in marks if mark in self._ids}
        starts = [0]
        for i in range(1, len(ids)):
            if (
                ids[i - 1] in ends
                and ids[i] not in ends
                and not (numbers and self._decimal(ids, i))
            ):
                starts.append(i)
        return [ids[a:b] for a, b in zip(starts, [*starts[1:], len(ids)], strict=True)]

    def _decimal(self, ids: list[int], at: int) -> bool:
        """True if a number goes on behind the point in front of the token at `at`."""
        before = self.tokenizer.decode(ids[max(at - 8, 0) : at])
        after = self.tokenizer.decode(ids[at : at + 1])
        if self._begins[ids[at]]:
            return False
        return before.endswith(".") and before[-2:-1].isdigit() and after[:1].isdigit()

    def _short(self, ids: list[int], most: int) -> Iterator[list[int]]:
        """A clause, cut in front of words if it has more than twice as many tokens as a part."""
        while len(ids) > 2 * most:
            words = [i for i in range(1, most + 1) if self._begins[ids[i]]]
            at = words[-1] if words else most
            yield ids[:at]
            ids = ids[at:]
        if ids:
            yield ids

    # ---- speech ----------------------------------------------------------------------------------

    def _use(self, voice: Any, files: bool) -> None:
        """Reads a voice, unless it is in the caches."""
        known = voice if isinstance(voice, str) else None
        if self._n_voice >= 0 and (voice is None or known is not None) and self._voice == known:
            return
        self._n_voice = -1
        n = 0
        if voice is not None:
            rows = voice_rows(self.model, voice, self._files, files=files)
            if BEFORE_VOICE in self._ids:
                rows = np.concatenate([self.model.embed([self._ids[BEFORE_VOICE]]), rows])
            self.model.read(rows, first=0)
            n = len(rows)
        # a sound without a name may be another one next time
        self._voice, self._n_voice = (known, n) if voice is None or known else (voice, n)

    def _spoken(
        self,
        number: int,
        parts: list[str],
        temperature: float,
        seed: int,
        noise: NDArray[np.float32] | None,
    ) -> Iterator[NDArray[np.float32]]:
        random = np.random.default_rng(seed)
        n_latent, at, n_voice = self.model.config.n_latent, 0, self._n_voice
        fade = np.linspace(0, 1, int(_FADE * self.rate), dtype=np.float32)
        scale = math.sqrt(temperature)
        for part in parts:
            self._require_turn(number)
            row, after, most = self._begin(part, n_voice)
            left, n = -1, 0
            while True:
                if noise is not None:
                    drawn = noise[at % len(noise)]
                elif temperature:
                    drawn = (random.standard_normal(n_latent) * scale).astype(np.float32)
                else:
                    drawn = np.zeros(n_latent, np.float32)
                latent, row, end = self.model.next_frame(row, drawn)
                if not np.isfinite(latent).all():
                    raise FormatError(
                        f"{self.file.path}: the model makes numbers that are not finite; it is "
                        "damaged, or its weights are"
                    )
                samples = self.model.decode(latent)
                n_faded = max(0, min(len(fade) - n * len(samples), len(samples)))
                if n_faded:
                    samples[:n_faded] *= fade[n * len(samples) :][:n_faded]
                yield samples
                self._require_turn(number)
                c = self.model.config
                if left < 0 and end > c.threshold and n >= c.frames_before_end:
                    left = after
                n, at = n + 1, at + 1
                if left == 0 or n >= most:
                    break
                left -= left > 0

    def _begin(self, part: str, n_voice: int) -> tuple[NDArray[np.float32], int, int]:
        """Reads a part behind the voice: the row from which speech begins, the frames behind its
        end, and the maximum number of frames."""
        words = len(part.split())
        if self._variant.padded and words < _SHORT + 1:
            part = " " * 8 + part
        ids = self._encoded(part)
        rows = self.model.embed([*ids, self._ids[FIRST]])
        self.model.read(rows[:-1], first=n_voice)
        self.model.begin()
        most = math.ceil((len(ids) / 3 + 2) * self.rate / self.model.frame)
        after = self._variant.after or (_AFTER_SHORT if words <= _SHORT else _AFTER)
        return rows[-1], after, max(1, min(most, self.model.room))


def prepared(text: str) -> str:
    """A text as models were trained on: one line that begins with a large letter and ends with a
    mark; empty for one that has no letters."""
    text = " ".join(text.replace(";", ",").split())
    if not text:
        return ""
    text = text[0].upper() + text[1:]
    return f"{text}." if text[-1].isalnum() else text


def _beside(path: Path) -> Path:
    """The place of the part that makes sound of a model's states: the folder itself, or a file
    beside the file."""
    if path.is_dir():
        return path
    found = sorted(p for p in path.parent.glob("*mmproj*.gguf") if p != path)
    named = [p for p in found if path.stem in p.name]
    if len(named or found) != 1:
        what = "no mmproj file is" if not found else f"{len(found)} mmproj files are"
        raise FormatError(
            f"{path}: {what} beside it; give the one that makes sound of its states as mmproj"
        )
    return (named or found)[0]
