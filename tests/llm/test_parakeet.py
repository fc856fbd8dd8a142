"""Parakeet beside transformers: tokens and times of its three decoders, from folders and files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import ArgumentError, FormatError
from weft.frontends.hf.convert import convert_folder
from weft.llm import Transcriber
from weft.llm.audio import conformer, recognizer
from weft.llm.audio.parakeet import Said

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("gguf")

from tests.llm import hf_folders  # noqa: E402
from tests.llm.sounds import sound  # noqa: E402
from tests.llm.vision_models import close, randomised  # noqa: E402

N_MEL = 16
BLANK = 380
SIZES: list[dict[str, Any]] = [
    {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2,
     "conv_kernel_size": 9, "scale_input": True},
    {"hidden_size": 24, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 3,
     "conv_kernel_size": 5, "scale_input": False, "attention_bias": False,
     "convolution_bias": False},
]  # fmt: skip
DECODERS = {"ctc": "CTC", "rnnt": "RNNT", "tdt": "TDT"}


def make(decoder: str, size: int, folder: Path) -> Any:
    """A model with random weights, which is saved in the folder."""
    name = DECODERS[decoder]
    encoder = SIZES[size] | {"subsampling_conv_channels": 6, "num_mel_bins": N_MEL}
    more: dict[str, Any] = {"pad_token_id": BLANK}
    if decoder != "ctc":
        more |= {"blank_token_id": BLANK, "decoder_hidden_size": 20, "num_decoder_layers": 1 + size}
    config = getattr(transformers, f"Parakeet{name}Config")(
        encoder_config=encoder, vocab_size=BLANK + 1, **more
    )
    model = randomised(getattr(transformers, f"ParakeetFor{name}")(config))
    with torch.no_grad():
        for key, value in model.named_buffers():
            if key.endswith("running_var"):
                value.copy_(torch.rand_like(value) + 0.5)
            elif key.endswith("running_mean"):
                value.copy_(torch.randn_like(value))
        if decoder != "ctc":  # tokens depend on rows and tokens, and often there is none
            model.decoder.embedding.weight.mul_(20)
            model.encoder_projector.weight.mul_(6)
            model.joint.head.bias[BLANK] += 2.5
            if decoder == "tdt":  # transformers never leaves a row whose tokens take none
                model.joint.head.bias[BLANK + 1] -= 4
            model.generation_config.decoder_start_token_id = BLANK
    model.save_pretrained(folder)
    hf_folders.save_tokenizer("pieces", folder)
    return model


@pytest.fixture(scope="module", params=[(kind, i) for kind in DECODERS for i in range(2)], ids=str)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The decoder, the model of transformers, and its folder."""
    decoder, size = request.param
    folder = tmp_path_factory.mktemp(decoder)
    return decoder, make(decoder, size, folder), folder


def seen_by(samples: Any) -> dict[str, Any]:
    """The inputs of transformers for a sound."""
    extractor = transformers.ParakeetFeatureExtractor(feature_size=N_MEL)
    return dict(extractor(samples, sampling_rate=16000, return_tensors="pt"))


def wanted(model: Any, samples: Any) -> list[tuple[int, int]]:
    """The tokens that transformers writes, and the row of each."""
    seen = seen_by(samples)
    if isinstance(model, transformers.ParakeetForCTC):
        ids = model.generate(**seen)[0].tolist()
        new = [i for i, id_ in enumerate(ids) if not i or ids[i - 1] != id_]
        return [(ids[i], i) for i in new if ids[i] != BLANK]
    out = model.generate(**seen, max_new_tokens=1000)
    at = (out.durations.cumsum(-1) - out.durations)[0].tolist()
    ids = out.sequences[0].tolist()
    return [(id_, row) for id_, row in list(zip(ids, at, strict=True))[1:] if id_ != BLANK]


def encoded(model: Any, samples: Any) -> Any:
    """The rows that the decoder of transformers sees."""
    with torch.no_grad():
        if isinstance(model, transformers.ParakeetForCTC):
            return model(**seen_by(samples)).logits
        return model.get_audio_features(**seen_by(samples)).pooler_output


def test_tokens_are_those_of_transformers(made: Any, tmp_path: Path) -> None:
    decoder, model, folder = made
    convert_folder(folder, tmp_path / "m.gguf", "f32")
    for n in (12345, 33333):
        samples = sound(n, n)
        want = wanted(model, samples)
        assert len({id_ for id_, _ in want}) > 1
        for path in (folder, tmp_path / "m.gguf"):
            heard = Transcriber(path)._recognizer
            assert heard is not None
            rows = heard.parakeet.heard(samples)
            close(rows, encoded(model, samples)[0, : len(rows)])
            said = heard.parakeet.said(samples)
            assert [(token.id, token.start) for token in said] == want, decoder
            assert all(token.end >= token.start and token.logprob < 0 for token in said)


