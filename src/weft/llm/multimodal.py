"""Prompts with images and sounds: the towers of an `mmproj` file beside a context.

`Sight` and `Hearing` turn a medium into token ids of the context, whose rows a tower computes;
`Senses` has both, and makes prompts of texts with media between them.
"""

from __future__ import annotations

import hashlib
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from weft.compiler import Plan, lower_plan, plan_graph, resolve_devices
from weft.errors import ContextError, ContextFull, FormatError
from weft.execute import Session
from weft.llm.audio.sounds import Samples, open_sound
from weft.llm.audio.tower import SoundTower
from weft.llm.compute.context import Context
from weft.llm.config_keys import Keys
from weft.llm.senses.media import Medium, counted, one_request
from weft.llm.senses.tower import AnyTower, open_mmproj
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.llm.vision.config import Tile
from weft.llm.vision.images import Pixels, open_picture, pillow
from weft.llm.vision.tower import Tower
from weft.records import dataclass
from weft.tables import size_text


@dataclass(frozen=True, slots=True)
class Towers:
    """The towers of a file."""

    image: Tower | None
    audio: SoundTower | None
    unknown: str = ""
    """Why a tower of the file is not there, although another is."""

    @property
    def all(self) -> list[Tower | SoundTower]:
        """The towers that the file has."""
        return [tower for tower in (self.image, self.audio) if tower is not None]


def open_towers(path: str | os.PathLike[str]) -> Towers:
    """Opens an `mmproj` file, or a folder of Hugging Face that has towers; no weight is read. Of
    two towers in a file, one may be of a kind that is not known.

    Raises FormatError for a file that is missing, damaged, or without a tower that is known."""
    file = open_mmproj(path)
    keys = Keys(file)
    found: dict[str, Tower | SoundTower] = {}
    why: list[FormatError] = []
    for sense, make in (("vision", Tower), ("audio", SoundTower)):
        if keys.flag(f"has_{sense}_encoder", False):
            try:
                found[sense] = make(file)
            except FormatError as error:
                why.append(error)
    if not found:
        raise why[0] if why else FormatError(f"{file.path}: this mmproj file has no tower")
    image, audio = found.get("vision"), found.get("audio")
    assert not isinstance(image, SoundTower) and not isinstance(audio, Tower)
    return Towers(image, audio, str(why[0]) if why else "")


class Senses:
    """The towers of a file beside a context. Threads may share it."""

    def __init__(self, towers: Towers, context: Context, tokenizer: Tokenizer) -> None:
        """Raises FormatError for towers of another model, and ContextError if an image does not fit
        into the context, and without Pillow."""
        image, audio = towers.image, towers.audio
        self.sight = None if image is None else Sight(image, context, tokenizer)
        self.hearing = None if audio is None else Hearing(audio, context)
        self._unknown = towers.unknown
        self._context = context
        self._tokenizer = tokenizer

    def of(self, kind: Literal["image", "audio"]) -> Sight | Hearing:
        """The sense for images or sounds. Raises ContextError if there is none."""
        sense = self.sight if kind == "image" else self.hearing
        if sense is None:
            what = "images" if kind == "image" else "sound"
            raise ContextError(self._unknown or f"the mmproj file has no tower for {what}")
        return sense

    def about(self) -> list[str]:
        """A line for each tower; see `Sense.about`."""
        return [sense.about() for sense in (self.sight, self.hearing) if sense is not None]

    def prompt(
        self, pieces: Sequence[str], media: Sequence[Medium], *, files: bool = True
    ) -> list[int]:
        """The token ids of texts with an image or a sound between each and the next. Names of
        control tokens are read as these tokens; if the model expects BOS, it comes first, once.
        Without `files`, media come as data only."""
        senses = [self.of(medium.kind) for medium in media]
        least = sum(sense.least for sense in senses)
        if least > self._context.n_ctx_seq:
            raise ContextFull(
                f"{counted(media)} have {least} rows or more, but the context holds "
                f"{self._context.n_ctx_seq}; make `n_ctx` larger, or give fewer"
            )
        rows: list[list[int]] = []
        n, most = 0, self._context.n_ctx_seq
        with one_request():
            for sense, medium in zip(senses, media, strict=True):
                rows.append(sense.ids(medium.value, files=files))
                n += len(rows[-1])
                if n > most:  # before the others are decoded
                    raise ContextFull(
                        f"{counted(media)} have more than {most} rows, which is what the context "
                        "holds; make `n_ctx` larger, or give fewer"
                    )
        ids: list[int] = []
        for i, piece in enumerate(pieces):
            text = (senses[i - 1].after if i else "") + piece
            if i < len(media):
                text += senses[i].before.replace("{number}", str(senses[:i].count(senses[i])))
            if text:
                ids += self._tokenizer.encode(text, add_special=False, parse_special=True)
            if i < len(media):
                ids += rows[i]
        vocab = self._tokenizer.vocab
        if vocab.bos is None or not vocab.add_bos or ids[:1] == [vocab.bos]:
            return ids
        return [vocab.bos, *ids]


