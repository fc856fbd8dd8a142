"""What a stream says while nothing comes, as during a long prompt."""

from __future__ import annotations

import asyncio
import json
import urllib.request
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.serve.in_process import DEMO, Server
from weft.serve import respond

MESSAGES = [{"role": "user", "content": "What is 17 + 25?"}]


def streamed(server: Server, path: str, body: dict[str, Any]) -> str:
    data = json.dumps({"model": "m", "stream": True, **body}).encode()
    headers = {"Content-Type": "application/json"}
    asked = urllib.request.Request(server.url + path, data, headers)
    with urllib.request.urlopen(asked, timeout=60) as answer:
        return str(answer.read(), "utf-8")


def test_a_silent_stream_is_noticed() -> None:
    async def slow() -> AsyncIterator[int]:
        yield 1
        await gate.wait()
        yield 2

    async def collect() -> list[int | None]:
        found: list[int | None] = []
        async for item in respond.paced(slow(), 0.001):
            found.append(item)
            if item is None:
                gate.set()
        return found

    gate = asyncio.Event()
    got = asyncio.run(collect())
    assert got[0] == 1 and got[-1] == 2 and None in got[1:-1]


def test_streams_of_events_have_pings(monkeypatch: pytest.MonkeyPatch) -> None:
    async def silent_twice(source: AsyncIterator[bytes], _: float) -> AsyncIterator[Any]:
        yield None
        yield await anext(source)
        yield None
        async for item in source:
            yield item

    monkeypatch.setattr(respond, "paced", silent_twice)
    with Server(DEMO) as server:
        chat = streamed(server, "/v1/chat/completions", {"messages": MESSAGES, "max_tokens": 4})
        assert "\n: ping\n" in f"\n{chat}" and chat.endswith("data: [DONE]\n\n")

        items = streamed(server, "/v1/responses", {"input": "Hello", "max_output_tokens": 4})
        events = [json.loads(line[6:]) for line in items.splitlines() if line.startswith("data: ")]
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        assert sum(event["type"] == "response.in_progress" for event in events) > 1
        assert events[-1]["type"] in ("response.completed", "response.incomplete")

        message = streamed(server, "/v1/messages", {"messages": MESSAGES, "max_tokens": 4})
        assert message.count("event: ping\n") > 1 and "event: message_stop\n" in message

        lines = streamed(server, "/api/chat", {"messages": MESSAGES}).splitlines()
        assert [json.loads(line)["done"] for line in lines][-1] is True
