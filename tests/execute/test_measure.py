"""Measurements of `weft calibrate` whose result the times decide."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain, repeat
from typing import Any

import pytest

from weft.backends import make_backend
from weft.execute import measure


@pytest.mark.parametrize(
    ("device", "host", "least"),
    [
        ([5, 5, 5, 7], [1, 2, 4, 8], 8),
        ([1], [2], 1),
        (repeat(3), repeat(2), 0),
        ([2, 90], [1, 9], 0),
    ],
)
def test_the_batch_from_which_sending_a_weight_is_faster(
    monkeypatch: pytest.MonkeyPatch, device: Any, host: Any, least: int
) -> None:
    times: Iterator[float] = chain.from_iterable(zip(device, host, strict=False))

    def best(call: Callable[[], None], seconds: float) -> float:
        call()  # both programs run
        return next(times) / 100

    monkeypatch.setattr(measure, "_best", best)
    monkeypatch.setattr(measure, "_COLUMNS", measure._COLUMNS[:5])
    backends = make_backend("reference"), make_backend("cpu", n_threads=1)
    assert measure.measure_offload(*backends, 0.0) == least