@pytest.fixture(scope="module")
def transcriber(tmp_path_factory: pytest.TempPathFactory) -> Transcriber:
    folder = tmp_path_factory.mktemp("tdt")
    make("tdt", 0, folder)
    return Transcriber(folder)


def test_segments_have_times(transcriber: Transcriber) -> None:
    samples = sound(n=60000)
    segments = list(transcriber.segments(samples))
    heard = transcriber._recognizer
    assert heard is not None and segments
    said = heard.parakeet.said(samples)
    assert [id_ for s in segments for id_ in s.tokens] == [token.id for token in said]
    assert all(0 <= s.start <= s.end <= 60000 / 16000 for s in segments)
    whole = list(transcriber.segments(samples, timestamps=False))
    assert len(whole) == 1 and "".join(s.text for s in segments).split() == whole[0].text.split()
    assert transcriber.languages == {} and transcriber.language_of(samples) == ("", 0.0)


def test_a_segment_ends_with_a_sentence_or_before_a_pause(transcriber: Transcriber) -> None:
    heard = transcriber._recognizer
    assert heard is not None
    piece = {".": b".", "a": b" a", "b": b"b"}
    ids = {text: i for i, text in enumerate(piece)}

    class Vocab:
        n_vocab = 3

        def piece(self, id_: int) -> bytes:
            return list(piece.values())[id_]

    other = recognizer.Recognizer.__new__(recognizer.Recognizer)
    other.tokenizer = Vocab()  # type: ignore[assignment]

    def cut(*tokens: tuple[str, int, int]) -> list[int]:
        said = [Said(ids[text], start, end, -0.1) for text, start, end in tokens]
        return [len(part) for part in other._pieces(said)]

    assert cut(("a", 0, 1), (".", 1, 2), ("a", 2, 3), ("b", 3, 4)) == [2, 2]
    assert cut(("a", 0, 1), (".", 1, 2), ("b", 2, 3)) == [3]  # within a word
    assert cut(("a", 0, 1), ("b", 13, 14)) == [2] and cut(("a", 0, 1), ("b", 14, 15)) == [1, 1]
    assert cut(("a", 0, 1), *((("b", i, i + 1)) for i in range(1, 400)), ("a", 400, 401))[-1] == 1


def test_long_sounds_come_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformer, "PART", 40000)
    monkeypatch.setattr(conformer, "_QUIET", 16000)
    samples = sound(n=90000) + 0.5
    samples[30000:33000] = 0
    parts = list(conformer.cut(samples))
    assert [at for at, _ in parts][:2] == [0, 30400 + 800]
    np.testing.assert_array_equal(np.concatenate([part for _, part in parts]), samples)
    assert all(len(part) <= 40000 for _, part in parts)


def test_a_row_has_a_bounded_number_of_tokens(tmp_path: Path) -> None:
    """A model that says tokens which take no rows goes on after ten of them, as in NeMo."""
    model = make("tdt", 0, tmp_path)
    with torch.no_grad():
        model.joint.head.bias[BLANK] -= 99
        model.joint.head.bias[BLANK + 1] += 99
    model.save_pretrained(tmp_path)
    heard = Transcriber(tmp_path)._recognizer
    assert heard is not None
    said = heard.parakeet.said(sound(n=8000))
    assert [token.start for token in said] == [row for row in range(7) for _ in range(10)]


@pytest.mark.parametrize("n", [1, 159, 160, 1279])
def test_short_sounds_have_no_words(transcriber: Transcriber, n: int) -> None:
    assert list(transcriber.segments(np.zeros(n, np.float32))) == []


def test_nothing_is_said_in_no_rows(made: Any) -> None:
    """By none of the decoders."""
    heard = Transcriber(made[2])._recognizer
    assert heard is not None and heard.parakeet.said(sound(n=100)) == []


def test_what_is_refused(transcriber: Transcriber, tmp_path: Path) -> None:
    silence = np.zeros(4000, np.float32)
    for asked, message in (
        ({"task": "translate"}, "translate with Whisper"),
        ({"prompt": "Names"}, "sees no prompt"),
        ({"temperatures": (0.5,)}, "writes what is most probable"),
        ({"seed": -1}, "seed is -1; it is 0 or more"),
    ):
        with pytest.raises(ArgumentError, match=message):
            transcriber.segments(silence, **asked)  # type: ignore[arg-type]
    make("tdt", 0, tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    for key, value, message in (
        ("durations", [-1], "must be a list of counts"),
        ("encoder_config", None, "must be an object|is missing"),
        ("encoder_config", config["encoder_config"] | {"subsampling_factor": 4}, "weft knows 8"),
        ("vocab_size", 390, "asks for"),
        ("blank_token_id", 400, "blank_token_id"),
    ):
        (tmp_path / "config.json").write_text(json.dumps(config | {key: value}))
        with pytest.raises(FormatError, match=message):
            Transcriber(tmp_path)
