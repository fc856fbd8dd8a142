"""Targets whose products are compared with those of the target below before their first use."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from weft import _native
from weft.backends.cpu import products, record
from weft.backends.cpu.products import wrong_products
from weft.backends.cpu.record import best_target, require_usable, verdicts
from weft.errors import DeviceError

RUNNING = {name for name, score in _native.targets() if score}
needs_shim = pytest.mark.skipif(
    not {"amx_shim", "avx512"} <= RUNNING, reason="the build has no tiles by definition"
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the record of a machine whose best target is over another one."""
    folder = tmp_path / "cache"
    monkeypatch.setattr(record, "record_file", lambda: folder / "targets.json")
    monkeypatch.setattr(record, "_CHECKED_FIRST", {"wide": "narrow"})
    monkeypatch.setattr(_native, "targets", lambda: [("narrow", 20), ("wide", 30)])
    record.best_target.cache_clear()
    yield folder
    record.best_target.cache_clear()


@needs_shim
def test_tiles_multiply_as_avx512() -> None:
    wrong, count = wrong_products("amx_shim", "avx512")
    assert not wrong and count == 7


@pytest.mark.skipif(not {"avx2", "avx512"} <= RUNNING, reason="the machine lacks AVX-512")
def test_other_bits_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Targets that do not share bits differ in K-quants."""
    monkeypatch.setattr(products, "_COMPARED", ("q4_K", "q6_K"))
    wrong, _ = wrong_products("avx2", "avx512")
    assert wrong == ["MUL_MAT q4_K x21", "MUL_MAT q6_K x21"]


def test_right_products_are_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    monkeypatch.setattr(record, "wrong_products", lambda *of: calls.append(of) or ([], 7))
    for _ in range(2):
        assert best_target() == "wide"
        record.best_target.cache_clear()
    assert calls == [("wide", "narrow")]
    assert verdicts()["wide"].checked == 7 and not verdicts()["wide"].failed


def test_wrong_products_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "wrong_products", lambda *_: (["MUL_MAT q8_0 x21"], 7))
    with pytest.warns(
        RuntimeWarning, match=r"wide failed its check \(1 kernel fails: MUL_MAT q8_0"
    ):
        assert best_target() == "narrow"
    with pytest.raises(DeviceError, match="wide failed its check"):
        require_usable("wide")


def test_an_interruption_is_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    def crash(*_: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(record, "wrong_products", crash)
    with pytest.raises(KeyboardInterrupt):
        best_target()
    assert "wide" not in verdicts()


def test_without_a_record_it_is_compared_each_time(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.write_text("no folder")
    monkeypatch.setattr(record, "wrong_products", lambda *_: (["MUL_MAT q8_0 x21"], 7))
    with pytest.warns(RuntimeWarning, match="wide failed its check"):
        assert best_target() == "narrow"
    monkeypatch.setattr(record, "wrong_products", lambda *_: ([], 7))
    record.best_target.cache_clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert best_target() == "wide"
