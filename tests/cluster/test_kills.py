"""Actors of each kind are killed by the fifty while texts are written, and nothing is lost."""

from __future__ import annotations

import random

import pytest

from tests.ray_nodes import Nodes

pytest.importorskip("ray")

from tests.cluster.kills import KINDS, bad

pytestmark = [pytest.mark.part("cluster"), pytest.mark.xdist_group("ray")]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost(ray_cluster: Nodes, kind: str) -> None:
    figures = KINDS[kind](ray_cluster, 50, random.Random(1))
    assert bad(figures) == {}
