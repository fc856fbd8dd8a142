"""Hugging Face folders: the logits and tokens of transformers, straight and as a GGUF file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from weft.frontends.hf.convert import convert_folder
from weft.frontends.models import open_model
from weft.llm import Context, Tokenizer
from weft.llm.model import Model

folders = pytest.importorskip("tests.llm.hf_folders")
torch = pytest.importorskip("torch")

IDS = folders.IDS
# these have the erf form of GELU, where files stand for the tanh form
ROUGH = {"bert", "distilbert", "roberta", "gptneox", "mpt", "falcon", "falcon2"}


@pytest.mark.parametrize("name", folders.MODELS)
def test_logits_of_transformers(tmp_path: Path, name: str) -> None:
    model = folders.make_folder(name, tmp_path)
    convert_folder(tmp_path, tmp_path / "m.gguf", "f32")
    with torch.no_grad():
        out = model(torch.tensor([IDS]))
    want = (out.last_hidden_state if name in folders.HEADLESS else out.logits)[0].numpy()
    assert want.std() > 0.05
    atol = (2e-3 if name in ROUGH else 5e-5) * np.abs(want).max()
    straight = folders.logits(tmp_path)
    np.testing.assert_allclose(straight, want, atol=atol, rtol=0)
    np.testing.assert_allclose(folders.logits(tmp_path / "m.gguf"), straight, atol=5e-5, rtol=1e-4)
    if name not in folders.HEADLESS:  # in chunks, over cells
        np.testing.assert_allclose(folders.logits(tmp_path, 7), straight, atol=5e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_in_shards(tmp_path: Path, dtype: str) -> None:
    """Matrices stay as they are in the files; norms become float32."""
    folders.make_folder("llama", tmp_path, dtype, shards="30KB")
    assert len(list(tmp_path.glob("model-*.safetensors"))) > 2
    file = open_model(tmp_path)
    kind = {"bfloat16": "bf16", "float16": "f16"}[dtype]
    mapped = [t for t in file.tensors.values() if t.offset >= 0]
    assert {t.dtype.name for t in mapped} == {kind}
    assert all(t.n_dims == 1 for t in file.tensors.values() if t.offset < 0)
    convert_folder(tmp_path, tmp_path / "m.gguf")
    np.testing.assert_allclose(
        folders.logits(tmp_path), folders.logits(tmp_path / "m.gguf"), atol=2e-2, rtol=0
    )


TEXTS = ["Hello world, this is a test.", "def f(x):\n    return x + 1\n", "1234567 89 äöü 你好",
         "It's John's, WE'LL see.", "the sun  and   the  girl\n\n\t", ""]  # fmt: skip


@pytest.mark.parametrize("name", ["bert", "granite", "llama", "llama3", "olmo", "qwen3"])
def test_tokens_of_transformers(tmp_path: Path, name: str) -> None:
    folders.make_folder(name, tmp_path)
    theirs = folders.transformers.AutoTokenizer.from_pretrained(tmp_path)
    ours = Tokenizer.from_gguf(open_model(tmp_path))
    for text in TEXTS:
        assert ours.encode(text) == theirs.encode(text), text


def test_quantized_while_loading(tmp_path: Path) -> None:
    """The same weights as those that `weft quantize` writes."""
    from weft.frontends.gguf.quantize import quantize_file

    folders.make_folder("qwen3", tmp_path)
    quantize_file(open_model(tmp_path, to_write=True), tmp_path / "q.gguf", "q8_0")
    seen: list[tuple[int, int]] = []
    file = open_model(tmp_path, "q8_0", progress=lambda done, total: seen.append((done, total)))
    written = open_model(tmp_path / "q.gguf")
    for name, tensor in written.tensors.items():
        assert file.tensors[name].dtype is tensor.dtype
        np.testing.assert_array_equal(file.tensors[name].data, tensor.data)
    changed = [t for t in written.tensors.values() if t.dtype.name != "f32"]
    assert seen[-1] == (sum(t.nbytes for t in changed),) * 2 and len(seen) == len(changed)
    got = Context(Model(file), 64, devices=["reference"]).decode(IDS, outputs="all")
    want = Context(Model(written), 64, devices=["reference"]).decode(IDS, outputs="all")
    np.testing.assert_array_equal(got, want)
