"""The micro-benchmark of this machine: its figures make sense together. No speed is asserted."""

import pytest

from weft import _native
from weft.backends.cpu import Peaks, measure_peaks
from weft.backends.cpu.record import best_target
from weft.errors import DeviceError


def test_figures_are_positive_and_kept() -> None:
    peaks = measure_peaks(threads=1)
    assert peaks.threads == 1 and peaks.target == best_target()
    assert min(peaks.read, peaks.int8, peaks.f32) > 0
    assert peaks.bf16 is None or peaks.bf16 > 0
    assert measure_peaks(threads=1) is peaks


@pytest.mark.parametrize("target", [name for name, score in _native.targets() if score])
def test_every_target_has_its_loops(target: str) -> None:
    read, int8, f32, bf16, nbytes = _native.measure_peaks(target, 2, 0.02, 4 << 20)
    assert min(read, int8, f32) > 0 and bf16 >= 0
    assert nbytes % (2 << 20) == 0 and nbytes >= 4 << 20


def test_roofline() -> None:
    peaks = Peaks(2, "avx2", read=100.0, int8=2000.0, f32=400.0, bf16=None)
    assert peaks.at(2.0) == 200.0
    assert peaks.at(1000.0) == 400.0
    assert peaks.at(1000.0, "int8") == 2000.0
    assert peaks.at(1000.0, "bf16") == 400.0


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(DeviceError, match="kernel target 'none'"):
        measure_peaks(target="none")
    with pytest.raises(DeviceError, match="1\\.\\.1024"):
        measure_peaks(threads=0)
    with pytest.raises(ValueError, match="thread"):
        _native.measure_peaks("baseline", 0, 0.1, 1)
