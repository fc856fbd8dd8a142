"""`weft quantize --fit` and `weft compare`, as they are typed."""

from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from rich.console import Console

from tests.cli.in_process import weft
from tests.llm.encoder_models import make_encoder
from tests.llm.tiny import metadata, weights, write_model
from weft.cli.quantize_fit import _table
from weft.flags import FLAGS
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.writer import write_gguf
from weft.llm.cache.kv_cache import CacheTypes
from weft.llm.fitting.budget import Choice
from weft.llm.fitting.fit import Fit, Tried
from weft.llm.fitting.sizes import Whole
from weft.tables import size_text

ROOT = Path(__file__).resolve().parents[2]
DEMO = ROOT / "examples" / "weft-demo.gguf"
SHAPES = ROOT / "examples" / "shapes" / "weft-shapes.gguf"
FEW = ("--fit-types", "q5_0,Q4_0", "--probe", "scaled", "--probe-tokens", "128")
TEXT = "".join(f"What is {a} + {b}? {a + b}.\n" for a in range(20, 30) for b in range(11, 17))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache folder of the test's own."""
    mine = replace(FLAGS, cache=str(tmp_path / "cache"))
    monkeypatch.setattr("weft.llm.fitting.measured.FLAGS", mine)
    return tmp_path / "cache"


@pytest.fixture
def text(tmp_path: Path) -> Path:
    path = tmp_path / "text.txt"
    path.write_text(TEXT)
    return path


def test_the_best_types_are_written_with_their_plan(tmp_path: Path, cache: Path) -> None:
    out, html = tmp_path / "out.gguf", tmp_path / "fit.html"
    done = weft(
        "quantize", DEMO, out, "--fit-file", "700k", "-c", "256", *FEW, "--html", html, "--json"
    )
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    assert data["chosen"]["name"] == "fit"
    with open_gguf(out) as file:
        types = {t.name: t.dtype.name for t in file.tensors.values()}
        assert sum(t.nbytes for t in file.tensors.values()) == data["chosen"]["file"] <= 700 << 10
    assert all(types[row["name"]] == row["type"] for row in data["tensors"])
    assert len({row["type"] for row in data["tensors"]}) == 3
    plan = tmp_path / "out.fit.json"
    assert json.loads(plan.read_text()) == data
    assert "<title>weft-demo.gguf for a file of 700.00 KiB" in html.read_text()
    assert list((cache / "probes").glob("*.jsonl")), "what was measured is kept"

    again = tmp_path / "again.gguf"
    assert weft("quantize", DEMO, again, "--fit-plan", plan).returncode == 0
    assert again.read_bytes() == out.read_bytes()
    other = weft("quantize", SHAPES, again, "--fit-plan", plan)
    assert other.returncode == 1 and "the plan is of another model" in other.stderr


def test_a_dry_run_writes_nothing_and_recommends_a_cache(tmp_path: Path, text: Path) -> None:
    plain = weft("quantize", DEMO, "--fit", "1GiB", "-c", "8k", "--dry-run", "-f", text, *FEW)
    assert plain.returncode == 0, plain.stderr
    assert "large part" not in plain.stderr
    done = weft("quantize", DEMO, "--fit", "18MiB", "-c", "8k", "--dry-run", "-f", text, *FEW)
    assert done.returncode == 0, done.stderr
    assert "the cache is a large part of the budget: run the model with -ctk" in done.stderr
    assert not list(tmp_path.glob("*.gguf"))


