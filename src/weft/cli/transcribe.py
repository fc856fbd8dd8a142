"""`weft transcribe` writes down what is said in sounds."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from weft.cli.command import usage_error
from weft.cli.console import say
from weft.cli.groups import Group, grouped
from weft.cli.model_file import ModelFile, takes_model
from weft.cli.text_input import read_bytes
from weft.cli.thread_options import ThreadFlags
from weft.errors import ContextError
from weft.files import write_text
from weft.llm.audio import subtitles
from weft.llm.audio.languages import NAMES
from weft.llm.audio.segments import Segment
from weft.llm.audio.sounds import open_sound
from weft.llm.audio.spectra import RATE
from weft.llm.audio.transcriber import TEMPERATURES, Limits, Transcriber
from weft.options import ADVANCED, option

_SUFFIXES = {"text": "txt"}
_ENDS = ("/", os.sep)


class Format(StrEnum):
    """The formats of transcripts."""

    text = "text"
    srt = "srt"
    vtt = "vtt"
    tsv = "tsv"
    json = "json"


class TranscribeFlags(Group):
    """The options of `weft transcribe`."""

    files: list[Path] | None = option(
        None, "A sound, as without a flag; repeatable.", "--file -f", metavar="FILE"
    )
    language: str | None = option(
        None, "What is spoken: a code such as en, or a name. Without: the model says.",
        "--language -l",
    )  # fmt: skip
    translate: bool = option(False, "Write English, whatever is spoken.", "--translate -tr")
    timestamps: bool = option(False, "Begin each line with the times of what is said.")
    format: Format = option(
        Format.text, "text; subtitles: srt or vtt; a table: tsv; json: all that is known.",
        "--format --output-format",
    )  # fmt: skip
    output: str | None = option(
        None,
        "Write here instead of standard output; several sounds, or a name with / at its end, have "
        "a folder, which is made.",
        "--output -o",
    )
    prompt: str = option("", "Text that may come before, with names as they are written.")
    previous: bool = option(
        False, "Let the model see what it wrote before.", "--previous-text/--no-previous-text"
    )
    whole_windows: bool = option(
        False, "Read windows of 30 seconds without times between.", "--no-times", ADVANCED
    )
    temperature: float = option(0.0, "The temperature to begin with.", panel=ADVANCED)
    fallback: bool = option(
        True, "Write what is improbable or repeats itself again, at higher temperatures.",
        "--fallback/--no-fallback", ADVANCED,
    )  # fmt: skip
    seed: int = option(0, "Seed for temperatures above 0.", panel=ADVANCED)
    quiet: bool = option(False, "Do not print the language to stderr.", "--quiet -q")


@takes_model
@grouped
def transcribe(
    model: ModelFile,
    own: TranscribeFlags,
    threads: ThreadFlags,
    sounds: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[SOUND]", help="WAV, MP3, FLAC or Ogg files; - is stdin."),
    ] = None,
) -> None:
    """Write down what is said in sounds, with a model of Whisper or Parakeet."""
    given = [Path(path) for path in (*(sounds or ()), *(own.files or ()))]
    if not given:
        raise usage_error("SOUND is missing: a WAV, MP3, FLAC or Ogg file, or - for stdin")
    if own.timestamps and own.whole_windows:
        raise usage_error("--timestamps needs the times that --no-times leaves out")
    if not 0 <= own.temperature <= 1:
        raise usage_error(f"--temperature {own.temperature}: it is 0 to 1 here")
    transcriber = Transcriber(model, threads=threads.thread_options())
    output = None if own.output is None else Path(own.output)
    if output is not None and (len(given) > 1 or (own.output or "").endswith(_ENDS)):
        _make_folder(output, given)
    for path in given:
        _one(transcriber, path, own, output, len(given))


def _make_folder(folder: Path, sounds: list[Path]) -> None:
    """Makes the folder for the transcripts of several sounds, whose names must differ."""
    if folder.exists() and not folder.is_dir():
        raise ContextError(f"--output {folder} is a file; give a folder for transcripts of sounds")
    [(name, n)] = Counter(path.stem for path in {*sounds}).most_common(1)
    if n > 1:
        raise ContextError(
            f"{n} sounds are called {name}, and --output has one transcript for each name; write "
            "them one by one"
        )
    folder.mkdir(parents=True, exist_ok=True)


def _one(
    transcriber: Transcriber, path: Path, own: TranscribeFlags, output: Path | None, n: int
) -> None:
    """Writes the transcript of a sound."""
    given = read_bytes(path) if str(path) == "-" else path
    try:
        sound = open_sound(given, RATE, long=True)
    except ContextError as error:
        text = str(error)
        raise (error if str(path) in text else ContextError(f"{path}: {text}")) from None
    language = own.language
    if language is None and transcriber.languages:
        language, chance = transcriber.language_of(sound)
        if not own.quiet:
            say(f"{path}: {NAMES[language]} ({chance:.0%}); --language says another")
    temperatures = [t for t in TEMPERATURES if t > own.temperature] if own.fallback else []
    segments = transcriber.segments(
        sound,
        language=language,
        task="translate" if own.translate else "transcribe",
        timestamps=not own.whole_windows,
        prompt=own.prompt,
        previous=own.previous,
        temperatures=[own.temperature, *temperatures],
        limits=Limits() if own.fallback else Limits(None, None, None),
        seed=own.seed,
    )
    shown = _lines(segments, own, language or transcriber.language_of(sound)[0])
    if output is None:
        if n > 1 and own.format is Format.text:
            print(f"{path}:")
        for line in shown:
            sys.stdout.write(f"{line}\n")
            sys.stdout.flush()
        return
    target = output
    if target.is_dir():
        target /= f"{path.stem}.{_SUFFIXES.get(own.format.value, own.format.value)}"
    write_text(target, "".join(f"{line}\n" for line in shown))


def _lines(segments: Iterable[Segment], own: TranscribeFlags, language: str) -> Iterator[str]:
    if own.format is Format.json:
        yield subtitles.as_json(segments, language)
        return
    yield from subtitles.lines(segments, own.format.value, times=own.timestamps)
