"""`Sight`: images as token ids of a context, whose rows a tower computes."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from weft.compiler import Plan, lower_plan, plan_graph, resolve_devices
from weft.errors import ContextError, FormatError
from weft.execute import Session
from weft.llm.compute.context import Context
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.llm.vision.pictures import open_picture, pillow
from weft.llm.vision.tower import Tower
from weft.tables import size_text

__all__ = ["Sight", "tower_line"]


def tower_line(tower: Tower, plan: Plan) -> str:
    """The devices and the bytes of a tower, planned."""
    program = lower_plan(plan)
    compute = sum(spec.size for spec in program.buffers if spec.kind == "arena")
    names = ", ".join(dict.fromkeys(split.device for split in program.splits))
    return (
        f"tower: {tower.file.path.name} on {names}, weights {size_text(tower.weights.nbytes)}, "
        f"compute {size_text(compute)}"
    )


class Sight:
    """A tower beside a context. Threads may share it."""

    def __init__(self, tower: Tower, context: Context, tokenizer: Tokenizer) -> None:
        """Raises FormatError for a tower of another model, and ContextError if an image does not
        fit into the context, and without Pillow."""
        pillow()
        self.tower = tower
        self._context = context
        self._tokenizer = tokenizer
        tower.require_model(context.model)
        if tower.family.together and tower.n_rows > context.n_ubatch:
            raise ContextError(
                f"an image has {tower.n_rows} rows that are computed at once, but n_ubatch is "
                f"{context.n_ubatch}; make n_ubatch (-ub) {tower.n_rows} or more"
            )
        end = tower.family.line_end
        self._line_end = tokenizer.encode(end, add_special=False, parse_special=True) if end else []
        if end and len(self._line_end) != 1:
            raise FormatError(
                f"{context.model.file.path}: the tokenizer has no token {end}, which stands "
                "between the lines of an image; convert the model again"
            )
        self.plan: Plan = plan_graph(tower.build(), resolve_devices(context.devices_beside()))
        """Where the tower is computed, and why."""
        self._session: Session | None = None
        self._lock = threading.Lock()

    def ids(self, picture: Any, *, files: bool = True) -> list[int]:
        """The ids that stand for an image, without text around them; `open_picture` says what an
        image is. The tower computes only images that are not kept."""
        pixels = open_picture(picture, files=files)
        digest = hashlib.sha256(str(pixels.shape).encode())
        digest.update(np.ascontiguousarray(pixels).data)
        key = digest.digest()
        with self._lock:
            family, c = self.tower.family, self.tower.config
            line = family.line(c, *pixels.shape[:2]) if family.line else 0
            known = self._context.input_rows.find(key)
            if known is not None:
                return self._lined(known, line)
            self._require_room(family.n_rows(c, *pixels.shape[:2]))
            pixels = family.sized(c, pixels)
            width = pixels.shape[1] // (c.patch_size * c.merge) if family.lines else 0
            ids = self._context.input_rows.add(
                key, self._rows(pixels), together=family.together, width=width
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
        pixels = open_picture(picture)
        with self._lock:
            return self._rows(self.tower.family.sized(self.tower.config, pixels))

    def about(self) -> str:
        """A line with the tower's devices and bytes, which come beside those of the context."""
        return tower_line(self.tower, self.plan)

    def _rows(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        if self._session is None:
            self._session = Session(lower_plan(self.plan))
        values = self.tower.family.values(self.tower.config, pixels)
        return np.array(self._session.run(values)["rows"], np.float32)

    def _require_room(self, n: int) -> None:
        if n > self._context.n_ctx_seq:
            raise ContextError(
                f"an image has {n} rows, but the context holds {self._context.n_ctx_seq} tokens; "
                "make n_ctx (-c) larger, or the image smaller"
            )

    def prompt(
        self, pieces: Sequence[str], pictures: Sequence[Any], *, files: bool = True
    ) -> list[int]:
        """The token ids of texts with an image between each and the next. Names of control tokens
        are read as these tokens; if the model expects BOS, it comes first, once. Without `files`,
        images come as data only."""
        least = len(pictures) * (1 if self.tower.family.lines else self.tower.n_rows)
        if least > self._context.n_ctx_seq:
            n = len(pictures)
            has, fix = (
                ("image has", "larger")
                if n == 1
                else ("images have", "larger, or give fewer images")
            )
            raise ContextError(
                f"{n} {has} {least} rows, but the context holds {self._context.n_ctx_seq}; "
                f"make n_ctx (-c) {fix}"
            )
        images = [self.ids(picture, files=files) for picture in pictures]
        ids: list[int] = []
        family = self.tower.family
        for i, piece in enumerate(pieces):
            text = (family.after if i else "") + piece
            text += family.before if i < len(images) else ""
            if text:
                ids += self._tokenizer.encode(text, add_special=False, parse_special=True)
            if i < len(images):
                ids += images[i]
        vocab = self._tokenizer.vocab
        if vocab.bos is None or not vocab.add_bos or ids[:1] == [vocab.bos]:
            return ids
        return [vocab.bos, *ids]