def test_wide_rows_have_the_types_of_large_blocks(tmp_path: Path) -> None:
    meta = metadata(**{"llama.embedding_length": 256, "llama.feed_forward_length": 256,
                       "llama.block_count": 1})  # fmt: skip
    model = write_model(tmp_path / "wide.gguf", meta, weights(meta))
    out = tmp_path / "out.gguf"
    done = weft(
        "quantize", model, out, "--fit-file", "350k", "--fit-types", "q6_K,q4_K,q2_K",
        "--probe", "error", "--probe-tokens", "64",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with open_gguf(out) as file:
        names = {t.dtype.name for t in file.tensors.values()}
        assert sum(t.nbytes for t in file.tensors.values()) <= 350 << 10
    assert names & {"q6_K", "q4_K", "q2_K"}


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("out.gguf", "Q4_0", "--fit", "1G"), "--fit chooses the types; leave out Q4_0"),
        (("--fit", "1G"), "weft quantize IN OUT --fit SIZE, or --dry-run"),
        (("out.gguf", "--fit", "lots"), "--fit: 'lots' is not a size"),
        (("out.gguf", "--fit", "0"), "--fit is 0; it must be 1 byte or more"),
        (("out.gguf", "--speed", "-3"), "--speed is -3; it must be above 0"),
        (("out.gguf", "--speed", "nan"), "--speed is nan; it must be above 0"),
        (("out.gguf", "--fit", "1G", "--pure"), "--pure has one type for all"),
        (("out.gguf", "--fit", "1G", "--probe", "guess"), "choose one of each, scaled, error"),
        (("out.gguf", "--fit", "1G", "--fit-types", "q9"), "--fit-types q9: choose some of q8_0"),
        (("out.gguf", "--fit", "1G", "-ctk", "q4_K"), "-ctk is q4_K; it must be f16"),
        (("out.gguf", "--fit", "1G", "--probe-tokens", "3"), "--probe-tokens is 3"),
        (("out.gguf", "--fit", "900k"), "no types fit into 900.00 KiB"),
        (("out.gguf", "Q4_0", "--probe", "each"), "--probe goes with --fit SIZE"),
        (("out.gguf", "--fit-plan", "x.json", "--fit", "1G"), "leave out --fit"),
        (("out.gguf", "--fit-plan", "none.json"), "plan none.json: No such file"),
        (("out.gguf", "--fit", "1G", "-f", "none.txt"), "none.txt: No such file"),
    ],
)
def test_what_cannot_be_is_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, args: tuple[str, ...], said: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = weft("quantize", DEMO, *args)
    assert done.returncode in (1, 2)
    assert said in " ".join(done.stderr.split())
    assert not (tmp_path / "out.gguf").exists()


def test_a_model_that_is_of_no_use_is_a_warning_with_the_least_budget(
    tmp_path: Path, text: Path
) -> None:
    args = ("-c", "64", "-f", text, "--probe-tokens", "64", "--dry-run", "--json")
    types = ("--fit-types", "q8_0,q4_0,q1_0")
    done = weft("quantize", DEMO, "--fit-file", "300k", *args, *types, "--probe", "scaled")
    assert done.returncode == 0, done.stderr
    data, said = json.loads(done.stdout), " ".join(done.stderr.split())
    assert data["of_use"] is False and f"warning: {data['warning']}" in said
    assert data["chosen"]["kl"] > 1 or data["chosen"]["same_top"] < 0.5
    assert "is of no use: its mean divergence is" in said
    least = data["least_of_use"]
    assert least["kl"] <= 1 and least["same_top"] >= 0.5 and least["file"] > 300 << 10
    assert f"a file of {size_text(least['file'])} (--fit-file)" in said
    assert "is quantized already" in said and "measurements of 64 tokens" in said

    guessed = weft("quantize", DEMO, "--fit-file", "300k", *args, *types, "--probe", "error")
    assert json.loads(guessed.stdout)["least_of_use"]["file"] > 300 << 10
    good = weft("quantize", DEMO, "--fit-file", "1200k", *args, *types, "--allow-requantize")
    data = json.loads(good.stdout)
    assert data["of_use"] is True and data["warning"] is None
    assert "warning" not in good.stderr and "quantized already" not in good.stderr


def test_the_table_is_not_wider_than_the_screen() -> None:
    whole = Whole(100 << 20, 10 << 20, 80 << 20, 0.01)
    choice = Choice("Q4_K_M", {}, 0.1, whole, 80 << 20, CacheTypes())
    tried = Tried(choice, 17.81234, 0.01234, 20.1234, 0.001)
    found = SimpleNamespace(
        file=SimpleNamespace(tensors={"a": SimpleNamespace(n_elements=135 << 20)}), tried=[tried]
    )
    for width, names in ((80, 7), (200, 9)):
        text = io.StringIO()
        Console(file=text, width=width).print(_table(cast(Fit, found), width))
        head, row = text.getvalue().splitlines()
        assert len(_columns(head)) == len(_columns(row)) == names and len(row.rstrip()) <= width


def _columns(line: str) -> list[str]:
    return [cell for cell in re.split(r"  +", line.strip()) if cell]


def test_a_model_that_writes_nothing_is_refused_before_the_solver_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scipy.optimize", None)
    model, _ = make_encoder(tmp_path)
    done = weft("quantize", model, "--fit", "1G", "--dry-run")
    assert done.returncode == 1
    assert f"{model} writes no text token by token" in " ".join(done.stderr.split())


def test_without_the_solver_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "scipy.optimize", None)
    done = weft("quantize", DEMO, "--fit", "1G", "--dry-run")
    assert done.returncode == 1 and "pip install 'weft[fit]'" in done.stderr


