"""Sounds in prompts: towers and logits beside transformers, prefixes, and what is refused."""

from __future__ import annotations

import base64
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.errors import ArgumentError, ChatError, ContextError, FormatError, OutOfMemoryError
from weft.llm import LLM
from weft.llm.audio import sounds
from weft.llm.audio.sounds import resampled
from weft.llm.audio.whisper import log_mel

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")

from tests.llm import sound_models as models  # noqa: E402
from tests.llm.sound_models import LONG  # noqa: E402
from tests.llm.sounds import sound, wav  # noqa: E402
from tests.llm.vision_models import BEFORE, BEHIND, close, picture  # noqa: E402

Made = tuple[Any, Path, Path]


def extractor(n_mel: int = models.N_MEL) -> Any:
    return transformers.WhisperFeatureExtractor(feature_size=n_mel)


@pytest.fixture(scope="module", params=["voxtral", "qwen2a"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return models.files(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    _, text, tower = models.files("voxtral", tmp_path_factory.mktemp("llm"))
    return LLM(text, mmproj=tower, n_seq_max=2, **LONG)


@pytest.mark.parametrize("n_mel", [80, 128])
def test_the_spectrogram_is_that_of_transformers(n_mel: int) -> None:
    samples = np.pad(sound(n=5 * 16000), (0, 25 * 16000))
    want = extractor(n_mel)(samples, sampling_rate=16000, return_tensors="np").input_features[0]
    assert want.std() > 0.1
    np.testing.assert_allclose(log_mel(samples, n_mel), want, atol=1e-4, rtol=0)


def features_of(model: Any, kind: str, samples: NDArray[np.float32]) -> dict[str, Any]:
    """The inputs of transformers for a sound."""
    if kind == "voxtral":
        mel = extractor()(
            samples, sampling_rate=16000, padding=True, truncation=False,
            pad_to_multiple_of=models.PART, return_tensors="pt",
        ).input_features[0]  # fmt: skip
        parts = mel.reshape(models.N_MEL, -1, 2 * models.POSITIONS).transpose(0, 1)
        return {"input_features": parts.contiguous()}
    out = extractor()(
        samples, sampling_rate=16000, max_length=models.PART, return_attention_mask=True,
        return_tensors="pt",
    )  # fmt: skip
    return {
        "input_features": out.input_features,
        "feature_attention_mask": out.attention_mask,
    }


@pytest.mark.parametrize("n", [models.PART, 5000, 4700, 700, 12000])
def test_beside_transformers(made: Made, n: int) -> None:
    """Sounds of a whole part, of less, and of more."""
    model, text, tower = made
    kind = "voxtral" if "Voxtral" in type(model).__name__ else "qwen2a"
    if kind == "qwen2a" and n > models.PART:
        pytest.skip("transformers cuts it off")
    samples = sound(n, n)
    llm = LLM(text, mmproj=tower, **LONG)
    ids = llm.hearing.ids(samples)
    seen = features_of(model, kind, samples)
    if kind == "voxtral":
        close(llm.hearing.rows(samples), model.get_audio_features(**seen).pooler_output)
        assert len(ids) == 5 * -(-n // models.PART)
    prompt = torch.tensor([[*BEFORE, *[models.SOUND] * len(ids), *BEHIND]])
    mask = torch.ones_like(prompt)
    want = model(input_ids=prompt, attention_mask=mask, **seen).logits[0]
    close(llm.context.decode([*BEFORE, *ids, *BEHIND], outputs="all"), want)


def test_a_long_sound_comes_in_parts(tmp_path: Path) -> None:
    """Each part is heard by itself, and all in order."""
    _, text, tower = models.files("qwen2a", tmp_path)
    llm = LLM(text, mmproj=tower, **LONG)
    high = np.sin(np.arange(models.PART) * 1.3).astype(np.float32)
    samples = np.concatenate([sound(1, models.PART), high, sound(1, 3000)])
    rows = llm.hearing.rows(samples)
    assert len(rows) == 10 + 10 + 5
    for at, alone in ((0, sound(1, models.PART)), (10, high)):
        want = llm.hearing.rows(alone)
        apart = np.abs(rows[at : at + 10] - want)  # windows at the ends see other samples
        assert np.median(apart) < 0.05 * np.abs(want).max()
    assert np.median(np.abs(rows[:10] - rows[10:20])) > 0.05 * np.abs(rows).max()
    with pytest.raises(ContextError, match="too few to be heard"):
        llm.hearing.ids(samples[:320])


@pytest.mark.parametrize(("bits", "kind"), [(8, 1), (16, 1), (24, 1), (32, 1), (32, 3), (64, 3)])
def test_wav_files(bits: int, kind: int) -> None:
    left, right = sound(0) * 0.6, sound(1) * 0.6
    data = wav(np.stack([left, right], axis=1), bits=bits, kind=kind)
    samples = sounds.open_sound(data, 16000)
    np.testing.assert_allclose(samples, (left + right) / 2, atol=0.01 if bits == 8 else 1e-4)


@pytest.mark.parametrize("rate", [8000, 22050, 44100, 48000, 11025, 16001])
def test_another_rate(rate: int) -> None:
    """Tones keep their frequency and height; what is too high for the new rate is gone."""
    tones, n = (440.0, 2900.0), rate // 2
    at, new = np.arange(n) / rate, np.arange(-(-n * 16000 // rate)) / 16000
    given = sum(np.sin(2 * np.pi * f * at) for f in tones).astype(np.float32)
    want = sum(np.sin(2 * np.pi * f * new) for f in tones)
    got = resampled(given, rate, 16000)
    assert len(got) == len(new)
    np.testing.assert_allclose(got[600:-600], want[600:-600], atol=2e-3)
    if rate > 22050:
        high = np.sin(2 * np.pi * 9500 * at).astype(np.float32)
        assert np.abs(resampled(high, rate, 16000)[600:-600]).max() < 1e-3


def test_what_a_sound_may_be(llm: LLM, tmp_path: Path) -> None:
    data = wav(sound(), bits=32, kind=3)
    path = tmp_path / "a.wav"
    path.write_bytes(data)
    encoded = base64.b64encode(data).decode()
    url = f"data:audio/wav;base64,{encoded}"
    ids = llm.hearing.ids(sound())
    for given in (path, str(path), data, url):
        assert llm.hearing.ids(given) == ids
    text: Any = {"type": "text", "text": "a"}
    parts: list[Any] = [
        {"type": "input_audio", "input_audio": {"data": encoded, "format": "wav"}},
        {"type": "audio_url", "audio_url": {"url": url}},
        {"type": "audio", "audio": path},
        {"type": "audio", "path": str(path)},
    ]
    for part in parts:
        prompt = llm.chat_prompt([{"role": "user", "content": [part, text]}])
        at = prompt.index(ids[0])
        assert prompt[at : at + len(ids)] == ids
        assert prompt[at - 1] == models.BEGIN
    with pytest.raises(ContextError, match="are not fetched"):
        llm.hearing.ids(str(path), files=False)


def test_a_second_turn_computes_new_tokens_only(llm: LLM) -> None:
    part = {"type": "audio", "audio": sound()}
    first: Any = {"role": "user", "content": [part, {"type": "text", "text": "the abc"}]}
    answer = llm.chat([first], max_tokens=4, temperature=0)
    n = llm.stats.n_prompt
    turns = [first, {"role": "assistant", "content": "abc"}, {"role": "user", "content": "a"}]
    llm.chat(turns, max_tokens=4, temperature=0)
    assert llm.stats.n_cached >= n - 1 > 5
    other: Any = {"role": "user", "content": [part | {"audio": sound(1)}, *first["content"][1:]]}
    llm.chat([other], max_tokens=4, temperature=0)
    assert llm.stats.n_cached < n - 5  # not the cells of the first sound
    assert llm.chat([first], max_tokens=4, temperature=0) == answer


GOOD = wav(sound())
HOSTILE: dict[str, tuple[Any, str]] = {
    "cut off": (GOOD[:4000], "it is cut off"),
    "no samples": (GOOD[:36], "no samples"),
    "empty": (wav(np.zeros((0, 1))), "no samples"),
    "no format": (GOOD[:12] + GOOD[48:], "no format in front"),
    "another encoding": (GOOD[:20] + b"\x11\0" + GOOD[22:], "encoding 17"),
    "odd bits": (GOOD[:34] + b"\x0c\0" + GOOD[36:], "with 12 bits"),
    "no channels": (GOOD[:22] + b"\0\0" + GOOD[24:], "0 channels"),
    "no rate": (GOOD[:24] + bytes(4) + GOOD[28:], "of 0 samples per second"),
    "not finite": (wav(np.full((99, 1), np.nan), bits=32, kind=3), "not finite"),
    "overflow": (wav(np.full((99, 1), 1e300), bits=64, kind=3), "not finite"),
    "text": (b"%PDF-1.4 hello", "none of WAV, MP3, FLAC and Ogg"),
    "no base64": ("data:audio/wav;base64,@@@", "damaged"),
    "no file": ("/nowhere/a.wav", "cannot be read"),
    "integers": (np.zeros(99, np.int16), "samples are floats"),
    "infinite as f32": (np.full(99, 1e300), "not finite"),
    "two channels": (np.zeros((99, 2), np.float32), "samples are floats"),
    "too long": (np.zeros(models.PART * 30, np.float32), "150 rows, but the context holds"),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_sounds_are_refused(llm: LLM, name: str) -> None:
    given, message = HOSTILE[name]
    with pytest.raises(ContextError, match=message):
        llm.hearing.ids(given)


def test_the_length_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sounds, "MOST_SAMPLES", 4999)
    for given in (GOOD, sound()):
        with pytest.raises(ContextError, match="more than 4999 samples"):
            sounds.open_sound(given, 16000)


@pytest.mark.parametrize("form", ["FLAC", "MP3", "OGG"])
def test_other_files(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = {"FLAC": b"fLaC", "MP3": b"\xff\xfb\x90", "OGG": b"OggS"}
    if importlib.util.find_spec("soundfile") is None:
        with pytest.raises(ContextError, match=r"weft\[audio\]"):
            sounds.open_sound(starts[form] + bytes(99), 16000)
        return
    import io

    import soundfile

    out = io.BytesIO()
    tone = np.sin(np.arange(16000) * 0.1).astype(np.float32) * 0.5
    soundfile.write(out, np.stack([tone, tone], axis=1), 16000, format=form)
    got = sounds.open_sound(out.getvalue(), 16000)
    assert np.abs(got[4000:12000]).max() == pytest.approx(0.5, abs=0.1)
    with pytest.raises(ContextError, match="cannot be decoded"):
        sounds.open_sound(starts[form] + bytes(99), 16000)
    monkeypatch.setattr(sounds, "MOST_SAMPLES", 4999)
    with pytest.raises(ContextError, match="more than 4999 samples"):
        sounds.open_sound(out.getvalue(), 16000)


def test_what_is_refused(llm: LLM, tmp_path: Path) -> None:
    message: Any = {"role": "user", "content": [{"type": "image", "image": picture()}]}
    with pytest.raises(ContextError, match="no tower for images"):
        llm.chat([message])
    message["content"] = [{"type": "input_audio", "input_audio": {"data": "", "format": "aiff"}}]
    with pytest.raises(ChatError, match="format of input_audio is 'aiff'"):
        llm.chat([message])
    message["content"] = [{"type": "audio"}]
    with pytest.raises(ChatError, match="has no sound"):
        llm.chat([message])
    with pytest.raises(ArgumentError, match="a sound is int"):
        llm.hearing.ids(3)
    model = models.make("voxtral")
    text, _ = models.write(model, "voxtral", tmp_path)
    with LLM(text, **LONG) as deaf, pytest.raises(ContextError, match="without a tower"):
        deaf.chat([{"role": "user", "content": [{"type": "audio", "audio": sound()}]}])
    _, wrong = models.write(model, "parakeet", tmp_path)
    with pytest.raises(FormatError, match="'parakeet' for sound are not known"):
        LLM(text, mmproj=wrong, **LONG)


def test_the_tower_is_explained_and_counted(llm: LLM, made: Made) -> None:
    needs, [tower] = llm.context.plan.needs(), llm.model.towers
    assert needs[0].tower_weights == tower.weights.nbytes
    assert needs[0].towers > 0
    rows = {row["buffer"]: row["bytes"] for row in llm.context.plan.memory_rows()}
    assert (rows["tower weights"], rows["towers"]) == (needs[0].tower_weights, needs[0].towers)
    _, text, mmproj = made
    with LLM(text, **LONG) as deaf:
        enough = deaf.context.plan.needs()[0].total
    with pytest.raises(OutOfMemoryError, match="towers"):
        LLM(text, mmproj=mmproj, memory={"cpu": enough + 1}, **LONG)
    assert "tower: mmproj.gguf on cpu, weights" in llm.explain(brief=True)
    assert llm.explain(brief=True).endswith("for sound")
