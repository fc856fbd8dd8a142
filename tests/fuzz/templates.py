"""Chat templates made of parts of hostile ones: each renders or raises ChatError, in bounded work.

`run(seed, n)` tries `n` of them; the work is counted by the renderer itself, see
`weft/llm/chat/meter.py`."""

from __future__ import annotations

import random
import re
from pathlib import Path

from weft.errors import ChatError
from weft.llm.chat.template import ChatTemplate

SEEDS = Path(__file__).resolve().parents[1] / "data" / "templates" / "hostile.txt"
DEEP = [
    "{{ " + "(" * 5000 + ")" * 5000 + " }}",
    "{{ " + "[" * 400 + "]" * 400 + " }}",
    "{{ " + "not " * 3000 + "x }}",
    "{{ " + "-" * 3000 + "1 }}",
    "{{ 1" + " + 1" * 3000 + " }}",
    "{{ x" + ".y" * 3000 + " }}",
    "{{ x" + "|upper" * 3000 + " }}",
    "{{ x" + "[0]" * 3000 + " }}",
    "{{ x()" + "()" * 3000 + " }}",
    "{{ " + "1 if 1 else " * 3000 + "1 }}",
    "{% for a in [1] %}" * 21 + "{% endfor %}" * 21,
    "{% for a in [1] %}" * 400 + "{% endfor %}" * 400,
    "{% if 1 %}" * 99 + "{% endif %}" * 99,
    "{% if 1 %}" * 1000 + "{% endif %}" * 1000,
    "{% if 1 %}" + "{% elif 2 %}" * 1000 + "{% endif %}",
    "{{ " + "9" * 6000 + " }}",
    "{{ 1" + "0" * 4000 + " * 1" + "0" * 4000 + " }}",
    "{{ a }}" * 15000,
    "".join(f"{{% if a %}}{{% set v{i} = 1 %}}{{% endif %}}" for i in range(2000)),
    "".join(f"{{% macro m{i}() %}}{{{{ m{i + 1}() }}}}{{% endmacro %}}" for i in range(1500)),
    "x" * (1 << 20),
    "{{ 'x' " + "~ 'x' " * 10000 + " }}",
    "{{ [" + "'x', " * 10000 + "] }}",
    "{% for a in range(99999) %}" + "x" * 100000 + "{% endfor %}",
    "{% macro m() %}"
    + "x" * 100000
    + "{% endmacro %}{% for a in range(99999) %}{{ m() }}{% endfor %}",
    "\ud800{{ '\ud800' | tojson }}",
    "\x00{{ '\x00' }}",
]
MESSAGES = [
    {"role": "user", "content": "Hello <b> {} %s"},
    {"role": "assistant", "content": "", "tool_calls": [
        {"function": {"name": "f", "arguments": '{"a":  1.50}'}}]},
]  # fmt: skip


_READS = "{% if 0 %}{{ tool_calls }}{% endif %}"
"""Else calls in messages are refused."""


def corpus() -> list[str]:
    """The seeds."""
    return SEEDS.read_text(encoding="utf-8").splitlines() + DEEP


def check(source: str) -> str | None:
    """The text, or None where the template is refused."""
    try:
        return ChatTemplate(_READS + source).render(MESSAGES, add_generation_prompt=True)
    except ChatError:
        return None


def run(seed: int, n: int) -> int:
    """Tries `n` templates; returns how many rendered."""
    rng = random.Random(seed)
    parts = [part for line in corpus()[:-30] for part in re.findall(r"\w+|\W", line)]
    seeds = [line for line in corpus() if len(line) < 2000]
    rendered = 0
    for _ in range(n):
        source = rng.choice(seeds)
        for _ in range(rng.randrange(1, 4)):
            pieces = re.findall(r"\w+|\W", source) or [""]
            at = rng.randrange(len(pieces))
            pieces[at : at + rng.randrange(3)] = rng.choices(parts, k=rng.randrange(3))
            source = "".join(pieces)
        rendered += check(source) is not None
    return rendered
