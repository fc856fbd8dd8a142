"""`Transcriber`: what is said in a sound of any length, in segments with times.

The sound is read in windows. In each the decoder writes text between tokens of times, by the rules
of Whisper (arXiv 2212.04356, section 4.5), and the next window begins where the last whole segment
ended. A text that repeats itself or is improbable is written again at a higher temperature.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from weft.backends.base import Backend
from weft.bounds import TRANSCRIPT_PROMPT
from weft.compiler import resolve_devices
from weft.errors import ArgumentError, FormatError
from weft.frontends.gguf import GGUFFile
from weft.llm.audio import languages, whisper
from weft.llm.audio.recognizer import Recognizer
from weft.llm.audio.segments import Segment
from weft.llm.audio.sounds import Samples, open_sound
from weft.llm.audio.spectra import RATE
from weft.llm.audio.speech import Speech, open_speech
from weft.llm.tokenizers.tokenizer import Tokenizer
from weft.records import dataclass

Task: TypeAlias = Literal["transcribe", "translate"]
STEP = 0.02
"""Seconds from one token of a time to the next."""
TEMPERATURES = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""The temperatures that are tried in order."""


@dataclass(frozen=True, slots=True)
class Limits:
    """When a text is written again."""

    repetition: float | None = 2.4
    """Maximum number of bytes of a text for each byte that zlib makes of it; None: any number."""
    logprob: float | None = -1.0
    """Least mean logarithm of the probabilities of tokens; None: any."""
    silence: float | None = 0.6
    """Probability of silence above which a text that is improbable is left out; None: never."""


@dataclass(frozen=True, slots=True)
class _Written:
    """The text of a window."""

    ids: list[int]
    text: str
    temperature: float
    logprob: float
    repetition: float
    silence: float


