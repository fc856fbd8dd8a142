"""Files that are no models: `weft inspect` and `weft gguf check` say what they are, and so do the
commands that want a model."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from tests.cli.in_process import weft
from tests.frontends.peft_files import write_peft
from tests.llm.adapter_files import pairs, write_adapter
from tests.llm.vector_files import directions, write_vector
from weft.frontends.gguf.writer import write_gguf

MODEL = Path(__file__).parents[1] / "data" / "hf" / "Llama-3.1-Tiny-Instruct"


def test_what_files_are(tmp_path: Path) -> None:
    made = pairs(1, 4, {"blk.0.ffn_up.weight": (24, 16)})
    made |= pairs(1, 8, {"blk.1.ffn_up.weight": (24, 16)})
    cases = {
        write_adapter(tmp_path / "law.gguf", made): (
            "a LoRA adapter of llama, rank 4 to 8, alpha 8, 2 matrices", "as --lora"),
        write_vector(tmp_path / "calm.gguf", directions(1, range(2, 5), 16)): (
            "a control vector of llama, layers 2 to 4, rows of 16", "as --control-vector"),
    }  # fmt: skip
    for path, (about, instead) in cases.items():
        assert f"{path.name} is {about}" in weft("inspect", path).stdout
        assert json.loads(weft("inspect", path, "--json").stdout)["about"] == about
        assert f"{path}: {about}; " in weft("gguf", "check", path).stderr
        done = weft("run", path, "-p", "a", "-n", "1")
        assert done.returncode and f"this is {about}; give the model" in done.stderr
        assert instead in done.stderr
    odd = tmp_path / "odd.gguf"
    keys = {"general.architecture": "controlvector", "controlvector.model_hint": 3}
    write_gguf(odd, keys, [("x", "f32", (2,), np.zeros(2, np.float32))])
    assert "odd.gguf is a control vector, rows of 2" in weft("inspect", odd).stdout
    assert " is a " not in weft("inspect", MODEL).stdout.partition("metadata")[0]


def test_what_a_folder_of_peft_is(tmp_path: Path) -> None:
    law = write_peft(tmp_path, MODEL, rank=4, target_modules=["q_proj", "v_proj"], bias="none")
    done = weft("inspect", law)
    assert f"{law.name} is a LoRA adapter, rank 4, alpha 6, 8 matrices" in done.stdout
    assert "peft.target_modules" in done.stdout and "q_proj, v_proj" in done.stdout
    for command in (("run", law, "-p", "a"), ("tokenize", law, "a")):
        assert "an adapter of PEFT, no model" in weft(*command).stderr
    (law / "adapter_model.safetensors").unlink()
    assert "no adapter_model.safetensors" in weft("inspect", law).stderr
