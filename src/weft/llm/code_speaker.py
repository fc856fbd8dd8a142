"""`CodeSpeaker`: a text model that writes codes of WavTokenizer behind the words that it says
(OuteTTS), with the decoder that makes sound of them; and `open_speaker` for any model that speaks.

The words of a text stand between two tokens; behind them the model repeats each word with its
length in seconds and its codes. A voice is a text with its codes, in front of both.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import Backend
from weft.bounds import SPEECH_CODES, SPEECH_WORDS, VOICE_BYTES
from weft.compiler import resolve_devices
from weft.errors import ArgumentError, ContextError, FormatError
from weft.files import read_json
from weft.frontends.gguf import GGUFFile
from weft.frontends.models import open_model
from weft.llm.audio.any_speaker import AnySpeaker
from weft.llm.audio.speaker import Speaker
from weft.llm.audio.vocoder import Vocoder
from weft.llm.audio.voices import voices_beside
from weft.llm.compute.context import Context
from weft.llm.hub import local_path
from weft.llm.model import Model
from weft.llm.sampling import Sampler, SamplingParams
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.tables import size_text

_VOCODER = "wavtokenizer-dec"
_START, _END = "<|audio_start|>", "<|audio_end|>"
_CODE = re.compile(r"<\|(\d{1,7})\|>")
_CONTEXT = 8192
"""Maximum number of tokens of a voice, a part of a text, and its codes."""


class _Marks(NamedTuple):
    """The tokens between words, and around codes."""

    between: str
    before_codes: str
    behind_codes: str


_MARKS = {
    "<|text_sep|>": _Marks("<|text_sep|>", "<|code_start|>", "<|code_end|>"),  # 0.1 and 0.2
    "<|space|>": _Marks("<|space|>", "", "<|space|>"),  # 0.3
}


class _Word(NamedTuple):
    """A word of a voice."""

    text: str
    seconds: float
    codes: tuple[int, ...]


class CodeSpeaker(AnySpeaker):
    """A model of OuteTTS with a decoder of WavTokenizer. One thread at a time may use it."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        vocoder: str | os.PathLike[str] | GGUFFile,
        *,
        devices: Sequence[str | Backend] = ("cpu",),
        n_ctx: int = 0,
        **cpu: Any,
    ) -> None:
        """Opens the folder or GGUF file at `path`, and the decoder at `vocoder`. `n_ctx` is the
        number of cells (0: what the model was trained for, 8192 at most); `cpu` has options of the
        device cpu. Raises FormatError for another model and for one that is damaged."""
        backends = resolve_devices(devices, **cpu)
        self.vocoder = Vocoder(vocoder, devices=backends)
        model = Model.open(path)
        self.tokenizer = Tokenizer.from_gguf(model.file)
        pieces = [] if self.tokenizer.n_vocab == 0 else _pieces(model.file)
        self._codes: dict[int, int] = {}
        for id_, piece in enumerate(pieces):
            code = _CODE.fullmatch(piece)
            if code is not None and int(code[1]) < self.vocoder.config.n_codes:
                self._codes[id_] = int(code[1])
        known = set(pieces)
        marks = next((marks for name, marks in _MARKS.items() if name in known), None)
        if marks is None or not self._codes or not {_START, _END} <= known:
            raise FormatError(
                f"{model.file.path}: the vocabulary has no tokens of codes and words, as OuteTTS's "
                "has; weft speak takes OuteTTS 0.1 to 0.3 with WavTokenizer, and Pocket TTS"
            )
        self._marks = marks
        self._ends = {pieces.index(_END), *self.tokenizer.vocab.eog}
        trained = model.config.n_ctx_train
        self.context = Context(
            model, min(n_ctx or _CONTEXT, trained), devices=backends, n_batch=512
        )
        self._files = {
            name: file for name, file in voices_beside(Path(model.file.path)).items()
            if file.suffix == ".json"
        }  # fmt: skip
        self.rate = self.vocoder.config.rate
        self.temperature = 0.4

    def explain(self) -> str:
        """The bytes of the text model and of the decoder."""
        memory = self.context.memory
        rows = [
            ("weights of the text model", memory.weights + memory.repacked),
            (f"caches, for {self.context.n_ctx} tokens", memory.cache),
            ("what the text model computes with", memory.compute + memory.scratch),
        ]
        lines = [f"{size_text(n):>10}  {what}" for what, n in rows]
        return "\n".join([*lines, self.vocoder.explain()])

    def speak(
        self,
        text: str,
        *,
        voice: Any = None,
        temperature: float | None = None,
        seed: int = 0,
        files: bool = True,
    ) -> Iterator[NDArray[np.float32]]:
        """Yields the samples of a text, sentence by sentence. `voice` is a name of one of `voices`
        or the path of a JSON file of OuteTTS."""
        heat = self._heat(temperature, seed)
        self._require_short(text)
        parts = [words for part in _sentences(text) for words in _cut(words_of(part))]
        if not parts:
            raise ArgumentError("the text is empty; there is nothing to say")
        known = [] if voice is None else self._voice(voice, files)
        return self._spoken(self._begun(), parts, known, heat, seed)

    def _voice(self, voice: Any, files: bool) -> list[_Word]:
        if isinstance(voice, str) and voice in self._files:
            path = self._files[voice]
        elif files and isinstance(voice, str | os.PathLike) and os.path.isfile(voice):
            path = Path(voice)
        else:
            names = ", ".join(self._files) or "none: the model has no folder of voices"
            raise ArgumentError(f"voice is {str(voice)[:60]!r}; known are {names}")
        if path.stat().st_size > VOICE_BYTES:
            raise ContextError(f"{path}: larger than {VOICE_BYTES >> 20} MiB; give a shorter voice")
        return read_voice(path, self.vocoder.config.n_codes)

    def prompt(self, words: Sequence[str], voice: Sequence[_Word]) -> list[int]:
        """The token ids in front of the codes of words."""
        m = self._marks
        said = m.between.join([*(word.text for word in voice), *words])
        lines = [f"<|im_start|>\n<|text_start|>{said}<|text_end|>\n{_START}\n"]
        for word in voice:
            codes = "".join(f"<|{code}|>" for code in word.codes)
            time = f"<|t_{word.seconds:.2f}|>"
            lines.append(f"{word.text}{time}{m.before_codes}{codes}{m.behind_codes}\n")
        return self.tokenizer.encode("".join(lines), add_special=False, parse_special=True)

    def _spoken(
        self,
        turn: int,
        parts: list[list[str]],
        voice: list[_Word],
        temperature: float,
        seed: int,
    ) -> Iterator[NDArray[np.float32]]:
        context, said = self.context, False
        for number, words in enumerate(parts):
            self._require_turn(turn)
            prompt = self.prompt(words, voice)
            if len(prompt) + 64 > context.n_ctx:
                raise ContextError(
                    f"the voice and the words have {len(prompt)} tokens, and there is memory for "
                    f"{context.n_ctx}; give a shorter voice, or shorter words"
                )
            params = SamplingParams(
                temperature=temperature, top_k=40, seed=seed + number, repeat_penalty=1.1
            )
            sampler = Sampler(params, self.tokenizer)
            sampler.start(prompt)
            context.seq_rm(0)
            logits = context.decode(prompt)[-1]
            codes: list[int] = []
            left = min(context.n_ctx - len(prompt), len(words) * _TOKENS_OF_WORD + 64)
            for _ in range(left):
                id_ = sampler.sample(logits)
                if id_ in self._ends:
                    break
                sampler.accept(id_)
                if id_ in self._codes:
                    codes.append(self._codes[id_])
                if len(codes) == SPEECH_CODES:
                    break
                logits = context.decode([id_])[-1]
            if codes:
                said = True
                yield self.vocoder.samples(codes)
        if not said:
            raise ContextError(
                "the model wrote no sound for the text; say it in other words or languages, or in "
                "another voice, with another seed or a temperature above 0"
            )


