"""Modelfiles: `weft create`, and what commands make of a kept model."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.in_process import Done, weft
from tests.llm.tiny import metadata, write_model
from weft.cli.modelfile import find_modelfile, read_modelfile, with_settings
from weft.errors import FormatError
from weft.flags import FLAGS
from weft.llm import LLM

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}<assistant>"
TEXT = '''# the model of a test
FROM m.gguf
SYSTEM """
abc
\\n"""
parameter temperature 0
PARAMETER	num_predict 4
PARAMETER num_ctx 128
PARAMETER stop "the end"
PARAMETER use_mmap false
ADAPTER "lora.gguf"
MESSAGE user "bc"
MESSAGE assistant ab
LICENSE "MIT"
'''


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    flags = replace(FLAGS, cache=str(tmp_path / "cache"))
    for module in ("weft.cli.modelfile", "weft.llm.cached_models"):
        monkeypatch.setattr(f"{module}.FLAGS", flags)
    changes = {"llama.context_length": 256, "tokenizer.chat_template": TEMPLATE}
    return write_model(tmp_path / "m.gguf", metadata(**changes))


def done(*args: str | Path, typed: str = "") -> Done:
    process = weft(*args, typed=typed)
    assert process.returncode == 0, process.stderr
    return process


def modelfile(folder: Path, *lines: str) -> Path:
    file = folder / "Modelfile"
    file.write_text("\n".join(lines))
    return file


def test_instructions_are_options(path: Path) -> None:
    (path.parent / "lora.gguf").touch()
    file = path.parent / "Modelfile"
    file.write_text(TEXT)
    known = ("--system", "--temp", "--n-predict", "--stop", "--lora", "--message")
    model, options, left = with_settings(str(file), known, escaped=False)
    assert model == str(path) and left == ["num_ctx"]
    assert options == [
        "--system=\nabc\n\\n", "--temp=0", "--n-predict=4", "--stop=the end",
        f"--lora={path.parent / 'lora.gguf'}", "--message=user bc", "--message=assistant ab",
    ]  # fmt: skip
    escaped = with_settings(str(file), known, escaped=True)[1]
    assert escaped[0] == "--system=\nabc\n\\\\n"
    again = path.parent / "Again"
    again.write_text(read_modelfile(file).text())
    assert read_modelfile(again) == read_modelfile(file)


def test_a_kept_model_is_a_name(path: Path, tmp_path: Path) -> None:
    file = modelfile(
        tmp_path, "FROM ./m.gguf", "SYSTEM b\\tc", "PARAMETER temperature 0",
        "PARAMETER num_predict 4", "MESSAGE user a", "MESSAGE assistant b",
    )  # fmt: skip
    made = done("create", "pirate", "-f", file)
    assert "weft chat pirate" in made.stderr
    file.unlink()
    talk = tmp_path / "talk.json"
    said = done("chat", "pirate:latest", typed=f"abc\n/save {talk}\n")
    messages = json.loads(talk.read_text())["messages"]
    assert [m["content"] for m in messages[:4]] == ["b\\tc", "a", "b", "abc"]
    with LLM(path) as llm:
        answer = llm.chat(messages[:-1], max_tokens=4, temperature=0.0)
    assert messages[-1]["content"] == answer and said.stdout == f"{answer}\n"
    more = done("chat", "-m", "pirate", "-n", "6", "-sys", "z", typed=f"abc\n/save {talk}\n")
    assert json.loads(talk.read_text())["messages"][0]["content"] == "z"
    assert len(more.stdout) > len(said.stdout)
    assert "without effect here: SYSTEM, MESSAGE of pirate" in done("run", "pirate", "a").stderr
    assert done("list").stdout.splitlines()[1].startswith("pirate")
    done("rm", "pirate")
    assert find_modelfile("pirate") is None and path.exists()


def test_one_made_from_another(path: Path, tmp_path: Path) -> None:
    done("create", "one", "-f", modelfile(tmp_path, "FROM m.gguf", "SYSTEM a", "PARAMETER top_k 3"))
    done("create", "two", "-f", modelfile(tmp_path, "FROM one", "SYSTEM b"))
    known = ("--system", "--top-k")
    model, options, _ = with_settings("two", known, escaped=False)
    assert model == str(path) and options == ["--system=a", "--top-k=3", "--system=b"]
    (tmp_path / "cache" / "models" / "one").write_text("FROM two\n")
    with pytest.raises(FormatError, match="each FROM the next"):
        with_settings("two", known, escaped=False)


def test_one_made_from_itself_keeps_what_it_was(path: Path, tmp_path: Path) -> None:
    done("create", "one", "-f", modelfile(tmp_path, "FROM m.gguf", "SYSTEM a"))
    done("create", "two", "-f", modelfile(tmp_path, "FROM one"))
    for name, source in (("one", "one"), ("one", "two"), ("one:latest", "one")):
        refused = weft("create", name, "-f", modelfile(tmp_path, f"FROM {source}", "SYSTEM b"))
        assert refused.returncode == 1 and "is one itself; create another name" in refused.stderr
    assert with_settings("two", ("--system",), escaped=False)[1] == ["--system=a"]


def test_lines_end_at_line_ends_alone(path: Path, tmp_path: Path) -> None:
    file = modelfile(tmp_path, "FROM m.gguf\r", "SYSTEM a\u2028FROM b\x85c\r")
    assert read_modelfile(file).settings == (("SYSTEM", "a\u2028FROM b\x85c"),)


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["SYSTEM a"], "FROM is missing"),
        (["FROM m.gguf", "PARAMETER num_foo 3"], "no parameter 'num_foo'; there are num_ctx"),
        (["FROM m.gguf", "PARAMETER temperature warm"], "temperature is 'warm'; it must be a num"),
        (["FROM m.gguf", "RUN ls"], "no instruction 'RUN'; there are FROM"),
        (["FROM m.gguf", 'SYSTEM """a'], "the quotes of SYSTEM do not end"),
        (["FROM llama3.2"], "llama3.2: no such file; give the path"),
        (["FROM ~nobody-here/x"], "no such file"),
        (["FROM " + "x" * 300], "too long"),
    ],
)
def test_what_is_no_modelfile(path: Path, tmp_path: Path, lines: Sequence[str], said: str) -> None:
    refused = weft("create", "x", "-f", modelfile(tmp_path, *lines))
    assert refused.returncode == 1 and said in refused.stderr
    assert find_modelfile("x") is None


