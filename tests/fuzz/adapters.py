"""Adapters and control vectors with changed bytes, names and settings: each is read, converted,
merged and applied, or is a WeftError."""

from __future__ import annotations

import json
import random
import tempfile
from functools import cache
from pathlib import Path

import numpy as np

from tests.frontends.peft_files import write_peft
from tests.fuzz.mutate import mutate_bytes, mutate_json
from tests.llm.adapter_files import matrices_of, pairs, write_adapter
from tests.llm.tiny import write_model
from tests.llm.vector_files import directions, write_vector
from weft.errors import WeftError
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.describe import describe
from weft.frontends.hf.convert import convert_adapter
from weft.frontends.hf.lora import open_peft
from weft.llm import Context, Model
from weft.llm.merge import merge_adapters

NATIVE = True

FOLDER = Path(__file__).parents[1] / "data" / "hf" / "Llama-3.1-Tiny-Instruct"


@cache
def _good() -> dict[str, bytes]:
    """Undamaged files, by name."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = write_model(folder / "m.gguf")
        write_adapter(folder / "a.gguf", pairs(1, 2, matrices_of(base)))
        write_vector(folder / "v.gguf", directions(1, range(1, 2), 16))
        peft = write_peft(folder, FOLDER, alpha_pattern={"q_proj": 2.0}, use_rslora=True)
        files = [folder / "m.gguf", folder / "a.gguf", folder / "v.gguf", *peft.iterdir()]
        return {path.name: path.read_bytes() for path in files}


def _damaged(rng: random.Random, data: bytes) -> bytes:
    """With other bytes, mostly of names and sizes, or cut short."""
    out = bytearray(data)
    head = min(len(out), 2000)
    mutate_bytes(out, rng, [(4, head), (4, head), (4, len(out))])
    return bytes(out[: rng.randrange(len(out))] if rng.random() < 0.1 else out)


def check(rng: random.Random, folder: Path) -> bool:
    """Tries one file or folder; whether it was applied."""
    good = _good()
    base = folder / "m.gguf"
    base.write_bytes(good["m.gguf"])
    kind = rng.choice(["a.gguf", "v.gguf", "peft"])
    path = folder / kind
    if kind == "peft":
        base = FOLDER
        path.mkdir(exist_ok=True)
        about = json.loads(good["adapter_config.json"])
        tensors = good["adapter_model.safetensors"]
        if rng.random() < 0.5:
            about = mutate_json(about, rng, ("(a+)+$", "[", "alora_invocation_tokens", "peft_type"))
        else:
            tensors = _damaged(rng, tensors)
        (path / "adapter_config.json").write_text(json.dumps(about))
        (path / "adapter_model.safetensors").write_bytes(tensors)
    else:
        path.write_bytes(_damaged(rng, good[kind]))
    try:
        with open_peft(path) if kind == "peft" else open_gguf(path) as file:
            describe(file)
    except WeftError:
        pass
    for use in (
        lambda: convert_adapter(path, folder / "out.gguf", FOLDER),
        lambda: merge_adapters(base, folder / "out.gguf", [(path, 0.5)]),
    ):
        try:
            use()
        except WeftError:
            pass
    try:
        given = {"control_vectors" if kind == "v.gguf" else "adapters": {"x": path}}
        model = Model.open(base, **given)  # type: ignore[arg-type]
        context = Context(model, 8, devices=["reference"])
        context.decode([1, 2, 3])
        context.save_state(0)
    except WeftError:
        return False
    return True


def run(seed: int, n: int) -> int:
    """Tries `n` files; returns how many were applied."""
    rng = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        return sum(check(rng, Path(folder)) for _ in range(n))