_TOKENS_OF_WORD = 120
"""Maximum number of tokens that are written for a word: a second and a half of codes."""


def _pieces(file: GGUFFile) -> list[str]:
    return file.get_str_list("tokenizer.ggml.tokens")


def read_voice(path: Path, n_codes: int) -> list[_Word]:
    """The words of a voice. Raises FormatError for a file that has none."""
    data = read_json(path, "a voice")
    given = data.get("words") if isinstance(data, dict) else None
    words = []
    for word in given if isinstance(given, list) else ():
        try:
            codes = tuple(int(code) for code in word["codes"])
            words.append(_Word(_plain(str(word["word"])), float(word["duration"]), codes))
        except (TypeError, KeyError, ValueError, OverflowError):
            words = []
            break
    good = words and all(
        0 <= word.seconds < 100 and all(0 <= code < n_codes for code in word.codes)
        for word in words
    )
    if not good:
        raise FormatError(
            f"{path}: no voice of OuteTTS, which has `words`, each with `word`, `duration` and "
            f"`codes` below {n_codes}"
        )
    return words


def _plain(word: str) -> str:
    return re.sub(r"[^\w']+|_", "", word.replace("<|", "")).lower()


_ONES = ("zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen "
         "fifteen sixteen seventeen eighteen nineteen").split()  # fmt: skip
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_GROUPS = ((10**9, "billion"), (10**6, "million"), (1000, "thousand"), (100, "hundred"))


