"""What a constraint may cost: it is tried in a process of its own, which may die of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from weft.bounds import CONSTRAINT_BYTES
from weft.errors import BusyError, ContextError
from weft.frontends.gguf import open_gguf
from weft.llm import Sampler, SamplingParams, Tokenizer
from weft.llm.sampling import trial
from weft.llm.sampling.constraint import check_constraint

DEMO = Path(__file__).resolve().parents[3] / "examples" / "weft-demo.gguf"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(open_gguf(DEMO))


def lark(n: int, rule: str = "r{next}") -> str:
    """A chain of rules, each of which has only the next one."""
    rules = "".join(f"r{i}: {rule.format(next=i + 1)}\n" for i in range(n))
    return f'%llguidance {{}}\nstart: r0\n{rules}r{n}: "c"\n'


def gbnf(n: int) -> str:
    rules = "".join(f"r{i} ::= r{i + 1}\n" for i in range(n))
    return f'root ::= r0\n{rules}r{n} ::= "c"\n'


def terminals(n: int) -> str:
    rules = "".join(f'T{i}: ("a" | T{i + 1} "b")*\n' for i in range(n))
    return f'%llguidance {{}}\nstart: T0\n{rules}T{n}: "c"\n'


def schema(n: int, key: str = "properties") -> str:
    def level(i: int) -> dict[str, Any]:
        ref = {"$ref": f"#/$defs/d{i + 1}"}
        return {"type": "object", "properties": {"a": ref}} if key == "properties" else {key: ref}

    last: dict[str, Any] = {"type": "string"}
    return json.dumps(
        {"$defs": {f"d{i}": level(i) for i in range(n)} | {f"d{n}": last}, "$ref": "#/$defs/d0"}
    )


DEEP = [
    ("grammar", lark(4000)),
    ("grammar", lark(4000, '"a" r{next} | "b"')),
    # the tokens that a grammar names must not hide what comes behind them
    ("grammar", lark(4000).replace("start: r0", "start: r0 <[300]>")),
    ("grammar", terminals(4000)),
    ("json_schema", schema(1000)),
    ("json_schema", schema(3000, "items")),
]


@pytest.mark.parametrize(("kind", "text"), DEEP)
def test_a_deep_one_is_refused(tokenizer: Tokenizer, kind: str, text: str) -> None:
    with pytest.raises(ContextError, match=f"^{kind}: it is nested too deeply"):
        Sampler(SamplingParams(**{kind: text}), tokenizer)
    with pytest.raises(ContextError, match=f"^{kind}: it is nested too deeply"):
        check_constraint(SamplingParams(**{kind: text}))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("grammar", lark(200)),
        ("grammar", gbnf(200)),
        ("json_schema", schema(60)),
        ("regex", "(" * 200 + "a" + ")" * 200),
    ],
)
def test_one_of_common_depth_is_compiled(tokenizer: Tokenizer, kind: str, text: str) -> None:
    Sampler(SamplingParams(**{kind: text}), tokenizer)


def test_a_slow_one_is_ended(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps({"type": "integer", "multipleOf": 99999989, "maximum": 10**12})
    monkeypatch.setattr(trial, "CONSTRAINT_CPU_SECONDS", 1)
    monkeypatch.setattr(trial, "_trials", trial._Trials())
    with pytest.raises(ContextError, match=r"^json_schema: compiling it takes more than 2 s"):
        Sampler(SamplingParams(json_schema=text), tokenizer)
    # and the next one finds room
    Sampler(SamplingParams(regex="a+"), tokenizer)


def test_a_long_one_is_not_read(tokenizer: Tokenizer) -> None:
    for kind in ("grammar", "regex", "json_schema"):
        text = " " * CONSTRAINT_BYTES + "a"
        said = f"^{kind}: it has {CONSTRAINT_BYTES + 1} bytes; a constraint may have"
        with pytest.raises(ContextError, match=said):
            Sampler(SamplingParams(**{kind: text}), tokenizer)


def test_json_that_is_deep(tokenizer: Tokenizer) -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"items": deep}
    with pytest.raises(ContextError, match="json_schema: it is nested too deeply"):
        Sampler(SamplingParams(json_schema=deep), tokenizer)
    text = '{"items":' * 50_000 + "{}" + "}" * 50_000
    with pytest.raises(ContextError, match="json_schema: "):
        Sampler(SamplingParams(json_schema=text), tokenizer)
    while deep:  # Python would free it by recursion
        deep = deep["items"]


def test_waiting_has_an_end(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trial, "CONSTRAINT_SECONDS", 0.01)
    trials = trial._Trials()
    monkeypatch.setattr(trial, "_trials", trials)
    for _ in range(trial.CONSTRAINTS_AT_ONCE):
        assert trials._room.acquire(blocking=False)
    with pytest.raises(BusyError, match="too many constraints"):
        Sampler(SamplingParams(regex="b+"), tokenizer)


def test_answers_are_kept(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    params = SamplingParams(regex="abc+")
    Sampler(params, tokenizer)
    monkeypatch.setattr(trial.Worker, "ask", None)  # nothing is asked again
    Sampler(params, tokenizer)
    with pytest.raises(TypeError):
        Sampler(SamplingParams(regex="abcd+"), tokenizer)


def test_a_process_that_was_killed_is_replaced(tokenizer: Tokenizer) -> None:
    Sampler(SamplingParams(regex="x+"), tokenizer)
    for worker in trial._trials._idle:
        worker._process.kill()
        worker._process.wait()
    Sampler(SamplingParams(regex="xy+"), tokenizer)


def test_samplers_of_one_constraint_are_apart(tokenizer: Tokenizer) -> None:
    params = SamplingParams(regex="(ab|cd)")
    first, second = Sampler(params, tokenizer), Sampler(params, tokenizer)
    a, c = (tokenizer.encode(text, add_special=False)[-1] for text in ("a", "c"))
    first.accept(a)
    second.accept(c)
    assert first._constraint is not None and second._constraint is not None
    assert set(first._constraint.allowed()) != set(second._constraint.allowed())
