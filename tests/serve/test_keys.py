"""Several keys: names, limits, usage, and what is left after SIGKILL."""

from __future__ import annotations

import json
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI, RateLimitError

from tests.cli.in_process import weft
from tests.serve import server as process
from tests.serve.in_process import DEMO, Server
from tests.serve.server import Reached
from tests.waiting import eventually

ASK: dict[str, Any] = {"prompt": "What is 2 + 3?", "max_tokens": 5, "temperature": 0,
                       "ignore_eos": True}  # fmt: skip
CHAT = [{"role": "user", "content": "What is 2 + 3?"}]


def add(file: Path, name: str, *limits: str) -> str:
    ended = weft("keys", "add", name, "--keys", file, *limits)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


def used(file: Path, name: str) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = json.loads(weft("keys", "usage", name, "--keys", file,
                                                 "--json").stdout)  # fmt: skip
    return rows


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("keys") / "keys.db"


@pytest.fixture(scope="module")
def server(file: Path) -> Iterator[Server]:
    listed = file.with_name("keys.txt")
    listed.write_text("# for old clients\n\nplain-key\n")
    root = add(file, "root")
    options = ("--keys", file, "--api-key-file", listed, "--embeddings")
    with Server(DEMO, *options, sent_key=root) as running:
        yield running


def ask(server: Reached, key: str, **more: Any) -> tuple[int, dict[str, str], Any]:
    return server.call("POST", "/v1/completions", ASK | more, Authorization=f"Bearer {key}")


def test_usage_counts_every_way_to_ask(server: Server, file: Path) -> None:
    key = add(file, "ann")
    with OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
        whole = client.completions.create(model="m", **without(ASK), extra_body=own(ASK))
        parts = list(client.chat.completions.create(
            model="m", messages=CHAT, max_tokens=4, stream=True, n=2,
            stream_options={"include_usage": True}))  # fmt: skip
        vector = client.embeddings.create(model="m", input="a text")
    assert whole.usage is not None and parts[-1].usage is not None
    prompts = (whole.usage.prompt_tokens, parts[-1].usage.prompt_tokens, vector.usage.prompt_tokens)
    generated = whole.usage.completion_tokens + parts[-1].usage.completion_tokens
    cached = [u.prompt_tokens_details for u in (whole.usage, parts[-1].usage)]
    (row,) = used(file, "ann")
    assert row["model"] == "weft-demo" and row["requests"] == 3
    assert (row["prompt"], row["generated"]) == (sum(prompts), generated)
    assert row["cached"] == sum(d.cached_tokens or 0 for d in cached if d)


def own(body: dict[str, Any]) -> dict[str, Any]:
    return {"ignore_eos": body["ignore_eos"]}


def without(body: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in body.items() if name != "ignore_eos"}


def test_a_client_that_leaves_is_counted(server: Server, file: Path) -> None:
    key = add(file, "leaver")
    with (
        OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client,
        client.completions.create(
            model="m", prompt="a", max_tokens=1500, stream=True, extra_body=own(ASK)
        ) as stream,
    ):
        next(iter(stream))
    rows = eventually(lambda: used(file, "leaver"))
    assert 1 <= rows[0]["generated"] < 1500 and rows[0]["requests"] == 1


def test_limits_are_told_by_name(server: Server, file: Path) -> None:
    minute = add(file, "minute", "--limit-rpm", "2")
    assert [ask(server, minute)[0] for _ in range(3)] == [200, 200, 429]
    status, headers, body = ask(server, minute)
    assert (status, body["error"]["code"]) == (429, "limit_rpm")
    assert 50 <= int(headers["retry-after"]) <= 60
    get = server.call("GET", "/v1/models", Authorization=f"Bearer {minute}")
    assert get[0] == 200  # only what computes counts

    day = add(file, "day", "--limit-tpd", "12")
    assert ask(server, day)[0] == 200
    status, headers, body = ask(server, day)
    assert (status, body["error"]["code"]) == (429, "limit_tpd")
    assert "has used" in body["error"]["message"] and 0 < int(headers["retry-after"]) <= 86400
    with (
        OpenAI(base_url=f"{server.url}/v1", api_key=day, max_retries=0) as client,
        pytest.raises(RateLimitError, match="limit_tpd"),
    ):
        client.completions.create(model="m", prompt="a")


def test_requests_at_a_time(server: Server, file: Path) -> None:
    key = add(file, "one", "--max-parallel", "1")
    with OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0) as client:
        with client.completions.create(
            model="m", prompt="a", max_tokens=1500, stream=True, extra_body=own(ASK)
        ) as stream:
            next(iter(stream))
            status, headers, body = ask(server, key)
            assert (status, body["error"]["code"]) == (429, "max_parallel")
            assert headers["retry-after"] == "1"
        eventually(lambda: ask(server, key)[0] == 200)


def test_keys_come_and_go_while_it_runs(server: Server, file: Path) -> None:
    key = add(file, "guest")
    eventually(lambda: ask(server, key)[0] == 200)
    assert weft("keys", "revoke", "guest", "--keys", file).returncode == 0
    eventually(lambda: ask(server, key)[0] == 401)
    assert "revoked" in ask(server, key)[2]["error"]["message"]
    status, _, body = ask(server, key + "x")
    assert (status, body["error"]["message"]) == (401, "this server does not know this key")
    status, _, body = server.call("POST", "/v1/completions", ASK, Authorization="")
    assert status == 401 and "Authorization: Bearer KEY" in body["error"]["message"]
    text = server.call("GET", "/metrics")[2]
    assert 'path="/v1/completions",method="POST",status="401"' in text
    assert 'path="other",method="POST",status="401"' not in text
    assert ask(server, "plain-key")[0] == 200
    assert ask(server, "# for old clients")[0] == 401


def test_a_key_in_the_header_of_anthropic(server: Server, file: Path) -> None:
    key = add(file, "claude")
    assert server.call("GET", "/v1/models", **{"x-api-key": key, "Authorization": ""})[0] == 200
    wrong = {"x-api-key": "no", "Authorization": ""}
    assert server.call("GET", "/v1/models", **wrong)[0] == 401


def test_the_log_names_keys_and_not_their_secrets(server: Server, file: Path) -> None:
    key = add(file, "logged")
    eventually(lambda: ask(server, key)[0] == 200)
    eventually(lambda: ", key logged, " in "".join(server.lines))
    log = "".join(server.lines)
    assert key not in log and key[8:20] not in log


def test_nothing_of_finished_answers_is_lost(tmp_path: Path) -> None:
    """Clients ask until SIGKILL; what they got is in the file."""
    file = tmp_path / "keys.db"
    key = add(file, "ann")
    n_done = n_tokens = 0
    lock, killed = threading.Lock(), threading.Event()

    def ask_until_killed(server: Reached) -> None:
        nonlocal n_done, n_tokens
        while not killed.is_set():
            try:
                status, _, body = ask(server, key)
            except Exception:
                return
            assert status == 200
            with lock:
                n_done, n_tokens = n_done + 1, n_tokens + body["usage"]["completion_tokens"]

    server = process.Server(DEMO, "--keys", file, sent_key=key)
    with server:
        threads = [threading.Thread(target=ask_until_killed, args=(server,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        while n_done < 40:
            time.sleep(0.001)
        server.process.send_signal(signal.SIGKILL)
        server.process.wait()
        killed.set()
        for thread in threads:
            thread.join()
    (row,) = used(file, "ann")
    assert n_done <= row["requests"] <= n_done + 4
    assert n_tokens <= row["generated"] <= n_tokens + 4 * 5