class Transcriber:
    """A model of Whisper or Parakeet with its tokenizer. One thread at a time may use it."""

    def __init__(
        self,
        path: str | os.PathLike[str] | GGUFFile,
        *,
        devices: Sequence[str | Backend] = ("cpu",),
        type_kv: str = "f16",
        **cpu: Any,
    ) -> None:
        """Opens the folder or GGUF file at `path`; `type_kv` is the type of the caches, `cpu` has
        options of the device cpu, such as `n_threads`. Raises FormatError for another model and
        for one that is damaged."""
        backends = resolve_devices(devices, **cpu)  # names what is unknown before it reads a file
        self.file = open_speech(path)
        self._recognizer: Recognizer | None = None
        if self.file.architecture == "parakeet":
            self._recognizer = Recognizer(self.file, devices=backends)
            return
        self.speech = Speech(self.file, devices=backends, type_kv=type_kv)
        self.tokenizer = Tokenizer.from_gguf(self.file)
        self._start, self._end, self._plain = (
            self._required(name)
            for name in ("<|startoftranscript|>", "<|endoftext|>", "<|notimestamps|>")
        )
        self._times = self._plain + 1
        if self._times >= self.tokenizer.n_vocab:
            raise FormatError(f"{self.file.path}: the vocabulary has no tokens of times")
        ids = {"first": "begin_suppress_tokens", "always": "suppress_tokens"}
        self._first, self._never = (self._ids(f"whisper.{key}") for key in ids.values())
        self._latest = self.file.get_int("whisper.max_initial_timestamp_index", 50)

    def _required(self, name: str) -> int:
        found = self._token(name)
        if found is None:
            raise FormatError(
                f"{self.file.path}: the vocabulary has no token {name}; give the whole folder of "
                "the model, tokenizer.json included"
            )
        return found

    def _token(self, name: str) -> int | None:
        ids = self.tokenizer.encode(name, add_special=False, parse_special=True)
        return ids[0] if len(ids) == 1 else None

    def _ids(self, key: str) -> NDArray[np.int64]:
        if key not in self.file.metadata:
            return np.empty(0, np.int64)
        ids = np.asarray(self.file.get_array(key), np.int64)
        return ids[(ids >= 0) & (ids < self.tokenizer.n_vocab)]

    @cached_property
    def languages(self) -> dict[str, int]:
        """The token of each language that the model knows, by its code; empty for a model of
        English alone, and for Parakeet."""
        if self._recognizer is not None:
            return {}
        found = {code: self._token(f"<|{code}|>") for code in languages.NAMES}
        return {code: id_ for code, id_ in found.items() if id_ is not None}

    @property
    def window(self) -> int:
        """Samples of a window."""
        return self.speech.config.encoder.frames * whisper.HOP

    # ---- what is asked ---------------------------------------------------------------------------

    def segments(
        self,
        sound: Any,
        *,
        language: str | None = None,
        task: Task = "transcribe",
        timestamps: bool = True,
        prompt: str = "",
        previous: bool = False,
        temperatures: Sequence[float] = TEMPERATURES,
        limits: Limits | None = None,
        seed: int = 0,
        files: bool = True,
    ) -> Iterator[Segment]:
        """Yields the segments of a sound (see `open_sound`) as they are written.

        `language` is a code or a name; None asks the model. `task` "translate" writes English.
        Without `timestamps` each window is a segment. `prompt` is text that may come before,
        `previous` puts the text of the windows before there. `files` is as in `open_sound`. Raises
        ArgumentError for a language or a task that the model does not know, and a negative seed.

        Parakeet hears its languages without being told, and its segments are sentences; it has no
        other task, no prompt and no temperature."""
        if seed < 0:
            raise ArgumentError(f"seed is {seed}; it is 0 or more")
        if self._recognizer is not None:
            return self._recognizer.segments(
                open_sound(sound, RATE, files=files, long=True), task=task, timestamps=timestamps,
                prompt=prompt, temperature=temperatures[0] if temperatures else 0.0,
            )  # fmt: skip
        begin = self._begin(language, task, timestamps)
        samples = open_sound(sound, RATE, files=files, long=True)
        return self._segments(
            samples, begin, timestamps, prompt, previous, tuple(temperatures) or (0.0,),
            limits or Limits(), seed,
        )  # fmt: skip

    def language_of(self, sound: Any, *, files: bool = True) -> tuple[str, float]:
        """The language of the first window of a sound, as a code, and its probability; ("en", 1.0)
        for a model of English alone, ("", 0.0) for Parakeet, which does not say."""
        if self._recognizer is not None:
            return "", 0.0
        samples = open_sound(sound, RATE, files=files, long=True)
        self.speech.hear(self._spectrogram(samples[: self.window]))
        return self._heard_language()

    def _begin(self, language: str | None, task: Task, timestamps: bool) -> list[int | None]:
        """The tokens in front of a text; None stands for a language that is not known yet."""
        ids: list[int | None] = [self._start]
        if task not in ("transcribe", "translate"):
            raise ArgumentError(f"task is {task!r}; it is transcribe or translate")
        code = languages.code_of(language)
        if self.languages:
            if code is not None and code not in self.languages:
                raise ArgumentError(
                    f"language is {str(language)[:40]!r}; the model knows "
                    f"{', '.join(self.languages)}"
                )
            ids += [self.languages[code] if code else None, self._required(f"<|{task}|>")]
        elif code not in (None, "en") or task == "translate":
            raise ArgumentError("the model writes English from English only")
        return ids if timestamps else [*ids, self._plain]

    def _heard_language(self) -> tuple[str, float]:
        """The language of the window that was heard."""
        if not self.languages:
            return "en", 1.0
        logits = self.speech.write([self._start], first=0)
        codes = list(self.languages)
        chances = np.exp(_logprobs(logits[list(self.languages.values())]))
        best = int(chances.argmax())
        return codes[best], float(chances[best])

    def _spectrogram(self, samples: Samples) -> NDArray[np.float32]:
        """The spectrogram of a sound; one that is shorter than a window is followed by silence."""
        short = max(self.window - len(samples), 0)
        return whisper.log_mel(np.pad(samples, (0, short)), self.speech.config.encoder.n_mel)

    # ---- windows ---------------------------------------------------------------------------------

    def _segments(
        self,
        samples: Samples,
        begin: list[int | None],
        timestamps: bool,
        prompt: str,
        previous: bool,
        temperatures: Sequence[float],
        limits: Limits,
        seed: int,
    ) -> Iterator[Segment]:
        mel, frames = self._spectrogram(samples), self.speech.config.encoder.frames
        n_frames = -(-len(samples) // whisper.HOP)
        before = self._encoded(prompt)
        random = np.random.default_rng(seed)
        seek, n_windows = 0, 0
        while seek < n_frames:
            n = min(n_frames - seek, frames)
            part = np.zeros((len(mel), frames), np.float32)
            heard = mel[:, seek : seek + (frames if n_frames <= frames else n)]
            part[:, : heard.shape[1]] = heard
            self.speech.hear(part)
            if None in begin:
                known = self.languages[self._heard_language()[0]]
                begin = [known if id_ is None else id_ for id_ in begin]
            told = [id_ for id_ in begin if id_ is not None]
            written = self._written(before, told, timestamps, temperatures, limits, random)
            step, n_windows = n, n_windows + 1
            if written is not None:
                found, step = self._cut(written, seek, n, timestamps)
                yield from (segment for segment in found if segment.text.strip())
                if previous and written.temperature < 0.5:
                    before = (before + [id_ for s in found for id_ in s.tokens])[
                        -self._most_before :
                    ]
                elif previous:
                    before = []
            # a model that ends segments at once would be asked forever
            seek += step if step > 0 and n_windows <= 16 + n_frames // 50 else n

    @property
    def _most_before(self) -> int:
        """Maximum number of tokens of text in front of a window's own."""
        return self.speech.config.n_ctx // 2 - 1

    def _encoded(self, prompt: str) -> list[int]:
        if not prompt:
            return []
        if len(prompt) > TRANSCRIPT_PROMPT:
            raise ArgumentError(
                f"the prompt has {len(prompt)} characters; give at most {TRANSCRIPT_PROMPT}"
            )
        ids = self.tokenizer.encode(f" {prompt.strip()}", add_special=False)
        return ids[-self._most_before :]

    def _written(
        self,
        before: list[int],
        begin: list[int],
        timestamps: bool,
        temperatures: Sequence[float],
        limits: Limits,
        random: np.random.Generator,
    ) -> _Written | None:
        """The text of the window that was heard; None: nobody speaks there."""
        front = self._token("<|startofprev|>") if before else None
        ids = [*([front, *before] if front is not None else []), *begin]
        for temperature in temperatures:
            written = self._once(ids, len(ids) - len(begin), timestamps, temperature, random)
            low = limits.logprob is not None and written.logprob < limits.logprob
            if low and limits.silence is not None and written.silence > limits.silence:
                return None
            again = limits.repetition is not None and written.repetition > limits.repetition
            if not (low or again):
                break
        return written

    def _once(
        self,
        front: list[int],
        at: int,
        timestamps: bool,
        temperature: float,
        random: np.random.Generator,
    ) -> _Written:
        """Writes a text behind the tokens `front`; `at` is the place of the first token of this
        window."""
        speech, silence = self.speech, 0.0
        quiet = self._token("<|nospeech|>")
        quiet = self._token("<|nocaptions|>") if quiet is None else quiet
        logits = speech.write(front[: at + 1], first=0)
        if quiet is not None:  # it is said behind the token that begins a transcript
            silence = float(np.exp(_logprobs(logits)[quiet]))
        if front[at + 1 :]:
            logits = speech.write(front[at + 1 :])
        ids: list[int] = []
        total, room = 0.0, speech.config.n_ctx - len(front)
        while True:
            self._rule(logits, ids, timestamps)
            chances = _logprobs(logits)
            if temperature > 0:
                noise = random.gumbel(size=len(logits))
                chosen = int((logits / temperature + noise).argmax())
            else:
                chosen = int(logits.argmax())
            total += float(chances[chosen])
            if chosen == self._end:
                break
            ids.append(chosen)
            if len(ids) >= room:
                break
            logits = speech.write([chosen])
        text = self._text(ids)
        data = text.encode()
        repetition = len(data) / len(zlib.compress(data)) if data else 0.0
        return _Written(ids, text, temperature, total / (len(ids) + 1), repetition, silence)

    def _text(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode([id_ for id_ in ids if id_ < self._end])

    def _rule(self, logits: NDArray[np.float32], ids: Sequence[int], timestamps: bool) -> None:
        """Rules out tokens that may not follow `ids`: times come in pairs and never go back, the
        first token is one, and a time comes where times together are more probable than any other
        token."""
        first, end = self._times, self._end
        logits[self._never] = -np.inf
        if not ids:
            logits[self._first] = -np.inf
        if not timestamps:
            return
        logits[self._plain] = -np.inf
        is_time = [id_ >= first for id_ in ids[-2:]]
        if is_time[-1:] == [True]:
            if len(is_time) < 2 or is_time[0]:
                logits[first:] = -np.inf
            else:
                logits[:end] = -np.inf
        last = next((id_ for id_ in reversed(ids) if id_ >= first), None)
        if last is not None:
            pair = is_time == [False, True]  # the second of a pair may be the same
            logits[first : last + (0 if pair else 1)] = -np.inf
        if not ids:
            logits[:first] = -np.inf
            logits[first + self._latest + 1 :] = -np.inf
        chances = _logprobs(logits)
        times = chances[first:]
        most = times.max()
        if np.isfinite(most):
            together = most + np.log(np.exp(times - most).sum())
            if together > chances[:first].max():
                logits[:first] = -np.inf

    def _cut(
        self, written: _Written, seek: int, n: int, timestamps: bool
    ) -> tuple[list[Segment], int]:
        """The segments of a window of n frames from `seek` on, and the frames until the next
        window."""
        ids, first = written.ids, self._times
        frame, offset = whisper.HOP / RATE, seek * whisper.HOP / RATE
        is_time = [id_ >= first for id_ in ids]

        def segment(part: Sequence[int], start: float, end: float) -> Segment:
            return Segment(
                round(offset + start, 6), round(offset + end, 6), self._text(part), tuple(part),
                written.temperature, written.logprob, written.repetition, written.silence, seek,
            )  # fmt: skip

        ends = [i + 1 for i in range(len(ids) - 1) if is_time[i] and is_time[i + 1]]
        if not timestamps or not ends:
            last = n * frame
            times = [id_ for id_ in ids if id_ >= first]
            if timestamps and times and times[-1] != first:
                last = (times[-1] - first) * STEP
            return [segment(ids, 0.0, last)], n
        whole = is_time[-2:] == [False, True]  # nobody speaks behind the last segment
        if whole:
            ends.append(len(ids))
        out, start = [], 0
        for end in ends:
            part = ids[start:end]
            out.append(segment(part, (part[0] - first) * STEP, (part[-1] - first) * STEP))
            start = end
        steps = round(STEP * RATE / whisper.HOP)
        return out, n if whole else (ids[ends[-1] - 1] - first) * steps


def _logprobs(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    most = logits.max()
    if not np.isfinite(most):
        return np.full_like(logits, -np.inf)
    shifted = logits - most
    return np.asarray(shifted - np.log(np.exp(shifted).sum()), np.float32)