class Sense(ABC):
    """A tower beside a context. Threads may share it."""

    noun: ClassVar[str]
    """Name of a medium: "an image" or "a sound"."""
    before: str
    after: str
    """Text in front of a medium and behind it."""
    least: int
    """Minimum number of rows of a medium."""

    def __init__(self, tower: AnyTower, context: Context) -> None:
        """Raises FormatError for a tower of another model."""
        tower.require_width(context.model.config.n_embd, context.model.file.path.name)
        self._tower = tower
        self._context = context
        devices = resolve_devices(context.devices_beside())
        rules = context.plan.op_offload
        self.plan: Plan = plan_graph(tower.build(), devices, op_offload=rules)
        """The plan of the tower."""
        self._session: Session | None = None
        self._lock = threading.Lock()

    @abstractmethod
    def ids(self, medium: Any, *, files: bool = True) -> list[int]:
        """The ids that stand for a medium, without text around them. The tower computes only what
        is not kept. Without `files`, it comes as data only."""

    def about(self) -> str:
        """A line with the tower's devices and bytes, which come in addition to the context."""
        program = lower_plan(self.plan)
        compute = sum(spec.size for spec in program.buffers if spec.kind == "arena")
        names = ", ".join(dict.fromkeys(split.device for split in program.splits))
        weights = size_text(self._tower.weights.nbytes)
        return (
            f"tower: {self._tower.file.path.name} on {names}, weights {weights}, compute "
            f"{size_text(compute)}, for {self._tower.what}"
        )

    def _run(self, values: Mapping[str, Any]) -> NDArray[np.float32]:
        """The rows f32 [n, n_embd] that the tower makes of its inputs."""
        if self._session is None:
            self._session = Session(lower_plan(self.plan))
        return np.array(self._session.run(values)["rows"], np.float32)

    def _key(self, data: NDArray[Any]) -> bytes:
        """The name of data in a context."""
        digest = hashlib.sha256(f"{self.noun} {data.shape} {data.dtype}".encode())
        digest.update(np.ascontiguousarray(data).data)
        return digest.digest()

    def _require_room(self, n: int) -> None:
        if n > self._context.n_ctx_seq:
            raise ContextFull(
                f"{self.noun} has {n} rows, but the context holds {self._context.n_ctx_seq} "
                f"tokens; make `n_ctx` larger, or the {self.noun.split()[1]} smaller"
            )


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
        before_of = tower.family.before_of
        self.before = before_of(tower.config) if before_of else tower.family.before
        self.after = tower.family.after
        self.least = tower.least_rows
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
        if family.arranged is not None:
            return [ids[i] for i in family.arranged(c, *pixels.shape[:2]).tolist()]
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
                key,
                self._rows(pixels),
                together=self._together,
                width=width + family.framed,
                framed=family.framed,
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
        """The rows of an image, f32 [n, n_embd]."""
        pixels, family, c = open_picture(picture), self.tower.family, self.tower.config
        tiles = [Tile(pixels)] if family.tiles is None else family.tiles(c, pixels)
        with self._lock:
            parts = [self._rows(family.sized(c, tile.pixels)) for tile in tiles]
        rows = np.concatenate(parts)
        return rows if family.arranged is None else rows[family.arranged(c, *pixels.shape[:2])]

    def _rows(self, pixels: NDArray[np.uint8]) -> NDArray[np.float32]:
        return self._run(self.tower.family.values(self.tower.config, pixels))


class Hearing(Sense):
    """A tower for sound beside a context. Threads may share it."""

    noun = "a sound"

    def __init__(self, tower: SoundTower, context: Context) -> None:
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
        """The rows of a sound, f32 [n, n_embd]."""
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
