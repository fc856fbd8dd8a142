"""Reports of programs that are no language models, and of everything in notebooks."""

from __future__ import annotations

import random
import re
from html import unescape
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.cli.in_process import weft as command
from tests.report.test_timeline import MODEL, page_data
from weft import graph as g
from weft.errors import FormatError, ProgramError
from weft.llm import Context, Model
from weft.report import frame_html, page_html, program_data, report_html

DELEGATE = Path(__file__).parents[1] / "data" / "delegate"
FRAME = re.compile(r'<iframe sandbox="allow-scripts"[^>]* srcdoc="([^"]*)"')


def program(name: str = "x") -> weft.Program:
    x = weft.input(name, (weft.Sym("n", 1, 64), 32))
    w = weft.constant(np.ones((32, 32), np.float32), "w")
    return weft.compile(weft.Graph(g.soft_max(g.mul_mat(w, x)).as_output("y")), n_threads=1)


def test_a_program() -> None:
    one = program()
    for subject in (one, weft.Session(one)):
        data = page_data(report_html(subject))
        assert data["kind"] == "program" and data["title"] == type(subject).__name__
        rows = {row["buffer"]: row for row in data["memory"]}
        arenas = one.plan.allocation.arenas
        assert rows["compute"]["bytes"] == sum(arena.size for arena in arenas)
        assert rows["weights"]["bytes"] == 32 * 32 * 4
        assert [a["bytes"] for a in data["regimes"][0]["arenas"]] == [a.size for a in arenas]
    with pytest.raises(ProgramError, match="made without a plan"):
        program_data(weft.Program({}, (), (), (), {}, {}))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_program_of_pytorch() -> None:
    torch = pytest.importorskip("torch")

    class Layer(torch.nn.Module):  # type: ignore[name-defined, misc]
        def __init__(self) -> None:
            super().__init__()
            self.norm, self.mix = torch.nn.LayerNorm(16), torch.nn.Linear(16, 16)

        def forward(self, x: Any) -> Any:
            return x + torch.relu(self.mix(self.norm(x)))

    module = weft.from_torch(
        torch.nn.Sequential(*[Layer() for _ in range(6)]).eval(), torch.ones(2, 16)
    )
    data = program_data(module)
    assert data["title"] == "TorchModule"
    layers = data["regimes"][0]["layers"]
    assert [name for _, _, name in layers["blocks"]] == [f"layer {i}" for i in range(6)]
    assert layers["folds"] and layers["folds"][0][2] >= 4
    assert FRAME.search(module._repr_html_())


def test_notebooks_show_the_report() -> None:
    with weft.LLM(MODEL, n_threads=1, n_ctx=64) as llm:
        subjects = (
            llm,
            llm.context,
            llm.context.plan,
            llm.context.program,
            weft.Session(program()),
        )
        for subject in subjects:
            html = subject._repr_html_()
            frame = FRAME.search(html)
            assert frame is not None, type(subject)
            page = unescape(frame[1])
            assert "Content-Security-Policy" in page and page_data(page)["regimes"]
            assert len(html.encode()) < 320_000
            # where a viewer leaves out frames, the tables stay
            assert "<table>" in html[frame.end() :]


def test_what_is_too_large_for_a_notebook() -> None:
    one = program()
    assert frame_html(one) is not None and frame_html(one, most=20_000) is None
    bare = weft.Program({}, (), (), (), {}, {})
    assert "<iframe" not in bare._repr_html_() and "<table>" in bare._repr_html_()


def test_names_are_text() -> None:
    name = '</script><img src=x onerror="alert(1)">'
    page = report_html(program(name))
    assert name not in page and "<img" not in page
    assert name in page_data(page)["regimes"][0]["tensors"]["name"]


@pytest.mark.parametrize("name", [p.stem for p in sorted(DELEGATE.glob("*.pte"))])
def test_exported_programs(name: str, tmp_path: Path) -> None:
    pytest.importorskip("flatbuffers")
    from weft_executorch.describe import describe

    out = tmp_path / "report.html"
    path = DELEGATE / f"{name}.pte"
    assert command("explain", str(path), "--html", str(out)).returncode == 0
    data = page_data(out.read_text())
    parts = [part for method in describe(path)["methods"] for part in method["parts"]]
    assert len(data["regimes"]) == len(parts)
    for regime, part in zip(data["regimes"], parts, strict=True):
        columns = regime["tensors"]
        ops = [op for op, at in zip(columns["op"], columns["time"], strict=True) if at >= 0]
        assert ops == [step["op"] for step in part["steps"]]
        assert sum(a["bytes"] for a in regime["arenas"]) == part["bytes"].get("arena", 0)
        _check_places(regime)


def _check_places(regime: dict[str, Any]) -> None:
    """Rows of the arena lie within it, and steps read what was written before them."""
    columns = regime["tensors"]
    for row, arena in enumerate(columns["arena"]):
        time = columns["time"][row]
        assert all(columns["time"][s] < time for s in columns["src"][row])
        if arena < 0:
            continue
        end = columns["offset"][row] + columns["bytes"][row]
        assert 0 <= columns["offset"][row] and end <= regime["arenas"][arena]["bytes"]
        assert columns["start"][row] <= columns["end"][row] < regime["times"]


@pytest.mark.parametrize("n", [60, pytest.param(300, marks=pytest.mark.part("faults"))])
def test_damaged_exports_are_refused_or_shown(tmp_path: Path, n: int) -> None:
    pytest.importorskip("flatbuffers")
    from weft_executorch.report import report_data

    path, draw, refused = tmp_path / "model.pte", random.Random(3), 0
    files = [p.read_bytes() for p in sorted(DELEGATE.glob("*.pte"))]
    for _ in range(n):
        data = bytearray(draw.choice(files))
        for _ in range(draw.randint(1, 6)):
            data[draw.randrange(min(len(data), 6000))] = draw.randrange(256)
        path.write_bytes(data)
        try:
            page_html(report_data(path))
        except FormatError:
            refused += 1
    assert 0 < refused < n


def test_a_context_shows_its_plan() -> None:
    """It has a program, too, of its largest batches."""
    context = Context(Model.open(MODEL), 64, n_threads=1)
    assert page_data(report_html(context, sliders=False))["kind"] == "plan"
    assert page_data(report_html(context.program))["kind"] == "program"
