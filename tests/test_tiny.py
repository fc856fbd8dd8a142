"""Ten end-to-end checks in a few seconds: the first thing to run after any change."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import weft
from weft import graph as g
from weft.llm import Context, Model

ROOT = Path(__file__).resolve().parent.parent
DEMO = ROOT / "examples" / "weft-demo.gguf"
LLAMA = ROOT / "tests" / "data" / "vectors" / "models" / "archs" / "llama3.gguf"


@pytest.fixture(scope="module")
def llm() -> weft.LLM:
    return weft.LLM(DEMO, n_threads=2)


def test_the_demo_model_answers(llm: weft.LLM) -> None:
    answer = llm.generate("What is 17 + 25?", max_tokens=12, temperature=0)
    assert "42" in answer


def test_greedy_text_repeats(llm: weft.LLM) -> None:
    texts = {llm.generate("What is 3 + 4?", max_tokens=20, temperature=0) for _ in "ab"}
    assert len(texts) == 1


def test_seeds_repeat_and_differ(llm: weft.LLM) -> None:
    def draw(seed: int) -> str:
        return llm.generate("What", max_tokens=40, temperature=1.5, top_k=0, top_p=1.0,
                                    min_p=0.0, seed=seed)  # fmt: skip

    assert draw(1) == draw(1)
    assert len({draw(seed) for seed in range(4)}) > 1


def test_tokenizer_round_trip(llm: weft.LLM) -> None:
    text = "What is 17 + 25? 42. Grüße, 東京!"
    assert llm.detokenize(llm.tokenize(text, add_special=False)).strip() == text


def test_cpu_equals_reference() -> None:
    model = Model.open(LLAMA)
    logits = [
        Context(model, 32, devices=[device], type_k="f32", type_v="f32").decode(
            np.arange(3, 20), outputs="all"
        )
        for device in ("cpu", "reference")
    ]
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-4)


def test_batch_and_steps_agree() -> None:
    model = Model.open(LLAMA)
    tokens = [1, 5, 9, 200, 17]
    at_once = Context(model, 16, type_k="f32", type_v="f32").decode(tokens)
    context = Context(model, 16, type_k="f32", type_v="f32")
    for token in tokens:
        step = context.decode([token])
    np.testing.assert_allclose(step, at_once, atol=1e-4)


def test_a_graph_by_hand() -> None:
    x = weft.input("x", (2, 3))
    session = weft.Session(weft.compile(weft.Graph(g.sqr(x).as_output("y"))))
    out = session.run({"x": np.arange(6, dtype=np.float32).reshape(2, 3)})
    np.testing.assert_array_equal(out["y"], [[0, 1, 4], [9, 16, 25]])


def test_a_shape_error_names_both_shapes() -> None:
    with pytest.raises(weft.GraphError, match=r"w f32 \(4, 8\).*x f32 \(2, 7\)"):
        g.mul_mat(weft.input("w", (4, 8)), weft.input("x", (2, 7)))


def test_the_plan_says_why() -> None:
    context = Context(Model.open(LLAMA), 16)
    text = context.program.plan.schedule.explain()
    assert "weight token_embd.weight lives in" in text


def test_a_file_that_is_no_model(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04 not a model")
    with pytest.raises(weft.FormatError, match="zip"):
        weft.LLM(path)
