"""Errors for clients name files, but not the folders of the machine."""

from __future__ import annotations

import pytest

from weft.serve.errors import without_folders


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("/srv/my models/a.gguf: cut short", "a.gguf: cut short"),
        ("/home/u/m/b.gguf: the mmproj '/opt/x/mm.gguf' is of another",
         "b.gguf: the mmproj 'mm.gguf' is of another"),
        ("8 tokens/s and 3/4, hf:owner/name", "8 tokens/s and 3/4, hf:owner/name"),
    ],
)  # fmt: skip
def test_folders_are_left_out(text: str, told: str) -> None:
    assert without_folders(text, "/srv/my models") == told
