"""The towers that a Hugging Face folder may have beside its text model, by the class in its
config.json. A folder is presented as the `mmproj` file that a converter would make of it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path

from weft.errors import FormatError
from weft.frontends.gguf.reader import GGUFFile
from weft.frontends.hf.checkpoints import readable
from weft.frontends.hf.config import Config, read_config_json
from weft.frontends.hf.families import find_family
from weft.frontends.hf.folder import Folder, present_folder, understood
from weft.frontends.hf.safetensors import open_shards
from weft.frontends.hf.towers.family import TowerFamily, as_file

__all__ = ["CLASSES", "open_tower_folder", "read_tower_folder"]

_FILES = {
    "square": "LlavaForConditionalGeneration LlavaNextForConditionalGeneration "
    "Gemma3ForConditionalGeneration "
    "Mistral3ForConditionalGeneration Qwen2VLForConditionalGeneration "
    "Qwen2_5_VLForConditionalGeneration Qwen3VLForConditionalGeneration "
    "Qwen3VLMoeForConditionalGeneration LightOnOcrForConditionalGeneration "
    "LightOnOCRForConditionalGeneration Exaone4_5_ForConditionalGeneration",
    "tiled": "Idefics3ForConditionalGeneration SmolVLMForConditionalGeneration "
    "InternVLForConditionalGeneration Lfm2VlForConditionalGeneration "
    "Gemma4ForConditionalGeneration Gemma4UnifiedForConditionalGeneration",
    "sounds": "VoxtralForConditionalGeneration Qwen2AudioForConditionalGeneration "
    "Qwen3ASRForConditionalGeneration Qwen3OmniMoeForConditionalGeneration "
    "Lfm2AudioForConditionalGeneration AudioFlamingo3ForConditionalGeneration "
    "Qwen2_5OmniForConditionalGeneration Qwen2_5OmniModel "
    "GraniteSpeechForConditionalGeneration UltravoxModel",
    "kimi": "KimiVLForConditionalGeneration KimiK25ForConditionalGeneration "
    "Kimi_K25ForConditionalGeneration",
    "step3": "StepVLForConditionalGeneration Step3p7ForConditionalGeneration",
    "nemotron": "NemotronH_Omni_Reasoning_V3 NemotronH_Nano_VL_V2 NemotronH_Nano_Omni_Reasoning_V3",
    "llama4": "Llama4ForConditionalGeneration MiniMaxM3VLForConditionalGeneration "
    "MiniMaxM3SparseForConditionalGeneration",
    "documents": "PaddleOCRVLForConditionalGeneration HunYuanVLForConditionalGeneration "
    "DotsOCRForCausalLM",
    "granite": "Granite4VisionForConditionalGeneration",
    "deepseek": "DeepseekOCRForCausalLM DeepseekOCR2ForCausalLM UnlimitedOCRForCausalLM "
    "DeepseekOcr2ForConditionalGeneration UnlimitedOcrForConditionalGeneration",
    "dots3": "Dots3NoteForCausalLM Dots3NoteForConditionalGeneration",
    "minicpm": "MiniCPMV4_6ForConditionalGeneration",
    "spoken": "PocketTTSForConditionalGeneration PocketTTSModel",
}
"""The files of this folder, and the classes of transformers whose towers are in them."""

CLASSES = {name: file for file, names in _FILES.items() for name in names.split()}
"""The file of each class."""


def read_tower_folder(
    path: str | os.PathLike[str], further: str | os.PathLike[str] | None = None
) -> Folder:
    """Reads config.json and the headers of the safetensors files; no tensor is read. `further` is
    the place of a folder that belongs to the tower (None: beside the folder).

    Raises FormatError for a folder that is incomplete, damaged, or without towers that are
    known."""
    folder = Path(path)
    config = read_config_json(folder)
    names = config.get("architectures")
    name = str(names[0]) if isinstance(names, list) and names else ""
    if name not in CLASSES:
        raise FormatError(
            f"{folder}: config.json is of the class {name[:60]!r}, whose towers weft does not read "
            f"from folders; known are {', '.join(CLASSES)}; for others give the mmproj file"
        )
    families: Mapping[str, TowerFamily] = import_module(f"{__name__}.{CLASSES[name]}").FAMILIES
    tower = families[name]
    try:
        text = find_family(config)
    except FormatError as error:
        raise FormatError(f"{folder}: {error}") from None
    with understood(folder):
        c = Config(folder, config, text.defaults)
        c.cls = name
        c.further = None if further is None else Path(further)
        stored = open_shards(folder)
        other = tower.beside(c)
        if other is not None:
            stored |= {f"codec.{name}": t for name, t in open_shards(other).items()}
        values = {name: v.unpacked() for name, v in readable(c, stored).items()}
        tensors = list(tower.tensors(c, values))
        keys = dict(tower.keys(c))
    return Folder(folder, as_file(tower), c, stored, tensors, keys)


def open_tower_folder(
    path: str | os.PathLike[str], further: str | os.PathLike[str] | None = None
) -> GGUFFile:
    """Opens a folder with config.json and safetensors as an `mmproj` file; see
    `read_tower_folder`."""
    return present_folder(read_tower_folder(path, further), "mmproj")
