"""Grammars, schemas and regular expressions by their structure: each is followed for some tokens or
refused, within the bounds of `weft.bounds`."""

from __future__ import annotations

import random
from functools import cache
from pathlib import Path
from typing import Any

from tests.fuzz.rounds import Round
from weft.errors import BusyError, ContextError
from weft.frontends.gguf import open_gguf
from weft.llm.sampling.constraint import Constraint
from weft.llm.sampling.params import SamplingParams
from weft.llm.tokenizers.tokenizer import Tokenizer

NATIVE = False

MODEL = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"
MANY = (0, 1, 2, 3, 9, 100, 1000, 5000, 100_000)
TEXTS = ("a", "é", "\\n", "😀", "0", " ", "<end>", "x" * 300, "\0", "\\x41")
TYPES = ("string", "integer", "number", "boolean", "null", "object", "array", "x", 3, None)
NUMBERS = (0, 1, -1, 2, 3.5, 10**6, 10**300, 1e-300, -(10**18), "1", None)
PATTERNS = ("^a+$", "(a|b)*c", "[", "a{0,1000}", "\\d{3}-\\d{4}", "(?=a)", "^.*$", "\\p{L}+", "")


def many(rng: random.Random, rare: float = 0.1) -> int:
    """How many parts of a kind stand beside each other; rarely many."""
    return rng.choice(MANY) if rng.random() < rare else rng.randrange(1, 4)


def gbnf(rng: random.Random) -> str:
    """A grammar in llama.cpp's notation."""
    n_rules = many(rng)
    names = [f"r{i}" for i in range(min(n_rules, 2000))] or ["root"]

    def part(depth: int) -> str:
        kind = rng.randrange(7 if depth else 3)
        if kind == 0:
            return f'"{rng.choice(TEXTS)}"'
        if kind == 1:
            return (
                f"[{rng.choice(('', '^'))}{rng.choice(('a-z', 'é-ž', '', 'z-a', chr(92), 'a]'))}]"
            )
        if kind == 2:
            return rng.choice((*names, "root", "absent", "<think>", "<[7]>", "."))
        if kind == 3:
            return f"({part(depth - 1)})" * rng.randrange(1, 3)
        if kind == 4:
            times = f"{{{rng.choice(MANY)},{rng.choice((*MANY, ''))}}}"
            return f"({part(depth - 1)}){rng.choice(('*', '+', '?', times, times))}"
        joined = rng.choice((" ", " | ", "\n", " # comment\n "))
        return joined.join(part(depth - 1) for _ in range(rng.randrange(1, 4)))

    deep = many(rng, 0.05)
    rules = [f"{name} ::= {part(rng.randrange(4))}" for name in names]
    if rng.random() < 0.2:  # a chain
        rules = [
            f"{a} ::= {b} | {part(1)}" for a, b in zip(names, [*names[1:], "last"], strict=True)
        ]
        rules.append('last ::= "a"')
    wrapped = "(" * deep + names[0] + ")" * deep
    space = rng.choice((" ", "\n", "\t", "#")) * rng.choice(MANY)
    return f"root ::= {wrapped}\n{space}\n" + "\n".join(rules)


def schema(rng: random.Random, depth: int) -> Any:
    """A JSON schema."""
    made: dict[str, Any] = {"type": rng.choice(TYPES)}
    inner: Any = schema(rng, depth - 1) if depth else rng.choice(({}, True, False, None))
    words = (
        ("properties", {f"p{i}": inner for i in range(many(rng) % 2000)}),
        ("required", ["p0", "absent"]), ("additionalProperties", inner), ("items", inner),
        ("prefixItems", [inner] * (many(rng) % 500)), ("anyOf", [inner] * (many(rng) % 500)),
        ("allOf", [inner, inner]), ("oneOf", [inner, {"const": 1}]), ("not", inner),
        ("$ref", rng.choice(("#", "#/$defs/a", "#/absent", "http://x", "#/" + "a/" * 5000))),
        ("$defs", {"a": inner}), ("enum", [rng.choice(TEXTS)] * (many(rng) % 2000)),
        ("const", inner), ("pattern", rng.choice(PATTERNS)), ("format", rng.choice(TEXTS)),
        *((name, rng.choice(NUMBERS)) for name in (
            "minimum", "maximum", "multipleOf", "minLength", "maxLength", "minItems", "maxItems")),
    )  # fmt: skip
    for name, value in rng.sample(words, rng.randrange(4)):
        made[name] = value
    if rng.randrange(3) == 0:
        del made["type"]
    return made


def regex(rng: random.Random) -> str:
    """A regular expression."""
    text = rng.choice(PATTERNS)
    for _ in range(many(rng)):
        end = rng.choice(("", "*", "+", "?", f"{{{rng.choice(MANY)}}}", "{1,1000}"))
        text = f"({text}){end}{rng.choice(PATTERNS)}"[:20_000]
    return text * (many(rng) % 100)


@cache
def _tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(open_gguf(MODEL))


def prepare(folder: Path) -> Round:
    """Constraints over the vocabulary of the demo model."""

    def one(rng: random.Random) -> str:
        kind = rng.choice(("grammar", "json_schema", "regex"))
        made = {"grammar": gbnf, "regex": regex, "json_schema": lambda r: schema(r, many(r) % 200)}
        try:
            constraint = Constraint(SamplingParams(**{kind: made[kind](rng)}), _tokenizer())
            for _ in range(8):
                ids = constraint.allowed()
                if constraint.done or not len(ids):
                    break
                constraint.accept(int(rng.choice(ids)))
        except ContextError as error:
            assert str(error) and len(str(error)) < 2000, error
            return "refused"
        except BusyError:
            return "too slow"
        return "followed"

    return one
