"""Damaged model files: an error of weft's own, or a model; never anything else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.llm.tiny import metadata, write_model
from tests.profiles import examples
from weft.errors import WeftError
from weft.frontends.gguf import open_gguf
from weft.llm import Context, Model, Tokenizer

NUMBERS = (0, 1, 2**31 - 1, 2**31, 2**32 - 1, 2**63, 2**64 - 1)


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[bytes]]:
    folder = tmp_path_factory.mktemp("hostile")
    experts = metadata(**{"llama.expert_count": 4, "llama.expert_used_count": 2})
    paths = [write_model(folder / "dense.gguf"), write_model(folder / "moe.gguf", experts)]
    return folder / "damaged.gguf", [path.read_bytes() for path in paths]


@settings(max_examples=examples(3.0))
@given(
    which=st.integers(0, 1),
    hits=st.lists(
        st.tuples(st.floats(0, 1), st.sampled_from((1, 4, 8)), st.sampled_from(NUMBERS)),
        min_size=1,
        max_size=4,
    ),
)
def test_a_damaged_file_is_refused_or_read(
    files: tuple[Path, list[bytes]], which: int, hits: list[tuple[float, int, int]]
) -> None:
    path, originals = files
    data = bytearray(originals[which])
    end = data.index(b"blk.1.ffn_down") + 100  # the weights themselves cannot be wrong
    for place, width, number in hits:
        at = 24 + int(place * (end - 24))
        data[at : at + width] = (number % (1 << 8 * width)).to_bytes(width, "little")
    path.write_bytes(data)
    try:
        file = open_gguf(path)
        tokenizer = Tokenizer.from_gguf(file)
        tokenizer.decode(tokenizer.encode("the abc é<s>", parse_special=True))
    except WeftError:
        pass
    try:
        Context(Model.open(path), 8, devices=["reference"]).decode([1, 2, 3])
    except WeftError:
        pass
