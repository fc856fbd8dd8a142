"""Files of logits and KL divergence against llama-perplexity's, and damaged files."""

from __future__ import annotations

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from tests.llm.quality.golden import DATA, TEXT, f32_model, figures, opened
from weft.errors import ContextError, FormatError
from weft.frontends.gguf.mixes import Choices
from weft.frontends.gguf.quantize import quantize_file
from weft.frontends.gguf.reader import open_gguf
from weft.llm.compute.perplexity import score_chunks, score_strided
from weft.llm.quality.kl import compare_with_file, compare_with_model, n_outputs_for, save_logits
from weft.llm.quality.logits_file import LogitsFile, file_bytes


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kl")


@pytest.fixture(scope="module")
def saved(folder: Path) -> Path:
    """The file of logits that weft writes for the text of the golden one."""
    _, tokenizer, context = opened(f32_model(folder), 128, n_seq_max=2, n_outputs=40)
    ids = tokenizer.encode(TEXT)
    path = folder / "own.kld"
    *_, last = save_logits(context, ids, path, 64, bos=tokenizer.vocab.bos, n_chunks=4)
    *_, want = score_chunks(context, ids, 64, bos=tokenizer.vocab.bos, n_chunks=4)
    assert last.value == pytest.approx(want.value, rel=1e-6)
    return path


def test_the_file_is_that_of_llama_perplexity(saved: Path) -> None:
    own, want = saved.read_bytes(), (DATA / "base.kld").read_bytes()
    assert len(own) == len(want) == file_bytes(64, 479, 4)
    head = 20 + 4 * 4 * 64
    assert own[:head] == want[:head]
    with LogitsFile(saved) as one, LogitsFile(DATA / "base.kld") as other:
        assert (one.n_ctx, one.n_vocab, one.n_chunks) == (64, 479, 4)
        for n in (1, 100, 23):
            assert one.read(n) == pytest.approx(other.read(n), abs=6e-4)  # two steps
        with pytest.raises(FormatError, match="became shorter"):
            one.read(1)


def test_kl_is_that_of_llama_perplexity(folder: Path) -> None:
    quantized = folder / "q4_0.gguf"
    with open_gguf(f32_model(folder)) as file:
        quantize_file(file, quantized, "Q4_0", choices=Choices(pure=True))
    _, tokenizer, context = opened(quantized, 64)
    with LogitsFile(DATA / "base.kld") as base:
        every = list(compare_with_file(context, base, bos=tokenizer.vocab.bos))
    want = (DATA / "kl.txt").read_text()
    assert len(every) == 4 and every[0].kl_spread is None
    last = every[-1]
    assert last.n_tokens == 124 and last.kl_spread and last.p_change_spread
    for name, estimate, off in (
        ("Mean PPL(Q) ", last.ppl, 2e-3),
        ("Mean PPL(base)", last.ppl_base, 1.1e-6),
        ("Mean ln(PPL", last.ln_ppl_ratio, 1e-3),
        ("Mean    KLD", last.kl, 1e-4),
    ):
        line = next(line for line in want.splitlines() if line.startswith(name))
        assert [estimate.value, estimate.error] == pytest.approx(figures(line)[-2:], abs=off), name
    for sign, spread, unit in (("KLD", last.kl_spread, 1), ("Δp", last.p_change_spread, 100)):
        found = {per: figures(re.search(rf"{per}% +{sign}:.*", want)[0])[-1]  # type: ignore[index]
                 for per in ("99.9", "99.0", "90.0", "10.0", "1.0")}  # fmt: skip
        for per, value in found.items():
            assert unit * spread.percentiles[float(per)] == pytest.approx(value, abs=0.03 * unit)
    top = next(line for line in want.splitlines() if line.startswith("Same top p"))
    assert 100 * last.same_top.value == pytest.approx(figures(top)[0], abs=1.7)  # two tokens


