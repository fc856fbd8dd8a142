"""Grammars in llama.cpp's notation: the texts that they accept, held against a slow matcher."""

from __future__ import annotations

import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from weft.errors import ContextError
from weft.frontends.gguf import open_gguf
from weft.llm import SamplingParams, Tokenizer
from weft.llm.sampling.constraint import Constraint

ROOT = Path(__file__).resolve().parents[3]
DEMO = ROOT / "examples" / "weft-demo.gguf"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_gguf(open_gguf(DEMO))


def verdict(tokenizer: Tokenizer, grammar: str, text: str) -> str:
    """ "end" if `text` is a text of the grammar, "more" if it begins one, else "no"."""
    constraint = Constraint(SamplingParams(grammar=grammar), tokenizer)
    for id_ in tokenizer.encode(text, add_special=False):
        if id_ not in constraint.allowed():
            return "no"
        constraint.accept(id_)
    if constraint.done:
        return "end"
    return "end" if set(constraint.allowed().tolist()) & set(tokenizer.vocab.eog) else "more"


ARITHMETIC = r"""root  ::= (expr "=" ws term "\n")+
expr  ::= term ([-+*/] term)*
term  ::= ident | num | "(" ws expr ")" ws
ident ::= [a-z] [a-z0-9_]* ws
num   ::= [0-9]+ ws
ws    ::= [ \t\n]*
"""


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ('root ::= x "b"\nx ::= [a-z]*', "aab"),
        ('root ::= any "END"\nany ::= [^\\x00]*', "E nd\nENDEND"),
        ('root ::= [a-z]+ ws "\\n"\nws ::= [ \\t\\n]*', "a\n \n"),
        ('root ::= pre? "abc"\npre ::= [a-c]+', "abcabc"),
        ('root ::= w " " w\nw ::= [a-z ]+', "a  b c"),
        (ARITHMETIC, "x = 1\n"),
        (ARITHMETIC, "(a+b)=c\nx*2 =y\n"),
        (r'root ::= "\u00e9" "\U0001F600" "\x41"', "é😀A"),
        (r"root ::= [a\-z]+", "z-a"),
        (r"root ::= [a-c-e]+", "b-e"),
        ("root ::= ([a-z]+){2}", "ab"),
        ("root ::= ([a-z]{1,2}){2}", "ab"),
        (r"root ::= [-a]+ [b-]", "a--"),
        (r'root ::= [a-z]{0} "x"', "x"),
        (r'root ::= "ab"{2} ("c" | "d"){1,} "e"{0,2} "f"{,}'.replace('"f"{,}', ""), "ababcdcee"),
        ('root ::= "a" |\n  "b" # of two\n\n# an end\nother ::= "c"', "b"),
        ('root ::= (\n  "a"\n  |\n  "b"\n)+', "abba"),
        ('root ::= ""', ""),
        ('root ::= | "a"', ""),
        ('root ::= [] "a" [^]', "a"),
        ("root ::= .+", "any\nthing é"),
        ('root ::= "a"\nroot ::= "b"', "b"),
        ("root ::= Name-2\nName-2 ::= [^a-y]", "z"),
        ('root ::= "a" root "b" | ""', "aabb"),
        ('root ::= ("a"*)* "b"', "aab"),
        ('root ::= "two\nlines"', "two\nlines"),
        # characters that begin with the same byte as one that is repeated
        ('root ::= "é"+ "ü"', "ééü"),
        ("root ::= [ぁ-ゟ]+ [。]", "ここ。"),
        ('root ::= ("- " [^\\n—]+ "—" [^\\n]* "\\n")+', "- é–a—b\n"),
        ('root ::= [😀-😏]{1,3} "🙏"', "😀😁🙏"),
        ('root ::= "a"{1,2001}', "a" * 2002),
        # beyond llama.cpp: its own rules begin no line with |, and name nothing with _
        ('root ::= a_b\n  | "c"\na_b ::= "d"', "c"),
        ('root ::= root "a" | "b"', "baa"),
    ],
)
def test_texts_of_grammars(tokenizer: Tokenizer, grammar: str, text: str) -> None:
    assert verdict(tokenizer, grammar, text) == "end"


