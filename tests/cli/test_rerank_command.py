"""`weft rerank`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.in_process import weft
from tests.llm.encoder_models import DOCUMENTS, make_reranker
from tests.llm.tiny import write_model
from weft.llm import LLM


def test_rerank(tmp_path: Path) -> None:
    path = make_reranker(tmp_path / "m.gguf")
    with LLM(path) as llm:
        want = llm.rerank("the", DOCUMENTS)
    lines = weft("rerank", path, "the", *DOCUMENTS).stdout.splitlines()
    assert [line.split(maxsplit=2)[1:] for line in lines] == [
        [str(row.index), DOCUMENTS[row.index]] for row in want
    ]
    scores = [float(line.split()[0]) for line in lines]
    assert scores == pytest.approx([row.relevance_score for row in want], abs=1e-4)
    listed = tmp_path / "documents.txt"
    listed.write_text("\n\n".join(DOCUMENTS))
    answer = json.loads(weft("rerank", path, "the", "-f", listed, "--json", "--top-n", 3).stdout)
    assert [row["index"] for row in answer["results"]] == [row.index for row in want[:3]]
    assert answer["usage"]["prompt_tokens"] > 0 and answer["model"] == "m.gguf"
    assert len(weft("rerank", path, "the", typed="\n".join(DOCUMENTS)).stdout.splitlines()) == 5


def test_what_is_refused(tmp_path: Path) -> None:
    def refused(*arguments: object, **more: str) -> str:
        done = weft("rerank", *arguments, **more)
        assert done.returncode == 1
        return done.stderr

    writer, ranker = write_model(tmp_path / "w.gguf"), make_reranker(tmp_path / "m.gguf")
    assert "w.gguf has no classifier" in refused(writer, "the", "abc")
    assert "there is no document" in refused(ranker, "the", typed="")
    assert "not both" in refused(ranker, "the", "abc", "-f", writer)
    assert "the context holds 64" in refused(ranker, "the", "abc " * 90)
