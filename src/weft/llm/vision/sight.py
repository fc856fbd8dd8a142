"""`Sight`: images as token ids of a context, whose rows a tower computes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.errors import ContextError, FormatError
from weft.llm.compute.context import Context
from weft.llm.senses.sense import Sense
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.llm.vision.family import Tile
from weft.llm.vision.pictures import Pixels, open_picture, pillow
from weft.llm.vision.tower import Tower

__all__ = ["Sight"]


class Sight(Sense):
    """A tower for images beside a context. Threads may share it."""

    noun = "an image"

    def __init__(self, tower: Tower, context: Context, tokenizer: Tokenizer) -> None:
        """Raises FormatError for a tower of another model, and ContextError if an image does not
        fit into the context, and without Pillow."""
        pillow()
        super().__init__(tower, context)
        self.tower = tower
        self._tokenizer = tokenizer
        self.before, self.after = tower.family.before, tower.family.after
        self.least = 1 if tower.family.lines else tower.n_rows
        self._together = tower.family.together and context.model.config.rows_join != "none"
        if self._together and tower.n_rows > context.n_ubatch:
            raise ContextError(
                f"an image has {tower.n_rows} rows that are computed at once, but `n_ubatch` is "
                f"{context.n_ubatch}; make `n_ubatch` {tower.n_rows} or more"
            )
        end = tower.family.line_end
        self._line_end = self._encoded(end)
        if end and len(self._line_end) != 1:
            raise FormatError(
                f"{context.model.file.path}: the tokenizer has no token {end}, which stands "
                "between the lines of an image; convert the model again"
            )

    def ids(self, picture: Any, *, files: bool = True) -> list[int]:
        """The ids that stand for an image, without text around them; `open_picture` says what an
        image is. The tower computes only images that are not kept."""
        pixels = open_picture(picture, files=files)
        family, c = self.tower.family, self.tower.config
        self._require_room(family.n_rows(c, *pixels.shape[:2]))
        if family.tiles is None:
            return self._ids_of(pixels)
        ids: list[int] = []
        for tile in family.tiles(c, pixels):
            ids += [*self._encoded(tile.before), *self._ids_of(tile.pixels)]
            ids += self._encoded(tile.after)
        return ids

    def _encoded(self, text: str) -> list[int]:
        if not text:
            return []
        return self._tokenizer.encode(text, add_special=False, parse_special=True)

    def _ids_of(self, pixels: Pixels) -> list[int]:
        """The ids of an image that the tower sees at once."""
        key = self._key(pixels)
        with self._lock:
            family, c = self.tower.family, self.tower.config
            line = family.line(c, *pixels.shape[:2]) if family.line else 0
            known = self._context.input_rows.find(key)
            if known is not None:
                return self._lined(known, line)
            pixels = family.sized(c, pixels)
            width = pixels.shape[1] // (c.patch_size * c.merge) if family.lines else 0
            ids = self._context.input_rows.add(
                key, self._rows(pixels), together=self._together, width=width
            )
            return self._lined(ids, line)

    def _lined(self, ids: list[int], line: int) -> list[int]:
        """The ids with the token that ends a line between each `line` of them and the next."""
        if not line:
            return ids
        out = ids[:line]
        for i in range(line, len(ids), line):
            out += [*self._line_end, *ids[i : i + line]]
        return out

    def rows(self, picture: Any) -> NDArray[np.float32]:
        """What the tower makes of an image: f32 [n, n_embd]."""
        pixels, family, c = open_picture(picture), self.tower.family, self.tower.config
        tiles = [Tile(family.sized(c, pixels))] if family.tiles is None else family.tiles(c, pixels)
        with self._lock:
            return np.concatenate([self._rows(tile.pixels) for tile in tiles])

    def _rows(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self._run(self.tower.family.values(self.tower.config, pixels))
