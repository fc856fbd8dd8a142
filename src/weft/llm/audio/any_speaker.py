"""`AnySpeaker`: what all models that say texts have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.bounds import SPEECH_CHARACTERS
from weft.errors import ArgumentError, ContextError
from weft.llm.audio import wave


class AnySpeaker(ABC):
    """A model that says texts, one at a time: a text ends where the next one begins."""

    rate: int
    """Samples per second."""
    temperature: float
    """The temperature, unless it is given."""
    _files: Mapping[str, Path]
    """The files of voices by their names."""
    _n_texts = 0

    @property
    def voices(self) -> tuple[str, ...]:
        """The names of the voices beside the model."""
        return tuple(self._files)

    def _heat(self, temperature: float | None, seed: int) -> float:
        """The temperature of a text. Raises ArgumentError for one, or a seed, beyond its bounds."""
        heat = self.temperature if temperature is None else temperature
        if not 0 <= heat <= 4:
            raise ArgumentError(f"temperature is {heat}; it is 0 to 4")
        if seed < 0:
            raise ArgumentError(f"seed is {seed}; it is 0 or more")
        return heat

    def _require_short(self, text: str) -> None:
        """Raises ArgumentError for a very long text."""
        if len(text) > SPEECH_CHARACTERS:
            raise ArgumentError(
                f"the text has {len(text)} characters; give at most {SPEECH_CHARACTERS} at a time"
            )

    def _begun(self) -> int:
        """The number of a new text."""
        self._n_texts += 1
        return self._n_texts

    def _require_turn(self, number: int) -> None:
        """Raises ContextError for a text behind which another was begun."""
        if number != self._n_texts:
            raise ContextError("another text was begun meanwhile; a model says one at a time")

    @abstractmethod
    def explain(self) -> str:
        """The graphs and the bytes in memory."""

    @abstractmethod
    def speak(
        self,
        text: str,
        *,
        voice: Any = None,
        temperature: float | None = None,
        seed: int = 0,
        files: bool = True,
    ) -> Iterator[NDArray[np.float32]]:
        """Yields the samples of a text from -1 to 1, as they are made. With `files` False, a
        `voice` is a name. Raises ArgumentError for an empty or a very long text and for an unknown
        voice."""

    def wav(
        self, text: str, *, voice: Any = None, temperature: float | None = None, seed: int = 0
    ) -> bytes:
        """The WAV file of a text; see `speak`."""
        parts = self.speak(text, voice=voice, temperature=temperature, seed=seed)
        sound = wave.pcm(np.concatenate(list(parts)))
        return wave.head(self.rate, len(sound) // 2) + sound
