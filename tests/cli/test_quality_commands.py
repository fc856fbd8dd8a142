"""`weft imatrix`, and `weft perplexity` with files of logits and tasks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.in_process import Done, weft
from tests.llm.quality.golden import DATA, ROOT
from weft.frontends.gguf.imatrix_file import read_imatrix

DEMO = ROOT / "examples" / "weft-demo.gguf"
TEXT = DATA / "questions.txt"


def done(*words: object) -> Done:
    process = weft(*words)  # type: ignore[arg-type]
    assert process.returncode == 0, process.stderr
    return process


def test_logits_are_saved_and_compared(tmp_path: Path) -> None:
    base = tmp_path / "base.kld"
    saved = done("perplexity", DEMO, "-f", TEXT, "-c", "64", "--chunks", "3", "--kl-base", base)
    assert f"{base} will have" in saved.stderr and "Final estimate: PPL = " in saved.stdout
    compared = done("perplexity", DEMO, "--kl-divergence", "--kl-divergence-base", base).stdout
    assert compared.startswith("chunk ") and "Same top p : 100.000 ±  0.000 %" in compared
    row = json.loads(done("perplexity", DEMO, "--kl", "--kl-base", base, "--json").stdout)
    assert row["n_tokens"] == 93 and row["same_top"] == 1 and abs(row["kl"]) < 1e-4
    assert row["kl_spread"]["percentiles"].keys() >= {"99.9", "90", "0.1"}

    text = tmp_path / "other.txt"
    text.write_text("What is 7 + 9? 16.\n" * 40)
    other = weft("perplexity", DEMO, "--kl", "--kl-base", base, "-f", text)
    assert other.returncode == 1 and f"is of another text than {text}: token " in other.stderr
    noted = done("perplexity", DEMO, "--kl", "--kl-base", base, "-f", TEXT, "-c", "32").stderr
    assert "-c 32 changes nothing" in noted
    base.write_bytes(base.read_bytes()[:-100])
    broken = weft("perplexity", DEMO, "--kl", "--kl-base", base)
    assert broken.returncode == 1 and "was not written to its end" in broken.stderr
    assert "--kl-base FILE" in weft("perplexity", DEMO, "--kl").stderr
    both = weft("perplexity", DEMO, "--hellaswag", "--winogrande")
    assert both.returncode == 2 and "give one of --kl" in both.stderr


@pytest.mark.parametrize(
    ("kind", "file"),
    [
        ("hellaswag", "hellaswag.txt"),
        ("winogrande", "winogrande.csv"),
        ("multiple-choice", "choices.bin"),
    ],
)
def test_tasks(kind: str, file: str) -> None:
    few = ("perplexity", DEMO, f"--{kind}", f"--{kind}-tasks", "6", "-bf", DATA / file)
    text = done(*few).stdout
    assert text.splitlines()[5].startswith("6\t") and "Final result: " in text
    row = json.loads(done(*few, "--json").stdout)
    assert row["task"] == kind and row["n_tasks"] == 6
    assert f"Final result: {100 * row['accuracy']:.4f} %" in text
    assert weft(*few[:3], "-f", DEMO).returncode == 1


def test_windows(tmp_path: Path) -> None:
    line = ("perplexity", DEMO, "-f", TEXT, "-c", "48", "--ppl-stride", "32", "--json")
    row = json.loads(done(*line, "--chunks", "3").stdout)
    assert (row["n_ctx"], row["n_chunks"], row["n_scored"]) == (64, 3, 96)
    assert "--ppl-stride is -1" in weft(*line[:7], "-1").stderr


def test_imatrix(tmp_path: Path) -> None:
    out, few = tmp_path / "a.gguf", ("-c", "64", "--chunks", "4")
    made = done("imatrix", DEMO, "-f", TEXT, "-o", out, *few)
    assert "Final estimate: PPL = " in made.stdout and "35 tensors, 4 chunks" in made.stderr
    dat = tmp_path / "b.dat"
    quiet = done("imatrix", DEMO, "-f", TEXT, "-o", dat, *few, "--from-chunk", "4", "--no-ppl",
                 "--output-format", "dat", "--save-frequency", "2", "--json")  # fmt: skip
    assert json.loads(quiet.stdout)["n_chunks"] == 4 and "ppl" not in quiet.stdout
    assert (tmp_path / "b.dat.at_4").exists()
    both = tmp_path / "both.gguf"
    done("imatrix", "--in-file", out, "--in-file", dat, "-c", "64", "-o", both)
    assert read_imatrix(both).chunk_count == 8
    whole = tmp_path / "whole.gguf"
    done("imatrix", DEMO, "-f", TEXT, "-o", whole, "-c", "64", "--chunks", "8", "--no-ppl")
    for name, entry in read_imatrix(whole).entries.items():
        own = read_imatrix(both).entries[name]
        assert own.sums == pytest.approx(entry.sums, rel=1e-4) and own.counts == entry.counts
    shown = done("imatrix", "--in-file", both, "--show-statistics").stdout
    assert shown.splitlines()[1].split()[1] == "attn_k"
    rows = json.loads(done("imatrix", "--in-file", both, "--show-statistics", "--json").stdout)
    assert len(rows) == 35 and rows[0]["active"] == 1


def test_imatrix_that_cannot_be(tmp_path: Path) -> None:
    for words, said in (
        (("imatrix",), "give a text with -f FILE"),
        (("imatrix", "-f", TEXT), "MODEL is missing"),
        (("imatrix", "--show-statistics"), "--in-file FILE"),
        (("imatrix", DEMO, "-f", TEXT, "-c", "2000"), "4000 are needed"),
        (("imatrix", "--in-file", DEMO), "is not an importance matrix"),
        (("imatrix", "--in-file", tmp_path / "none"), "none"),
    ):
        refused = weft(*words)
        assert refused.returncode in (1, 2) and said in refused.stderr, words
        assert refused.stderr.startswith("error: ")
    assert not (ROOT / "imatrix.gguf").exists()