def test_models_side_by_side(tmp_path: Path, text: Path) -> None:
    small = tmp_path / "small.gguf"
    assert weft("quantize", DEMO, small, "Q4_0", "--allow-requantize").returncode == 0
    args = ("compare", DEMO, small, "-f", text, "-c", "64", "-p", "16", "-n", "4", "-r", "1")
    done = weft(*args, "--json")
    assert done.returncode == 0, done.stderr
    data = json.loads(done.stdout)
    first, other = data["models"]
    assert first["same_top"] == 1 and abs(first["kl"]) < 1e-6
    assert 0 < other["kl"] < 0.1 and 0.5 < other["same_top"] <= 1
    assert other["kl"] < other["kl_spread"]["percentiles"]["99"] < 1
    assert other["size"] < first["size"] and other["memory"] < first["memory"]
    assert all(row["pp16"] > 0 and row["tg4"] > 0 for row in data["models"])
    alone = weft("perplexity", small, "-f", text, "-c", "64", "--chunks", "16", "--json")
    assert json.loads(alone.stdout)["ppl"] == pytest.approx(other["ppl"], rel=1e-4)
    table = weft(*args, "-p", "0", "-n", "0")
    assert table.returncode == 0
    heading, *rows = table.stdout.splitlines()
    assert heading.split()[:3] == ["model", "size", "bits/weight"] and "tok/s" not in heading
    assert [row.split()[0] for row in rows] == ["weft-demo.gguf", "small.gguf"]


def test_a_model_of_no_use_beside_another(tmp_path: Path, text: Path) -> None:
    broken = tmp_path / "broken.gguf"
    with open_gguf(DEMO) as file:
        rows = [(t.name, t.dtype, t.ne[: t.n_dims],
                 np.zeros_like(t.data) if t.name.endswith("ffn_down.weight") else t.data)
                for t in file.tensors.values()]  # fmt: skip
        write_gguf(broken, dict(file.copy_metadata()), rows)
    args = ("compare", DEMO, broken, "-f", text, "-c", "64", "-p", "0", "-n", "0")
    table = weft(*args)
    said = " ".join(table.stderr.split())
    assert table.returncode == 0
    assert said.count("warning:") == 1
    assert "broken.gguf is of no use in place of weft-demo.gguf: its mean divergence is" in said
    first, other = json.loads(weft(*args, "--json").stdout)["models"]
    assert first["of_use"] is True and other["of_use"] is False
    assert other["kl"] > 1 or other["same_top"] < 0.5


def test_types_of_the_cache_side_by_side(text: Path) -> None:
    done = weft("compare", DEMO, "--cache-types", "-f", text, "-c", "64", "--json")
    assert done.returncode == 0, done.stderr
    rows = {(r["type_k"], r["type_v"]): r for r in json.loads(done.stdout)["caches"]}
    assert len(rows) == 25
    assert abs(rows["f32", "f32"]["kl"]) < 1e-6
    kl = [rows[t, t]["kl"] for t in ("f16", "q8_0", "q5_1", "q4_0")]
    size = [rows[t, t]["cache"] for t in ("f16", "q8_0", "q5_1", "q4_0")]
    assert kl == sorted(kl) and size == sorted(size, reverse=True)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ((DEMO, SHAPES), "has a vocabulary of 479 tokens, weft-shapes.gguf of 447"),
        ((DEMO,), "name at least two models, or one with --cache-types"),
        ((DEMO, DEMO, "--cache-types"), "--cache-types is of one model; 2 are given"),
        ((DEMO, DEMO, "-r", "0"), "-r is 0"),
        ((DEMO, DEMO, "-n", "-1"), "-n is -1"),
        ((DEMO, DEMO, "-c", "8"), "at least 16 are needed"),
    ],
)
def test_comparisons_that_cannot_be(text: Path, args: tuple[str | Path, ...], said: str) -> None:
    done = weft("compare", *args, "-f", text)
    assert done.returncode in (1, 2)
    assert said in " ".join(done.stderr.split())


def test_another_vocabulary_of_the_same_size_is_refused(tmp_path: Path, text: Path) -> None:
    other = tmp_path / "other.gguf"
    with open_gguf(DEMO) as file:
        meta = dict(file.copy_metadata())
        tokens = list(file.metadata["tokenizer.ggml.tokens"])
        tokens[300] = "quux"
        meta["tokenizer.ggml.tokens"] = tokens
        write_gguf(other, meta, [(t.name, t.dtype, t.ne[: t.n_dims], t.data)
                                 for t in file.tensors.values()])  # fmt: skip
    done = weft("compare", DEMO, other, "-f", text)
    assert done.returncode == 1
    assert "token 300 is" in done.stderr and "'quux' for other.gguf" in done.stderr
