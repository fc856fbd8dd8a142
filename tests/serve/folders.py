"""A folder of models, and requests to a server of all of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from tests.serve.server import DEMO, ROOT, SAMPLE, Reached

SHAPES = ROOT / "examples" / "shapes"
OPTIONS = ("-t", 1, "-np", 2, "-c", 512)
CONFIG = """
[defaults]
parallel = 2

[models.one]
aliases = ["first"]

[models.big]
path = "one.gguf"
ctx-size = 2000000
"""


def models_in(folder: Path) -> Path:
    """Puts the models one, two (the same), three, weft-shapes and broken into a folder, with
    settings that have big, which is too large."""
    shutil.copy(DEMO, folder / "one.gguf")
    shutil.copy(DEMO, folder / "two.gguf")
    shutil.copy(SAMPLE, folder / "three.gguf")
    (folder / "shapes").mkdir()
    for file in ("weft-shapes.gguf", "mmproj-weft-shapes.gguf"):
        shutil.copy(SHAPES / file, folder / "shapes" / file)
    (folder / "broken.gguf").write_bytes(DEMO.read_bytes()[:5000])
    (folder / "models.toml").write_text(CONFIG)
    return folder


def complete(server: Reached, model: str | None, prompt: str, **body: Any) -> Any:
    named = {} if model is None else {"model": model}
    form = {"prompt": prompt, "temperature": 0, "max_tokens": 12} | named | body
    return server.call("POST", "/v1/completions", form)
