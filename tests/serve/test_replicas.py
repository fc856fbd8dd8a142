"""`weft serve --ray`: two replicas of a model behind one address, as a user starts it."""

from __future__ import annotations

import json
import os
import re
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from tests.cli.in_process import weft
from tests.ray_nodes import Nodes
from tests.serve import in_process
from tests.serve.server import DEMO, Reached, Server
from tests.waiting import eventually

pytest.importorskip("ray")
pytestmark = pytest.mark.xdist_group("ray")

REPLICA = "ray::ServeReplica"
LONG = "Tell me of the numbers one and two, and of three, and what comes after them. " * 2


@pytest.fixture(scope="module")
def server(ray_cluster: Nodes, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    keys = tmp_path_factory.mktemp("keys") / "keys.db"
    sent = weft("keys", "add", "all", "--keys", keys).stdout.strip()
    limited = weft("keys", "add", "few", "--keys", keys, "--limit-tpd", "40").stdout.strip()
    options = ("--replicas", 2, "-np", 4, "--grace", 20, "--keys", keys)
    with Server(DEMO, "--ray", ray_cluster.address, *options, sent_key=sent) as server:
        server.limited, server.keys = limited, keys
        yield server
    assert ray_cluster.wait_for_end(REPLICA) == []
    assert ray_cluster.wait_for_end("ray::ServeController") == []


@pytest.fixture(scope="module")
def alone() -> Iterator[in_process.Server]:
    with in_process.Server(DEMO, "-t", 1, "-np", 4) as server:
        yield server


def ask(server: Server, *texts: str, **body: Any) -> Any:
    """The answer to a chat: turns of the user and of the assistant."""
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(texts)]
    form = {"messages": messages, "temperature": 0, "max_tokens": 12, **body}
    status, _, answer = server.call("POST", "/v1/chat/completions", form)
    assert status == 200, answer
    return answer


def by_replica(server: Server, name: str, labels: str = "") -> dict[str, float]:
    """The values of a metric of each replica."""
    values = server.metrics()
    found = (re.fullmatch(rf'{name}{{replica="(\w+)"{labels}}}', key) for key in values)
    return {m[1]: values[m[0]] for m in found if m}


class Stream:
    """A stream of 16 texts, of which the first line has been read."""

    def __init__(self, server: Server, prompt: str) -> None:
        form = {"prompt": prompt, "max_tokens": 900, "n": 16, "ignore_eos": True, "stream": True}
        self._connection = server.connect()
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {server.key}"}
        self._connection.request("POST", "/v1/completions", json.dumps(form), headers)
        self._answer = self._connection.getresponse()
        self._answer.readline()

    def rest(self) -> str:
        """What comes until its end."""
        try:
            return self._answer.read().decode()
        finally:
            self.close()

    def close(self) -> None:
        """Leaves."""
        self._connection.close()
        self._answer.close()


def test_answers_are_those_of_one_machine(server: Server, alone: in_process.Server) -> None:
    for path, body in (
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "What is 2 + 3?"}]}),
        ("/v1/completions", {"prompt": "What is 2 + 3?", "n": 2}),
        ("/api/chat", {"messages": [{"role": "user", "content": "Hi"}], "stream": False}),
        ("/tokenize", {"content": "What is 2 + 3?"}),
        ("/v1/completions", {"prompt": "a", "temperature": 9}),
        ("/v1/nothing", {}),
    ):
        form = {"temperature": 0, "max_tokens": 16} | body
        mine, theirs = (s.call("POST", path, form) for s in (server, alone))
        assert mine[0] == theirs[0]
        assert set(mine[1]) == set(theirs[1])
        for answer in (mine[2], theirs[2]):
            for name in ("id", "created", "timings", "created_at"):
                answer.pop(name, None)
            for name in [name for name in answer if name.endswith("_duration")]:
                del answer[name]
            answer.get("usage", {}).pop("prompt_tokens_details", None)
        assert mine[2] == theirs[2]


def test_streams_and_their_usage(server: Server, alone: in_process.Server) -> None:
    def streamed(server: Reached) -> str:
        parts = server.client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "Count"}], stream=True,
            temperature=0, max_tokens=40, extra_body={"ignore_eos": True},
        )  # fmt: skip
        texts = [part.choices[0].delta.content or "" for part in parts]
        assert len(texts) > 1
        return "".join(texts)

    assert streamed(server) == streamed(alone)
    eventually(lambda: any("generated 40 tokens" in line for line in server.lines))


def test_second_turns_go_to_the_replica_with_the_first(server: Server) -> None:
    """Chats of two turns: of the first turns each replica gets some, and every second one finds
    its first one in the cache."""
    firsts = [f"{i}. {LONG}" for i in range(6)]
    answers = [ask(server, text)["choices"][0]["message"]["content"] for text in firsts]
    before = server.metrics()
    for text, answer in zip(firsts, answers, strict=True):
        second = ask(server, text, answer, "And then?")
        assert second["usage"]["prompt_tokens_details"]["cached_tokens"] > 20
    after = server.metrics()
    name = 'routed_total{reason="prefix"}'
    assert after[name] - before[name] == len(firsts)


