"""A Ray cluster that weft starts itself asks for a token, unless the user has chosen otherwise."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from weft.cluster import ray_cluster


class StandIn:
    """Stands in for the module `ray`."""

    def __init__(self) -> None:
        self.modes: list[str | None] = []
        self.read: list[str | None] = []
        """The mode whenever Ray's settings are read again."""
        config = SimpleNamespace(initialize=lambda _: self.read.append(_mode()))
        self._raylet = SimpleNamespace(Config=config)

    def is_initialized(self) -> bool:
        return False

    def init(self, *_: Any, **__: Any) -> None:
        self.modes.append(_mode())


def _mode() -> str | None:
    return os.environ.get("RAY_AUTH_MODE")


@pytest.mark.parametrize(("given", "used"), [(None, "token"), ("disabled", "disabled")])
def test_services_ask_for_a_token(
    monkeypatch: pytest.MonkeyPatch, given: str | None, used: str
) -> None:
    ray = StandIn()
    monkeypatch.setattr(ray_cluster, "import_ray", lambda what: ray)
    monkeypatch.setattr(ray_cluster, "_sizes", lambda: "1 machine")
    monkeypatch.setattr(ray_cluster, "_keep_stdout", lambda ray: None)
    monkeypatch.setenv("RAY_AUTH_MODE", "x")  # put back at the end
    os.environ.pop("RAY_AUTH_MODE")
    if given is not None:
        os.environ["RAY_AUTH_MODE"] = given
    ray_cluster.join("local", "a test")
    assert ray.modes == [used]
    assert ray.read == ([] if given else ["token"])
