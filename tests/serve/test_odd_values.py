"""Values of requests that once ended in a status of 500, and what the log says of one that does."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import numpy as np
import pytest
from starlette.types import Receive, Scope, Send

from weft.batch.lines import Line
from weft.errors import ContextError
from weft.llm import SamplingParams
from weft.llm.sampling.trial import NoCompilerError
from weft.serve import chats
from weft.serve.errors import ApiError, of_exception
from weft.serve.internal import line_handler
from weft.serve.llama.endpoints import _normed
from weft.serve.sampling import _listed, require_few

HUGE = 10**400


@pytest.mark.parametrize(
    "name",
    ["repeat_penalty", "dynatemp_range", "top_n_sigma", "temperature", "top_p", "mirostat_tau"],
)
@pytest.mark.parametrize("sign", [1, -1])
def test_numbers_beyond_floats(name: str, sign: int) -> None:
    with pytest.raises(ContextError, match=f"^{name} is"):
        SamplingParams(**{name: sign * HUGE})


@pytest.mark.parametrize("given", [7, 7.5, True, None, {"a": 1}, [7], [["a"]]])
def test_breakers_of_other_types(given: Any) -> None:
    require_few("dry_sequence_breakers", given)  # `SamplingParams` says what they must be


@pytest.mark.parametrize("kind", [0, 1, 2, 3, 1000, 2**31 - 1])
def test_norms_of_vectors(kind: int) -> None:
    row = np.float32([0.6, -0.8, 0.0])
    normed = _normed(row, kind)
    assert np.isfinite(normed).all()
    if kind > 2:
        size = np.float64(0.8) * (1 + (0.6 / 0.8) ** kind) ** (1 / kind)
        assert np.allclose(normed, row / size, rtol=1e-5)


def test_a_norm_without_end() -> None:
    with pytest.raises(ApiError, match="embd_normalize is too large"):
        _normed(np.float32([1, 0]), HUGE)


def asked(app: Any, body: Any) -> Any:
    line = Line(1, 1, "a", "/v1/completions", body)
    return asyncio.run(_asked(app, line))


async def _asked(app: Any, line: Line) -> Any:
    return await line_handler(app)(line)


async def failing(scope: Scope, receive: Receive, send: Send) -> None:
    raise ZeroDivisionError("a secret of the server")


async def deep(scope: Scope, receive: Receive, send: Send) -> None:
    raise AssertionError("it was asked")


def test_a_line_that_fails(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has a row of its own, the others go on, and the log says where it failed."""
    monkeypatch.setattr(logging.getLogger("weft.serve"), "propagate", True)
    with caplog.at_level("ERROR", "weft.serve"):
        answer = asked(failing, {})
    assert answer.status == 500
    assert "secret" not in json.dumps(answer.body)
    assert "ZeroDivisionError" in caplog.text and "in failing" in caplog.text


def test_a_line_that_is_too_deep() -> None:
    body: dict[str, Any] = {}
    for _ in range(100_000):
        body = {"a": body}
    answer = asked(deep, body)
    assert answer.status == 400 and "nested too deeply" in answer.body["error"]["message"]
    while body:
        body = body["a"]


@pytest.mark.parametrize("n", [8000, 200_000])
def test_breakers_that_are_too_deep(n: int) -> None:
    assert _listed("[" * n) == "[" * n


def test_blame_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tools are compiled one by one only as long as one constraint may take."""
    asked: list[int] = []
    now = iter(range(0, 1000, 4))
    monkeypatch.setattr(chats.time, "monotonic", lambda: next(now))
    monkeypatch.setattr(chats, "check_constraint", lambda params: asked.append(1))
    error = ContextError("why")
    tools = [{"function": {"name": str(i), "parameters": {"type": "object"}}} for i in range(1000)]
    assert chats.blamed(error, tools) is error
    assert len(asked) == 2


@pytest.mark.parametrize("why", ["`grammar` needs a package", "'/usr/bin/python' does not start"])
def test_a_missing_compiler_is_no_tools_fault(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise NoCompilerError(why)

    monkeypatch.setattr(chats, "check_constraint", refuse)
    tools = [{"function": {"name": "f", "parameters": {"type": "object"}}}]
    error = of_exception(chats.blamed(ContextError("why"), tools))
    assert error.status == 501
    assert "tool" not in str(error) and "/usr" not in str(error)


def test_a_blamed_tool_is_told_apart_from_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    tools = [{"function": {"name": "f", "parameters": {"type": "object"}}}]
    for why in ("it is odd", ": it is odd"):

        def refuse(_: object, why: str = why) -> None:
            raise ContextError(why)

        monkeypatch.setattr(chats, "check_constraint", refuse)
        error = chats.blamed(ContextError("why"), tools)
        assert str(error) == "the parameters of the tool 'f': it is odd"
