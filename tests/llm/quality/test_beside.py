"""Tensors of a run beside logs that llama.cpp's llama-eval-callback has written."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tests.cli.in_process import weft
from tests.report.test_timeline import page_data
from weft.errors import ContextError, FormatError
from weft.execute import WatchedTensor
from weft.frontends.gguf import open_gguf
from weft.llm.compute.context import Context
from weft.llm.model import Model
from weft.llm.quality.beside import compare_tensors
from weft.llm.quality.tensor_log import TensorLog, parse_tensor_log, read_tensor_log
from weft.llm.quality.tensor_pairs import TensorComparison

DATA = Path(__file__).parents[2] / "data"
SHARED = Path(__file__).resolve().parents[4] / "shared/vectors/models/archs"
TEXT = "the cat"
Spoil = Callable[[np.ndarray], None]


def model_path(name: str) -> Path:
    path = DATA / "vectors/models/archs" / f"{name}.gguf"
    path = path if path.exists() else SHARED / f"{name}.gguf"
    if not path.exists():
        pytest.skip("the golden models (../shared/vectors) are not part of a public clone")
    return path


def lines_of(name: str) -> list[str]:
    with gzip.open(DATA / "quality/tensors" / f"{name}.log.gz", "rt") as file:
        return file.readlines()


def written(tmp_path: Path, lines: list[str]) -> Path:
    path = tmp_path / "eval.log"
    path.write_text("".join(lines), encoding="utf-8")
    return path


def compared(name: str, log: TensorLog, *, glob: str = "*", **options: object) -> TensorComparison:
    context = Context(Model.open(model_path(name)), 64, devices=["cpu"], **options)  # type: ignore[arg-type]
    assert log.tokens is not None
    return compare_tensors(context, log, log.tokens, glob)


def spoiled(tmp_path: Path, name: str, tensor: str, spoil: Spoil) -> Path:
    """The model with other values of a tensor of f32."""
    path = tmp_path / f"{name}.gguf"
    shutil.copy(model_path(name), path)
    old = open_gguf(path).tensors[tensor].data.tobytes()
    raw = path.read_bytes()
    values = np.frombuffer(old, np.float32).copy()
    spoil(values)
    path.write_bytes(raw.replace(old, values.tobytes(), 1))
    return path


@pytest.mark.parametrize("name", ["llama3", "qwen2moe"])
def test_tensors_agree_with_llama_cpp(name: str, tmp_path: Path) -> None:
    log = written(tmp_path, lines_of(name))
    run = weft("run", str(model_path(name)), "-p", TEXT, "-q", "--beside", str(log))
    assert run.returncode == 0, run.stdout
    assert "tensors agree; the most distant: " in run.stdout
    assert "5 tokens, matrices of type f32" in run.stdout


def test_every_ubatch_is_compared() -> None:
    log = parse_tensor_log(lines_of("llama3_ubatches"))
    assert [log.n_tokens(i) for i in range(len(log.runs))] == [3, 2]
    found = compared("llama3", log)
    assert not found.differs and len(found.pairs) == 128
    assert [pair.run for pair in found.pairs] == [0] * 64 + [1] * 64


def double(values: np.ndarray) -> None:
    values *= 2.0


def add_to_one(values: np.ndarray) -> None:
    values[7] += 1.5


def add_to_a_row_inside(values: np.ndarray) -> None:
    values[50 * 64 : 51 * 64] += 0.2


@pytest.mark.parametrize(
    ("name", "tensor", "spoil", "first"),
    [
        ("llama3", "blk.1.ffn_up.weight", add_to_one, "ffn_up-1"),
        ("llama3", "blk.1.ffn_up.weight", add_to_a_row_inside, "ffn_up-1"),  # seen in the sum
        ("llama3", "blk.1.attn_norm.weight", double, "attn_norm-1"),
        ("llama3", "blk.2.attn_output.weight", add_to_one, "attn_out-2"),
        ("qwen2moe", "blk.1.ffn_gate_inp.weight", double, "ffn_moe_logits-1"),
        ("qwen2moe", "blk.0.attn_k.bias", add_to_one, "Kcur-0"),
    ],
)
def test_a_planted_fault_is_found(
    name: str, tensor: str, spoil: Spoil, first: str, tmp_path: Path
) -> None:
    bad = spoiled(tmp_path, name, tensor, spoil)
    log = written(tmp_path, lines_of(name))
    run = weft("run", str(bad), "-p", TEXT, "-q", "--beside", str(log))
    assert run.returncode == 1
    assert f"first tensor that differs: {first} (" in run.stdout
    assert f"reads {tensor}" in run.stdout and " here, " in run.stdout


def test_a_context_that_was_used_before_begins_anew() -> None:
    log = parse_tensor_log(lines_of("llama3"))
    assert log.tokens is not None
    context = Context(Model.open(model_path("llama3")), 64, devices=["cpu"])
    context.decode([3, 4, 5])
    assert not compare_tensors(context, log, log.tokens).differs
    assert context.cache.n_used == 0


def test_the_callback_of_a_context_is_there_again_afterwards() -> None:
    log, seen = parse_tensor_log(lines_of("llama3")), []
    assert log.tokens is not None

    def callback(tensor: WatchedTensor, ask: bool) -> bool:
        if not ask:
            seen.append(tensor.name)
        return tensor.name == "result_norm"

    context = Context(Model.open(model_path("llama3")), 64, devices=["cpu"], eval_callback=callback)
    compare_tensors(context, log, log.tokens)
    assert not seen and context.eval_callback is callback
    context.decode(log.tokens)
    assert seen == ["result_norm"]


def test_another_rotation_is_found(tmp_path: Path) -> None:
    """Queries differ behind the rotation, not before, although both have one name."""
    log = written(tmp_path, lines_of("llama3"))
    args = ("run", str(model_path("llama3")), "-p", TEXT, "-q", "--beside", str(log))
    run = weft(*args, "--rope-freq-base", "5000")
    assert run.returncode == 1
    assert "first tensor that differs: Qcur-0 (ROPE {16, 4, 5})" in run.stdout
    assert "reads Qcur-0, which agrees" in run.stdout
    only = weft(*args, "--rope-freq-base", "5000", "--dump-tensors", "Vcur-0")
    assert only.returncode == 0 and "all 2 tensors agree" in only.stdout


def test_prompts_of_other_tokens_are_told(tmp_path: Path) -> None:
    log = written(tmp_path, lines_of("llama3"))
    run = weft("run", str(model_path("llama3")), "-p", "he cat", "-q", "--beside", str(log))
    assert run.returncode == 1
    assert "the prompts differ: 6 tokens here, 5 in the log" in run.stdout
    assert "tensors agree" in run.stdout  # the log's tokens are computed
    context = Context(Model.open(model_path("llama3")), 64, devices=["cpu"])
    parsed = read_tensor_log(log)
    assert parsed.tokens is not None
    found = compare_tensors(context, parsed, parsed.tokens[1:])
    assert found.differs and "only the prompt in the log begins with" in str(found)
    parsed.tokens = None
    with pytest.raises(ContextError, match="of 5 tokens, the prompt has 4: their sizes differ"):
        compare_tensors(context, parsed, [269, 291, 294, 266])


def test_other_lines_and_a_cut_end_do_no_harm() -> None:
    lines = lines_of("llama3")
    noisy = ["build: 1234 (abc)\n", "\n"]
    for n, line in enumerate(lines):
        noisy += [line] if n % 7 else [line, "llama_context: graph splits = 1 (with bs=512), 2\n"]
    want = parse_tensor_log(lines)
    log = parse_tensor_log(noisy)
    assert [len(run) for run in log.runs] == [len(run) for run in want.runs]
    assert log.tokens == want.tokens == [1, 269, 291, 294, 266]
    assert str(compared("llama3", log)) == str(compared("llama3", want))
    cut = parse_tensor_log(lines[:100])
    assert cut.cut and f"the log ends in the middle of {cut.cut}" in str(compared("llama3", cut))


def test_runs_that_warm_up_are_left_out() -> None:
    lines = [line for line in lines_of("llama3_ubatches") if not line.startswith("number of input")]
    log = parse_tensor_log(lines_of("llama3_ubatches")[:6] + lines[5:] + lines[5:])
    assert len(log.runs) == 4
    assert len(compared("llama3", log).pairs) == 128


def test_tensors_of_other_sizes_and_of_the_log_alone_are_named() -> None:
    text = "".join(lines_of("llama3"))
    text = text.replace("ffn_up-1 ", "ffn_wide-1 ")
    text = text.replace("= {112, 5, 1, 1}", "= {113, 5, 1, 1}", 1)
    found = compared("llama3", parse_tensor_log(text.splitlines()))
    assert found.only_theirs == ["ffn_wide-1"]
    assert found.other_sizes == ["ffn_gate-0 {112, 5} here, {113, 5} there"]
    assert found.differs and found.first is None
    assert "only in the log: ffn_wide-*" in str(found)


OLD = """
ggml_debug:                 inp_embd = (f32)   GET_ROWS(token_embd.weight{64, 320, 1, 1}, inp_tokens{5, 1, 1, 1}}) = {64, 5, 1, 1}
                                     [
                                      [
                                       [      1.0000,       2.0000,       3.0000, ...],
                                       [      4.0000,         -nan,          inf, ...],
                                       ...
                                      ],
                                     ]
