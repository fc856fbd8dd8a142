"""Transcripts of a tiny Whisper beside transformers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cli.in_process import weft
from weft.errors import ArgumentError, ContextError, FormatError
from weft.frontends.hf.convert import convert_folder
from weft.llm.audio import sounds, subtitles
from weft.llm.audio.languages import code_of
from weft.llm.audio.transcriber import Limits, Segment, Transcriber
from weft.llm.senses import media

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.llm import speech_models  # noqa: E402
from tests.llm.sounds import wav  # noqa: E402

PLAIN: dict[str, Any] = {"temperatures": [0.0], "limits": Limits(None, None, None)}
"""As transformers writes unless it is told otherwise."""


def noise(seconds: float, seed: int = 3) -> NDArray[np.float32]:
    """Noise that ends in silence."""
    samples = np.random.default_rng(seed).normal(size=int(16000 * seconds)) * 0.1
    samples[-800:] = 0
    return samples.astype(np.float32)


@pytest.fixture(scope="module", params=list(speech_models.KINDS))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("whisper")
    model = speech_models.make(folder, request.param)
    return model, folder, Transcriber(folder, type_kv="f32")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A folder and a sound."""
    folder = tmp_path_factory.mktemp("whisper")
    speech_models.make(folder)
    (folder / "a.wav").write_bytes(wav((noise(2.2) * 32768).astype("<i2")))
    return folder, folder / "a.wav"


def features(samples: NDArray[np.float32], n_mel: int) -> Any:
    extractor = transformers.WhisperFeatureExtractor(feature_size=n_mel, chunk_length=1)
    return extractor(
        samples, sampling_rate=16000, return_tensors="pt", truncation=False,
        padding="max_length" if len(samples) < 16000 else "longest", return_attention_mask=True,
    )  # fmt: skip


@pytest.mark.parametrize("seconds", [0.7, 3.4])
def test_the_spectrogram(made: Any, seconds: float) -> None:
    model, _, transcriber = made
    want = features(noise(seconds), model.config.num_mel_bins).input_features[0].numpy()
    np.testing.assert_allclose(transcriber._spectrogram(noise(seconds)), want, atol=1e-6)


def test_logits(made: Any) -> None:
    """At once and one by one, and again behind some of them."""
    model, _, transcriber = made
    speech, ids = transcriber.speech, [301, 302, 5, 6, 7]
    mel = np.random.default_rng(0).normal(size=(model.config.num_mel_bins, 100))
    with torch.no_grad():
        want = model(
            input_features=torch.tensor(mel, dtype=torch.float32)[None],
            decoder_input_ids=torch.tensor([ids]),
        ).logits[0].numpy()  # fmt: skip
    speech.hear(mel.astype(np.float32))
    got = [speech.write(ids[:2]), speech.write([5]), speech.write([9, 9])]
    got += [speech.write([6, 7], first=3), speech.write(ids, first=0)]
    for logits, at in zip(got, [1, 2, None, 4, 4], strict=True):
        if at is not None:
            np.testing.assert_allclose(logits, want[at], atol=2e-5)
    with pytest.raises(ContextError, match="a window has 49 tokens"):
        speech.write([5] * 44)


TEXTS: list[dict[str, Any]] = [
    {"language": "en"}, {"language": None, "task": "translate"}, {"language": "German"},
]  # fmt: skip


@pytest.mark.parametrize("asked", TEXTS, ids=str)
def test_segments_of_transformers(made: Any, asked: dict[str, Any]) -> None:
    """A sound of several windows: the tokens and the times of each segment."""
    model, _, transcriber = made
    samples = noise(3.4)
    heard = features(samples, model.config.num_mel_bins)
    out = model.generate(
        heard.input_features, attention_mask=heard.attention_mask, return_timestamps=True,
        return_segments=True, **{"task": "transcribe"} | asked,
    )  # fmt: skip
    want = [(s["start"], s["end"], s["tokens"].tolist()) for s in out["segments"][0]]
    for _, _, ids in want:  # of two times at the end, the second belongs to the next window
        if len(ids) > 1 and min(ids[-2:]) >= transcriber._times:
            ids.pop()
    got = list(transcriber.segments(samples, **asked, **PLAIN))
    assert len(got) > 2
    assert [list(s.tokens) for s in got] == [ids for _, _, ids in want]
    times = [(s.start, s.end) for s in got]
    np.testing.assert_allclose(times, [(float(a), float(b)) for a, b, _ in want], atol=1e-6)


