"""Adapters of PEFT as GGUF files: the reference's bytes, and what it has no words for."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.frontends.peft_files import NAME, write_peft
from weft.errors import FormatError
from weft.frontends.gguf import open_gguf
from weft.frontends.hf.convert import convert_adapter
from weft.llm import Context, Model

pytest.importorskip("gguf")
DATA = Path(__file__).parents[1] / "data" / "hf"
CONVERTED: dict[str, str] = json.loads((DATA / "adapters.json").read_text())
"""SHA-256 of the files that the reference's convert_lora_to_gguf.py makes of `write_peft`'s folders
(rank 4, with q8_0 rank 32), by the model's folder and type."""
LLAMA = DATA / "Llama-3.1-Tiny-Instruct"


@pytest.mark.parametrize("case", CONVERTED)
def test_bytes_of_the_reference(tmp_path: Path, case: str) -> None:
    model, kind = case.split()
    folder = write_peft(tmp_path, DATA / model, 32 if kind == "q8_0" else 4)
    report = convert_adapter(folder, tmp_path / "a.gguf", DATA / model, kind)
    data = (tmp_path / "a.gguf").read_bytes()
    assert hashlib.sha256(data).hexdigest() == CONVERTED[case]
    assert report[0].name.endswith(".lora_a") and report[1].name.endswith(".lora_b")


def rows(adapter: Path) -> Any:
    model = Model.open(LLAMA, adapters={"a": adapter})
    context = Context(model, 16, devices=["reference"], type_k="f32", type_v="f32")
    return context.decode([5, 90, 17, 201], outputs="all")


@pytest.mark.parametrize(
    "settings",
    [{}, {"use_rslora": True}, {"alpha_pattern": {"q_proj": 1.5, "up_proj": 20}}],
    ids=["plain", "rslora", "pattern"],
)
def test_a_file_acts_as_the_folder(tmp_path: Path, settings: dict[str, object]) -> None:
    folder = write_peft(tmp_path, LLAMA, **settings)
    convert_adapter(folder, tmp_path / "a.gguf", LLAMA)
    plain = Context(Model.open(LLAMA), 16, devices=["reference"], type_k="f32", type_v="f32")
    want = rows(folder)
    assert np.abs(want - plain.decode([5, 90, 17, 201], outputs="all")).max() > 0.05
    np.testing.assert_allclose(rows(tmp_path / "a.gguf"), want, rtol=1e-5, atol=1e-5)


def test_names_types_and_tokens(tmp_path: Path) -> None:
    folder = write_peft(tmp_path, LLAMA, alora_invocation_tokens=[3, 4])
    convert_adapter(folder, tmp_path / "a.gguf", LLAMA, "auto", name="A name")
    file = open_gguf(tmp_path / "a.gguf")
    assert file.metadata["general.name"] == "A name"
    assert {t.dtype.name for t in file.tensors.values()} == {"f16"}
    assert list(file.metadata["adapter.alora.invocation_tokens"]) == [3, 4]
    for path in (folder, tmp_path / "a.gguf"):  # weft cannot wait for tokens
        with pytest.raises(FormatError, match="aLoRA"):
            Model.open(LLAMA, adapters=path)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"lora_alpha": 0}, "lora_alpha is 0"),
        ({"lora_alpha": "x"}, "must be a number"),
        ({"invocation_string": "<law>"}, "write its token ids"),
        ({"alora_invocation_tokens": [1, -1]}, "not a list of token ids"),
        ({"lora_alpha": 10**400}, "must be a number"),
        ({"alpha_pattern": [1]}, "alpha_pattern must be an object"),
        ({"alpha_pattern": {"(": 1}}, "cannot match"),
        ({"alpha_pattern": {"(a+)+x": 1}}, "cannot match"),
        ({"alpha_pattern": {".*" * 30 + "x": 1}}, "cannot match"),
        ({"use_dora": True}, "use_dora"),
        ({"peft_type": "IA3"}, "weft reads LORA"),
    ],
)
def test_what_is_refused(tmp_path: Path, settings: dict[str, object], says: str) -> None:
    folder = write_peft(tmp_path, LLAMA, **settings)
    with pytest.raises(FormatError, match=says) as caught:
        convert_adapter(folder, tmp_path / "a.gguf", LLAMA)
    assert NAME in str(caught.value) and not (tmp_path / "a.gguf").exists()


def test_another_model_and_a_type(tmp_path: Path) -> None:
    folder = write_peft(tmp_path, LLAMA)
    with pytest.raises(FormatError, match=r"config\.json"):
        convert_adapter(folder, tmp_path / "a.gguf", tmp_path)
    with pytest.raises(FormatError, match="unknown type 'q4_K'"):
        convert_adapter(folder, tmp_path / "a.gguf", LLAMA, "q4_K")
