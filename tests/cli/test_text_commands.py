"""`weft tokenize`, `perplexity` and `embed`, counts such as 32k, and the bar of long prompts."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from tests.cli.in_process import weft
from tests.llm.encoder_models import make_encoder
from tests.llm.tiny import metadata, write_model
from tests.serve.server import ROOT
from weft.cli import console as console_module
from weft.cli.console import PromptProgress
from weft.llm import LLM
from weft.options import parse_tokens

TEXT = "the abc teh b the the abc\n" * 30


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf")


def ok(*args: str | Path, typed: str = "") -> str:
    process = weft(*args, typed=typed)
    assert process.returncode == 0, process.stderr
    return process.stdout


def refused(*args: str | Path, typed: str | bytes = "", code: int = 1) -> str:
    process = weft(*args, typed=typed)
    assert process.returncode == code, process
    return process.stderr


# **** tokenize ****


def test_tokenize(path: Path, tmp_path: Path) -> None:
    ids = json.loads(ok("tokenize", path, "the <s>ü", "--ids"))
    rows = [line.split(maxsplit=1) for line in ok("tokenize", path, "the <s>ü").splitlines()]
    assert [int(row[0]) for row in rows] == ids
    assert (rows[0][1], rows[1][1], rows[-1][1]) == ("'<s>'", "' the'", r"b'\xbc'")
    assert json.loads(ok("tokenize", path, "the <s>ü", "--ids", "--no-bos")) == ids[1:]
    letters = json.loads(ok("tokenize", path, "the <s>ü", "--ids", "--no-special"))
    assert len(letters) > len(ids) and ids.count(1) == 2 and letters.count(1) == 1
    assert ok("tokenize", path, "--count", typed="the <s>ü") == f"{len(ids)}\n"
    file = tmp_path / "x.txt"
    file.write_text("the <s>ü")
    assert json.loads(ok("tokenize", path, "-f", file, "--ids")) == ids


def test_tokenize_refuses(path: Path, tmp_path: Path) -> None:
    assert "not both" in refused("tokenize", path, "a", "-f", tmp_path / "x")
    assert "No such file" in refused("tokenize", path, "-f", tmp_path / "x")
    assert "standard input: byte 1 is no UTF-8" in refused("tokenize", path, typed=b"a\xff")


# **** perplexity ****


def test_perplexity(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "text.txt"
    file.write_text(TEXT)
    llm = LLM(path)
    want = llm.perplexity(TEXT, n_ctx=32)
    text = ok("perplexity", path, "-f", file, "-c", "32")
    assert f"Final estimate: PPL = {want.value:.4f} +/- {want.error:.5f}" in text
    parts = text.splitlines()[0].rstrip(",").split(",")
    assert len(parts) == want.n_chunks
    assert parts[-1] == f"[{want.n_chunks}]{want.value:.4f}"
    row = json.loads(ok("perplexity", path, "-c", "32", "--chunks", "2", "--json", typed=TEXT))
    assert row["n_chunks"] == 2 and row["n_scored"] == 30
    assert row["ppl"] == pytest.approx(math.exp(row["nll"]))
    long = weft("perplexity", path, "-c", "128", typed=TEXT * 4)
    assert "was trained for 64 tokens" in long.stderr and "4 at a time" in long.stderr
    assert "--chunks is 0" in refused("perplexity", path, "--chunks", "0", typed=TEXT)
    assert "64 are needed, two chunks of 32" in refused("perplexity", path, "-c", "32", typed=b"a")


# **** embed ****


def test_embed(path: Path, tmp_path: Path) -> None:
    llm = LLM(path)
    texts = ["the abc", "b", "the"]
    want = llm.embed(texts)
    got = np.array(json.loads(ok("embed", path, *texts, "-o", "array")))
    np.testing.assert_allclose(got, want, atol=1e-5)
    data = json.loads(ok("embed", path, *texts, "-o", "json"))
    assert [row["index"] for row in data["data"]] == [0, 1, 2]
    np.testing.assert_allclose(data["data"][1]["embedding"], want[1], atol=1e-5)
    raw = np.loadtxt(io.StringIO(ok("embed", path, "-o", "raw", typed="the abc\n\nb\nthe\n")))
    np.testing.assert_allclose(raw, want, atol=1e-5)
    text = ok("embed", path, *texts)
    cosines = [[float(x) for x in line.split()[1:]] for line in text.splitlines()[-3:]]
    np.testing.assert_allclose(cosines, want @ want.T, atol=1e-4)
    plain = np.array(json.loads(ok("embed", path, "the abc", "-o", "array", "--no-normalize",
                                   "--pooling", "last")))  # fmt: skip
    np.testing.assert_allclose(
        plain[0], llm.embed("the abc", pooling="last", normalize=False), atol=1e-4
    )
    rows = json.loads(ok("embed", path, "the abc", "-o", "array", "--pooling", "none"))
    assert len(rows) == len(llm.tokenize("the abc"))


def test_embed_with_a_model_made_for_it(tmp_path: Path) -> None:
    path = make_encoder(tmp_path)[0]
    assert "cosines" in ok("embed", path, "the", "abc")
    assert "the context holds 64" in refused("embed", path, "the abc " * 90)
    assert "there is no text" in refused("embed", path)


# **** run ****


def test_long_texts_are_cut_and_many_have_no_table(tmp_path: Path) -> None:
    path = make_encoder(tmp_path)[0]
    long = "the abc " * 90
    assert "--truncate" in refused("embed", path, long)
    assert len(ok("embed", path, long, "--truncate").splitlines()) == 1
    for n, has in ((16, True), (17, False)):
        lines = ok("embed", path, *(["a"] * n))
        assert ("cosines" in lines) == has


def test_an_address_of_an_image_keeps_its_slashes(path: Path, tmp_path: Path) -> None:
    shapes = ROOT / "examples" / "shapes"
    tower = ("--mmproj", shapes / "mmproj-weft-shapes.gguf", "--image", "http://x/y.png")
    said = refused("run", shapes / "weft-shapes.gguf", *tower, "-p", "a", "-t", "1")
    assert "'http://x/y.png'; addresses of other machines are not fetched" in said


def test_errors_are_one_line(tmp_path: Path) -> None:
    said = refused("completion", code=2)
    assert said.splitlines()[0].endswith("'SHELL'. Choose from: bash, zsh, fish")


def test_the_text_to_continue(path: Path, tmp_path: Path) -> None:
    args = ("-n", "4", "--temp", "0", "-q", "-t", "1")
    want = ok("run", path, "-p", "the abc", *args)
    file = tmp_path / "x.txt"
    file.write_text("the abc\n")
    assert ok("run", path, "-f", file, *args) == want
    assert ok("run", path, *args, typed="the abc\n") == want
    assert ok("run", path, "-p", "-", *args, typed="the abc") == want
    assert "not both" in refused("run", path, "-p", "a", "-f", file)
    assert "make -c larger" in refused("run", path, "-p", "abc " * 200, *args)


# **** counts ****


@pytest.mark.parametrize(
    ("text", "count"),
    [("4096", 4096), ("32k", 32768), ("32K", 32768), ("1m", 1 << 20), ("1.5k", 1536), ("0", 0)],
)
def test_counts(text: str, count: int) -> None:
    assert parse_tokens(text) == count


@pytest.mark.parametrize("text", ["", "k", "-1", "3x", "1kb", "1e3", "0x10", "1 000"])
def test_counts_that_are_none(text: str) -> None:
    with pytest.raises(ValueError, match="write 4096, 32k or 1m"):
        parse_tokens(text)


def test_sizes_of_commands(path: Path) -> None:
    assert "48 of context" not in refused("run", path, "-p", "a", "-c", "1g", code=2)
    process = weft("run", path, "-p", "a", "-n", "2", "-c", "0.0625k", "-ub", "0.01k")
    assert process.returncode == 0 and "64 of context" in process.stderr
    data = json.loads(ok("explain", path, "-c", "2k", "--json"))
    cache = next(row["bytes"] for row in data["memory"] if row["buffer"] == "cache")
    assert cache == 2048 * 2 * 2 * 8 * 2  # cells, layers, keys and values of 8 f16


# **** the bar of long prompts ****


def shown(monkeypatch: pytest.MonkeyPatch, *, terminal: bool, patience: float) -> str:
    text = io.StringIO()
    monkeypatch.setattr(console_module, "errors", Console(file=text, force_terminal=terminal))
    monkeypatch.setattr(console_module, "PROMPT_PATIENCE", patience)
    with PromptProgress() as progress:
        for position in (512, 1024, 1500):
            progress(position, 1500)
    return text.getvalue()


def test_a_bar_for_long_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, terminal=True, patience=0)
    assert "reading the prompt" in text and "1500/1500" in text
    assert shown(monkeypatch, terminal=True, patience=100) == ""
    assert shown(monkeypatch, terminal=False, patience=0) == ""


def test_prompts_say_how_far_they_are(tmp_path: Path) -> None:
    keys = metadata(**{"llama.context_length": 256})
    llm = LLM(write_model(tmp_path / "m.gguf", keys), n_ubatch=16)
    told: list[tuple[int, int]] = []
    prompt = [5] * 40
    llm.generate(prompt, max_tokens=1, progress=lambda *a: told.append(a))
    assert told == [(16, 40), (32, 40), (40, 40)]
    told.clear()
    llm.generate([*prompt, 6, 7], max_tokens=1, progress=lambda *a: told.append(a))
    assert told == [(2, 2)]
