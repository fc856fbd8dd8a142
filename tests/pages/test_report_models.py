"""Reports of other models: a mixture of experts, windows, recurrent states, plans by batch size."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from benchmarks.make_model import Shape, make_model
from tests.pages.report_page import compare, report, show

pytestmark = [pytest.mark.part("pages"), pytest.mark.xdist_group("browser")]

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A mixture of experts with 32 layers."""
    path = tmp_path_factory.mktemp("mixture") / "mixture.gguf"
    shape = Shape(128, 32, 4, 2, 128, 320, 512, n_expert=4, n_expert_used=2)
    make_model(path, "q8_0", shape)
    return path


def test_mixture_of_32_layers(open_page: Open, tmp_path: Path, mixture: Path) -> None:
    path = report(mixture, tmp_path)
    assert path.stat().st_size < 500_000
    compare(show(open_page(), path), mixture)


def test_plans_by_batch_size(open_page: Open, tmp_path: Path) -> None:
    """A device that takes products from 32 columns on; small batches have plans of their own."""
    devices = ("--devices", "blas,cpu")
    page = show(open_page(), report(DEMO, tmp_path, *devices))
    labels = page.locator("header select option").all_inner_texts()
    assert labels == ["batches of 32 to 256 tokens", "batches of 1 to 31 tokens"]
    compare(page, DEMO, *devices, n=4)


@pytest.mark.parametrize(
    ("name", "args"),
    [("gemma3", ("--swa-small",)), ("mamba2", ("--devices", "reference,cpu", "-ngl", "1"))],
)
def test_windows_and_states(
    open_page: Open, tmp_path: Path, vectors: Path, name: str, args: tuple[str, ...]
) -> None:
    model = vectors / "models" / "archs" / f"{name}.gguf"
    compare(show(open_page(), report(model, tmp_path, "-c", "256", *args)), model, *args, n=4)
