"""The options that say how tokens are drafted, in the words of llama.cpp and vLLM."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import weft
from tests.llm.tiny import metadata, weights, write_model
from weft.cli.command import UsageError
from weft.cli.draft_options import DraftFlags
from weft.llm.planning.draft_options import MOST, P_MIN, DraftOptions

DEMO = Path(__file__).parents[2] / "examples/weft-demo.gguf"
NAME = str(DEMO)


def ok(*args: str | Path) -> str:
    done = weft(*args)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fails(*args: str | Path) -> str:
    done = weft(*args)
    assert done.returncode
    return done.stderr


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({}, DraftOptions(least=0)),
        ({"spec_type": "none"}, None),
        ({"draft_max": 0}, None),
        ({"model_draft": NAME}, DraftOptions(least=0, model=DEMO)),
        ({"model_draft": NAME, "spec_type": "ngram-simple"}, DraftOptions(least=0)),
        ({"model_draft": NAME, "spec_type": "draft-simple", "draft_max": 8},
         DraftOptions(ngram=False, most=8, least=0, model=DEMO)),
        ({"model_draft": NAME, "spec_type": "ngram-mod,draft", "draft_p_min": 0.1},
         DraftOptions(least=0, model=DEMO, p_min=0.1)),
        ({"model_draft": NAME, "ctx_size_draft": 64, "cache_type_k_draft": "q8_0"},
         DraftOptions(least=0, model=DEMO, model_options={"n_ctx": 64, "type_k": "q8_0"})),
        ({"spec_type": "draft-mtp"}, DraftOptions(ngram=False, least=0, layers=True)),
        *(({"model_draft": NAME, "spec_type": f"draft-{kind}"},
           DraftOptions(ngram=False, least=0, model=DEMO)) for kind in ("eagle3", "dflash", "mtp")),
        ({"spec_type": "ngram,mtp"}, DraftOptions(least=0, layers=True)),
        ({"speculative_config": '{"method": "mtp", "num_speculative_tokens": 3}'},
         DraftOptions(ngram=False, most=3, least=0, layers=True)),
        ({"speculative_config": '{"method": "ngram", "num_speculative_tokens": 4}'},
         DraftOptions(most=4, least=0)),
        ({"speculative_config": json.dumps({"model": NAME, "num_speculative_tokens": 5})},
         DraftOptions(ngram=False, most=5, least=0, model=DEMO)),
        ({"speculative_config": json.dumps({"model": NAME, "method": "draft_model"})},
         DraftOptions(ngram=False, least=0, model=DEMO)),
    ],
)  # fmt: skip
def test_options(given: dict[str, Any], wanted: DraftOptions | None) -> None:
    assert P_MIN == DraftOptions().p_min and MOST == DraftOptions().most
    assert DraftFlags(**given).made({}) == wanted


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ({"spec_type": "draft"}, "needs a model that drafts: -md"),
        ({"spec_type": "eagle"}, "--spec-type eagle"),
        ({"speculative_config": "["}, "--speculative-config"),
        ({"speculative_config": "[]"}, "is an object"),
        ({"speculative_config": '{"model": 5}'}, "model are texts"),
    ],
)
def test_mistakes(given: dict[str, Any], what: str) -> None:
    with pytest.raises(UsageError, match=what):
        DraftFlags(**given).made({})


@pytest.mark.filterwarnings("default:the draft model is not asked")
def test_run_with_a_second_model(tmp_path: Path) -> None:
    plain = ok("run", NAME, "Question: is 18 even?", "-n", "30", "--temp", "0", "-q")
    options = ("--spec-type", "draft", "--draft-p-min", "0")
    done = weft("run", NAME, "Question: is 18 even?", "-n", "30", "--temp", "0", "-q", "-md", NAME,
                *options)  # fmt: skip
    assert done.returncode == 0 and done.stdout == plain
    assert "reads 1.00 of the bytes that the model reads" in done.stderr
    shown = ok("explain", NAME, "-md", NAME, "--brief")
    assert "memory of what drafts, of weft-demo.gguf" in shown
    assert json.loads(ok("explain", NAME, "-md", NAME, "--json"))["draft_memory"]
    meta = metadata()
    other = write_model(tmp_path / "other.gguf", meta, weights(meta))
    error = fails("run", NAME, "x", "-md", str(other))
    assert "other.gguf cannot draft for" in error and "weft-demo.gguf" in error
    assert "nosuch.gguf: no such file" in fails("run", NAME, "x", "-md", "nosuch.gguf")