def number_words(n: int) -> str:
    """A number in English, below 10^12."""
    if n < 20:
        return _ONES[n]
    if n < 100:
        rest = f" {_ONES[n % 10]}" if n % 10 else ""
        return f"{_TENS[n // 10 - 2]}{rest}"
    size, name = next(group for group in _GROUPS if n >= group[0])
    rest = f" {number_words(n % size)}" if n % size else ""
    return f"{number_words(n // size)} {name}{rest}"


def _in_words(found: re.Match[str]) -> str:
    whole, _, rest = found[0].replace(",", "").partition(".")
    said = number_words(int(whole)) if len(whole) < 13 else " ".join(_ONES[int(d)] for d in whole)
    return f" {said}{' point ' if rest else ''}{' '.join(_ONES[int(d)] for d in rest)} "


def words_of(text: str) -> list[str]:
    """The words of a text as the model was trained on: small letters, numbers in English."""
    text = re.sub(r"\d+(?:,\d{3})*(?:\.\d+)?", _in_words, text, flags=re.ASCII)
    return re.findall(r"[^\W\d_]+(?:'[^\W\d_]+)*", text.lower())


def _sentences(text: str) -> Iterator[str]:
    """The sentences of a text."""
    yield from re.split(r"(?<=[.!?])\s+", text)


def _cut(words: list[str]) -> Iterator[list[str]]:
    for at in range(0, len(words), SPEECH_WORDS):
        yield words[at : at + SPEECH_WORDS]


def open_speaker(
    path: str | os.PathLike[str],
    mmproj: str | os.PathLike[str] | None = None,
    *,
    steps: int = 0,
    **cpu: Any,
) -> AnySpeaker:
    """A model that speaks: Pocket TTS, or OuteTTS, whose decoder is the file `mmproj` or lies
    beside the model. Raises FormatError for another model."""
    found = local_path(path)
    file = open_model(found)
    if file.architecture == "pockettts":
        return Speaker(file, mmproj, steps=steps, **cpu)
    if steps:
        raise ArgumentError(
            f"steps is {steps}, which only Pocket TTS has, and {file.path} is none; leave it out"
        )
    folder = Path(file.path) if Path(file.path).is_dir() else Path(file.path).parent
    beside: Path | str | os.PathLike[str] | None = mmproj
    if beside is None:
        named = sorted(p for p in folder.glob("*") if "wavtokenizer" in p.name.lower())
        beside = named[0] if named else None
    if beside is None:
        raise FormatError(
            f"{file.path}: a {file.architecture} model; weft speak takes Pocket TTS (of Hugging "
            "Face, PocketTTSForConditionalGeneration), and OuteTTS with WavTokenizer's decoder as "
            "--mmproj"
        )
    return CodeSpeaker(found, beside, **cpu)


__all__ = ["CodeSpeaker", "open_speaker"]
