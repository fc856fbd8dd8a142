"""Options that read a model's metadata otherwise: --override-kv, RoPE and YaRN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import weft
from tests.llm.tiny import metadata, write_model
from weft.cli.metadata_options import MetadataFlags
from weft.frontends.gguf import open_gguf
from weft.frontends.models import open_model
from weft.llm.config import ModelConfig
from weft.llm.config_keys import read_config

KEYS: dict[str, Any] = {"llama.context_length": 128}
YARN = ("--rope-scaling", "yarn", "--rope-scale", "4", "--yarn-orig-ctx", "128")


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", metadata(**KEYS))


@pytest.fixture(scope="module")
def scaled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same model with YaRN in its file."""
    yarn: dict[str, Any] = {
        "llama.context_length": 512,
        "llama.rope.scaling.type": "yarn",
        "llama.rope.scaling.factor": 4.0,
        "llama.rope.scaling.original_context_length": 128,
    }
    return write_model(tmp_path_factory.mktemp("model") / "m.gguf", metadata(**KEYS | yarn))


def text(*words: str | Path) -> str:
    done = weft("run", *words, "-n", "8", "--temp", "0", "-t", "1", "--ignore-eos")
    assert done.returncode == 0, done.stderr
    return done.stdout


def config(path: Path, *words: Any) -> ModelConfig:
    flags = MetadataFlags(**dict(zip(MetadataFlags.options(), words, strict=False)))
    with open_model(path, **flags.metadata_arguments()) as file:
        return read_config(file)


def test_scaling_is_that_of_a_file_with_it(path: Path, scaled: Path) -> None:
    long = "the quick brown " * 3
    want = text(scaled, long)
    assert want != text(path, long)
    assert text(path, long, *YARN) == want
    card = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}
    assert text(path, long, "--rope-scaling", json.dumps(card)) == want
    assert text(path, long, "--rope-scaling", "yarn", "--rope-freq-scale", "0.25") == want
    keys = {"rope.scaling.type": "str:yarn", "rope.scaling.factor": "float:4",
            "rope.scaling.original_context_length": "int:128",
            "context_length": "int:512"}  # fmt: skip
    words = [w for k, v in keys.items() for w in ("--override-kv", f"llama.{k}={v}")]
    assert text(path, long, *words) == want


def test_each_option_reaches_the_config(path: Path, scaled: Path) -> None:
    c = config(path, None, "yarn", 4.0, 5e5, None, 64, 0.5, 0.75, 2.0, 16.0)
    want = (5e5, "yarn", 4.0, 64, 0.5, 2.0, 16.0)
    r = c.rope
    assert (r.freq_base, r.scaling, r.factor, r.n_ctx_orig, r.ext_factor, r.beta_slow,
            r.beta_fast) == want  # fmt: skip
    assert r.attn_factor == pytest.approx(
        0.75 * config(path, None, "yarn", 4.0, *[None] * 7).rope.attn_factor
    )
    assert c.n_ctx_train == 256
    nothing = config(scaled, None, "none", *[None] * 8).rope
    assert nothing.scaling == "none"


def test_a_longer_context_is_allowed(path: Path) -> None:
    done = weft("run", path, "abc", "-n", "1", "-t", "1", "-c", "0", *YARN)
    assert done.returncode == 0 and "512 of context" in done.stderr
    explained = weft("explain", path, "-c", "512", "--json", *YARN)
    assert explained.returncode == 0 and "warning" not in explained.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--override-kv llama.x=3", "write KEY=TYPE:VALUE"),
        ("--override-kv llama.x=int:abc", "and VALUE is of that type"),
        ("--rope-scaling dynamic", "write none, linear or yarn"),
        ('--rope-scaling {"rope_type":"dynamic","factor":2}', "or an object with rope_type"),
        ("--rope-scaling [", "write none, linear or yarn"),
        ("--rope-scale 2 --rope-freq-scale 0.5", "give one of them"),
        ("--rope-scale 0", "it must be above 0"),
        ("--yarn-orig-ctx 0", "it must be 1 or more"),
    ],
)
def test_what_no_key_can_be(path: Path, words: str, said: str) -> None:
    for command in ("run", "serve", "chat"):
        refused = weft(command, path, *words.split())
        assert refused.returncode == 2 and said in refused.stderr


def test_the_file_stays_as_it_is(path: Path, tmp_path: Path) -> None:
    before = path.read_bytes()
    text(path, "abc", *YARN)
    assert path.read_bytes() == before
    with open_gguf(path) as file:
        assert file.get_int("llama.context_length") == 128
