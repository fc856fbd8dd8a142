"""`--cache-ram`, `--ctx-checkpoints` and `--cache-dir` of `weft run`, `chat` and `explain`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.in_process import weft
from tests.llm.prefix_texts import make_lasting
from weft.llm.cache.prefix_options import PrefixOptions

TEXT = "the abc teh b the the abc the abc teh b the the abc"
SIZES = ("-t", "1", "-c", "256", "--temp", "0", "--ignore-eos", "-n", "6")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_lasting("qwen35", tmp_path_factory.mktemp("model"))


@pytest.mark.filterwarnings("default::RuntimeWarning")
def test_a_second_run_takes_the_prompt_from_the_folder(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    command = ("run", path, "-p", TEXT, *SIZES, "-v", "--cache-dir", folder)
    first, second = weft(*command), weft(*command)
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert first.stdout == second.stdout
    assert "no text that is kept begins like it" in first.stderr
    (kept,) = [line for line in second.stderr.splitlines() if line.startswith("prefix: ")]
    n, of = (int(word) for word in kept.split() if word.isdigit())
    assert n == of - 1 > 16
    assert f"8.00 GiB at most in {folder}" in second.stderr.replace("\n", " ")
    (file,) = folder.glob("*.weftprefix")
    file.write_bytes(file.read_bytes()[:-3])
    third = weft(*command)
    assert (third.returncode, third.stdout) == (0, first.stdout)
    assert "is not used" in third.stderr


def test_a_chat_goes_on_after_a_restart(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "kept"
    sizes = [one for one in SIZES if one != "--ignore-eos"]
    command = ("chat", path, *sizes, "--cache-dir", folder)
    first = weft(*command, typed=f"{TEXT}\n")
    second = weft(*command, typed=f"{TEXT}\n/stats\n")
    assert (first.returncode, second.returncode) == (0, 0), first.stderr + second.stderr
    assert first.stdout == second.stdout
    assert ", 0 of them kept" not in second.stderr
    assert "of them kept" in second.stderr


def test_the_plan_shows_the_budget(path: Path) -> None:
    told = weft("explain", path, "--brief", "--json", "--cache-ram", "64")
    rows = {row["buffer"]: row for row in json.loads(told.stdout)["memory"]}
    assert rows["prefixes"]["bytes"] == 64 << 20
    assert "for each checkpoint" in rows["prefixes"]["about"]
    told = weft("explain", path, "--brief", "--json", "-cram", "0")
    assert "prefixes" not in {row["buffer"] for row in json.loads(told.stdout)["memory"]}
    assert "64.00 MiB" in weft("explain", path, "--brief", "-cram", "64MiB").stdout


def test_names_of_llama_cpp(path: Path) -> None:
    names = ("-ctxcp", "3", "--checkpoint-every-n-tokens", "-1", "-cram", "2GiB", "-cms", "256")
    done = weft("run", path, "-p", TEXT, *SIZES, "-v", *names)
    assert done.returncode == 0
    assert "prefixes: 2.00 GiB of host memory at most" in done.stderr
    done = weft("run", path, "-p", TEXT, *SIZES, "-cms", "77")
    assert "-cms 77 changes nothing: there are checkpoints where messages end" in done.stderr
    done = weft("embed", path, "-p", TEXT, "-cram", "5")
    assert "-cram 5 changes nothing" in done.stderr


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--cache-ram", "-1"), "--cache-ram -1: give a limit, MiB, e.g. 8192"),
        (("--cache-ram", "much"), "--cache-ram much: give a limit"),
        (("--ctx-checkpoints", "-2"), "--ctx-checkpoints -2: give 0 or more"),
        (("--checkpoint-every", "-3"), "--checkpoint-every -3: give a number of tokens"),
        (("--cache-dir-size", "x"), "--cache-dir-size x: give a limit, e.g. 8GiB"),
    ],
)
def test_values_that_cannot_be(path: Path, flags: tuple[str, str], words: str) -> None:
    done = weft("run", path, "-p", TEXT, *flags)
    assert done.returncode == 2
    assert words in " ".join(done.stderr.split())


def test_a_folder_that_is_a_file(path: Path, tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    done = weft("run", path, "-p", TEXT, "--cache-dir", tmp_path / "x")
    assert done.returncode == 1
    assert "cache_dir" in done.stderr


def test_defaults_are_those_of_llm() -> None:
    options = PrefixOptions()
    assert (options.cache_ram, options.cache_dir_size) == (1 << 30, 8 << 30)
