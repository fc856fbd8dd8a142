"""The files of `tests/data/quality`, which llama.cpp's tools have written, and their model."""

from __future__ import annotations

import re
from pathlib import Path

from weft.frontends.gguf.quantize import quantize_file
from weft.frontends.gguf.reader import open_gguf
from weft.llm import Context, Model, Tokenizer

ROOT = Path(__file__).parents[3]
DATA = ROOT / "tests" / "data" / "quality"
TEXT = (DATA / "questions.txt").read_text()

EXACT = {"type_k": "f32", "type_v": "f32", "flash": False}
"""Options with which both compute in f32."""


def f32_model(folder: Path) -> Path:
    """The demo model with weights in f32."""
    path = folder / "f32.gguf"
    if not path.exists():
        with open_gguf(ROOT / "examples" / "weft-demo.gguf") as file:
            quantize_file(file, path, "F32")
    return path


def opened(path: Path, n_ctx: int, **options: object) -> tuple[Model, Tokenizer, Context]:
    """A model, its tokenizer, and a context that computes in f32."""
    model = Model.open(path)
    context = Context(model, n_ctx, **(EXACT | options))  # type: ignore[arg-type]
    return model, Tokenizer.from_gguf(model.file), context


def figures(line: str) -> list[float]:
    """The numbers of a line."""
    return [float(text) for text in re.findall(r"-?\d+\.\d+", line)]