def test_a_short_sound_without_times(made: Any) -> None:
    model, _, transcriber = made
    heard = features(noise(0.7), model.config.num_mel_bins).input_features
    with torch.no_grad():
        out = model.generate(heard, return_timestamps=False, language="en", task="transcribe")
    found = list(transcriber.segments(noise(0.7), language="en", timestamps=False, **PLAIN))
    ids = [id_ for id_ in out[0].tolist() if id_ != transcriber._end]
    assert ids[-len(found[0].tokens) :] == list(found[0].tokens) and len(found) == 1
    assert (found[0].start, found[0].end) == (0.0, 0.7)


def test_the_language(made: Any) -> None:
    model, _, transcriber = made
    heard = features(noise(0.7), model.config.num_mel_bins).input_features
    want = int(model.detect_language(heard)[0])
    code, chance = transcriber.language_of(noise(0.7))
    assert list(transcriber.languages) == ["en", "de"]
    assert transcriber.languages[code] == want and 0.5 < chance < 1
    with pytest.raises(ArgumentError, match="language is 'fr'; the model knows en, de"):
        transcriber.segments(noise(0.7), language="fr")
    assert [code_of(x) for x in ("English", "en-US", "auto", "Mandarin", None)] == [
        "en", "en", None, "zh", None,
    ]  # fmt: skip


