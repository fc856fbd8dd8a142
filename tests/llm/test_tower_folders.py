"""Towers of Hugging Face folders: read as they are, and converted to `mmproj` files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from weft.errors import FormatError
from weft.frontends.gguf import open_gguf
from weft.frontends.hf.convert import convert_folder
from weft.frontends.hf.towers import open_tower_folder
from weft.llm import LLM

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("PIL.Image")
pytest.importorskip("gguf")

from tests.llm import sound_models
from tests.llm.sound_models import LONG
from tests.llm.sounds import sound
from tests.llm.tower_files import require_same_towers


@pytest.mark.parametrize("kind", ["voxtral", "qwen2a"])
def test_a_folder_is_its_file(tmp_path: Path, kind: str) -> None:
    model = sound_models.make(kind)
    text, tower = sound_models.write(model, kind, tmp_path)
    folder = tmp_path / "folder"
    model.save_pretrained(folder)
    require_same_towers(open_tower_folder(folder), open_gguf(tower))
    convert_folder(folder, tmp_path / "f32.gguf", "f32", mmproj=True)
    made = open_gguf(tmp_path / "f32.gguf")
    require_same_towers(made, open_gguf(tower), exact=False)
    kernels = [t.dtype.name for name, t in made.tensors.items() if ".conv1d." in name]
    assert sorted(kernels) == ["f16", "f16", "f32", "f32"]
    rows = [LLM(text, mmproj=path, **LONG).hearing.rows(sound()) for path in (folder, tower)]
    np.testing.assert_array_equal(*rows)


def test_what_is_refused(tmp_path: Path) -> None:
    for name in ("LlamaForCausalLM", ["LlamaForCausalLM"]):
        (tmp_path / "config.json").write_text(json.dumps({"architectures": [name]}))
        with pytest.raises(FormatError, match="whose towers weft does not read from folders"):
            open_tower_folder(tmp_path)
    model = sound_models.make("voxtral")
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    config["audio_config"]["hidden_size"] = -1
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match=r"audio_config.hidden_size' is -1"):
        open_tower_folder(tmp_path)
    config.pop("audio_config")
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(FormatError, match="must be an object"):
        open_tower_folder(tmp_path)
