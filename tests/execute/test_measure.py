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


def test_a_device_is_given_no_more_figures_than_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """What no device may be without is measured all the same, and the rest is named."""
    monkeypatch.setattr(measure, "_BEYOND_CACHES", 1 << 20)
    monkeypatch.setattr(measure, "_MIB", 1 << 10)
    said: list[str] = []
    backends = [make_backend("reference"), make_backend("cpu", n_threads=1)]
    profile = measure.measure_machine(backends, 0.0, said.append, limit=0.0)
    for device in profile.devices:
        assert set(device.flops) == {"f32", "default"} and not device.op_flops
        assert device.bandwidth > 0 and device.launch > 0 and device.offload_from is None
    of_reference, of_cpu = profile.sources[1:]
    start = "reference: not measured within 0 s: softmax, attention, weights sent for each batch, "
    assert of_reference.startswith(start + "products of f16, ") and of_cpu.startswith("cpu: ")
    assert [text for text in said if "products" in text] == [
        f"measuring {name}: products of f32" for name in ("reference", "cpu")
    ]
    assert measure.time_limit(0.2) == 60 and measure.time_limit(5) == 1500