def test_texts_that_are_written_again(made: Any) -> None:
    """At higher temperatures, with the same seed the same; and windows of silence are left out."""
    transcriber = made[2]
    asked = {"language": "en", "limits": Limits(None, 0.0, None)}
    first, again, other = (
        list(transcriber.segments(noise(1.5), seed=seed, **asked)) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert {segment.temperature for segment in first} == {1.0}
    quiet = Limits(None, 0.0, -1.0)
    assert not list(transcriber.segments(noise(1.5), language="en", limits=quiet))


def test_text_in_front(made: Any) -> None:
    """A prompt and the text of windows before change what is written, and never exceed their
    half of the room."""
    transcriber = made[2]
    plain, asked, before = (
        [s.tokens for s in transcriber.segments(noise(3.4), language="en", **more, **PLAIN)]
        for more in ({}, {"prompt": "the quick brown fox " * 40}, {"previous": True})
    )
    assert plain != asked and plain != before and plain[0] == before[0]
    with pytest.raises(ArgumentError, match="the prompt has 9000 characters"):
        list(transcriber.segments(noise(1.0), language="en", prompt="x" * 9000))


def test_a_model_of_english(tmp_path: Path) -> None:
    model = speech_models.make(tmp_path, english=True)
    transcriber = Transcriber(tmp_path, type_kv="f32")
    heard = features(noise(3.4), 16)
    out = model.generate(
        heard.input_features, attention_mask=heard.attention_mask, return_timestamps=True,
        return_segments=True,
    )  # fmt: skip
    got = list(transcriber.segments(noise(3.4), **PLAIN))
    assert [s.start for s in got] == pytest.approx([float(s["start"]) for s in out["segments"][0]])
    assert transcriber.language_of(noise(0.7)) == ("en", 1.0)
    with pytest.raises(ArgumentError, match="English from English only"):
        transcriber.segments(noise(0.7), task="translate")


def test_files(small: tuple[Path, Path], tmp_path: Path) -> None:
    """The files that a folder converts to; one of 8 bits writes, too."""
    folder, sound = small
    texts = []
    for kind in ("f32", "q8_0"):
        convert_folder(folder, tmp_path / f"{kind}.gguf", kind)
        found = Transcriber(tmp_path / f"{kind}.gguf", type_kv="f32")
        texts.append([s.tokens for s in found.segments(sound, language="en", **PLAIN)])
    straight = Transcriber(folder, type_kv="f32").segments(sound, language="en", **PLAIN)
    assert texts[0] == [s.tokens for s in straight] and texts[1]


def test_the_command(small: tuple[Path, Path], tmp_path: Path) -> None:
    folder, sound = small
    asked = (folder, sound, "-l", "en", "--no-fallback")
    data = json.loads(weft("transcribe", *asked, "--format", "json").stdout)
    assert data["language"] == "en" and len(data["segments"]) > 1
    done = weft("transcribe", *asked, "--timestamps")
    first = data["segments"][0]
    start = f"[{subtitles.clock(first['start'])} --> {subtitles.clock(first['end'])}]  "
    assert done.stdout.startswith(start) and done.stderr == ""
    (tmp_path / "b.mp3").write_bytes(b"no sound")
    (tmp_path / "a.wav").write_bytes(sound.read_bytes())
    out = (sound, "--format", "srt", "-o", tmp_path / "out")
    assert weft("transcribe", "-m", *asked, *out).returncode == 0  # the folder is made
    srt = (tmp_path / "out" / "a.srt").read_text()
    assert weft("transcribe", *asked, "-o", f"{tmp_path}/one/").returncode == 0
    assert (tmp_path / "one" / f"{sound.stem}.txt").is_file()
    assert srt.startswith(f"1\n{subtitles.clock(first['start'], ',')} --> ")
    assert re.search(r": (english|german) \(\d\d%\)", weft("transcribe", folder, sound).stderr)
    for wrong, message in (
        ((folder,), "SOUND is missing"),
        ((folder, sound, "--timestamps", "--no-times"), "--timestamps needs the times"),
        ((folder, sound, "--temperature", "2"), "it is 0 to 1 here"),
        ((folder, sound, tmp_path / "b.mp3", "-o", sound), "is a file; give a folder"),
        ((folder, sound, tmp_path / "a.wav", "-o", tmp_path), "2 sounds are called a"),
        ((folder, tmp_path / "b.mp3"), "b.mp3: a sound is none of WAV"),
        (("examples/weft-demo.gguf", sound), "weft transcribe takes Whisper"),
    ):
        done = weft("transcribe", *wrong)
        assert message in done.stderr and done.returncode != 0
    assert "give it to weft transcribe" in weft("run", folder, "-p", "a").stderr


def test_subtitles() -> None:
    """What subtitles give another meaning is left out of texts."""
    made = [
        Segment(start, end, text, (), 0.0, 0.0, 1.0, 0.0, 0)
        for start, end, text in ((0.0, 61.5, " a --> b\n\nc"), (3661.0, 3662.25, " d\te"))
    ]
    assert list(subtitles.lines(made, "srt")) == [
        "1\n00:00:00,000 --> 00:01:01,500\na -> b\nc\n",
        "2\n01:01:01,000 --> 01:01:02,250\nd\te\n",
    ]
    assert list(subtitles.lines(made, "vtt"))[::2] == [
        "WEBVTT\n", "01:01:01.000 --> 01:01:02.250\nd\te\n",
    ]  # fmt: skip
    assert list(subtitles.lines(made, "tsv"))[2] == "3661000\t3662250\td e"
    assert subtitles.as_data(made, "de")["text"] == "a --> b\n\nc d\te"


def test_a_recording_is_longer_than_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file of the user may be larger than what a server takes."""
    (tmp_path / "a.wav").write_bytes(data := wav((noise(2.2) * 32768).astype("<i2")))
    want = sounds.open_sound(data, 16000)
    for module, name in ((sounds, "MOST_SAMPLES"), (sounds, "MEDIA_BYTES"), (media, "MOST_BYTES")):
        monkeypatch.setattr(module, name, 100)
    got = sounds.open_sound(tmp_path / "a.wav", 16000, long=True)
    np.testing.assert_array_equal(got, want)
    np.testing.assert_array_equal(sounds.open_sound(want, 16000, long=True), want)
    for given in (str(tmp_path / "a.wav"), want):
        with pytest.raises(ContextError, match="more than 100"):
            sounds.open_sound(given, 16000)
    with pytest.raises(ContextError, match="more than 100"):
        sounds.open_sound(want, 16000, long=True, files=False)


def test_what_is_refused(small: tuple[Path, Path], tmp_path: Path) -> None:
    folder, _ = small
    (tmp_path / "ggml-base.bin").write_bytes(b"lmgg" + bytes(64))
    with pytest.raises(FormatError, match=r"a file of whisper\.cpp.*give the Hugging Face folder"):
        Transcriber(tmp_path / "ggml-base.bin")
    for file in ("config.json", "model.safetensors", "generation_config.json"):
        (tmp_path / file).write_bytes((folder / file).read_bytes())
    words = json.loads((folder / "tokenizer.json").read_text())
    words["added_tokens"] = [t for t in words["added_tokens"] if "notimes" not in t["content"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(words))
    (tmp_path / "tokenizer_config.json").write_text("{}")
    with pytest.raises(FormatError, match=r"has no token <\|notimestamps\|>"):
        Transcriber(tmp_path)
    config = json.loads((folder / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"decoder_attention_heads": 5}))
    with pytest.raises(FormatError, match="a divisor of 32"):
        Transcriber(tmp_path)
