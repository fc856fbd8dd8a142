"""Several models under one server: loading on demand, the budget, and what gives way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import ollama
import pytest

from tests.serve.folders import OPTIONS, SHAPES, complete, models_in
from tests.serve.in_process import Server
from weft.serve.request_body import read_body


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return models_in(tmp_path_factory.mktemp("models"))


@pytest.fixture(scope="module")
def planned(folder: Path) -> dict[str, int]:
    """The planned bytes of each model, as a server without a small budget says them."""
    with Server.many(folder, *OPTIONS) as server:
        names = ("one", "two", "three", "weft-shapes")
        return {n: server.call("GET", f"/v1/models/{n}")[2]["planned_bytes"] for n in names}


@pytest.fixture(scope="module")
def server(folder: Path, planned: dict[str, int]) -> Iterator[Server]:
    """A server with memory for two of the three models of text."""
    sizes = sorted(planned[n] for n in ("one", "two", "three"))
    with Server.many(folder, *OPTIONS, "--models-memory", sum(sizes[1:]) + 1000) as running:
        yield running


def test_who_loads_says_how_long(server: Server) -> None:
    some = [name for name in ("one", "two", "three") if states(server)[name] == "unloaded"]
    name = some[0]
    body = {"model": name, "prompt": "a", "stream": False, "options": {"num_predict": 1}}
    first, second = (server.call("POST", "/api/generate", body)[2] for _ in range(2))
    assert 0 < first["load_duration"] < first["total_duration"]
    assert second["load_duration"] == 0


def test_an_unknown_path_is_not_about_a_model(server: Server) -> None:
    status, _, body = server.call("POST", "/v1/nonsense", {})
    assert status == 404 and "there is no /v1/nonsense" in body["error"]["message"]


def states(server: Server) -> dict[str, str]:
    rows = server.call("GET", "/v1/models")[2]["data"]
    return {row["id"]: row["status"]["value"] for row in rows}


def test_fifty_requests_to_three_models_answer_as_single_servers_do(
    server: Server, folder: Path
) -> None:
    asked = [
        (model, f"Count from {i} to {i + 3}?")
        for i in range(17)
        for model in ("one", "three", "two")
    ][:50]
    answers: list[Any] = []
    for wave in (asked[:30], asked[30:]):  # the second finds one of the three unloaded
        with ThreadPoolExecutor(30) as threads:
            answers += threads.map(lambda ask: complete(server, *ask), wave)
    assert [status for status, _, _ in answers] == [200] * 50
    assert [body["model"] for _, _, body in answers] == [model for model, _ in asked]
    for model in ("one", "three"):
        with Server(folder / f"{model}.gguf", *OPTIONS) as alone:
            for (name, prompt), (_, _, body) in zip(asked, answers, strict=True):
                if name == model or (name, model) == ("two", "one"):
                    want = complete(alone, None, prompt)[2]["choices"]
                    assert body["choices"] == want, (name, prompt)
    metrics = server.metrics()
    assert metrics["models_loaded"] == 2
    assert metrics["models_bytes"] <= metrics["models_bytes_limit"]
    assert metrics["model_loads_total"] >= 4
    assert metrics["model_loads_total"] - metrics["model_unloads_total"] == 2


def test_the_one_used_longest_ago_gives_way(server: Server) -> None:
    for model in ("one", "two", "one", "three"):
        assert complete(server, model, "a")[0] == 200
    assert states(server) | {"broken": "unloaded"} == states(server)
    assert states(server)["one"] == states(server)["three"] == "loaded"
    assert states(server)["two"] == "unloaded"


def test_a_model_that_writes_stays(server: Server) -> None:
    """Its stream ends whole, though others want its room all the while."""
    want = complete(server, "one", "a", max_tokens=200, ignore_eos=True)[2]["choices"][0]["text"]
    stream = server.client.completions.create(
        model="one", prompt="a", max_tokens=200, temperature=0, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    with stream, ThreadPoolExecutor(2) as threads:
        pieces = [next(stream).choices[0].text]
        others = [threads.submit(complete, server, m, "a") for m in ("two", "three")]
        pieces += [chunk.choices[0].text for chunk in stream]
        assert [other.result()[0] for other in others] == [200, 200]
    assert "".join(pieces) == want


def test_names(server: Server) -> None:
    for name in ("one", "first", "one:latest", "one.gguf"):
        assert complete(server, name, "a")[2]["model"] == "one"
    status, _, body = complete(server, "zero", "a")
    assert status == 404 and "there are big, broken, one" in body["error"]["message"]
    status, _, body = complete(server, None, "a")
    assert status == 400 and "model is missing; there are" in body["error"]["message"]
    assert complete(server, 3, "a")[2]["error"]["message"] == "model is 3; it must be a text"  # type: ignore[arg-type]
    assert "not JSON" in server.call("POST", "/v1/completions", b"{")[2]["error"]["message"]


def test_a_model_that_cannot_fit_is_refused_before_it_is_loaded(server: Server) -> None:
    loads = server.metrics()["model_loads_total"]
    status, _, body = complete(server, "big", "a")
    assert status == 400 and body["error"]["code"] == "model_too_large"
    assert "all models together may take" in body["error"]["message"]
    assert server.metrics()["model_loads_total"] == loads
    assert complete(server, "one", "a")[0] == 200


def test_a_broken_file_harms_nobody(server: Server) -> None:
    before = {name for name, state in states(server).items() if state == "loaded"}
    status, _, body = complete(server, "broken", "a")
    assert status == 500 and "the file is cut short" in body["error"]["message"]
    assert before == {name for name, state in states(server).items() if state == "loaded"}
    row = server.call("GET", "/v1/models/broken")[2]
    assert row["status"]["value"] == "unloaded" and "cut short" in row["error"]


def test_loading_and_unloading_by_hand(server: Server) -> None:
    ask = {"model": "two"}
    assert server.call("POST", "/models/load", ask)[2] == {"success": True}
    assert states(server)["two"] == "loaded"
    assert server.call("POST", "/models/unload", ask)[2] == {"success": True}
    assert states(server)["two"] == "unloaded"
    assert server.call("POST", "/models/unload", ask)[0] == 400


def test_metrics_name_their_models(server: Server) -> None:
    complete(server, "one", "a")
    text = server.call("GET", "/metrics")[2]
    assert 'weft_requests_ended_total{model="one",reason="length"}' in text
    heads = [line for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))


def test_ollama_over_all_models(server: Server) -> None:
    with ollama.Client(host=server.url) as client:
        _ask_as_ollama(client)


def _ask_as_ollama(client: ollama.Client) -> None:
    names = [model.model for model in client.list().models]
    # broken cannot be read, and first is an alias of one
    assert names == [
        f"{name}:latest" for name in ("big", "one", "first", "three", "two", "weft-shapes")
    ]
    loads = client.generate("two:latest", "a", options={"num_predict": 1}, keep_alive="5m")
    assert loads.load_duration and loads.total_duration
    assert loads.total_duration > loads.load_duration and loads.model == "two:latest"
    assert not client.generate("two", "a", options={"num_predict": 1}).load_duration
    assert client.show("weft-shapes").capabilities == ["completion", "vision"]
    image = SHAPES / "three-triangles.png"
    message = {"role": "user", "content": "How many shapes?", "images": [str(image)]}
    answer = client.chat("weft-shapes", [message], options={"temperature": 0}, keep_alive="5m")
    assert answer.message.content == "Three."
    running = {model.model: model for model in client.ps().models}
    shapes = running["weft-shapes:latest"]
    assert shapes.expires_at is not None and shapes.expires_at.year < 2300
    assert client.generate("weft-shapes", keep_alive=0).done_reason == "unload"
    assert "weft-shapes:latest" not in {model.model for model in client.ps().models}
    with pytest.raises(ollama.ResponseError, match="there is no model 'zero'"):
        client.generate("zero", "a")


def test_plans_are_what_contexts_take(server: Server, planned: dict[str, int]) -> None:
    for name, nbytes in planned.items():
        assert complete(server, name, "a")[0] == 200
        rows = server.call("GET", "/api/ps")[2]["models"]
        assert next(row["size"] for row in rows if row["name"] == f"{name}:latest") == nbytes


def test_other_apis_find_their_models(server: Server) -> None:
    message = {"role": "user", "content": "a"}
    asked: dict[str, dict[str, Any]] = {
        "/v1/messages": {"messages": [message], "max_tokens": 3},
        "/v1/responses": {"input": "a", "max_output_tokens": 3},
        "/v1/chat/completions": {"messages": [message], "max_tokens": 3},
        "/completion": {"prompt": "a", "n_predict": 3},
    }
    for path, body in asked.items():
        for model in ("one", "three"):
            status, _, answer = server.call("POST", path, body | {"model": model})
            assert status == 200 and answer["model"] == model, (path, answer)
    status, _, answer = server.call("POST", "/v1/messages", asked["/v1/messages"] | {"model": "no"})
    assert status == 404 and answer["type"] == "error"
    props = server.call("GET", "/props?model=three")[2]
    assert props["model_path"].endswith("three.gguf")
    assert server.call("GET", "/props")[2]["model_alias"] == "three"  # it was used last
    status, headers, page = server.call("GET", "/", Accept="text/html")
    assert status == 200 and headers["content-type"].startswith("text/html") and "<html" in page
    assert "serves 6 models" in server.call("GET", "/")[2]


def test_a_form_names_its_model() -> None:
    body = (
        b'--x\r\nContent-Disposition: form-data; name="file"; filename="model"\r\n\r\n\0\r\n'
        b'--x\r\nContent-Disposition: form-data; name="model"\r\n\r\none\r\n--x--\r\n'
    )
    kind = b"multipart/form-data; boundary=x"
    scope = {"method": "POST", "headers": [(b"content-type", kind)], "query_string": b""}

    async def receive() -> Any:
        return {"type": "http.request", "body": body, "more_body": False}

    request = asyncio.run(read_body(scope, receive))
    assert (request.model, request.body) == ("one", body)
