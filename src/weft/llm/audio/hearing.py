"""`Hearing`: sounds as token ids of a context, whose rows a tower computes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError
from weft.llm.audio.sounds import Samples, open_sound
from weft.llm.audio.tower import SoundTower
from weft.llm.compute.context import Context
from weft.llm.senses.sense import Sense

__all__ = ["Hearing"]


class Hearing(Sense):
    """A tower for sound beside a context. Threads may share it."""

    noun = "a sound"

    def __init__(self, tower: SoundTower, context: Context) -> None:
        """Raises FormatError for a tower of another model."""
        super().__init__(tower, context)
        self.tower = tower
        self.before, self.after = tower.family.before, tower.family.after
        self.least = 1

    def ids(self, sound: Any, *, files: bool = True) -> list[int]:
        """The ids that stand for a sound, without text around them; `open_sound` says what a sound
        is. The tower computes only sounds that are not kept."""
        samples = open_sound(sound, self.tower.family.rate, files=files)
        key = self._key(samples)
        with self._lock:
            known = self._context.input_rows.find(key)
            if known is not None:
                return known
            self._require_room(self._n_rows(samples))
            return self._context.input_rows.add(key, self._rows(samples))

    def rows(self, sound: Any) -> NDArray[np.float32]:
        """What the tower makes of a sound: f32 [n, n_embd]."""
        samples = open_sound(sound, self.tower.family.rate)
        with self._lock:
            self._n_rows(samples)
            return self._rows(samples)

    def _n_rows(self, samples: Samples) -> int:
        n = self.tower.family.n_rows(self.tower.config, len(samples))
        if n < 1:
            seconds = len(samples) / self.tower.family.rate
            raise ContextError(f"a sound has {seconds:.3f} seconds, too few to be heard")
        return n

    def _rows(self, samples: Samples) -> NDArray[np.float32]:
        parts = self.tower.family.parts(self.tower.config, samples)
        return np.concatenate([self._run(values)[:n] for values, n in parts])
