"""The versions that a user may have of what reads a stranger's files and requests."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

PROJECT = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
MENDED = {
    "jinja2": "3.1.6",  # a template that left the sandbox
    "pillow": "13.0.0",  # a JPEG that wrote beyond a buffer
    "h11": "0.16.0",  # chunks whose ends were not looked at
    "starlette": "1.3.1",  # ranges of a file, forms without limits
    "python-multipart": "0.0.32",  # heads and ends of parts that took long
    "sentencepiece": "0.2.1",  # a model that wrote beyond a buffer
    "ray": "2.52.0",  # services that asked nobody for a token
}
"""The first versions without what was known when this was written."""


@pytest.mark.parametrize("name", MENDED)
def test_lower_bounds(name: str) -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    optional = (row for rows in extras.values() for row in rows)
    rows = [*PROJECT["project"]["dependencies"], *optional]
    found = [one for one in map(Requirement, rows) if one.name.lower() == name]
    assert found
    for one in found:
        lows = [Version(part.version) for part in one.specifier if part.operator == ">="]
        assert lows and min(lows) >= Version(MENDED[name])