@pytest.mark.parametrize(
    ("grammar", "text", "expected"),
    [
        ('root ::= x "b"\nx ::= [a-z]*', "aa", "more"),
        ('root ::= "a" root "b" | ""', "aab", "more"),
        ("root ::= [a-z]{2,3}", "a", "more"),
        ("root ::= [a-z]{2,3}", "aaaa", "no"),
        ("root ::= [^a]", "a", "no"),
        ("root ::= [z-a] | [b]", "z", "no"),
        ('root ::= "a"\nroot ::= "b"', "a", "no"),
    ],
)
def test_other_texts(tokenizer: Tokenizer, grammar: str, text: str, expected: str) -> None:
    assert verdict(tokenizer, grammar, text) == expected


def test_three_thousand_alternatives(tokenizer: Tokenizer) -> None:
    words = ["".join(word) for word in itertools.product("abcdefghijklmno", repeat=3)][:3000]
    grammar = "root ::= " + " | ".join(f'"{word}"' for word in words)
    assert verdict(tokenizer, grammar, words[2999]) == "end"
    assert verdict(tokenizer, grammar, "zzz") == "no"


def test_tokens(tokenizer: Tokenizer) -> None:
    name = tokenizer.vocab.tokens[tokenizer.vocab.bos].decode()
    first = tokenizer.encode("What", add_special=False)[0]
    grammar = f'root ::= {name} <[{first}]> !<[{first}]> "a"'
    constraint = Constraint(SamplingParams(grammar=grammar), tokenizer)
    assert constraint.allowed().tolist() == [tokenizer.vocab.bos]
    constraint.accept(tokenizer.vocab.bos)
    assert constraint.allowed().tolist() == [first]
    constraint.accept(first)
    others = constraint.allowed()
    assert first not in others and len(others) > tokenizer.n_vocab - 10
    assert not set(others.tolist()) & tokenizer.vocab.eog
    constraint.accept(int(others[-1]))
    assert all(tokenizer.piece(id_) == b"a" for id_ in constraint.allowed())


@pytest.mark.parametrize(
    ("grammar", "message"),
    [
        ("root ::= x", "line 1: there is no rule 'x' at 'x'"),
        ('rot ::= "a"', "the grammar has no rule 'root'"),
        ('root = "a"', "line 1: expected ::="),
        ('root ::= "a', 'line 1: expected " at its end'),
        ("root ::= [a", "line 1: expected ] at its end"),
        ('root ::=\n "a" *\n+', "line 3: expected the name of a rule"),
        ("root ::= *", "line 1: there is nothing in front of [*] that could be repeated"),
        ('root ::= ""+', "nothing in front of [+]"),
        ('root ::= "a"{3,2}', "at least 3 repetitions and at most 2"),
        ('root ::= "a"{2001}', "2001 repetitions; at least 2000"),
        ('root ::= "a"{x}', "expected {m}, {m,} or {m,n}"),
        (r'root ::= "\q"', r"there is no escape \\q"),
        (r'root ::= "\u12"', "expected 4 hexadecimal digits"),
        ('root ::= ("a"', "expected [)] at its end"),
        ('root ::= "a")', "expected the end of the line"),
        ("root ::= <no such token>", "<no such token> is not a token of this vocabulary"),
    ],
)
def test_what_is_not_a_grammar(tokenizer: Tokenizer, grammar: str, message: str) -> None:
    with pytest.raises(ContextError, match=f"^grammar: .*{message}"):
        Constraint(SamplingParams(grammar=grammar), tokenizer)


# ---- random grammars, held against sets of ends ----
NEVER_MORE = 99
Node = tuple[Any, ...]


