"""A moment of the drivers that need a process of their own; and that the runner would tell."""

import random
import shutil
import sys
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.fuzz.__main__ import drivers, run_driver
from tests.fuzz.mutate import as_json, mutate_bytes, mutate_json, mutate_text
from tests.fuzz.pages import CHROMIUM
from tests.fuzz.rounds import Unclean, again, rounds

APART = [name for name in drivers() if hasattr(import_module(f"tests.fuzz.{name}"), "prepare")]
NEEDS = {"pages": any(map(shutil.which, CHROMIUM)), "forms": find_spec("python_multipart"),
         "constraints": find_spec("llguidance")}  # fmt: skip


@pytest.mark.parametrize("name", APART)
def test_nothing_is_unclean(name: str) -> None:
    if not NEEDS.get(name, True):
        pytest.skip("what it needs is not installed")
    counts, wrong = run_driver(name, 7, 0, most=60)
    assert not wrong, wrong
    assert counts.total() == 60 and len(counts) > 1


def test_a_round_that_raises_is_named_and_can_be_tried_again(tmp_path: Path) -> None:
    def one(rng: random.Random) -> str:
        if rng.randrange(20) == 0:
            raise ValueError("not clean")
        return "ok"

    with pytest.raises(Unclean, match=r"round 0x[0-9a-f]+: ValueError: not clean") as caught:
        rounds(one, 1, 0, most=1000, last=tmp_path / "last")
    number = (tmp_path / "last").read_text()
    assert f"round {number}:" in str(caught.value)
    with pytest.raises(Unclean, match=f"round {number}: ValueError"):
        again(one, int(number, 16))


def test_a_round_that_takes_memory_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    taken = iter(range(0, 1 << 40, 1 << 29))
    monkeypatch.setattr("tests.fuzz.rounds._peak", lambda: next(taken))
    with pytest.raises(Unclean, match=r"grown by 1,610,612,736 bytes"):
        rounds(lambda _: "ok", 1, 0, most=10)


def test_a_process_that_ends_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "python").write_text('#!/bin/sh\nprintf 0xabc > "$7"\nkill -SEGV $$\n')
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    _, wrong = run_driver("graph_text", 1, 0, most=1)
    assert wrong.startswith("the process ended (-11) in round 0xabc")


@pytest.mark.parametrize("number", ["0xabc", "0xdef"])
def test_a_kept_round_that_is_unclean_again_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, number: str
) -> None:
    """Kept rounds are given to the process that runs the others, which says where it ended."""
    script = f'#!/bin/sh\nprintf {number} > "$7"\necho "$8 $9"\nexit 1\n'
    (tmp_path / "python").write_text(script)
    (tmp_path / "python").chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setattr("tests.fuzz.__main__.seeds_of", lambda name: ["0xabc", "0xfff"])
    _, wrong = run_driver("graph_text", 1, 0, most=1)
    again = "round 0xabc is unclean again: an error:\n0xabc 0xfff\n"
    assert wrong == (again if number == "0xabc" else "an error in round 0xdef:\n0xabc 0xfff\n")


def test_mutations_depend_on_the_seed_alone() -> None:
    def all_of(seed: int) -> object:
        rng = random.Random(seed)
        data = bytearray(range(256))
        mutate_bytes(data, rng)
        value = mutate_json({"a": [1, {"b": "c"}], "d": None}, rng, ("e", "f"))
        return bytes(data), mutate_text("a 12\nb 34\nc", rng, ("x",)), as_json(value)

    assert all_of(3) == all_of(3)
    assert len({str(all_of(seed)) for seed in range(50)}) == 50
