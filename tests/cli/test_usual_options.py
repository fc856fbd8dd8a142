"""The command line as a user of llama.cpp or Ollama types it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import Done, weft
from tests.llm.tiny import metadata, tokens, write_model
from weft.cli.options import most_tokens
from weft.cli.text_input import unescaped
from weft.errors import ContextError
from weft.files import MOST_BYTES
from weft.llm import LLM, Context
from weft.options import parse_layers

FEW = ("-n", "4", "--temp", "0", "-t", "1")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that was trained for 256 tokens and never ends a text."""
    names = tokens()[0]
    names[2] = "<x>"
    changes: dict[str, Any] = {
        "tokenizer.ggml.tokens": names,
        "tokenizer.ggml.eos_token_id": -1,
        "tokenizer.chat_template": "{% for m in messages %}{{ m.content }}{% endfor %}",
        "llama.context_length": 256,
    }
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", metadata(**changes))


def done(*args: str | Path, typed: str | bytes = "") -> Done:
    process = weft(*args, typed=typed)
    assert process.returncode == 0, process.stderr
    return process


# **** the model ****


def test_the_model_may_have_a_flag(path: Path) -> None:
    want = done("run", path, "-p", "abc", *FEW).stdout
    assert done("run", "-m", path, "-p", "abc", *FEW).stdout == want
    assert done("run", "--model", path, "abc", *FEW).stdout == want
    assert done("run", path, "abc", *FEW).stdout == want
    assert done("tokenize", "-m", path, "abc").stdout == done("tokenize", path, "abc").stdout
    one = done("embed", "-m", path, "abc", "the", "-o", "raw").stdout
    assert one == done("embed", path, "abc", "the", "-o", "raw").stdout
    for command in ("inspect", "explain", "bench", "perplexity", "chat", "serve"):
        assert "-m, --model MODEL" in done(command, "--help").stdout


def test_the_model_is_missing_or_given_twice(path: Path) -> None:
    nothing = weft("run")
    assert nothing.returncode == 2 and "error: MODEL is missing: a GGUF" in nothing.stderr
    twice = weft("tokenize", "-m", path, path, "x")
    assert twice.returncode == 2 and "the model is given with -m; what is" in twice.stderr
    assert "-m or -hf, not both" in weft("run", "-m", path, "-hf", "a/b").stderr
    assert "not both" in weft("run", path, "abc", "-p", "abc").stderr


