"""Control vectors over the API: chosen by name, beside texts with others, and what is refused."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.llm.vector_files import directions, write_vector
from tests.serve.in_process import DEMO, Server
from weft.llm import LLM, Model

QUESTION = "Count from 8 to 11?"
CHOICES: dict[str, dict[str, float]] = {
    "none": {}, "calm": {"calm": 2.0}, "bold": {"bold": 2.0}, "both": {"calm": -2.0, "bold": 4.0},
    "given": {"calm": 1.0, "bold": 0.5},
}  # fmt: skip


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder, config = tmp_path_factory.mktemp("served"), Model.open(DEMO).config
    return [
        write_vector(
            folder / f"{name}.gguf", directions(seed, range(1, config.n_layer), config.n_embd, 0.6)
        )
        for seed, name in enumerate(("calm", "firm"))
    ]


@pytest.fixture(scope="module")
def server(files: list[Path]) -> Iterator[Server]:
    options = ("--control-vector", files[0], "--control-vector-scaled", f"bold={files[1]}:0.5")
    with Server(DEMO, *options, "--parallel", 3) as started:
        yield started


def ask(server: Server, **body: Any) -> Any:
    body = {"prompt": QUESTION, "max_tokens": 10, "temperature": 0, "ignore_eos": True} | body
    return server.call("POST", "/v1/completions", body)[2]


def test_requests_choose_side_by_side(server: Server, files: list[Path]) -> None:
    with LLM(DEMO, control_vectors={"calm": files[0], "bold": (files[1], 0.5)}) as llm:
        right = [
            llm.generate(QUESTION, max_tokens=10, temperature=0, ignore_eos=True,
                         control_vectors=chosen)
            for chosen in CHOICES.values()
        ]  # fmt: skip
    assert len(set(right)) == len(right)
    bodies = [{} if name == "given" else {"control_vectors": c} for name, c in CHOICES.items()]
    with ThreadPoolExecutor(6) as threads:
        answers = threads.map(lambda body: ask(server, **body), bodies * 3)
        assert [answer["choices"][0]["text"] for answer in answers] == right * 3


def test_they_are_listed(server: Server, files: list[Path]) -> None:
    (model,) = server.call("GET", "/v1/models")[2]["data"]
    calm, bold = model["control_vectors"]
    assert (calm["id"], calm["path"], calm["scale"]) == ("calm", str(files[0]), 1.0)
    assert (bold["id"], bold["scale"]) == ("bold", 0.5) and bold["layers"][0] == 1


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"nope": 1}, "there is no control vector 'nope'; loaded are calm, bold"),
        ({"calm": "x"}, "an object of scales by name"),
        ({"calm": 1e999}, "an object of scales by name"),
        (["calm"], "an object of scales by name"),
    ],
)
def test_what_is_refused(server: Server, given: Any, says: str) -> None:
    assert says in ask(server, control_vectors=given)["error"]["message"]


def test_a_server_without() -> None:
    with Server(DEMO) as plain:
        assert "control_vectors" not in plain.call("GET", "/v1/models")[2]["data"][0]
        answer = ask(plain, control_vectors={"calm": 1})
        assert "start it with --control-vector FILE" in answer["error"]["message"]
        assert "choices" in ask(plain, control_vectors={})
