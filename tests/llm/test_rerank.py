"""Documents ranked by models with a classifier, and the texts that these read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.llm.encoder_models import DOCUMENTS, SEPARATED, make_reranker
from tests.llm.tiny import metadata, weights, write_model
from weft.errors import ContextError
from weft.llm import LLM, Tokenizer
from weft.llm.compute.embed import pair_ids
from weft.llm.model import Model


def test_pairs_are_written_as_the_vocabulary_says(tmp_path: Path) -> None:
    def pair(**keys: Any) -> list[int]:
        path = write_model(tmp_path / "m.gguf", metadata() | keys, weights(metadata()))
        return pair_ids(Tokenizer.from_gguf(Model.open(path).file), "the", "abc")

    plain = Tokenizer.from_gguf(Model.open(write_model(tmp_path / "p.gguf")).file)
    the, abc = (plain.encode(text, add_special=False) for text in ("the", "abc"))
    assert pair(**SEPARATED) == [1, *the, 2, 3, *abc, 2]
    assert pair(**{"tokenizer.ggml.add_eos_token": True}) == [1, *the, 2, *abc, 2]
    template = "a{document}b{query}</s>{query}"
    text = plain.encode("aabcbthe</s>the", add_special=False, parse_special=True)
    assert pair(**{"tokenizer.chat_template.rerank": template}) == text and 2 in text


def test_a_query_that_looks_like_a_place_is_not_filled(tmp_path: Path) -> None:
    key = {"tokenizer.chat_template.rerank": "{query}|{document}"}
    path = write_model(tmp_path / "m.gguf", metadata() | key, weights(metadata()))
    tokenizer = Tokenizer.from_gguf(Model.open(path).file)
    want = tokenizer.encode("{document}|abc", add_special=False)
    assert pair_ids(tokenizer, "{document}", "abc") == want


@pytest.mark.parametrize("arch", ["bert", "qwen3"])
def test_documents_are_sorted_by_their_scores(tmp_path: Path, arch: str) -> None:
    with LLM(make_reranker(tmp_path / "m.gguf", arch)) as llm:
        want = [
            llm.context.embed(pair_ids(llm.tokenizer, "the", text))[0].item() for text in DOCUMENTS
        ]
        found = llm.rerank("the", DOCUMENTS)
        assert sorted(row.index for row in found) == [0, 1, 2, 3, 4]
        scores = [row.relevance_score for row in found]
        assert scores == sorted(scores, reverse=True) and len(set(scores)) == 5
        np.testing.assert_allclose(scores, [want[row.index] for row in found], atol=1e-5)
        assert llm.rerank("the", DOCUMENTS, top_n=2) == found[:2]
        assert llm.rerank("the", []) == []
        other = llm.rerank("b abc", DOCUMENTS)
        assert [row.relevance_score for row in other] != scores
        with pytest.raises(ContextError, match="document 1 and the query have"):
            llm.rerank("the", ["a", "the abc " * 60])


def test_scores_are_not_scaled_to_length_1(tmp_path: Path) -> None:
    with LLM(make_reranker(tmp_path / "m.gguf")) as llm:
        assert abs(llm.embed("the abc").item()) != pytest.approx(1)


def test_a_model_that_only_writes_cannot_rank(tmp_path: Path) -> None:
    with (
        LLM(write_model(tmp_path / "m.gguf")) as llm,
        pytest.raises(ContextError, match="has no classifier"),
    ):
        llm.rerank("the", DOCUMENTS)
