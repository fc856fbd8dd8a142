"""Adapters over the API: chosen by number, by name, and the scales of everybody else."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.llm.adapter_files import matrices_of, pairs, write_adapter
from tests.serve.in_process import DEMO, Server
from weft.llm import LLM

QUESTION = "Count from 8 to 11?"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("served")
    shapes = matrices_of(DEMO)
    return [
        write_adapter(folder / f"{name}.gguf", pairs(seed, 4, shapes), alpha=0.8)
        for seed, name in enumerate(("law", "poetry"))
    ]


@pytest.fixture(scope="module")
def server(files: list[Path]) -> Iterator[Server]:
    law, poetry = files
    options = ("--lora-scaled", f"{law}:0.5", "--lora-modules", f"verse={poetry}")
    with Server(DEMO, *options, "--parallel", 3) as started:
        yield started


def ask(server: Server, **body: Any) -> Any:
    body = {"prompt": QUESTION, "max_tokens": 10, "temperature": 0, "ignore_eos": True} | body
    return server.call("POST", "/v1/completions", body)[2]


def text(server: Server, **body: Any) -> str:
    return str(ask(server, **body)["choices"][0]["text"])


@pytest.fixture(scope="module")
def right(files: list[Path]) -> dict[str, str]:
    choices: dict[str, dict[str, float]] = {
        "none": {}, "half": {"law": 0.5}, "law": {"law": 1.0}, "verse": {"verse": 1.0},
        "both": {"law": 0.25, "verse": 2.0},
    }  # fmt: skip
    with LLM(DEMO, adapters={"law": files[0], "verse": files[1]}) as llm:
        texts = {
            name: llm.generate(QUESTION, max_tokens=10, temperature=0, ignore_eos=True,
                               adapters=chosen)
            for name, chosen in choices.items()
        }  # fmt: skip
    assert len(set(texts.values())) == len(texts)
    return texts


def test_requests_choose(server: Server, right: dict[str, str]) -> None:
    assert text(server) == right["half"]
    assert text(server, lora=[]) == right["none"]
    assert text(server, lora=[{"id": 0, "scale": 1}]) == right["law"]
    both = [{"id": 1, "scale": 2}, {"id": 0, "scale": 0.25}]
    assert text(server, lora=both) == right["both"]
    answer = ask(server, model="verse")
    assert answer["model"] == "verse" and answer["choices"][0]["text"] == right["verse"]
    answer = ask(server, model="law")  # at the scale of the command line
    assert answer["model"] == "law" and answer["choices"][0]["text"] == right["half"]
    assert ask(server, model="verse", lora=[])["choices"][0]["text"] == right["none"]
    chat = server.call(
        "POST", "/v1/chat/completions",
        {"messages": [{"role": "user", "content": QUESTION}], "model": "verse", "max_tokens": 2},
    )[2]  # fmt: skip
    assert chat["model"] == "verse"


def test_side_by_side(server: Server, right: dict[str, str]) -> None:
    asked: list[dict[str, Any]] = [
        {"model": "verse"}, {}, {"lora": []}, {"lora": [{"id": 0, "scale": 1}]},
    ] * 3  # fmt: skip
    with ThreadPoolExecutor(len(asked)) as threads:
        texts = list(threads.map(lambda body: text(server, **body), asked))
    assert texts == [right[name] for name in ("verse", "half", "none", "law")] * 3


def test_they_are_listed(server: Server, files: list[Path]) -> None:
    base, law, verse = server.call("GET", "/v1/models")[2]["data"]
    assert base["id"] == DEMO.stem and "parent" not in base
    assert (law["id"], law["parent"], law["root"]) == ("law", DEMO.stem, str(files[0]))
    assert server.call("GET", "/v1/models/verse")[2] == verse
    assert server.call("GET", "/v1/models/poetry")[0] == 404


def test_the_scales_of_others(server: Server, files: list[Path], right: dict[str, str]) -> None:
    first, second = server.call("GET", "/lora-adapters")[2]
    assert (first["id"], first["path"], first["scale"]) == (0, str(files[0]), 0.5)
    assert (second["id"], second["name"], second["scale"]) == (1, "verse", 0.0)
    set_ = [{"id": 1, "scale": 1.0}]
    assert server.call("POST", "/lora-adapters", set_)[2] == {"success": True}
    assert [a["scale"] for a in server.call("GET", "/lora-adapters")[2]] == [0.0, 1.0]
    assert text(server) == right["verse"]
    server.call("POST", "/lora-adapters", [{"id": 0, "scale": 0.5}])
    assert text(server) == right["half"]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ([{"id": 2, "scale": 1}], "there is no adapter 2; the last is 1"),
        ([{"id": -1, "scale": 1}], 'it must be a list of {"id": NUMBER'),
        ([{"id": 0, "scale": "x"}], 'it must be a list of {"id": NUMBER'),
        (7, 'it must be a list of {"id": NUMBER'),
    ],
)
def test_what_is_refused(server: Server, given: Any, says: str) -> None:
    assert says in ask(server, lora=given)["error"]["message"]
    status, _, answer = server.call("POST", "/lora-adapters", given)
    assert status == 400 and (says in answer["error"]["message"] or given == 7)


def test_a_server_without_and_one_that_applies_none(
    files: list[Path], right: dict[str, str]
) -> None:
    with Server(DEMO) as plain:
        assert plain.call("GET", "/lora-adapters")[2] == []
        assert "--lora FILE" in ask(plain, lora=[{"id": 0, "scale": 1}])["error"]["message"]
        assert text(plain, lora=[], model="verse") == right["none"]
    with Server(DEMO, "--lora", files[0], "--lora-init-without-apply") as later:
        assert text(later) == right["none"]
        assert text(later, model="law") == right["law"]
