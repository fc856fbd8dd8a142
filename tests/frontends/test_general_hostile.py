"""Files beside a model that the package for names reads as they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from weft.errors import FormatError
from weft.frontends.hf.convert import general_keys

pytest.importorskip("gguf")


@pytest.mark.parametrize(
    "text",
    ['{"repetition_penalty": "x"}', '{"repetition_penalty": [1]}', "[" * 100_000, "[]", '"x"'],
)
def test_settings_of_the_wrong_kind(tmp_path: Path, text: str) -> None:
    (tmp_path / "generation_config.json").write_text(text)
    with pytest.raises(FormatError, match=str(tmp_path)):
        list(general_keys(tmp_path, "a name", []))


def test_settings_that_are_right(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text('{"repetition_penalty": 1.5}')
    keys = dict(general_keys(tmp_path, "a name", []))
    assert "general.sampling.penalty_repeat" in keys
