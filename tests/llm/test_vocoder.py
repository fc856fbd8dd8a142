"""The decoder of WavTokenizer beside transformers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import ContextError, FormatError
from weft.frontends.hf.convert import convert_folder
from weft.llm.audio.vocoder import Vocoder

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from tests.llm.vision_models import randomised  # noqa: E402

SIZES: list[dict[str, Any]] = [
    {"hidden_size": 16, "decoder_hidden_size": 32, "decoder_intermediate_size": 40,
     "decoder_num_layers": 2, "decoder_attention_num_groups": 8, "upsampling_ratios": [3, 2]},
    {"hidden_size": 24, "decoder_hidden_size": 36, "decoder_intermediate_size": 48,
     "decoder_num_layers": 1, "decoder_attention_num_groups": 4, "upsampling_ratios": [2, 2, 5],
     "sampling_rate": 16000},
]  # fmt: skip
CODES = [3, 9, 0, 19, 19, 7, 4, 11, 2]


@pytest.fixture(scope="module", params=SIZES, ids=["small", "large"])
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    config = transformers.WavTokenizerConfig(
        codebook_size=20, codebook_dim=request.param["hidden_size"], num_filters=2, **request.param
    )
    model = randomised(transformers.WavTokenizerModel(config))
    with torch.no_grad():
        book = model.encoder_model.quantizer.codebook
        book.embed.copy_(torch.randn_like(book.embed))
        model.head.linear.weight.mul_(0.3)
    folder = tmp_path_factory.mktemp("vocoder")
    model.save_pretrained(folder)
    return model, folder


def test_the_samples_of_transformers(made: Any, tmp_path: Path) -> None:
    """Of several codes and of one, from the folder and from the file that it converts to."""
    model, folder = made
    found = Vocoder(folder)
    assert found.config.rate == model.config.sampling_rate
    for codes in (CODES, CODES * 20, [5]):
        with torch.no_grad():
            want = model.decode(torch.tensor(codes)[None, None]).audio_values[0, 0].numpy()
        got = found.samples(codes)
        assert got.shape == want.shape == (len(codes) * model.config.hop_length,)
        np.testing.assert_allclose(got, want, atol=3e-5 * max(1, abs(want).max()))
    convert_folder(folder, tmp_path / "v.gguf", "f32")
    written = Vocoder(tmp_path / "v.gguf")
    assert {t.dtype.name for t in written.weights.values()} == {"f32", "f16"}
    np.testing.assert_allclose(written.spectrogram(CODES), found.spectrogram(CODES), atol=0.05)


def test_what_is_refused(made: Any) -> None:
    vocoder = Vocoder(made[1])
    for codes, why in (
        ([], "there are 0 codes"), ([20], "codes reach from 20 to 20; there are 20"),
        ([-1], "from -1"), ([1] * 5000, "give 1 to 4096"),
    ):  # fmt: skip
        with pytest.raises(ContextError, match=why):
            vocoder.samples(codes)
    with pytest.raises(FormatError, match="and no decoder of WavTokenizer"):
        Vocoder("examples/weft-demo.gguf")
