"""Help, wrong command lines, completion, and errors in the words of the command line."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.in_process import weft
from weft.cli import app
from weft.cli.about import built_lines
from weft.cli.app import COMMANDS
from weft.cli.mistakes import flag_name
from weft.errors import ContextError, ContextFull, WeftError
from weft.llm import SamplingParams
from weft.llm.sampling import SAMPLING_OPTIONS
from weft.native import _native
from weft.version import __version__


def help_of(name: str) -> str:
    process = weft(name, "--help")
    assert process.returncode == 0, process.stderr
    return process.stdout


def test_options_come_in_groups_the_usual_ones_first() -> None:
    text = help_of("run")
    groups = [line for line in text.splitlines() if line.endswith(":") and line[0] != " "]
    assert groups[:4] == ["Arguments:", "Options:", "Model and context:", "Devices and threads:"]
    assert groups[-1] == "Advanced:" and "Sampling:" in groups
    assert text.index("--ctx-size") < text.index("--temp") < text.index("--n-copies")
    assert "Default: the same, at most 4096." in " ".join(text.split()) and "0.8]" in text
    assert "--mlock" not in text and "--profile" not in text


def test_a_key_error_of_a_command_module_is_no_unknown_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(name: str) -> None:
        raise KeyError("n_gap")

    monkeypatch.setattr(app, "import_at_once", broken)
    with pytest.raises(KeyError, match="n_gap"):
        app._Loaded().get("run")
    assert app._Loaded().get("rum") is None


def test_c_says_its_default() -> None:
    for name, said in (
        ("run", "the same, at most 4096."), ("perplexity", "Default: 512."),
        ("export", "the same, at most 2048."), ("serve", "default: 2048 for each of --parallel"),
    ):  # fmt: skip
        assert said in " ".join(help_of(name).split())


@pytest.mark.parametrize("name", COMMANDS)
def test_metavars_have_one_style(name: str) -> None:
    text = help_of(name)
    assert not {"<str>", "<int>", "<path>", "<float>", "{MODEL}", "[["} & set(text.split())
    assert "<" not in text and "{" not in text.splitlines()[0]
    if "MODEL" in text.splitlines()[0]:
        assert "[OPTIONS] MODEL" in text or "[OPTIONS] [MODEL]" in text
    assert max(map(len, text.splitlines())) <= 80


def test_weft_alone_help_and_version() -> None:
    alone = weft()
    assert alone.returncode == 0 and "Commands:" in alone.stdout
    assert weft("help").stdout == alone.stdout
    assert weft("help", "run").stdout == help_of("run")
    assert weft("help", "nope").returncode == 2
    for words in (("version",), ("-v",), ("-V",), ("--version",)):
        assert weft(*words).stdout.splitlines()[0] == f"weft {__version__}"


def test_the_version_says_what_was_built_and_for_what() -> None:
    said = weft("--version").stdout.splitlines()
    assert said[1].startswith(f"built for: {_native.built_for()}")
    assert _native.built_from() in said[1]
    assert said[2].startswith("kernel targets: ") and len(said) == 3
    assert all(name in said[2] for name, _ in _native.targets())
    data = json.loads(weft("--version", "--json").stdout)
    assert data == json.loads(weft("version", "--json").stdout)
    assert data["version"] == __version__ and data["targets"] == dict(_native.targets())
    assert data["built_from"] == (_native.built_from() or None)
    alone = weft("--json", "devices")
    assert alone.returncode == 2 and "or with --version" in alone.stderr


def test_a_build_for_one_processor_says_how_to_get_every_target() -> None:
    facts = {"built_for": "Linux", "built_from": None, "targets": {"avx2": 10, "avx512": 0}}
    first, second = built_lines(facts)
    assert first == "built for: Linux; commit not known (built without git, or outside a checkout)"
    assert built_lines(facts | {"built_from": "1a2b"})[0] == "built for: Linux; commit 1a2b"
    assert second.startswith("kernel targets: avx2, avx512 (not on this machine) (built for one")
    assert "WEFT_TARGETS=all" in second
    assert "WEFT_TARGETS" not in built_lines(facts | {"targets": {"baseline": 1}})[1]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("run", "m", "--tempp", "1"), "there is no option --tempp; did you mean --temp"),
        (("run", "m", "-ngll", "1"), "there is no option -ngll; did you mean -ngl"),
        (("runn",), "there is no command 'runn'; did you mean 'run'"),
        (("fetch", "x"), "there is no command 'fetch'; weft pull hf:OWNER/NAME"),
        (("run", "m", "-n", "x"), "invalid value for -n: write a whole number"),
        (("run", "m", "--temp", "x"), "invalid value for --temp: write a number"),
        (("run", "m", "-c", "x"), "invalid value for -c: 'x' is no number of tokens"),
        (("run", "m", "--policy", "x"), "invalid value for --policy: 'x' is not one of"),
        (("diff",), "missing argument"),
        (("--nope",), "there is no option"),
    ],
)
def test_wrong_usage_is_said_as_other_errors_are(words: tuple[str, ...], said: str) -> None:
    process = weft(*words)
    assert process.returncode == 2 and process.stdout == ""
    first, second = process.stderr.splitlines()
    assert first.startswith("error: ") and said in first
    assert second.startswith("`weft") and second.endswith("--help` lists the options")


def test_every_field_of_sampling_has_a_flag() -> None:
    text = help_of("run")
    for field in SamplingParams.__dataclass_fields__:
        assert flag_name(field) in text and SAMPLING_OPTIONS[field].flags[0] in text


@pytest.mark.parametrize(
    ("error", "python", "said"),
    [
        (
            ContextError("is 3.0; it must be 0 to 1", argument="top_p"),
            "top_p is 3.0; it must be 0 to 1",
            "--top-p is 3.0; it must be 0 to 1",
        ),
        (
            ContextFull("make `n_ctx` larger", calls=", or remove tokens first (seq_rm, clear)"),
            "make n_ctx larger, or remove tokens first (seq_rm, clear)",
            "make -c larger",
        ),
        (
            ContextError("chooses the number; leave out `n_gpu_layers`", argument="fit"),
            "fit chooses the number; leave out n_gpu_layers",
            "--fit chooses the number; leave out -ngl",
        ),
        (
            ContextError(": type must be a string", argument="json_schema"),
            "json_schema: type must be a string",
            "--json-schema: type must be a string",
        ),
        (
            ContextError("memory of 'n_ctx' in /home/top_p.gguf; `weft bench`"),
            "memory of 'n_ctx' in /home/top_p.gguf; `weft bench`",
            "memory of 'n_ctx' in /home/top_p.gguf; `weft bench`",
        ),
    ],
)
def test_arguments_become_flags(error: WeftError, python: str, said: str) -> None:
    assert (str(error), error.told(flag_name)) == (python, said)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.told(flag_name), again.argument) == (python, said, error.argument)


def complete(words: str, shell: str = "bash") -> list[str]:
    count = str(len(words.split(" ")) - 1)
    process = subprocess.run(
        [sys.executable, "-m", "weft"],
        env=os.environ | {
            "_WEFT_COMPLETE": f"complete_{shell}", "COMP_WORDS": words, "COMP_CWORD": count,
            "_TYPER_COMPLETE_ARGS": words,
        },
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return process.stdout.split()


def test_completion() -> None:
    assert complete("weft ru") == ["run"]
    assert complete("weft run --top-") == ["--top-k", "--top-p", "--top-n-sigma", "--top-nsigma"]
    assert complete("weft run --policy c") == ["cost"]
    for shell in ("bash", "zsh", "fish"):
        script = weft("completion", shell)
        os.environ.pop("_WEFT_COMPLETE", None)
        assert script.returncode == 0 and f"_WEFT_COMPLETE=complete_{shell}" in script.stdout
    assert weft("completion", "csh").returncode == 2
    whole = " ".join(complete("weft co", "zsh"))
    assert COMMANDS["completion"] in whole
    assert "install-completion" not in " ".join(complete("weft --", "zsh"))


@pytest.mark.parametrize(
    ("shell", "line"),
    [
        ("zsh", "source FILE; print $_comps[weft]"),
        ("fish", "source FILE; complete -c weft"),
        ("bash", "source FILE; complete -p weft"),
    ],
)
def test_shells_take_the_script(tmp_path: Path, shell: str, line: str) -> None:
    """A shell without settings, where zsh has not set up completion."""
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    script = weft("completion", shell)
    os.environ.pop("_WEFT_COMPLETE", None)
    file = tmp_path / "script"
    file.write_text(script.stdout)
    bare = {"zsh": "-f", "fish": "--no-config", "bash": "--norc"}[shell]
    process = subprocess.run(
        [shell, bare, "-c", line.replace("FILE", str(file))],
        capture_output=True, text=True, timeout=60,
        env={**os.environ, "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path)},
    )  # fmt: skip
    assert process.returncode == 0 and not process.stderr, process.stderr
    assert "weft" in process.stdout
