"""The plugin for the command `llm`, as a user installs it and as programs use it."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib.metadata import distributions
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.conftest import ROOT
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.writer import write_gguf

FOLDER = ROOT / "examples" / "llm-weft"
DEMO = ROOT / "examples" / "weft-demo.gguf"
ASKED, ANSWER = "What is 17 + 25?", "42."
TEMPLATE = "{% for m in messages %}{{ m.content }}{{ '\\n' if not loop.last }}{% endfor %}"
"""A template of which the demo model knows the form."""
CALL = r'<tool_call>\n\{"name": "add", "arguments": \{"a": 17, "b": 2[0-9]\}\}\n</tool_call>'
LONG = "\n".join(f"What is {n} + 25? {n + 25}." for n in range(10, 20))
"""A beginning that is long enough to be kept for other processes."""
GREEDY = {"temperature": 0, "stop": "\n"}

pytestmark = pytest.mark.skipif(find_spec("llm") is None, reason="the package llm is not installed")

Command = Callable[..., tuple[str, str]]


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo model with a template and with room for a conversation."""
    path = tmp_path_factory.mktemp("demo") / "demo.gguf"
    with open_gguf(DEMO) as file:
        metadata = dict(file.copy_metadata()) | {
            "tokenizer.chat_template": TEMPLATE, "llama.context_length": np.uint32(2048)
        }  # fmt: skip
        write_gguf(path, metadata, [(t.name, t.dtype, t.ne, t.data) for t in file.tensors.values()])
    return path