def test_a_name_that_is_no_file_gets_a_hint(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("Llama-3.2-1B-Q4_K_M.gguf", "other.gguf"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    near = weft("run", "llama-3.2", "abc")
    assert near.returncode == 1 and "did you mean Llama-3.2-1B-Q4_K_M.gguf?" in near.stderr
    assert "did you mean other.gguf?" in weft("inspect", "othre.gguf").stderr
    assert "is written hf:owner/name" in weft("run", "owner/name", "abc").stderr
    assert "hf:OWNER/NAME[:QUANT]" in weft("run", "mistral", "abc").stderr
    assert "; there is no folder 'modles'" in weft("run", "modles/other.gguf", "abc").stderr


def test_repositories_by_flag(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    asked: list[str] = []
    monkeypatch.setattr("weft.llm.hub.local_path", lambda name: asked.append(str(name)) or path)
    done("inspect", "-hf", "owner/name:Q8_0")
    done("inspect", "--hf-repo", "hf:owner/name")
    assert asked == ["hf:owner/name:Q8_0", "hf:owner/name"]


# **** sizes and counts ****


def test_context_0_is_the_models_own(path: Path) -> None:
    assert "256 of context" in done("run", path, "abc", *FEW, "-c", "0").stderr
    assert "256 tokens of context" in done("chat", path, *FEW, "-c", "0").stderr
    assert '"n_ctx": 256' in done("explain", path, "-c", "0", "--json").stdout


def test_how_many_tokens(path: Path) -> None:
    none = done("run", path, "abc", "-n", "0")
    assert none.stdout == "\n" and "generation: 0 tokens (length)" in none.stderr
    assert "prompt: 3 tokens" in none.stderr
    full = done("run", path, "abc", "-n", "-2", "-c", "24", "--context-shift", "--temp", "0")
    assert "generation: 22 tokens" in full.stderr and "(context)" in full.stderr
    assert [most_tokens(n) for n in (-2, -1, 0, 7)] == [None, None, 0, 7]
    with pytest.raises(ContextError, match="-n is -5"):
        most_tokens(-5)
    assert weft("run", path, "abc", "-n", "-5").returncode == 1


def test_layers() -> None:
    assert [parse_layers(text) for text in ("20", "all", "auto", "-1", "0")] == [20, -1, -1, -1, 0]
    for wrong in ("-3", "some", "1.5"):
        with pytest.raises(ValueError, match="number of layers"):
            parse_layers(wrong)


def test_layers_without_a_device_for_them(path: Path) -> None:
    run = done("run", path, "abc", *FEW, "-ngl", "99")
    assert "-ngl 99 changes nothing: no device of cpu" in run.stderr
    assert "changes nothing" not in done("run", path, "abc", *FEW, "-ngl", "all").stderr
    moved = done("run", path, "abc", *FEW, "-ngl", "99", "--devices", "reference,cpu")
    assert "changes nothing" not in moved.stderr and "placement: reference: 1 split" in moved.stderr


def test_a_random_seed(path: Path) -> None:
    args = ("run", path, "abc", "-n", "20", "--temp", "2", "-q", "--top-k", "0", "--min-p", "0")
    same = {done(*args, "--seed", "7").stdout for _ in range(2)}
    other = {done(*args, "--seed", "-1").stdout for _ in range(3)}
    assert len(same) == 1 and len(other) > 1


def test_flash_attention_alone_or_with_a_value(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flash: list[object] = []
    init = Context.__init__

    def seen(self: Context, *args: Any, **options: Any) -> None:
        flash.append(options["flash"])
        init(self, *args, **options)

    monkeypatch.setattr(Context, "__init__", seen)
    for words in (
        (),
        ("-fa",),
        ("-fa", "on"),
        ("--flash-attn", "auto"),
        ("-fa=1",),
        ("-fa", "off"),
    ):
        done("run", path, *words, "-p", "abc", *FEW)
    assert flash == [None, None, None, None, None, False]
    assert "-fa maybe: write on, off or auto" in weft("run", path, "-fa=maybe", "-p", "a").stderr


def test_options_that_change_nothing_are_taken(path: Path) -> None:
    usual = (
        "-t -1 --no-warmup --jinja --mmap -no-cnv -b 2048 --color -ngl -1 -tb 1 -s 3 -ctk f16 "
        "-ub 64 --no-perf --no-context-shift --ignore-eos --no-display-prompt"
    ).split()
    plain = done("run", path, "abc", *FEW)
    process = done("run", path, "abc", *FEW, *usual)
    assert process.stdout == plain.stdout and "note" not in process.stderr
    noted = done("run", path, "abc", *FEW, "--mlock", "--no-mmap").stderr
    assert noted.count("changes nothing") == 2
    assert "weft chat has one" in weft("run", path, "abc", "-sys", "x").stderr
    assert "a conversation is weft chat" in weft("run", path, "-cnv").stderr


def test_threads_and_devices_that_surprise(path: Path) -> None:
    there = os.cpu_count() or 1
    many = done("run", path, "abc", "-n", "1", "-t", str(there + 9)).stderr
    assert f"-t {there + 9} is more than the" in many and "processors" in many
    null = done("run", path, "abc", *FEW, "-q", "--devices", "null").stderr
    assert "null computes nothing" in null
    assert "computes nothing" not in done("run", path, "abc", *FEW).stderr
    blas = weft("run", path, "abc", *FEW, "--devices", "blas").stderr
    assert "cpu is added behind blas" in blas


def test_why_in_words(path: Path) -> None:
    args = ("run", path, "abc", *FEW, "--devices", "reference,cpu", "-ngl", "1")
    plain, verbose = done(*args).stderr, done(*args, "-v").stderr
    assert "because a weight is there" in plain and "wgt" not in plain
    assert "memory: Reference: weights " in plain and "; CPU: weights " in plain
    assert "because a weight is there: source 0 of the op (1.wgt0)" in verbose
    assert "'<s>'" in verbose


# **** the prompt ****


def test_the_prompt_is_printed_on_a_screen_only(path: Path, tmp_path: Path) -> None:
    alone = done("run", path, "abc", *FEW).stdout
    assert done("run", path, "abc", *FEW, "-q").stdout == alone
    assert done("run", path, "abc", *FEW, "--display-prompt").stdout == "abc" + alone
    assert done("run", path, "abc", *FEW, "--no-display-prompt").stdout == alone


def test_line_ends_and_escapes(path: Path, tmp_path: Path) -> None:
    file = tmp_path / "x.txt"
    file.write_bytes(b"abc\r\nthe\r\n")
    want = done("run", path, "-p", "abc\nthe", *FEW).stdout
    assert done("run", path, "-f", file, *FEW).stdout == want
    assert done("run", path, "-p", r"abc\nthe", "-e", *FEW).stdout == want
    assert done("run", path, "-p", r"abc\nthe", *FEW).stdout == want
    literal = done("run", path, "-p", r"abc\nthe", "--no-escape", *FEW, "-v").stderr
    assert "'n'" in literal and r"'\n'" not in literal
    file.write_text(r"abc\nthe")
    assert done("run", path, "-f", file, "-e", *FEW).stdout == want
    assert done("run", path, "-f", file, *FEW, "-v").stderr.count("'n'") == 1
    chat = ("chat", path, "-q", *FEW, "-st")
    assert done(*chat, r"abc\nthe").stdout == done(*chat, "abc\nthe", "--no-escape").stdout
    ids = done("tokenize", path, "--ids", typed=b"abc\r\nthe").stdout
    assert ids == done("tokenize", path, "--ids", "abc\nthe").stdout
    assert unescaped(r"a\tb\\n\x41\q") == "a\tb\\nA\\q"


def test_texts_without_end_are_refused(path: Path) -> None:
    for command in ("run", "tokenize", "perplexity"):
        process = weft(command, path, "-f", "/dev/zero")
        assert process.returncode == 1
        assert f"/dev/zero: more than {MOST_BYTES >> 20} MiB of text" in process.stderr
    for words in (["diff", "/dev/zero", path], ["run", path, "abc", "--plan", "/dev/zero"],
                  ["explain", path, "--machine", "/dev/zero"],
                  ["explain", path, "--policy", "cost", "--speeds", "/dev/zero"]):  # fmt: skip
        process = weft(*words)
        assert process.returncode in (1, 2) and "/dev/zero: more than" in process.stderr
    endless = weft("chat", path, "-q", typed="a" * (MOST_BYTES + 1))
    assert endless.returncode == 1 and "standard input: a line of more than" in endless.stderr


def test_lines_that_are_no_text(path: Path) -> None:
    line = r"printf 'a\377\n' | LC_ALL=C.UTF-8 PYTHONUTF8=1 "
    process = shell(line + '"$1" -m weft chat "$2" -q -n 3', path)
    assert process.returncode == 1
    assert process.stderr.splitlines()[-1].startswith("error: standard input: a line is no UTF-8")


def test_constraints_are_checked_before_the_model_is_loaded(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("the model is loaded")

    monkeypatch.setattr(LLM, "__init__", never)
    wrong = weft("run", path, "abc", "--regex", "((")
    assert wrong.returncode == 1 and wrong.stderr.startswith("error: --regex: ")
    assert "--json-schema: " in weft("chat", path, "--json-schema", '{"type": 5}').stderr
    assert "--grammar: " in weft("run", path, "abc", "--grammar", "start: nope").stderr


# **** conversations ****


def test_one_turn(path: Path) -> None:
    want = done("chat", path, "-q", *FEW, typed="abc\n").stdout
    assert done("chat", path, "-q", *FEW, "-st", "-cnv", "abc").stdout == want
    assert done("chat", path, "-q", *FEW, "abc").stdout == want


def test_a_pipe_follows_the_prompt(path: Path) -> None:
    for words in (("run", path, *FEW, "-q"), ("chat", path, "-q", *FEW),
                  ("chat", path, "-q", *FEW, "-st")):  # fmt: skip
        want = done(*words, "-p", "abc\nthe\nx").stdout
        assert done(*words, "abc", typed="the\nx\n").stdout == want
        assert done(*words, "-p", "abc", typed="the\nx").stdout == want
        assert done(*words, "-p", "abc", typed="").stdout != want


def test_control_tokens_in_prompts(path: Path) -> None:
    few = ("run", path, "-n", "0", "-v", "-p", "abc<s>")
    assert "prompt: 4 tokens" in done(*few).stderr
    assert "prompt: 6 tokens" in done(*few, "--no-parse-special").stderr
    assert len(done("tokenize", path, "abc<s>").stdout.splitlines()) == 4
    assert len(done("tokenize", path, "--no-special", "abc<s>").stdout.splitlines()) == 6


# **** streams ****


def shell(line: str, *args: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", "-c", line, "sh", sys.executable, *map(str, args)],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip


def test_streams_that_are_closed_or_full(path: Path) -> None:
    closed = shell('"$1" -m weft run "$2" <&-', path)
    assert closed.returncode == 1 and "there is no text to continue" in closed.stderr
    silent = shell('"$1" -m weft inspect "$2" >&-', path)
    assert silent.returncode == 0 and not silent.stderr
    full = shell('"$1" -m weft inspect "$2" >/dev/full', path)
    assert full.returncode == 1 and full.stderr == "error: No space left on device\n"


@pytest.mark.parametrize("words", ["inspect MODEL", "explain MODEL --json", "help"])
def test_the_reader_of_a_pipe_leaves(path: Path, words: str) -> None:
    line = " ".join('"$2"' if word == "MODEL" else word for word in words.split())
    left = shell(f'{{ "$1" -m weft {line}; echo "code $?" >&2; }} | true', path)
    assert left.stderr == "code 0\n"
