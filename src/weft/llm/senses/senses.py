"""`Senses`: what a model sees and hears, and prompts with images and sounds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

from weft.errors import ContextError, FormatError
from weft.llm.audio.hearing import Hearing
from weft.llm.audio.tower import SoundTower
from weft.llm.compute.context import Context
from weft.llm.config_keys import Keys
from weft.llm.senses.decoding import one_request
from weft.llm.senses.messages import Medium, counted
from weft.llm.senses.tower import open_mmproj
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.llm.vision.sight import Sight
from weft.llm.vision.tower import Tower
from weft.records import dataclass

__all__ = ["Senses", "Towers", "open_towers"]


@dataclass(frozen=True, slots=True)
class Towers:
    """The towers of a file."""

    image: Tower | None
    audio: SoundTower | None
    unknown: str = ""
    """Why a tower of the file is not there, although another is."""

    @property
    def all(self) -> list[Tower | SoundTower]:
        """The encoders that the model has."""
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
            raise ContextError(
                f"{counted(media)} have {least} rows, but the context holds "
                f"{self._context.n_ctx_seq}; make n_ctx (-c) larger, or give fewer"
            )
        rows: list[list[int]] = []
        n, most = 0, self._context.n_ctx_seq
        with one_request():
            for sense, medium in zip(senses, media, strict=True):
                rows.append(sense.ids(medium.value, files=files))
                n += len(rows[-1])
                if n > most:  # before the others are decoded
                    raise ContextError(
                        f"{counted(media)} have more than {most} rows, which is what the context "
                        "holds; make n_ctx (-c) larger, or give fewer"
                    )
        ids: list[int] = []
        for i, piece in enumerate(pieces):
            text = (senses[i - 1].after if i else "") + piece
            text += senses[i].before if i < len(media) else ""
            if text:
                ids += self._tokenizer.encode(text, add_special=False, parse_special=True)
            if i < len(media):
                ids += rows[i]
        vocab = self._tokenizer.vocab
        if vocab.bos is None or not vocab.add_bos or ids[:1] == [vocab.bos]:
            return ids
        return [vocab.bos, *ids]
