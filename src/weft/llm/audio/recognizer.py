"""`Recognizer`: the transcript of a sound by Parakeet, in segments with times."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

from weft.backends.base import Backend
from weft.errors import ArgumentError
from weft.frontends.gguf import GGUFFile
from weft.llm.audio import conformer
from weft.llm.audio.parakeet import FRAME, Parakeet, Said
from weft.llm.audio.segments import Segment
from weft.llm.audio.sounds import Samples
from weft.llm.audio.spectra import RATE
from weft.llm.tokenizers.tokenizer import Tokenizer

PAUSE = 1.0
"""Seconds without a token behind which a segment begins."""
LONGEST = 30.0
"""Seconds after which a segment ends with its next word."""
_ENDS = tuple(mark.encode() for mark in (".", "?", "!", "\u3002", "\uff1f", "\uff01"))
_FRAMES = 100
"""Frames of 10 ms of a second, in which segments say where their part begins."""


class Recognizer:
    """A model of Parakeet with its tokenizer. One thread at a time may use it."""

    def __init__(
        self, file: GGUFFile, *, devices: Sequence[str | Backend] = ("cpu",), **cpu: Any
    ) -> None:
        """`cpu` has options of the device cpu. Raises FormatError for a file that is damaged."""
        self.parakeet = Parakeet(file, devices=devices, **cpu)
        self.tokenizer = Tokenizer.from_gguf(file)

    def segments(
        self, samples: Samples, *, task: str, timestamps: bool, prompt: str, temperature: float
    ) -> Iterator[Segment]:
        """Yields the segments of a sound: sentences, or what is between pauses; without
        `timestamps`, parts of two minutes. Raises ArgumentError for what Parakeet cannot do."""
        if task != "transcribe":
            raise ArgumentError(
                f"task is {task!r}, but Parakeet writes the language that it hears; translate "
                "with Whisper"
            )
        if prompt:
            raise ArgumentError("Parakeet sees no prompt; leave it out, or give Whisper one")
        if temperature:
            raise ArgumentError(
                f"temperature is {temperature}, but Parakeet writes what is most probable; leave "
                "it out"
            )
        return self._segments(samples, timestamps)

    def _segments(self, samples: Samples, timestamps: bool) -> Iterator[Segment]:
        for at, part in conformer.cut(samples):
            said = self.parakeet.said(part)
            for piece in self._pieces(said) if timestamps else [said]:
                text = self._text(piece)
                if not text.strip():
                    continue
                yield self._segment(piece, text, at / RATE, len(part) / RATE)

    def _segment(self, piece: Sequence[Said], text: str, offset: float, seconds: float) -> Segment:
        """The segment of tokens of a part that begins at `offset` and has this length, in which a
        token may say that it lasts longer."""
        start = piece[0].start * FRAME
        end = min(max(token.end for token in piece) * FRAME, seconds)
        data = text.encode()
        return Segment(
            round(offset + start, 6), round(offset + end, 6), text,
            tuple(token.id for token in piece), 0.0,
            sum(token.logprob for token in piece) / len(piece),
            len(data) / len(zlib.compress(data)), 0.0, round(offset * _FRAMES),
        )  # fmt: skip

    def _text(self, piece: Sequence[Said]) -> str:
        n = self.tokenizer.n_vocab
        return self.tokenizer.decode([token.id for token in piece if token.id < n])

    def _pieces(self, said: Sequence[Said]) -> Iterator[list[Said]]:
        """The tokens of each segment."""
        piece: list[Said] = []
        for token in said:
            if piece and self._ended(piece, token):
                yield piece
                piece = []
            piece.append(token)
        if piece:
            yield piece

    def _ended(self, piece: Sequence[Said], token: Said) -> bool:
        """True if this token begins a segment behind these."""
        if (token.start - piece[-1].end) * FRAME >= PAUSE:
            return True
        if not self._piece(token).startswith(b" "):
            return False  # within a word
        long = (token.start - piece[0].start) * FRAME >= LONGEST
        return long or self._piece(piece[-1]).rstrip().endswith(_ENDS)

    def _piece(self, token: Said) -> bytes:
        n = self.tokenizer.n_vocab
        return self.tokenizer.piece(token.id) if token.id < n else b""
