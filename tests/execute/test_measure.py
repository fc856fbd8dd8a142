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


def test_the_best_of_several_rounds_counts_and_a_busy_machine_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second round of q8_0 is five times as fast as the first."""
    backend = make_backend("cpu", n_threads=1)
    times = iter([1.0, 5.0, 1.1, 1.0, 1.0, 2.0])
    monkeypatch.setattr(measure, "TYPES", ("f32", "q8_0"))
    monkeypatch.setattr(measure, "_best", lambda call, seconds: next(times) / 100)
    bench = measure._Bench(backend, [], 0.0)
    said: list[str] = []
    rates, spread = measure._products(bench, 8, 0.0, said.append, [])
    work = 2 * 2048 * 2048 * 8
    assert rates == pytest.approx({"f32": 100 * work, "q8_0": 100 * work}, rel=0.01)
    assert spread == pytest.approx({"f32": 1.1, "q8_0": 5.0})
    assert said[-1] == "products of q8_0, round 3 of 3"
    assert "products of q8_0 differ by a factor of 5.0" in measure._busy_text(spread)
    assert not measure._busy_text({"f32": 1.1}) and not measure._busy_text({})
