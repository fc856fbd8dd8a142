"""What the command line of a server says for requests that do not: sampling, template, system."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.serve.in_process import Server
from tests.serve.talkers import TEMPLATE, talker
from weft.llm import SamplingParams
from weft.serve.sampling import sampling_of, usual_values
from weft.serve.schema import ChatBody

OTHER = "[{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}]{{ mood }}"


def post(server: Server, path: str, body: dict[str, Any]) -> Any:
    status, _, answer = server.call("POST", path, body)
    assert status == 200, answer
    return answer


SAY = [{"role": "user", "content": "say"}]


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talker(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def server(path: Path) -> Iterator[Server]:
    words = ("--temp", "0", "--top-k", "3", "--chat-template", OTHER, "-sys", "Be brief.",
             "--chat-template-kwargs", '{"mood": "good"}',
             "-c", "512", "--parallel", "2")  # fmt: skip
    with Server(path, *words) as running:
        yield running


def rendered(server: Server, **body: Any) -> str:
    text = post(server, "/apply-template", {"messages": SAY, **body})["prompt"]
    assert isinstance(text, str)
    return text


def test_sampling_of_the_server(server: Server) -> None:
    def text(**body: Any) -> Any:
        body = {"prompt": "ab", "max_tokens": 12, **body}
        return post(server, "/v1/completions", body)["choices"][0]["text"]

    same = {text(seed=seed) for seed in range(3)}
    assert len(same) == 1 and text(temperature=0.0) in same
    assert len({text(temperature=2.0, top_k=0, seed=seed) for seed in range(3)}) > 1


def test_sampling_that_is_used_is_told(server: Server) -> None:
    """In models' lists, in /props, and in responses; a request that names one value gets the API's
    for the others."""
    (model,) = server.call("GET", "/v1/models")[2]["data"]
    assert (model["meta"]["sampling"]["temperature"], model["meta"]["sampling"]["top_k"]) == (0, 3)
    params = server.call("GET", "/props")[2]["default_generation_settings"]["params"]
    assert (params["temperature"], params["top_k"], params["top_p"]) == (0, 3, 0.95)
    body = {"input": "say", "max_output_tokens": 1}
    for own, used in (({}, (0, 0.95)), ({"top_p": 0.5}, (0, 0.5)), ({"temperature": 1}, (1, 1))):
        told = post(server, "/v1/responses", body | own)
        assert (told["temperature"], told["top_p"]) == used
        stored = server.call("GET", f"/v1/responses/{told['id']}")[2]
        assert (stored["temperature"], stored["top_p"]) == used
    shown = usual_values({"repeat_last_n": 7})
    assert shown["repeat_last_n"] == 7 and "repeat_last_n" not in usual_values({})


def test_template_variables_and_system(server: Server) -> None:
    assert rendered(server) == "[<system>Be brief.<user>say]good"
    own = [{"role": "system", "content": "Sing."}, *SAY]
    assert rendered(server, messages=own) == "[<system>Sing.<user>say]good"
    assert rendered(server, chat_template_kwargs={"mood": "bad"}).endswith("]bad")


def test_reasoning_of_the_server(path: Path) -> None:
    begins = TEMPLATE.replace("{% if enable_thinking %}", "{% if enable_thinking != false %}")
    always = TEMPLATE.replace("{% if enable_thinking %}", "{% if true %}")
    for template, end in ((begins, "<assistant>"), (always, "<think>\n</think>\n\n")):
        words = ("--chat-template", template, "--reasoning-budget", "0", "-c", "256")
        with Server(path, *words) as server:
            assert rendered(server).endswith(end)
            on = {"chat_template_kwargs": {"enable_thinking": True}}
            assert rendered(server, **on).endswith("<think>")


def test_wrong_values_end_the_start(path: Path) -> None:
    from tests.cli.in_process import weft

    for words, said in (
        (("--pooling", "none"), "pooling is none, which gives no embedding of a text"),
        (("--top-p", "3"), "--top-p is 3"),
        (("--chat-template", "nope"), "--chat-template nope: no such file"),
        (("--chat-template-kwargs", "[]"), "write an object of JSON"),
    ):
        refused = weft("serve", path, *words)
        assert refused.returncode == 1 and said in refused.stderr


def test_pooling_of_the_server(path: Path) -> None:
    vectors = []
    for words in (("--embeddings",), ("--pooling", "mean"), ("--pooling", "last")):
        with Server(path, *words, "-c", "256", "--parallel", "2") as server:
            answer = post(server, "/v1/embeddings", {"input": "say it"})
            vectors.append(answer["data"][0]["embedding"])
    assert vectors[0] == vectors[1] != vectors[2]


SETTINGS = """
[defaults]
system = "Be brief."
sampling = {temperature = 0}

[models.pirate]
path = "plain.gguf"
system = "Arr."
chat-template = "other.jinja"
chat-template-kwargs = {mood = "grim"}
sampling = {temperature = 2.0, top_k = 0}
"""


def test_models_are_kept_with_their_settings(path: Path, tmp_path: Path) -> None:
    (tmp_path / "plain.gguf").write_bytes(path.read_bytes())
    (tmp_path / "other.jinja").write_text(OTHER)
    (tmp_path / "models.toml").write_text(SETTINGS)
    with Server.many(tmp_path, "-t", 1, "-np", 1, "-c", 256) as server:
        assert rendered(server, model="pirate") == "[<system>Arr.<user>say]grim"
        assert rendered(server, model="plain").startswith("<system>Be brief.<user>say")

        def texts(model: str) -> set[str]:
            bodies = (
                {"model": model, "prompt": "ab", "max_tokens": 8, "seed": n} for n in range(3)
            )
            each = [post(server, "/v1/completions", body) for body in bodies]
            return {answer["choices"][0]["text"] for answer in each}

        assert len(texts("plain")) == 1 and len(texts("pirate")) > 1


def test_a_model_has_several_names(path: Path) -> None:
    with Server(path, "-a", "gpt-4o, small", "-c", "256", "--parallel", "1") as server:
        listed = server.call("GET", "/v1/models")[2]["data"]
        assert [model["id"] for model in listed] == ["gpt-4o", "small"]
        assert server.call("GET", "/v1/models/small")[0] == 200
        for asked, named in (("small", "small"), ("gpt-4o", "gpt-4o"), ("x", "gpt-4o")):
            body = {"model": asked, "prompt": "a", "max_tokens": 1}
            assert post(server, "/v1/completions", body)["model"] == named


def test_who_names_no_sampling_gets_the_likelier_tokens() -> None:
    """The values of `weft chat`; who names one of them gets the rest as the API defines it."""

    def sampling(usual: dict[str, Any] | None = None, **fields: Any) -> SamplingParams:
        body = ChatBody.model_validate({"messages": SAY, "seed": 1} | fields)
        return replace(sampling_of(body, 0, usual=usual), seed=None)

    own, whole = SamplingParams(repeat_last_n=-1), {"top_k": 0, "top_p": 1.0, "min_p": 0.0}
    assert sampling() == sampling(presence_penalty=0.0) == own
    assert sampling({"temperature": 0.0}) == replace(own, temperature=0.0)
    assert sampling(temperature=0.5) == replace(own, temperature=0.5, **whole)
    assert sampling(top_k=3) == replace(own, temperature=1.0, **(whole | {"top_k": 3}))
    assert sampling({"top_k": 5}, temperature=0.5).top_k == 5
