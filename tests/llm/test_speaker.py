"""Speech of tiny models of Pocket TTS beside transformers."""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cli.in_process import weft
from weft.errors import ArgumentError, ContextError, FormatError
from weft.frontends.hf.convert import convert_folder
from weft.llm.audio import speaker as speaking
from weft.llm.audio import wave
from weft.llm.audio.sounds import open_sound
from weft.llm.audio.speaker import Speaker, prepared
from weft.llm.audio.voices import ends_in_pause

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.llm import speaking_models  # noqa: E402

TEXT = "The quick brown fox."


@pytest.fixture(scope="module", params=list(speaking_models.KINDS))
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("speech") / "model"
    model, codec = speaking_models.make(folder, request.param)
    return model, codec, folder, Speaker(folder)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("speech") / "model"
    speaking_models.make(folder)
    return folder


def sound(n: int, seed: int = 0) -> NDArray[np.float32]:
    return np.random.default_rng(seed).normal(size=n).astype(np.float32) * 0.2


def spoken(
    model: Any, codec: Any, ids: list[int], n: int, voice: NDArray[np.float32] | None, **more: Any
) -> NDArray[np.float32]:
    """The samples of transformers for tokens, behind a voice."""
    c = model.config
    front: list[int] = []
    if voice is not None:
        with torch.no_grad():
            latents = codec.encode(torch.tensor(voice)[None, None]).latents
        more["audio_prompt_latents"] = latents
        front = [c.audio_prompt_bos_token_id, *[c.audio_prompt_token_id] * latents.shape[1]]
    given = torch.tensor([[*front, *ids, c.audio_bos_token_id]])
    out = model.generate(
        given, do_sample=False, max_new_tokens=n, return_dict_in_generate=True, **more
    )
    with torch.no_grad():
        return codec.decode(out.audio_latents).audio_values[0, 0].numpy()  # type: ignore[no-any-return]


def faded(samples: NDArray[np.float32], rate: int) -> NDArray[np.float32]:
    out, n = samples.copy(), min(int(0.005 * rate), len(samples))
    out[:n] *= np.linspace(0, 1, int(0.005 * rate), dtype=np.float32)[:n]
    return out


@pytest.mark.parametrize("heard", [False, True])
def test_the_samples_of_transformers(made: Any, heard: bool) -> None:
    """With a voice and without, to the frame where speech ends."""
    model, codec, _, speaker = made
    voice = sound(speaker.model.frame * 5 + 7) if heard else None
    asked = voice
    if asked is not None:
        asked = transformers.PocketTTSFeatureExtractor(sampling_rate=speaker.rate)
        asked = asked._end_on_pause(torch.tensor(voice)).numpy()
        asked = np.pad(asked, (0, -len(asked) % speaker.model.frame))
    ids = speaker._encoded(TEXT)
    want = spoken(model, codec, ids, 300, asked, frames_after_eos=torch.tensor([4]))
    got = np.concatenate(list(speaker.speak(TEXT, voice=voice, temperature=0)))
    assert len(got) == len(want) >= 11 * speaker.model.frame
    np.testing.assert_allclose(got, faded(want, speaker.rate), atol=2e-3 * abs(want).max())


def test_many_frames(made: Any) -> None:
    """The window of the codec and the text model's room, whatever the last frames amplify."""
    model, codec, _, speaker = made
    ids = speaker._encoded(TEXT)
    latents = sound(60 * speaker.model.config.n_latent).reshape(60, -1) * 5
    with torch.no_grad():
        want = codec.decode(model.denormalize_latents(torch.tensor(latents))[None])
    speaker.model.begin()
    got = np.concatenate([speaker.model.decode(latent) for latent in latents])
    np.testing.assert_allclose(got, want.audio_values[0, 0].numpy(), atol=2e-5)
    voice = sound(speaker.model.frame * 60)
    with torch.no_grad():
        heard = codec.encode(torch.tensor(voice)[None, None]).latents[0].numpy()
    np.testing.assert_allclose(speaker.model.listen(voice), heard, atol=2e-5)
    assert speaker.model.embed(ids).shape == (len(ids), model.config.hidden_size)


