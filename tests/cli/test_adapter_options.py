"""--lora and its kin: what they say to the library, and what they refuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.in_process import weft
from tests.llm.adapter_files import matrices_of, pairs, write_adapter
from tests.llm.vector_files import directions, write_vector
from tests.serve.server import DEMO
from weft.cli.adapter_options import AdapterFlags, with_modules
from weft.llm import LLM, Model

QUESTION = "Count from 8 to 11?"
RUN = ("run", str(DEMO), "-p", QUESTION, "-n", "8", "--temp", "0", "--ignore-eos", "-q")


def test_ways_to_name_files(tmp_path: Path) -> None:
    odd = tmp_path / "a,b=c.gguf"
    odd.touch()
    assert AdapterFlags().adapter_arguments()["adapters"] is None
    flags = AdapterFlags(
        lora=["x.gguf,n=y.gguf", str(odd)], lora_scaled=["z.gguf:-0.5,w=C:/w.gguf:2"]
    )
    assert flags.adapter_arguments()["adapters"] == {
        "x": (Path("x.gguf"), 1.0), "n": (Path("y.gguf"), 1.0), "a,b=c": (odd, 1.0),
        "z": (Path("z.gguf"), -0.5), "w": (Path("C:/w.gguf"), 2.0),
    }  # fmt: skip
    assert with_modules(None, ["n=y.gguf"]) == {"n": (Path("y.gguf"), 0.0)}


def test_texts_are_those_of_the_library(tmp_path: Path) -> None:
    files = [
        write_adapter(tmp_path / f"{seed}.gguf", pairs(seed, 4, matrices_of(DEMO)), alpha=0.8)
        for seed in range(2)
    ]

    def text(adapters: object) -> str:
        with LLM(DEMO, adapters=adapters) as llm:  # type: ignore[arg-type]
            return str(llm.generate(QUESTION, max_tokens=8, temperature=0, ignore_eos=True))

    one, both = text(files[0]), text([(files[0], 0.5), files[1]])
    assert len({one, both, text(None)}) == 3
    assert weft(*RUN, "--lora", str(files[0])).stdout == f"{one}\n"
    given = ("--lora", str(files[1]), "--lora-scaled", f"{files[0]}:0.5")
    assert weft(*RUN, *given).stdout == f"{both}\n"
    listing = ("bench", str(DEMO), "-p", "4", "-n", "0", "-r", "1", *given)
    assert " + 1 + 0 |" in weft(*listing).stdout
    score = ("perplexity", str(DEMO), "-c", "16", "-f", __file__, "--chunks", "2", "--json")
    assert weft(*score).stdout != weft(*score, *given).stdout
    plain, more = (weft("explain", str(DEMO), "--brief", *o).stdout for o in ((), given))
    assert plain != more


def test_control_vectors(tmp_path: Path) -> None:
    config = Model.open(DEMO).config
    layers = range(1, config.n_layer)
    files = [
        write_vector(tmp_path / f"{seed}.gguf", directions(seed, layers, config.n_embd, 0.4))
        for seed in range(2)
    ]

    def text(vectors: object, layers: object = None) -> str:
        with LLM(DEMO, control_vectors=vectors, control_vector_layers=layers) as llm:  # type: ignore[arg-type]
            return str(llm.generate(QUESTION, max_tokens=8, temperature=0, ignore_eos=True))

    given = ("--control-vector", str(files[0]), "--control-vector-scaled", f"x={files[1]}:-2")
    both = text([files[0], (files[1], -2.0)])
    some = text([files[0], (files[1], -2.0)], (2, 3))
    assert len({both, some, text(None)}) == 3
    assert weft(*RUN, *given).stdout == f"{both}\n"
    assert weft(*RUN, *given, "--control-vector-layer-range", "2", "3").stdout == f"{some}\n"
    listing = ("bench", str(DEMO), "-p", "4", "-n", "0", "-r", "1", *given)
    assert " + 0 + x |" in weft(*listing).stdout
    plain, more = (weft("explain", str(DEMO), "--brief", *o).stdout for o in ((), given))
    assert plain != more


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--lora-scaled", "a.gguf"), "write FILE:SCALE"),
        (("--lora-scaled", "a.gguf:x"), "write FILE:SCALE"),
        (("--lora", "x/a.gguf,y/a.gguf"), "two adapters are called a"),
        (("--lora", "missing.gguf"), "missing.gguf"),
        (("--lora", str(DEMO)), "this is a model, not an adapter"),
        (("--lora-scaled", f"{DEMO}:nan"), "must be a number"),
        (("--control-vector-scaled", "a.gguf"), "--control-vector-scaled a.gguf: write FILE:SCALE"),
        (("--control-vector", "x/a.gguf,y/a.gguf"), "--control-vector NAME=y/a.gguf"),
        (("--control-vector", "missing.gguf"), "missing.gguf"),
        (("--control-vector", str(DEMO)), "this is no control vector"),
        (("--control-vector-layer-range", "1", "2"), "is for --control-vector FILE"),
        (("--control-vector-layer-range", "1", "x"), "whole number"),
    ],
)
def test_what_is_refused(options: tuple[str, ...], says: str) -> None:
    process = weft(*RUN, *options)
    assert process.returncode and says in process.stderr