ggml_debug:      Kcur-0 (reshaped) = (f32)    RESHAPE(Kcur-0{32, 5, 1, 1}, }) = {16, 2, 5, 1}
                                     [
                                      [
                                       [      7.0000, ..., 9.0000],
"""  # noqa: E501


def test_the_older_form_is_read() -> None:
    log = parse_tensor_log(OLD.splitlines())
    first, second = log.runs[0]
    assert (first.name, first.op, first.type, first.ne) == (
        "inp_embd", "GET_ROWS", "f32", (64, 5, 1, 1),
    )  # fmt: skip
    assert first.sources[1] == ("inp_tokens", (5, 1, 1, 1)) and log.n_tokens(0) == 5
    assert first.places.tolist()[3:5] == [[0, 1, 0, 0], [1, 1, 0, 0]] and first.sum is None
    np.testing.assert_array_equal(first.values, [1, 2, 3, 4, np.nan, np.inf])
    assert second.places.tolist() == [[0, 0, 0, 0], [15, 0, 0, 0]]
    assert log.cut == "Kcur-0 (reshaped)"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_file_that_ends_anywhere_has_no_false_difference(encoding: str, tmp_path: Path) -> None:
    """Within a number, a row, a matrix or a sum; PowerShell writes UTF-16."""
    text = "".join(lines_of("llama3"))
    at = text.index(" Vcur-0 = ")
    row = text.index("...,", at)
    for end in (row + 8, row + 20, text.index("]", row) + 20, text.index("sum = ", at) + 8):
        path = tmp_path / "eval.log"
        path.write_text(text[:end], encoding=encoding)
        found = compared("llama3", read_tensor_log(path))
        assert found.pairs and not found.differs, (end, str(found))


def test_rows_behind_dots_have_no_place_where_the_end_is_missing() -> None:
    head = "common_debug_cb_eval: x = (f32) ADD(a{2, 9, 1, 1}, }) = {2, 9, 1, 1}"
    lines = [head, "[", "[", "[ 1.0, 2.0 ],", "...,", "[ 7.0, 8.0 ],"]
    whole = [*lines, "[ 9.0, 9.5 ],", "],", "]", "sum = 3.0"]
    assert parse_tensor_log(lines).runs[0][0].values.tolist() == [1, 2]
    assert parse_tensor_log([*lines, head]).runs[0][0].values.tolist() == [1, 2]
    assert parse_tensor_log(whole).runs[0][0].places[:, 1].tolist() == [0, 0, 7, 7, 8, 8]


@pytest.mark.parametrize(
    "sizes", ["9" * 5000 + ", 1, 1, 1", "99999999999999999999", ", ", "1, 2, 3, 4, 5"]
)
def test_sizes_that_no_tensor_has_are_not_read(sizes: str) -> None:
    head = f"common_debug_cb_eval: x = (f32) ADD(a{{{sizes}}}, b{{{sizes}}}}}) = {{{sizes}}}\n"
    log = parse_tensor_log([f"number of input tokens = {'9' * 5000}\n", head])
    assert not log.runs and log.tokens is None


def test_what_cannot_be_compared_is_told() -> None:
    """A token of another model, a ubatch that is too large, and the first token that differs."""
    log = parse_tensor_log(lines_of("llama3"))
    assert log.tokens is not None
    with pytest.raises(ContextError, match=r"a ubatch of 5 tokens, but .* at most 2; give -b and"):
        compared("llama3", log, n_ubatch=2)
    context = Context(Model.open(model_path("llama3")), 64, devices=["cpu"])
    found = compare_tensors(context, log, [2, *log.tokens[1:]])
    assert "the first that differs is at position 0" in str(found)
    log.tokens[-1] = 320
    with pytest.raises(ContextError, match=r"the token 320, but llama3\.gguf has tokens 0 to 319"):
        compare_tensors(context, log, log.tokens)


def test_a_comparison_writes_the_report_that_was_asked_for(tmp_path: Path) -> None:
    log, page = written(tmp_path, lines_of("llama3")), tmp_path / "page.html"
    args = ("run", str(model_path("llama3")), "-p", TEXT, "-q", "--beside", str(log))
    assert weft(*args, "--html", str(page)).returncode == 0
    events = page_data(page.read_text())["cache"]["events"]
    assert any(event["kind"] == "taken" and event["n_cells"] == 5 for event in events)
    run = weft(*args, "--image", "cat.png")
    assert run.returncode == 1 and "leave out --image and --audio" in run.stderr


def test_files_without_tensors_are_refused(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="there is no tensor in it; write it with"):
        read_tensor_log(written(tmp_path, ["hello\n"]))
    model = str(model_path("llama3"))
    assert weft("run", model, "-p", "a", "--beside", str(tmp_path / "none")).returncode == 2
    log = written(tmp_path, lines_of("llama3"))
    run = weft("run", model, "-p", TEXT, "--beside", str(log), "--dump-tensors", "none*")
    assert run.returncode == 2 and "'none*' matches no tensor of the log" in run.stderr