@pytest.mark.parametrize("flow", ["lsd", "drifting"])
def test_noise_and_steps(tmp_path: Path, flow: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Frames of the same noise, in several steps, and settings of generation_config.json."""
    model, codec = speaking_models.make(tmp_path / "model", flow=flow)
    told = {"eos_threshold": 0.1, "num_flow_steps": 2, "min_frames_before_eos": 0,
            "temperature": 0.25, "do_sample": True}  # fmt: skip
    (tmp_path / "model" / "generation_config.json").write_text(json.dumps(told))
    speaker = Speaker(tmp_path / "model", steps=3)
    c = speaker.model.config
    assert (c.steps, c.frames_before_end, speaker.temperature) == (2, 0, 0.25)
    noise = sound(8 * c.n_latent).reshape(8, -1) * 5
    drawn = iter(noise)
    monkeypatch.setattr(torch, "randn", lambda *_, **__: torch.tensor(next(drawn))[None] / 0.5)
    given = torch.tensor([[*speaker._encoded(TEXT), model.config.audio_bos_token_id]])
    out = model.generate(
        given, do_sample=True, temperature=0.25, max_new_tokens=8, num_flow_steps=3,
        eos_threshold=1e9, return_dict_in_generate=True,
    )  # fmt: skip
    with torch.no_grad():
        want = codec.decode(out.audio_latents).audio_values[0, 0].numpy()
    frames = speaker.speak(TEXT, noise=noise)
    got = np.concatenate([next(frames)])  # the score of the end is another here
    np.testing.assert_allclose(got, faded(want, speaker.rate)[: len(got)], atol=1e-4)
    one, two = (
        np.concatenate(list(speaker.speak(TEXT, seed=seed, temperature=0.9))) for seed in (1, 2)
    )
    again = np.concatenate(list(speaker.speak(TEXT, seed=1, temperature=0.9)))
    assert np.array_equal(one, again) and not np.array_equal(one[: len(two)], two[: len(one)])


def test_files(made: Any, tmp_path: Path) -> None:
    """The pair of files that a folder converts to, which is found beside each other."""
    _, _, folder, speaker = made
    want = np.concatenate(list(speaker.speak(TEXT, voice=sound(400), temperature=0)))
    convert_folder(folder, tmp_path / "m.gguf", "f32")
    with pytest.raises(FormatError, match="no mmproj file is beside it"):
        Speaker(tmp_path / "m.gguf")
    convert_folder(folder, tmp_path / "mmproj-m.gguf", "f32", mmproj=True)
    found = Speaker(tmp_path / "m.gguf")
    got = np.concatenate(list(found.speak(TEXT, voice=sound(400), temperature=0)))
    # kernels of convolutions are f16 in files
    np.testing.assert_allclose(
        got[: 2 * found.model.frame], want[: 2 * found.model.frame], atol=0.05
    )
    assert got.shape == want.shape and found.rate == speaker.rate


def test_as_its_makers_publish_it(tmp_path: Path) -> None:
    """Without config.json, and with all tensors in one file."""
    pytest.importorskip("sentencepiece")
    model, codec = speaking_models.make(tmp_path / "model", "published")
    speaking_models.save_original(tmp_path / "original", model, codec)
    one, other = Speaker(tmp_path / "model"), Speaker(tmp_path / "original")
    voice = sound(4000)
    rows = [np.asarray(s.model.project(s.model.listen(voice))) for s in (one, other)]
    np.testing.assert_allclose(*rows, atol=1e-5)
    ids = [5, 9, 11, 3]
    sounds = []
    for s in (one, other):
        first = s.model.embed([*ids, s._ids[speaking.FIRST]])
        s.model.read(np.concatenate([s.model.embed([s._ids[speaking.BEFORE_VOICE]]), rows[0]]), 0)
        s.model.read(first[:-1])
        s.model.begin()
        latent, _, end = s.model.next_frame(first[-1], np.zeros(4))
        sounds.append((s.model.decode(latent), end))
    np.testing.assert_allclose(sounds[0][0], sounds[1][0], atol=1e-5)
    assert sounds[0][1] == pytest.approx(sounds[1][1], abs=1e-5)
    assert other.wav("The fox.").startswith(b"RIFF")


def test_parts(small: Path) -> None:
    """Sentences together, clauses of long ones, and words of what has neither."""
    speaker = Speaker(small)
    assert speaker.parts("the  fox;\n  it ran") == ["The fox, it ran."]
    assert speaker.parts("it was 3.5 then. so it was", 8) == ["It was 3.5 then.", "So it was."]
    assert speaker.parts("the fox, the dog, the cat", 6) == ["The fox,", "The dog,", "The cat."]
    long = "x" * 300
    assert "".join(speaker.parts(long, 50)).replace(".", "").lower() == long
    assert prepared(" \n ") == "" and prepared("\u00e9t\u00e9!") == "\u00c9t\u00e9!"
    both = np.concatenate(list(speaker.speak("The fox. The dog.", temperature=0, part_tokens=6)))
    first = np.concatenate(list(speaker.speak("The fox.", temperature=0)))
    np.testing.assert_array_equal(both[: len(first)], first)  # parts do not hear one another
    for text, why in (("", "is empty"), (" ", "is empty"), ("a" * 70000, "has 70000 characters")):
        with pytest.raises(ArgumentError, match=why):
            speaker.speak(text)
    with pytest.raises(ArgumentError, match="temperature is nan"):
        speaker.speak("a", temperature=float("nan"))


def test_one_text_at_a_time(small: Path) -> None:
    speaker = Speaker(small)
    first = speaker.speak("The fox. The dog.")
    next(first)
    want = speaker.wav("Hi.", temperature=0)
    with pytest.raises(ContextError, match="another text was begun"):
        next(first)
    assert speaker.wav("Hi.", temperature=0) == want


def test_damaged_files(small: Path, tmp_path: Path) -> None:
    """Files that are cut, of other models, or that lack a tensor, end in a sentence."""
    convert_folder(small, tmp_path / "m.gguf", "f16")
    at = tmp_path / "mmproj-m.gguf"
    convert_folder(small, at, "f16", mmproj=True)
    data = at.read_bytes()
    for n in (0, 40, 3000, len(data) - 100):
        at.write_bytes(data[:n])
        with pytest.raises(FormatError, match="mmproj-m"):
            Speaker(tmp_path / "m.gguf")
    for old, new, why in (
        (b"a.gen.flow.blk.1.up.bias", b"a.gen.flow.blk.1.xx.bias", "a.gen.flow.blk.1.up.bias"),
        (b"pockettts_gen", b"qwen3tts_gen0", "which weft does not compute"),
        (b"clip.gen.audio.projector_type", b"clip.gen.audio.projector_tyqe", "makes no sound"),
        (b"a.gen.wav.seanet.blk.0.scale_conv.weight", b"a.gen.wav.seanet.blk.0.scale_conv.xeight",
         "0 stages"),
    ):  # fmt: skip
        assert old in data
        at.write_bytes(data.replace(old, new))
        with pytest.raises(FormatError, match=why):
            Speaker(tmp_path / "m.gguf")
    speaking_models.make(tmp_path / "large", "large")
    convert_folder(tmp_path / "large", at, "f16", mmproj=True)
    with pytest.raises(FormatError, match="it belongs to another model"):
        Speaker(tmp_path / "m.gguf")


def test_voices(small: Path, tmp_path: Path) -> None:
    from safetensors.numpy import save_file

    folder = tmp_path / "model"
    shutil.copytree(small, folder)
    shutil.copytree(small.parent / "model-codec", tmp_path / "model-codec")
    voices = folder / "voices"
    voices.mkdir()
    heard = ends_in_pause(sound(500), 1000)
    (voices / "ann.wav").write_bytes(wave.head(1000, len(heard)) + wave.pcm(heard))
    speaker = Speaker(folder)
    c = speaker.model.config
    latents = speaker.model.listen(ends_in_pause(open_sound(voices / "ann.wav", 1000), 1000))
    save_file({"voice": latents[None]}, voices / "bob.safetensors")
    save_file({"audio_prompt": speaker.model.project(latents)}, voices / "cy.safetensors")
    save_file({"k": latents, "v": latents}, voices / "dan.safetensors")
    speaker = Speaker(folder)
    assert speaker.voices == ("ann", "bob", "cy", "dan")
    said = [np.concatenate(list(speaker.speak("Hi.", voice=v, temperature=0)))
            for v in ("ann", "bob", "cy", str(voices / "cy.safetensors"), None)]  # fmt: skip
    for other in said[1:4]:
        np.testing.assert_allclose(said[0], other, atol=1e-3)
    assert not np.array_equal(said[0][: len(said[4])], said[4][: len(said[0])])
    long = np.ones((400, c.n_latent), np.float32)
    save_file({"voice": np.tile(long, (4, 1))}, voices / "eve.safetensors")
    for voice, error, why in (
        ("zed", ArgumentError, "known are ann, bob, cy, dan"),
        ("dan", FormatError, "keys and values of a voice are not read"),
        (voices / "eve.safetensors", ContextError, "a voice of 1600 frames"),
        (sound(31000), ContextError, "has 31.0 seconds; give at most 30"),
        (b"no sound", ContextError, "none of WAV"),
    ):
        with pytest.raises(error, match=why):
            speaker.speak("Hi.", voice=voice)
    with pytest.raises(ArgumentError, match="voice is"):
        speaker.speak("Hi.", voice=str(voices / "cy.safetensors"), files=False)
    again = np.concatenate(list(speaker.speak("Hi.", voice="ann", temperature=0)))
    np.testing.assert_array_equal(again, said[0])


def test_the_command(small: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.wav"
    done = weft("speak", small, TEXT, "-o", out, "--temperature", "0")
    assert done.returncode == 0 and "a.wav: " in done.stderr
    want = Speaker(small).wav(TEXT, temperature=0)
    assert out.read_bytes() == want
    assert struct.unpack_from("<I", want, 40)[0] == len(want) - 44
    np.testing.assert_allclose(open_sound(out, 1000), np.frombuffer(want[44:], "<i2") / 32768)
    (tmp_path / "a.txt").write_text(TEXT)
    again = weft(
        "speak", "-m", small, "-f", tmp_path / "a.txt", "-o", tmp_path / "b.wav", "--temp", "0"
    )
    assert again.returncode == 0 and (tmp_path / "b.wav").read_bytes() == want
    shown = weft("speak", small, "--explain").stdout
    assert "caches, for 1024 rows" in shown and "decode  " in shown and "ops on cpu" in shown
    assert weft("speak", small, "--list-voices").stdout == ""
    for wrong, message in (
        ((small, TEXT), "--output is missing"),
        ((small, "", "-o", out), "the text is empty"),
        ((small, TEXT, "-o", out, "--voice", "zed"), "known are none"),
        ((small, TEXT, "-o", tmp_path), "it is a folder"),
        ((small, TEXT, "-o", out, "--steps", "99"), "the flow has 1 to 64 steps"),
        (("examples/weft-demo.gguf", TEXT, "-o", out), "weft speak takes Pocket TTS"),
    ):
        done = weft("speak", *wrong)
        assert message in done.stderr and done.returncode != 0
    assert out.read_bytes() == want  # a failure leaves the file as it was
    assert "give it to weft speak" in weft("run", small, "-p", "a").stderr


def test_what_is_refused(small: Path, tmp_path: Path) -> None:
    """Settings that are computed otherwise, and folders that are not whole."""
    folder, codec = tmp_path / "model", tmp_path / "model-codec"

    def changed(of: Path, **keys: Any) -> None:
        for name in ("model", "model-codec"):
            shutil.rmtree(tmp_path / name, ignore_errors=True)
            shutil.copytree(small.parent / name, tmp_path / name)
        config = json.loads((of / "config.json").read_text())
        (of / "config.json").write_text(json.dumps(config | keys))

    for of, keys, why in (
        (codec, {"pad_mode": "reflect"}, "'pad_mode' is 'reflect'"),
        (codec, {"use_conv_shortcut": True}, "'use_conv_shortcut' is True"),
        (codec, {"num_residual_layers": 2}, "'num_residual_layers' is 2"),
        (codec, {"upsample_groups": 4}, "'upsample_groups' is 4"),
        (codec, {"architectures": ["Mimi"]}, "not of PocketTTSAudioTokenizerModel"),
        (codec, {"hidden_size": "x"}, "'hidden_size' is 'x'"),
        (codec, {"num_attention_heads": 5}, "'num_key_value_heads' is 2"),
        (folder, {"hidden_act": "relu"}, "'hidden_act' is 'relu'"),
        (folder, {"hidden_size": 48}, "the metadata asks for"),
        (folder, {"audio_bos_token_id": 5000}, "audio_bos_token_id|has no token"),
        (folder, {"flow_head_config": {"flow_type": "new"}}, "known are lsd and drifting"),
    ):
        changed(of, **keys)
        with pytest.raises(FormatError, match=why):
            Speaker(folder)
    changed(folder)
    codec.rename(tmp_path / "elsewhere")
    assert Speaker(folder, tmp_path / "elsewhere").wav("Hi.", temperature=0) == Speaker(small).wav(
        "Hi.", temperature=0
    )
    with pytest.raises(FormatError, match="the folder of its codec"):
        Speaker(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match=r"a folder without config\.json"):
        Speaker(tmp_path / "empty")