def test_other_texts_are_no_modelfiles(path: Path, tmp_path: Path) -> None:
    for text in (
        '"""A module."""\n\nfrom here import there\n',
        "# weft\n\ntext from a\n",
        "",
        "GGUF",
    ):
        (tmp_path / "x").write_text(text)
        assert find_modelfile(str(tmp_path / "x")) is None
    for text in ("\n# a\n\n# b\n  from m.gguf", "\ufeffPARAMETER top_k 1\nFROM m.gguf"):
        (tmp_path / "x").write_text(text, "utf-8")
        assert find_modelfile(str(tmp_path / "x")) == tmp_path / "x"
        assert read_modelfile(tmp_path / "x").model == str(path)


def test_names_stay_in_their_folder(path: Path, tmp_path: Path) -> None:
    file = modelfile(tmp_path, "FROM m.gguf")
    for name in ("../x", ".x", "a/b", ""):
        assert weft("create", name, "-f", file).returncode == 1
    (tmp_path / "cache" / "models").mkdir(parents=True)
    (tmp_path / "cache" / "x").write_text("FROM m.gguf\n")
    assert find_modelfile("../x") is None
    assert weft("rm", "../x").returncode == 1 and (tmp_path / "cache" / "x").exists()


def test_a_template_in_go_is_said(path: Path, tmp_path: Path) -> None:
    for text in ("{{ if .System }}x{{ end }}", "{{- range .Messages }}", "{{ .Prompt }}"):
        file = modelfile(tmp_path, "FROM m.gguf", f'TEMPLATE """{text}"""')
        assert "Go's language" in done("create", "x", "-f", file).stderr
        assert with_settings("x", ("--chat-template",), escaped=True)[1] == []
    file = modelfile(tmp_path, "FROM m.gguf", f'TEMPLATE """{TEMPLATE}"""')
    done("create", "x", "-f", file)
    assert with_settings("x", ("--chat-template",), escaped=True)[1] == [
        f"--chat-template={TEMPLATE}"
    ]
