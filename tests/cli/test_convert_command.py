"""`weft convert`, `weft gguf` and `--type`, over folders of tiny models."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.cli.in_process import weft
from tests.frontends.peft_files import write_peft
from tests.serve.server import DEMO
from weft.cli.loading import Load
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.quantize import quantize_file
from weft.frontends.gguf.writer import write_gguf
from weft.frontends.models import open_model

pytest.importorskip("gguf")
MODEL = Path(__file__).parents[1] / "data" / "hf" / "qwen3-tiny-moe"


def test_convert_and_run(tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    done = weft("convert", MODEL, out, "--outtype", "f16", "-v")
    assert done.returncode == 0 and "blk.0.attn_q.weight" in done.stderr
    assert f"{out}: 15 tensors" in done.stderr
    text = ("-p", "the sun", "-n", "4", "-q", "--temp", "0")
    ran = [weft("run", model, *text) for model in (MODEL, out)]
    assert ran[0].returncode == 0 and ran[0].stdout == ran[1].stdout
    quantized = weft("run", MODEL, "--type", "q8_0", *text)
    assert quantized.returncode == 0, quantized.stderr
    assert weft("convert", MODEL, tmp_path / "q.gguf", "--type", "Q8_0").returncode == 0
    assert weft("quantize", MODEL, tmp_path / "q2.gguf", "q8_0").returncode == 0
    assert weft("run", tmp_path / "q2.gguf", *text).stdout == quantized.stdout


TEXT = "the cat sat on the mat " * 8
SAYS: dict[str, tuple[tuple[str, ...], Callable[[Any], Any]]] = {
    "bench": (("-p", "4", "-n", "0", "-r", "1", "-o", "json"),
              lambda rows: [(row["model_type"], row["model_size"]) for row in rows]),
    "perplexity": (("-c", "16", "--json"), lambda row: (row["ppl"], row["n_scored"])),
    "embed": (("the sun", "-o", "array"), lambda rows: rows),
    "explain": (("--json",), lambda plan: plan["memory"]),
}  # fmt: skip
"""A command with its options, and what of its output depends on the weights."""


@pytest.mark.parametrize("command", SAYS)
def test_the_type_of_weights_in_every_command(command: str, tmp_path: Path) -> None:
    options, part = SAYS[command]
    file = tmp_path / "q.gguf"
    quantize_file(open_model(MODEL, to_write=True), file, "q8_0")

    def said(model: Path, *more: str) -> Any:
        done = weft(command, model, *options, *more, typed=TEXT)
        assert done.returncode == 0, done.stderr
        return part(json.loads(done.stdout))

    assert said(MODEL, "--type", "q8_0") == said(file) != said(MODEL)
    wrong = weft(command, MODEL, *options, "--type", "q8_00", typed=TEXT)
    assert wrong.returncode == 1 and "did you mean" in wrong.stderr


def test_the_type_of_weights_that_are_compared() -> None:
    same = weft("compare", MODEL, MODEL, "-p", "0", "-n", "0", "--json", "--type", "q8_0",
                typed=TEXT * 8)  # fmt: skip
    assert same.returncode == 0, same.stderr
    sizes = {row["size"] for row in json.loads(same.stdout)["models"]}
    assert sizes == {sum(t.nbytes for t in open_model(MODEL, "q8_0").tensors.values())}


def test_every_command_with_models_has_the_type() -> None:
    kinds = [Load]
    for kind in kinds:
        kinds += kind.__subclasses__()
    assert {"BenchLoad", "ChunkLoad", "ExplainLoad", "Untuned"} <= {kind.__name__ for kind in kinds}
    for kind in kinds:
        assert "type" in kind.options(), kind


def test_split_and_merge(tmp_path: Path) -> None:
    whole, cut = tmp_path / "m.gguf", tmp_path / "c.gguf"
    weft("convert", MODEL, whole)
    done = weft("convert", MODEL, cut, "--split", "20K")
    shards = sorted(tmp_path.glob("c-*.gguf"))
    assert done.returncode == 0 and len(shards) > 1 and not cut.exists()
    assert weft("gguf", "merge", shards[0], tmp_path / "merged.gguf").returncode == 0
    assert (tmp_path / "merged.gguf").read_bytes() == whole.read_bytes()
    done = weft("gguf", "split", whole, tmp_path / "d.gguf", "--max-tensors", "4")
    assert done.returncode == 0 and "4 files" in done.stderr
    assert weft("run", tmp_path / "d-00001-of-00004.gguf", "-p", "a", "-n", "1").returncode == 0
    assert "4G" in weft("gguf", "split", whole, tmp_path / "e.gguf").stderr
    own = weft("gguf", "--split", "--split-max-size", "20K", whole, tmp_path / "f.gguf")
    first = next(tmp_path.glob("f-00001-of-*.gguf"))
    assert own.returncode == 0
    assert weft("gguf", "--merge", first, tmp_path / "g.gguf").returncode == 0
    assert (tmp_path / "g.gguf").read_bytes() == whole.read_bytes()
    assert "no size" in weft("convert", MODEL, cut, "--split", "4X").stderr
    assert "file being read" in weft("gguf", "merge", shards[0], shards[0]).stderr


def test_set_a_key(tmp_path: Path) -> None:
    path, key = tmp_path / "m.gguf", "qwen3moe.context_length"
    weft("convert", MODEL, path)
    before = open_gguf(path)
    assert weft("gguf", "set", path, key, "32").returncode == 0
    after = open_gguf(path)
    assert after.get_int(key) == 32 and after.metadata.type_of(key) == before.metadata.type_of(key)
    assert list(after.tensors) == list(before.tensors)
    for name, tensor in before.tensors.items():
        np.testing.assert_array_equal(after.tensors[name].data, tensor.data)
    for value, message in (("1.5", "is no u32"), ("x", "is no u32"), (str(1 << 32), "is no u32")):
        assert message in weft("gguf", "set", path, key, value).stderr
    assert "say the type of a new one" in weft("gguf", "set", path, "new", "1").stderr
    assert weft("gguf", "set", path, "new", "true", "--type", "bool").returncode == 0
    assert open_gguf(path).get_bool("new") is True
    assert "takes FILE KEY VALUE" in weft("gguf", "set", path, "new").stderr
    assert "none of split" in weft("gguf", "join", path).stderr


def test_check(tmp_path: Path) -> None:
    good = tmp_path / "m.gguf"
    weft("convert", MODEL, good)
    assert "all values finite" in weft("gguf", "check", good).stderr
    values = np.array([1, np.nan, 3, np.inf], np.float32)
    write_gguf(tmp_path / "bad.gguf", {"general.architecture": "x"}, [("w", "f32", (4,), values)])
    done = weft("gguf", "check", tmp_path / "bad.gguf")
    assert done.returncode != 0 and "w: 2 of 4 values are not finite" in done.stderr


def test_what_is_not_there(tmp_path: Path) -> None:
    out = tmp_path / "m.gguf"
    assert "not there" in weft("convert", tmp_path / "x", out).stderr
    out.write_bytes(b"GGUF")
    assert "weft quantize takes GGUF files" in weft("convert", out, out).stderr
    assert "did you mean" in weft("convert", MODEL, out, "--type", "q4_k_mm").stderr
    assert "without config.json" in weft("run", tmp_path, "-p", "x").stderr
    assert out.read_bytes() == b"GGUF"


def test_an_adapter_becomes_a_file(tmp_path: Path) -> None:
    law, out, base = write_peft(tmp_path, MODEL), tmp_path / "law.gguf", ("--base", MODEL)
    done = weft("convert", law, out, "--lora", *base, "-v")
    assert done.returncode == 0 and "blk.0.attn_q.weight.lora_a" in done.stderr
    tensors = open_gguf(out).tensors
    assert f"{out}: {len(tensors)} tensors" in done.stderr
    assert {t.dtype.name for t in tensors.values()} == {"f32"}
    text = ("-p", "the sun", "-n", "6", "-q", "--temp", "0", "--ignore-eos", "--lora")
    ran = [weft("run", MODEL, *text, adapter).stdout for adapter in (law, out)]
    assert ran[0] == ran[1] != weft("run", MODEL, *text[:-1]).stdout
    assert weft("convert", law, out, "--lora", *base, "--type", "F16").returncode == 0
    assert open_gguf(out).tensors["blk.0.attn_q.weight.lora_a"].dtype.name == "f16"
    for options, says in (
        ((), "is an adapter of PEFT; add --lora"),
        (("--lora",), "of the model x/y, which is no folder here; say where"),
        (("--lora", *base, "--type", "Q4_K_M"), "--type q4_k_m is none of adapters"),
        (("--lora", *base, "--merge", law), "give one"),
        (("--lora", *base, "--split", "4G"), "does not go with --lora"),
        (base, "it goes with --lora"),
    ):
        assert says in weft("convert", law, out, *options).stderr


def test_merge_adapters(tmp_path: Path) -> None:
    law, out, whole = write_peft(tmp_path, MODEL), tmp_path / "m.gguf", tmp_path / "whole.gguf"
    done = weft("convert", MODEL, out, "--type", "f32", "--merge", f"{law}:0.5", "-v")
    assert done.returncode == 0 and "merged" in done.stderr and "kept" in done.stderr
    assert ": 15 tensors, 8 of them changed" in done.stderr
    text = ("-p", "the sun", "-n", "6", "-q", "--temp", "0", "--ignore-eos")
    merged, plain = weft("run", out, *text).stdout, weft("run", MODEL, *text).stdout
    assert merged == weft("run", MODEL, *text, "--lora-scaled", f"{law}:0.5").stdout != plain
    # of a file: twice a half is once, minus once is the model
    weft("convert", MODEL, whole, "--type", "f32")
    twice = ("--merge", f"{law}:0.25", "--merge", f"{law}:0.25")
    assert weft("convert", whole, tmp_path / "n.gguf", *twice).returncode == 0
    assert weft("run", tmp_path / "n.gguf", *text).stdout == merged
    done = weft("convert", whole, tmp_path / "q.gguf", "--merge", law, "--type", "Q8_0")
    assert done.returncode == 0, done.stderr
    for model, options, says in (
        (tmp_path / "x", ("--merge", law), "is not there"),
        (whole, ("--merge", f"{law}:x"), "--merge"),
        (whole, ("--merge", "nope.gguf"), "nope.gguf"),
        (whole, ("--merge", whole), "this is a model, not an adapter"),
        (whole, ("--merge", law, "--type", "q4_k_mm"), "did you mean"),
        (whole, ("--merge", law, "--type", "Q8_0", "--split", "4G"), "--split does not go"),
    ):
        done = weft("convert", model, tmp_path / "bad.gguf", *options)
        assert done.returncode and says in done.stderr
        assert not (tmp_path / "bad.gguf").exists()


def test_rows_that_are_not_whole_blocks_are_said(tmp_path: Path) -> None:
    out = tmp_path / "q.gguf"
    for line in ((MODEL, out, "Q4_K_M"), (MODEL, "Q4_K_M", "--dry-run")):
        said = weft("quantize", *line)
        assert said.returncode == 0, said.stderr
        assert "rows that are not whole blocks of 256 numbers, which Q4_K_M has" in said.stderr
    fits = weft("quantize", DEMO, "q4_0", "--dry-run")
    assert fits.returncode == 0 and "whole blocks" not in fits.stderr
