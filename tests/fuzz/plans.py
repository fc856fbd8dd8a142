"""Plan files with changed values: each is followed, or is a WeftError."""

from __future__ import annotations

import copy
import json
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

from tests.llm.tiny import write_model
from weft.errors import WeftError
from weft.llm import Context, Model

VALUES = [None, True, False, 0, 1, -1, 2**31, 2**63, 1e308, "", "x", "²", "blk.0_²", "cpu", [], {},
          [[]], [{}], {"name": []}, "\ud800", "9" * 5000, "cache_k_" + "9" * 5000]  # fmt: skip
TEXTS = ["[" * 100_000, '{"a":' * 100_000, "", "null", "\x00", '{"format": 1}', "9" * 10_000]


@cache
def _model() -> Model:
    with tempfile.TemporaryDirectory() as folder:
        return Model.open(write_model(Path(folder) / "m.gguf"))


@cache
def good() -> str:
    """A plan that fits."""
    context = Context(_model(), 24, devices=["reference"])
    return json.dumps(context.plan.to_json())


def places(value: Any) -> list[tuple[Any, Any]]:
    """Containers in `value` and the keys of their members."""
    spots: list[tuple[Any, Any]] = []
    stack = [value]
    while stack:
        part = stack.pop()
        keys = part if isinstance(part, dict) else range(len(part))
        spots += [(part, key) for key in keys]
        stack += [part[key] for key in keys if isinstance(part[key], dict | list)]
    return spots


def mutated(rng: random.Random) -> str:
    """The text of a plan with some values changed."""
    if rng.random() < 0.05:
        return rng.choice(TEXTS)
    plan = copy.deepcopy(json.loads(good()))
    for _ in range(rng.randrange(1, 4)):
        part, key = rng.choice(places(plan))
        if rng.random() < 0.2:
            del part[key]
        else:
            part[key] = copy.deepcopy(rng.choice(VALUES))
    return json.dumps(plan)


def check(text: str) -> bool:
    """Whether the plan was followed."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "plan.json"
        path.write_text(text, encoding="utf-8", errors="surrogatepass")
        try:
            Context(_model(), plan=path)
        except WeftError:
            return False
    return True


def run(seed: int, n: int) -> int:
    """Tries `n` plans; returns how many were followed."""
    rng = random.Random(seed)
    return sum(check(mutated(rng)) for _ in range(n))