@pytest.fixture(scope="module")
def plugin() -> Iterator[Any]:
    """The module of the plugin, which llm knows; entry points of other packages are left alone."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LLM_LOAD_PLUGINS", "")
        patch.syspath_prepend(str(FOLDER / "src"))
        import llm_weft
        from llm.plugins import load_plugins, pm

        load_plugins()
        pm.register(llm_weft, "weft")
        yield llm_weft
        pm.unregister(llm_weft)


@pytest.fixture
def folder(plugin: Any, demo: Path, tmp_path: Path, monkeypatch: Any) -> Iterator[Path]:
    """The folder of llm, with the demo model as `demo` and `words`; models are closed after it."""
    monkeypatch.setenv("LLM_USER_PATH", str(tmp_path))
    own = {"path": str(demo), "options": {"n_threads": 1, "n_ctx": 1024}}
    (tmp_path / "weft.json").write_text(
        json.dumps({"demo": own, "words": {"path": str(DEMO), "embed": True}})
    )
    yield tmp_path
    plugin.close_all()


def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


def test_it_is_short() -> None:
    """The README of the examples promises so."""
    lines = [line for path in FOLDER.rglob("*.py") for line in path.read_text().splitlines()]
    assert len([line for line in lines if line.strip()]) < 200


def test_texts_come_in_pieces(folder: Path) -> None:
    import llm

    response = llm.get_model("demo").prompt(ASKED, **GREEDY)
    pieces = list(response)
    assert len(pieces) > 1 and "".join(pieces).strip() == ANSWER
    assert (response.input_tokens, response.output_tokens) == (12, 5)


def test_a_conversation_keeps_its_prefix(folder: Path, plugin: Any) -> None:
    import llm

    talk = llm.get_model("demo").conversation()
    first = talk.prompt(ASKED, **GREEDY)
    assert first.text().strip() == ANSWER
    second = talk.prompt("What is 52 - 17?", **GREEDY)
    assert second.text().strip() == "35."
    kept = second.token_details["cached_tokens"]
    assert kept >= first.input_tokens

    plugin.close_all()  # as at the end of a process
    assert list((folder / "weft").glob("*.weftprefix"))
    again = llm.get_model("demo").conversation()
    again.responses = [first]
    third = again.prompt("What is 52 - 17?", **GREEDY)
    assert third.text() == second.text()
    assert third.token_details["cached_tokens"] >= kept


def test_nothing_is_kept_where_logs_are_off(folder: Path, plugin: Any) -> None:
    import llm

    (folder / "logs-off").touch()
    llm.get_model("demo").prompt(ASKED, **GREEDY).text()
    plugin.close_all()
    assert not (folder / "weft").exists()


def test_schemas_hold_answers(folder: Path) -> None:
    import llm

    schema = {
        "type": "object", "required": ["n", "kind"], "additionalProperties": False,
        "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99},
                       "kind": {"enum": ["sum", "count"]}},
    }  # fmt: skip
    said = json.loads(llm.get_model("demo").prompt(ASKED, schema=schema, seed=1).text())
    assert 0 <= said["n"] < 100 and said["kind"] in ("sum", "count")
    with pytest.raises(llm.ModelError, match="give one of them"):
        llm.get_model("demo").prompt(ASKED, schema=schema, tools=[add]).text()


def test_tools_are_called_and_their_results_go_back(
    folder: Path, plugin: Any, monkeypatch: Any
) -> None:
    """The demo model knows no tools: a regular expression makes it call one, once."""
    import llm

    arguments = plugin.WeftModel.arguments
    asked: list[Any] = []

    def forced(self: Any, prompt: Any) -> dict[str, Any]:
        asked.append(arguments(self, prompt))
        return asked[-1] | ({"regex": CALL} if len(asked) == 1 else GREEDY | {"max_tokens": 4})

    monkeypatch.setattr(plugin.WeftModel, "arguments", forced)
    chain = llm.get_model("demo").chain(ASKED, tools=[add], options={"seed": 1})
    chain.text()
    call = next(iter(chain._responses)).tool_calls()[0]
    assert call.name == "add" and call.arguments["a"] == 17
    said, result = asked[1]["messages"][-2:]
    assert json.loads(said["tool_calls"][0]["function"]["arguments"]) == call.arguments
    assert result == {
        "role": "tool", "name": "add", "tool_call_id": said["tool_calls"][0]["id"],
        "content": str(17 + call.arguments["b"]),
    }  # fmt: skip
    assert asked[0]["tools"][0]["function"]["parameters"]["required"] == ["a", "b"]


def test_asyncio_writes_several_texts(folder: Path) -> None:
    import llm

    async def both() -> list[str]:
        model = llm.get_async_model("demo")
        return await asyncio.gather(
            *(model.prompt(asked, **GREEDY).text() for asked in (ASKED, "What is 52 - 17?"))
        )

    assert [text.strip() for text in asyncio.run(both())] == [ANSWER, "35."]


def test_embeddings_are_those_of_weft(folder: Path) -> None:
    import llm

    rows = list(llm.get_embedding_model("words").embed_multi(["3 + 4", "Is 358 even?"]))
    with weft.LLM(DEMO) as own:
        assert np.allclose(rows, own.embed(["3 + 4", "Is 358 even?"]), atol=1e-5)


def test_attachments_are_parts_of_messages(folder: Path, plugin: Any) -> None:
    import llm

    model = plugin.WeftModel("sees", {"path": "x", "options": {"mmproj": "y"}})
    picture = llm.Attachment(type="image/png", content=b"\x89PNG")
    prompt = llm.Prompt("What is this?", model, attachments=[picture], system="Be brief.")
    assert plugin.messages_of(prompt) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": [{"type": "image", "image": b"\x89PNG"},
                                     {"type": "text", "text": "What is this?"}]},
    ]  # fmt: skip
    with pytest.raises(ValueError, match="does not support attachments"):
        llm.get_model("demo").prompt("a", attachments=[picture])


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"a": {}}', '{"a": {"path": 3}}', '{"a": {"path": "x", "options": []}}']
)
def test_a_wrong_file_is_told_and_other_models_stay(
    folder: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    import llm

    (folder / "weft.json").write_text(text)
    assert llm.get_model("smollm2").model_id == "smollm2"
    assert "weft.json" in capsys.readouterr().err


def test_commands_of_names(
    folder: Path, plugin: Any, demo: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from click.testing import CliRunner

    def command(*words: str) -> tuple[int, str]:
        done = CliRunner().invoke(plugin.weft, words)
        return done.exit_code, done.output

    assert command("add", "mine", str(demo), "-o", "n_ctx", "512", "-o", "type", "q8_0") == (0, "")
    own = json.loads((folder / "weft.json").read_text())["mine"]
    assert own == {"path": str(demo), "options": {"n_ctx": 512, "type": "q8_0"}, "embed": False}
    assert f"mine: {demo}\n" in command("list")[1]
    assert command("remove", "mine")[0] == 0 and "mine" not in command("list")[1]
    code, said = command("remove", "mine")
    assert code == 1 and "demo, words" in said
    monkeypatch.chdir(demo.parent)
    assert (
        command("add", "sees", demo.name, "-o", "mmproj", demo.name, "-o", "type", "q8_0")[0] == 0
    )
    own = json.loads((folder / "weft.json").read_text())["sees"]
    assert own["options"] == {"mmproj": str(demo), "type": "q8_0"} and own["path"] == str(demo)
    code, said = command("add", "other", "nowhere.gguf")
    assert code == 1 and "there is no file nowhere.gguf" in said


@pytest.fixture
def installed(tmp_path: Path, demo: Path) -> Command:
    """`llm` with the package in a folder of its own, as pip installs it."""
    # as in test_example_backend.py, not find_spec("pip")
    if find_spec("scikit_build_core") is None or not any(distributions(name="pip")):
        pytest.skip("needs pip and scikit-build-core, which `make test` installs")
    site = tmp_path / "site"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--target", site, FOLDER]
    subprocess.run([str(word) for word in (*pip, *options)], check=True, timeout=120)
    environ = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (site, Path(weft.__file__).parents[1]))),
        "LLM_USER_PATH": str(tmp_path), "LLM_LOAD_PLUGINS": "llm-weft",
    }  # fmt: skip
    (tmp_path / "weft.json").write_text(json.dumps({"demo": {"path": str(demo)}}))

    def command(*words: str) -> tuple[str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "llm", *words], env=environ, capture_output=True, text=True,
            timeout=120, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout, done.stderr

    return command


def test_the_command(installed: Command) -> None:
    options = ["-o", "temperature", "0", "-o", "stop", "\n", "-u"]
    text, usage = installed("-m", "demo", *options, f"{LONG}\n{ASKED}")
    assert text.strip() == ANSWER
    kept = int(usage.split("Token usage: ")[1].split(" input")[0])
    assert kept > 100
    text, usage = installed("-c", *options, "What is 52 - 17?")
    assert text.strip() == "35."
    assert int(usage.split('"cached_tokens": ')[1].split("}")[0]) >= kept