def random_node(rng: random.Random, names: list[str], depth: int) -> Node:
    """An alternation of sequences of up to three items, which may be repeated."""
    return ("any", [
        ("all", [random_item(rng, names, depth) for _ in range(rng.randint(0, 3))])
        for _ in range(rng.randint(1, 3))
    ])  # fmt: skip


def random_item(rng: random.Random, names: list[str], depth: int) -> Node:
    kind = rng.choice(["text", "class", "rule", "text", "class"] + ["group"] * 2 * (depth > 0))
    if kind == "text":
        item: Node = ("text", "".join(rng.choices("ab", k=rng.randint(1, 3))))
    elif kind == "class":
        item = ("class", *rng.choice([("a", False), ("ab", False), ("a", True), ("", True)]))
    elif kind == "rule":
        item = ("rule", rng.choice(names))
    else:
        item = random_node(rng, names, depth - 1)
    times = [(1, 1)] * 3 + [(0, NEVER_MORE), (1, NEVER_MORE), (0, 1), (2, 2), (0, 2), (1, 2)]
    return ("times", item, *rng.choice(times))


def written(node: Node) -> str:
    """The node in llama.cpp's notation."""
    kind = node[0]
    if kind == "any":
        return "(" + " | ".join(map(written, node[1])) + ")"
    if kind == "all":
        return " ".join(map(written, node[1])) or '""'
    if kind == "text":
        return f'"{node[1]}"'
    if kind == "class":
        return "." if node[1:] == ("", True) else f"[{'^' * node[2]}{node[1]}]"
    if kind == "rule":
        return str(node[1])
    signs = {(1, 1): "", (0, NEVER_MORE): "*", (1, NEVER_MORE): "+", (0, 1): "?", (2, 2): "{2}"}
    return written(node[1]) + signs.get(node[2:], f"{{{node[2]},{node[3]}}}")


def accepts(rules: dict[str, Node], text: str) -> bool:
    """True if `text` is a text of the rule root: grows the ends of each rule until none is new."""
    known: dict[tuple[str, int], set[int]] = {
        (name, at): set() for name in rules for at in range(len(text) + 1)
    }

    def ends(node: Node, at: int) -> set[int]:
        kind = node[0]
        if kind == "text":
            return {at + len(node[1])} if text.startswith(node[1], at) else set()
        if kind == "class":
            return {at + 1} if at < len(text) and (text[at] in node[1]) != node[2] else set()
        if kind == "rule":
            return known[node[1], at]
        if kind == "any":
            return set().union(*(ends(part, at) for part in node[1]))
        now, found = {at}, {at} if kind == "all" or node[2] == 0 else set()
        parts = node[1] if kind == "all" else [node[1]] * min(node[3], len(text) + node[2] + 1)
        for i, part in enumerate(parts):
            now = set().union(*(ends(part, place) for place in now))
            found = now if kind == "all" else found | now if i + 1 >= node[2] else found
        return found

    while True:
        before = sum(map(len, known.values()))
        for name, at in known:
            known[name, at] |= ends(rules[name], at)
        if before == sum(map(len, known.values())):
            return len(text) in known["root", 0]


@pytest.mark.parametrize("seed", range(24))
def test_random_grammars(tokenizer: Tokenizer, seed: int) -> None:
    rng = random.Random(seed)
    names = ["root", "x", "y"][: rng.randint(1, 3)]
    rules = {name: random_node(rng, names, 2) for name in names}
    grammar = "\n".join(f"{name} ::= {written(rule)}" for name, rule in rules.items())
    texts = ["".join(text) for n in range(4) for text in itertools.product("abc", repeat=n)]
    right = {text for text in texts if accepts(rules, text)}
    try:
        found = {text for text in texts if verdict(tokenizer, grammar, text) == "end"}
    except ContextError as error:  # no text has an end, or only the empty one
        assert "no token of this vocabulary" in str(error)
        found = right & {""}
    assert found == right, grammar
