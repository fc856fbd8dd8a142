"""The committed demo model, through weft: at least 99% of held-out questions are right."""

from __future__ import annotations

import pytest

import weft
from examples.demo_questions import held_out
from tests.conftest import ROOT

MODEL = ROOT / "examples" / "weft-demo.gguf"
N = 500


@pytest.fixture(scope="module")
def llm() -> weft.LLM:
    return weft.LLM(MODEL)


def test_held_out_questions(llm: weft.LLM) -> None:
    wrong = []
    for prompt, answer in held_out(N, seed=1):
        text = llm.generate(prompt, max_tokens=40, temperature=0, stop="\n")
        if text.strip() != answer:
            wrong.append((prompt, text.strip(), answer))
    assert len(wrong) <= 0.01 * N, f"{len(wrong)} of {N} wrong: {wrong[:10]}"


def test_it_is_small_and_says_what_it_is() -> None:
    assert MODEL.stat().st_size <= 1_500_000
    with weft.open_gguf(MODEL) as file:
        assert file.architecture == "llama"
        assert file.get_str("general.license", "").lower() == "mit"
