"""Towers for sound beside transformers' encoders: the spectrogram of its feature extractors and the
rows of its models, from folders and from the files that they convert to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from weft.errors import FormatError
from weft.frontends.hf.convert import convert_folder
from weft.llm import LLM, SoundTower

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("gguf")

from tests.llm.heard_models import KINDS, SIZES, heard
from tests.llm.sounds import sound
from tests.llm.vision_models import BEFORE, BEHIND, F32, close

PUBLISHED = {
    "model.language_model.": "model.", "language_model.": "model.",
    "model.audio_tower.": "audio_tower.", "model.visual.": "visual.",
    "model.multi_modal_projector.linear_": "audio_tower.proj",
}  # fmt: skip
"""Beginnings of the names of tensors in models of transformers, and in published checkpoints."""


def save(model: Any, folder: Path, *, published: bool = False) -> None:
    """Saves the model. Qwen's models that speak are saved as they are published, and with
    `published` so is Qwen3-ASR."""
    name = type(model).__name__
    if "Thinker" not in name and not published:
        model.save_pretrained(folder)
        return
    from safetensors.torch import save_file

    whole = {"architectures": [name.replace("Thinker", "")], "thinker_config": {}}
    whole["thinker_config"] = model.config.to_dict()
    (folder / "config.json").write_text(json.dumps(whole))
    tensors = {}
    for full, values in model.state_dict().items():
        old = next((old for old in PUBLISHED if full.startswith(old)), "")
        tensors[f"thinker.{PUBLISHED.get(old, '')}{full.removeprefix(old)}"] = values.clone()
    save_file(tensors, folder / "model.safetensors")


@pytest.fixture(scope="module", params=[(kind, i) for kind in KINDS for i in range(2)], ids=str)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The kind, the model of transformers, and its folder."""
    kind, size = request.param
    model = KINDS[kind].make(SIZES[size])
    folder = tmp_path_factory.mktemp("folder")
    save(model, folder, published=kind == "qwen3a" and size == 1)
    return kind, model, folder


def test_rows_are_those_of_transformers(made: tuple[str, Any, Path]) -> None:
    kind, model, folder = made
    tower = SoundTower(folder)
    assert tower.config.projector == (KINDS[kind].tower or kind)
    for n in KINDS[kind].lengths:
        samples = sound(n, n)
        close(heard(tower, samples), KINDS[kind].rows(model, samples))


def test_a_folder_is_its_file(made: tuple[str, Any, Path], tmp_path: Path) -> None:
    _, _, folder = made
    convert_folder(folder, tmp_path / "f32.gguf", "f32", mmproj=True)
    towers = [SoundTower(folder), SoundTower(tmp_path / "f32.gguf")]
    assert towers[0].config == towers[1].config
    samples = sound(n=20000)
    first, second = (heard(tower, samples) for tower in towers)
    np.testing.assert_allclose(first, second, atol=2e-2 * np.abs(first).max())  # kernels are f16


@pytest.mark.parametrize("kind", ["gemma4a", "qwen3a", "granite_speech", "ultravox"])
def test_logits_behind_a_sound(kind: str, tmp_path: Path) -> None:
    """The folder as text model and tower: rows of a sound in a prompt, and the tokens behind."""
    hf_folders = pytest.importorskip("tests.llm.hf_folders")
    import torch

    sound_id = 379
    model = KINDS[kind].make(SIZES[0])
    model.config.audio_token_id = sound_id  # Granite calls it audio_token_index
    save(model, tmp_path)
    hf_folders.save_tokenizer("pieces" if kind == "gemma4a" else "qwen2", tmp_path)
    samples = sound(n=9000)
    with LLM(tmp_path, mmproj=tmp_path, **F32 | {"n_ctx": 64, "n_outputs": 64}) as llm:
        close(llm.hearing.rows(samples), KINDS[kind].rows(model, samples))
        ids = llm.hearing.ids(samples)
        got = llm.context.decode([*BEFORE, *ids, *BEHIND], outputs="all")
    prompt = torch.tensor([[*BEFORE, *[sound_id] * len(ids), *BEHIND]])
    with torch.no_grad():
        want = model(input_ids=prompt, **KINDS[kind].seen(samples)).logits[0]
    close(got, want)


def test_folders_of_ultravox_that_are_refused(tmp_path: Path) -> None:
    """Towers of other equations, folders without the encoder, and the tower as a text model."""
    import torch

    model = KINDS["ultravox"].make(SIZES[1])
    model.save_pretrained(tmp_path)
    with pytest.raises(FormatError, match=r"a tower for sound .* give the text model \(a text\)"):
        LLM(tmp_path)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    for key, value in (
        ("projector_act", "gelu"), ("projector_ln_mid", None), ("audio_latency_block_size", 100),
    ):  # fmt: skip
        path.write_text(json.dumps(config | {key: value}))
        with pytest.raises(FormatError, match=f"{key}.* only"):
            SoundTower(tmp_path)
    path.write_text(json.dumps(config))
    model.encoder = torch.nn.Identity()
    model.save_pretrained(tmp_path)
    with pytest.raises(FormatError, match=r"audio_tower.conv1.weight.*'openai/whisper-tiny'"):
        SoundTower(tmp_path)


def test_the_spectrogram_of_granite() -> None:
    """Beside torch and the filters of transformers: the feature extractor needs torchaudio."""
    import torch
    from transformers.audio_utils import mel_filter_bank

    from weft.llm.audio.granite import log_mel

    filters = mel_filter_bank(257, 80, 0, 8000, 16000, mel_scale="htk")
    for n in (16000, 16161):
        samples = torch.tensor(sound(n, n))
        window = torch.hann_window(400)
        power = torch.stft(samples, 512, 160, 400, window, return_complex=True).abs() ** 2
        mel = (power.T @ torch.tensor(filters, dtype=torch.float32)).clip(min=1e-10).log10()
        mel = torch.maximum(mel, mel.max() - 8) / 4 + 1
        want = mel[: len(mel) // 2 * 2].reshape(-1, 160).numpy()
        np.testing.assert_allclose(log_mel(samples.numpy(), 80), want, atol=1e-4)
