"""What the distributions ask for."""

import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


def asked(file: str) -> list[str]:
    """Every requirement of a pyproject.toml."""
    data = tomllib.loads((ROOT / file).read_text())
    project = data["project"]
    lists = [data["build-system"]["requires"], project["dependencies"]]
    lists += project.get("optional-dependencies", {}).values()
    lists += data.get("dependency-groups", {}).values()
    return [requirement for several in lists for requirement in several]


@pytest.mark.parametrize("file", ["pyproject.toml", "executorch/pyproject.toml"])
def test_every_requirement_has_an_upper_bound(file: str) -> None:
    """A release of another project that breaks its promises does not break an installed weft."""
    results = asked(file)
    assert len(results) >= 6
    assert not [r for r in results if "<" not in r and "==" not in r]


def test_the_extra_ray_has_what_replicas_and_links_need() -> None:
    """`weft serve --ray` and `weft run --machines ray` need no other extra beside it."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    extras = data["project"]["optional-dependencies"]
    assert {*extras["serve"], *extras["machines"]} < set(extras["ray"])


def test_running_needs_no_tool_of_development() -> None:
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())
    names = {r.split(">")[0] for r in data["project"]["dependencies"]}
    assert names == {"numpy", "sentencepiece", "typer", "rich", "jinja2"}