def test_two_models_side_by_side(folder: Path, saved: Path) -> None:
    path = f32_model(folder)
    _, tokenizer, one = opened(path, 64)
    _, _, other = opened(path, 64)
    ids = tokenizer.encode(TEXT)
    *_, same = compare_with_model(one, other, ids, 64, bos=tokenizer.vocab.bos, n_chunks=4)
    assert same.same_top.value == 1 and abs(same.kl.value) < 1e-6
    with LogitsFile(saved) as base:
        *_, rounded = compare_with_file(one, base, bos=tokenizer.vocab.bos)
    assert rounded.same_top.value == 1 and abs(rounded.kl.value) < 1e-4
    assert rounded.ppl.value == pytest.approx(same.ppl.value, rel=1e-5)


def test_windows_that_overlap(folder: Path) -> None:
    _, tokenizer, context = opened(f32_model(folder), 256)
    ids = tokenizer.encode(TEXT)
    values = [estimate.value for estimate in score_strided(context, ids, 256, 32)]
    assert len(values) == 25
    assert values[:3] == pytest.approx([11.3863, 8.3456, 4.6779], abs=1e-4)
    assert values[-1] == pytest.approx(4.4140, abs=1e-4)
    with pytest.raises(ContextError, match="ppl_stride is 256; it must be 1 to 255"):
        score_strided(context, ids, 256, 256)
    with pytest.raises(ContextError, match="two windows of 256"):
        score_strided(context, ids[:300], 256, 32)


def test_rows_of_large_vocabularies_are_few() -> None:
    assert n_outputs_for(479, 512) == 512
    assert n_outputs_for(131072, 512) == 128
    assert n_outputs_for(1 << 30, 512) == 1


def test_damaged_files_are_refused(tmp_path: Path, folder: Path) -> None:
    good = (DATA / "base.kld").read_bytes()
    bad = tmp_path / "bad.kld"

    def refused(data: bytes, what: str) -> None:
        bad.write_bytes(data)
        with pytest.raises(FormatError, match=what):
            LogitsFile(bad)

    refused(b"", "does not begin with '_logits_'")
    refused(b"GGUF" + good[4:], "does not begin with '_logits_'")
    refused(good[:-1], f"has {len(good) - 1} bytes, but {len(good)} are needed")
    refused(good + b"0", f"has {len(good) + 1} bytes")
    refused(good[:8] + struct.pack("<iii", 64, 479, 2**31 - 1) + good[20:], "which cannot be")
    refused(good[:8] + struct.pack("<iii", -64, 479, 4) + good[20:], "which cannot be")
    refused(good[:20] + struct.pack("<i", 479) + good[24:], "token 479 of a vocabulary of 479")
    with pytest.raises(FormatError, match="No such file"):
        LogitsFile(tmp_path / "none.kld")
    rows = 20 + 4 * 4 * 64
    bad.write_bytes(good[:rows] + struct.pack("<ff", np.nan, 0) + good[rows + 8 :])
    with LogitsFile(bad) as file, pytest.raises(FormatError, match="not log-probabilities"):
        file.read(3)

    with LogitsFile(DATA / "base.kld") as file:
        with pytest.raises(ContextError, match=r"of 479 tokens, but other\.gguf has 512"):
            file.require_vocab(512, "other.gguf")
        own = file.chunks.ravel()
        file.require_text(np.append(own, 5), "t.txt")
        other = own.copy()
        other[7] += 1
        with pytest.raises(ContextError, match=rf"token 7 is {own[7]} there and {own[7] + 1} here"):
            file.require_text(other, "t.txt")
        with pytest.raises(ContextError, match="it has 256 tokens, and this text 10"):
            file.require_text(own[:10], "t.txt")
        _, _, context = opened(f32_model(folder), 32)
        with pytest.raises(ContextError, match="chunks of 64 tokens"):
            compare_with_file(context, file)


def test_a_file_that_is_not_finished_does_not_appear(folder: Path, tmp_path: Path) -> None:
    _, tokenizer, context = opened(f32_model(folder), 64)
    ids = tokenizer.encode(TEXT)
    path = tmp_path / "half.kld"
    steps = save_logits(context, ids, path, 64, n_chunks=3)
    next(steps)
    steps.close()  # type: ignore[attr-defined]
    assert list(tmp_path.iterdir()) == []
