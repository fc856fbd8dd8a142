"""`weft ps` and `weft stop` with a server of one model and of several."""

from __future__ import annotations

import shutil
from pathlib import Path

from tests.cli.in_process import weft
from tests.serve.in_process import SAMPLE, Server


def test_what_is_loaded_and_unloaded(tmp_path: Path) -> None:
    shutil.copy(SAMPLE, tmp_path / "three.gguf")
    shutil.copy(SAMPLE, tmp_path / "four.gguf")
    with Server.many(tmp_path, "-t", 1, "-np", 1, "-c", 256) as server:
        url = ("--url", server.url)
        assert "no model is loaded" in weft("ps", *url).stderr
        body = {"model": "three", "prompt": "a", "max_tokens": 1}
        assert server.call("POST", "/v1/completions", body)[0] == 200
        lines = weft("ps", *url).stdout.splitlines()
        assert len(lines) == 2 and lines[1].startswith("three ") and " 256 " in f"{lines[1]} "
        done = weft("stop", "three", *url)
        assert done.returncode == 0 and "three is unloaded" in done.stderr
        assert (
            "no model is loaded" in weft("ps", "--url", server.url.removeprefix("http://")).stderr
        )
        assert "nope" in weft("stop", "nope", *url).stderr


def test_the_only_model_stays(tmp_path: Path) -> None:
    with Server(SAMPLE, "-t", 1, "-np", 1, "-c", 256, key="secret") as server:
        url = ("--url", server.url, "--api-key", "secret")
        (_, line) = weft("ps", *url).stdout.splitlines()
        assert line.rstrip().endswith("always")
        for name in (line.split()[0], f"{line.split()[0]}:latest"):
            kept = weft("stop", name, *url)
            assert kept.returncode == 1 and "serves this model alone" in kept.stderr
        other = weft("stop", "nope", *url)
        assert other.returncode == 1 and "has not loaded nope; weft ps shows " in other.stderr
        refused = weft("ps", "--url", server.url)
        assert refused.returncode == 1 and "answers 401" in refused.stderr
    gone = weft("ps", "--url", server.url)
    assert gone.returncode == 1 and "there is no server at http" in gone.stderr
