"""`weft speak` says a text as a sound."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, BinaryIO

import numpy as np
import typer
from numpy.typing import NDArray

from weft.cli.command import usage_error
from weft.cli.console import say
from weft.cli.groups import Group, grouped
from weft.cli.model_file import ModelFile, takes_model
from weft.cli.text_input import read_text
from weft.cli.thread_options import ThreadFlags
from weft.errors import WeftError
from weft.files import replacing
from weft.llm.audio import wave
from weft.llm.code_speaker import open_speaker
from weft.options import ADVANCED, option


class SpeakFlags(Group):
    """The options of `weft speak`."""

    file: Path | None = option(
        None, "A file with the text; without it and TEXT: standard input.", "--file -f",
        metavar="FILE",
    )  # fmt: skip
    output: str | None = option(
        None, "The WAV file; - is standard output, as the sound is made.", "--output -o",
        metavar="FILE",
    )  # fmt: skip
    voice: str | None = option(
        None, "The name of a voice of the model, or a sound or .safetensors file of a voice.",
        "--voice -v", metavar="VOICE",
    )  # fmt: skip
    voices: bool = option(False, "List the voices of the model, and say nothing.", "--list-voices")
    explain: bool = option(False, "Show the graphs and the bytes in memory, and say nothing.")
    mmproj: Path | None = option(
        None, "The file that makes sound of what the model writes; default: the one beside it.",
        "--mmproj -mm", metavar="FILE",
    )  # fmt: skip
    temperature: float | None = option(
        None, "How much takes of a text differ; 0: not at all.", "--temperature --temp"
    )
    seed: int = option(0, "Seed of a take.", "--seed -s")
    steps: int = option(0, "Steps that make a frame; 0: the model's number.", panel=ADVANCED)
    quiet: bool = option(False, "Do not print what was written to stderr.", "--quiet -q")


@takes_model
@grouped
def speak(
    model: ModelFile,
    own: SpeakFlags,
    threads: ThreadFlags,
    text: Annotated[
        str | None, typer.Argument(metavar="[TEXT]", help="What is said; - is stdin.")
    ] = None,
) -> None:
    """Say a text as a WAV file, with Pocket TTS or OuteTTS."""
    if own.output is None and not (own.voices or own.explain):
        raise usage_error("--output is missing: the name of a WAV file, or - for standard output")
    speaker = open_speaker(model, own.mmproj, steps=own.steps, threads=threads.thread_options())
    if own.voices:
        for name in speaker.voices:
            print(name)
        return
    if own.explain:
        print(speaker.explain())
        return
    said = read_text(text, own.file)
    parts = speaker.speak(said, voice=own.voice, temperature=own.temperature, seed=own.seed)
    if own.output == "-":
        _stream(sys.stdout.buffer, parts, speaker.rate)
        return
    assert own.output is not None
    with replacing(own.output) as file:
        n = _write(file, parts, speaker.rate)
    if not own.quiet:
        say(f"{own.output}: {n / speaker.rate:.1f} s")


def _stream(out: BinaryIO, parts: Iterable[NDArray[np.float32]], rate: int) -> None:
    if out.isatty():
        raise WeftError("standard output is a terminal; give -o FILE, or a pipe to a player")
    for piece in wave.streamed(parts, rate):
        out.write(piece)
        out.flush()


def _write(file: BinaryIO, parts: Iterable[NDArray[np.float32]], rate: int) -> int:
    """Writes a WAV file; returns the number of samples."""
    file.write(wave.head(rate))
    n = 0
    for part in parts:
        file.write(wave.pcm(part))
        n += len(part)
    file.seek(0, os.SEEK_SET)
    file.write(wave.head(rate, n))
    return n
