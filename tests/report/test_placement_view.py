"""The placement of a graph step by step, as the report has it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.llm.paper_model import LLAMA_7B, MIXTRAL, paper_model
from tests.report.test_programs import program
from tests.report.test_timeline import page_data
from weft.llm.planning.prepare import prepare
from weft.report import frame_html, plan_data, report_html
from weft.schedule import load_profile
from weft.schedule.machine import paper_devices


@pytest.mark.parametrize("hyper", [LLAMA_7B, MIXTRAL])
def test_the_last_step_is_the_placement(tmp_path: Path, hyper: dict[str, int]) -> None:
    devices = paper_devices(load_profile("desktop-rtx4090"))
    plan = prepare(
        paper_model(tmp_path, hyper), n_outputs=1, n_ctx=256, devices=devices, n_gpu_layers=20
    )
    data = json.loads(json.dumps(plan_data(plan, sliders=False)))
    for regime, planned in zip(data["regimes"], reversed(plan.regimes), strict=True):
        passes = regime["passes"]
        placed: dict[int, str] = {}
        for step in passes["steps"]:
            placed |= {change["tensor"]: change["now"] for change in step["changes"]}
        schedule = planned.plan.schedule
        want = {
            i: schedule.backends[schedule.backend_of[tensor]].name
            for i, tensor in enumerate(schedule.graph.tensors)
        }
        assert placed == want and set(want.values()) == {"gpu", "cpu"}
        assert [s["start"] for s in passes["splits"]] == [s.start for s in schedule.splits]


def test_a_program_has_its_steps() -> None:
    (regime,) = page_data(report_html(program()))["regimes"]
    assert [step["pass"] for step in regime["passes"]["steps"]][-1] == "5"
    assert [t["op"] for t in regime["passes"]["tensors"] if not t["leaf"]] == [
        "MUL_MAT",
        "SOFT_MAX",
    ]


def test_a_placement_that_cannot_be_followed_says_why() -> None:
    subject = program()
    subject.plan.schedule.backend_of.clear()  # as if tensors had moved since
    (regime,) = page_data(report_html(subject))["regimes"]
    assert "lead to another schedule now" in regime["passes"]["why"]


def test_a_frame_that_would_be_too_large_leaves_the_steps_out() -> None:
    subject = program()
    whole = frame_html(subject)
    assert whole is not None
    small = frame_html(subject, most=len(whole.encode()) - 1)
    assert small is not None and len(small) < len(whole)
    assert frame_html(subject, most=len(small.encode()) - 1) is None