def test_keys_limits_and_usage(server: Server) -> None:
    form = {"prompt": "What is 2 + 3?", "max_tokens": 5, "ignore_eos": True}
    assert server.call("POST", "/v1/completions", form, Authorization="Bearer no")[0] == 401
    limited = f"Bearer {server.limited}"
    usage = server.call("POST", "/v1/completions", form, Authorization=limited)[2]["usage"]
    (row,) = json.loads(weft("keys", "usage", "few", "--keys", server.keys, "--json").stdout)
    assert row["requests"] == 1 and row["model"] == "weft-demo"
    assert (row["prompt"], row["generated"]) == (usage["prompt_tokens"], 5)
    body = form | {"max_tokens": 40}
    statuses = [server.call("POST", "/v1/completions", body, Authorization=limited)[0]
                for _ in range(3)]  # fmt: skip
    assert statuses[-1] == 429


def test_metrics_of_all_replicas(server: Server) -> None:
    eventually(lambda: server.metrics()["replicas"] == 2)
    assert len(by_replica(server, "requests_total")) == 2
    _, _, text = server.call("GET", "/metrics")
    assert text.count("# TYPE weft_requests_total counter") == 1
    asked = 'http_requests_total{path="/tokenize",method="POST",status="200"}'
    before = server.metrics().get(asked, 0)
    assert server.call("POST", "/tokenize", {"content": "a"})[0] == 200
    assert server.metrics()[asked] == before + 1
    assert server.call("GET", "/health")[2] == {"status": "ok", "replicas": 2}


def test_a_response_goes_on_with_one_that_another_replica_wrote(server: Server) -> None:
    first = server.client.responses.create(model="m", input="Count", max_output_tokens=8)
    for _ in range(4):  # with others in between, it may be any replica
        second = server.client.responses.create(
            model="m", input="More", previous_response_id=first.id, max_output_tokens=8
        )
        assert second.usage.input_tokens > first.usage.input_tokens
    assert server.client.responses.retrieve(second.id).output_text == second.output_text
    status, _, answer = server.call("POST", "/v1/responses", {
        "input": "a", "previous_response_id": "resp_none"})  # fmt: skip
    assert status == 400 and "resp_none" in answer["error"]["message"]


def test_a_client_that_leaves_ends_its_text(server: Server) -> None:
    Stream(server, "Count").close()
    eventually(lambda: server.metrics()["replica_requests"] == 0)
    eventually(lambda: sum(by_replica(server, "running").values()) == 0)
    cancelled = by_replica(server, "requests_ended_total", ',reason="cancelled"')
    assert sum(cancelled.values()) == 16


@pytest.mark.part("cluster")
def test_a_rolling_update_loses_no_request(server: Server, ray_cluster: Nodes) -> None:
    """SIGHUP replaces all replicas, while requests come without a pause."""
    before = set(ray_cluster.processes(REPLICA))
    statuses: list[int] = []
    ended = threading.Event()

    def stream() -> None:
        while not ended.is_set():
            form = {"prompt": "Count", "max_tokens": 60, "ignore_eos": True, "temperature": 0}
            statuses.append(server.call("POST", "/v1/completions", form)[0])

    threads = [threading.Thread(target=stream) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        server.process.send_signal(signal.SIGHUP)
        eventually(lambda: any("replicas: all are new" in line for line in server.lines))
        eventually(lambda: len(ray_cluster.processes(REPLICA)) == 2)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert set(statuses) == {200} and len(statuses) > 10
    assert not before & set(ray_cluster.processes(REPLICA))


def test_a_replica_that_dies_fails_its_streams_alone(server: Server, ray_cluster: Nodes) -> None:
    """Both replicas write a stream; one is killed. Its stream ends with a sentence, the other one
    with its texts."""
    eventually(lambda: server.metrics()["replicas"] == 2)
    streams = [Stream(server, "Count"), Stream(server, "What is 2 + 3?")]
    killed = ray_cluster.kill(REPLICA)
    endings = sorted(stream.rest()[-300:] for stream in streams)
    assert endings[0].endswith("data: [DONE]\n\n") != endings[1].endswith("data: [DONE]\n\n")
    assert sum("the replica that wrote this answer died; ask again" in e for e in endings) == 1
    eventually(lambda: killed not in ray_cluster.processes(REPLICA))
    eventually(lambda: len(ray_cluster.processes(REPLICA)) == 2)
    eventually(lambda: server.metrics()["replicas"] == 2)


@pytest.mark.part("cluster")
def test_a_request_whose_replica_dies_before_it_answers_goes_to_another(
    server: Server, ray_cluster: Nodes
) -> None:
    stopped = ray_cluster.processes(REPLICA)[0]
    os.kill(stopped, signal.SIGSTOP)
    answers: list[Any] = []
    threads = [
        threading.Thread(target=lambda text=text: answers.append(ask(server, text)))
        for text in ("first", "second", "third", "fourth")
    ]
    for thread in threads:
        thread.start()
    eventually(lambda: len(answers) >= 1)
    os.kill(stopped, signal.SIGKILL)
    for thread in threads:
        thread.join(60)
    assert len(answers) == len(threads)
    assert all(answer["usage"]["completion_tokens"] for answer in answers)
