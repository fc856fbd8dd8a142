"""`op_offload` of models: the same tokens, the plans of batch sizes, and what plans say of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.backends.opencl_device import opencl
from tests.cuda_shim import compiler
from tests.llm.tiny import write_model, write_wide_model
from weft import flags
from weft.backends.base import Backend
from weft.errors import ScheduleError
from weft.flags import FLAGS
from weft.llm import Context, Model
from weft.llm.planning import placement
from weft.llm.planning.explain import placement_lines
from weft.llm.planning.plan import ContextPlan
from weft.llm.planning.prepare import prepare
from weft.schedule import load_profile
from weft.schedule.machine import paper_devices

TOKENS = np.arange(200, 240)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    """4 layers, 512 wide."""
    return Model.open(write_wide_model(tmp_path_factory.mktemp("wide") / "m.gguf"))


def planned(model: Model, op_offload: Any = None, **more: Any) -> ContextPlan:
    """Weights in host memory, and a device with memory of its own in front."""
    arguments = {"devices": ["reference", "cpu"], "n_gpu_layers": 0, "n_ubatch": 64} | more
    return prepare(model, n_ctx=64, op_offload=op_offload, **arguments)


def offloaded(plan: ContextPlan) -> dict[int, int]:
    """Largest batch of each plan -> the number of ops that a device takes."""
    return {
        regime.max_tokens: sum(
            c.code[:5] == "1.off" for c in regime.plan.schedule.cause_of.values()
        )
        for regime in plan.regimes
    }


@pytest.fixture(params=["reference", "opencl"])
def device(request: pytest.FixtureRequest) -> str | Backend:
    return opencl() if request.param == "opencl" else "reference"


def test_the_same_tokens_with_and_without(model: Model, device: str | Backend) -> None:
    def texts(op_offload: Any) -> tuple[list[int], int]:
        context = Context(
            model, 64, devices=[device, "cpu"], n_gpu_layers=0, activations="f32", n_threads=1,
            type_k="f32", type_v="f32", op_offload=op_offload,
        )  # fmt: skip
        tokens = [int(context.decode(TOKENS)[0].argmax())]
        for _ in range(6):
            tokens.append(int(context.decode(tokens[-1:])[0].argmax()))
        return tokens, sum(offloaded(context.plan).values())

    want, none = texts(False)
    assert none == 0
    for given in (True, 32, 1, "MUL_MAT@*=2"):
        tokens, taken = texts(given)
        assert tokens == want and (taken > 0) == (given is not True)


@pytest.mark.skipif(compiler() is None, reason="needs g++, which compiles the kernels")
def test_a_gpu_asks_by_itself(tmp_path: Path) -> None:
    """From 32 tokens on, unless it may not; tokens stay the same."""
    tiny, tokens = Model.open(write_model(tmp_path / "m.gguf")), np.arange(100, 133)

    def of(op_offload: Any) -> tuple[dict[int, int], int]:
        context = Context(
            tiny, 40, devices=["cuda:shim", "cpu"], n_gpu_layers=0, activations="f32", n_threads=1,
            type_k="f32", type_v="f32", flash=False, op_offload=op_offload,
        )  # fmt: skip
        return offloaded(context.plan), int(context.decode(tokens)[0].argmax())

    off, on = of(False), of(None)
    assert off[1] == on[1] and off[0] == {40: 0}
    assert sorted(on[0]) == [31, 40] and on[0][31] == 0 < on[0][40]


def test_a_batch_size_begins_where_a_rule_does(model: Model) -> None:
    assert offloaded(planned(model, False)) == {64: 0}
    assert offloaded(planned(model)) == {64: 0}  # the reference never asks
    products = 4 * 7 + 1
    for least in (2, 7, 32, 64):
        assert offloaded(planned(model, least)) == {least - 1: 0, 64: products}
    assert offloaded(planned(model, 1)) == {64: products}
    assert offloaded(planned(model, 65)) == {64: 0}


def test_a_plan_says_it_and_is_followed(model: Model, tmp_path: Path) -> None:
    plan = planned(model, {"reference": 16})
    saved = json.loads(json.dumps(plan.to_json()))
    assert saved["options"]["op_offload"] == "reference=16"
    again = prepare(model, plan=saved, devices=["reference", "cpu"])
    assert str(again.op_offload) == "reference=16"
    assert [r.max_tokens for r in again.regimes] == [15, 64]
    assert again.to_json()["options"] == saved["options"]
    for given in (False, 32, True):
        with pytest.raises(ScheduleError, match="says where everything is; leave out op_offload"):
            prepare(model, plan=saved, devices=["reference", "cpu"], op_offload=given)
    del saved["options"]["op_offload"]  # as older files have none
    assert str(prepare(model, plan=saved, devices=["reference", "cpu"]).op_offload) == "on"


def lines(plan: ContextPlan) -> list[str]:
    return [line for line in placement_lines(plan, nodes=False) if "op offload" in line]


def test_explain_says_what_a_pass_costs_with_and_without(model: Model) -> None:
    (line,) = lines(planned(model, 32))
    totals = planned(model, 32).plan.schedule.to_json()["totals"]
    assert line.startswith(
        f"op offload 32: reference takes 29 ops whose weights are in host memory: "
        f"{totals['splits']} splits, {totals['copies']} copies, "
    )
    assert "; off: 1 split, 0 copies, 0 B a pass; 29 weights that are sent stay" in line
    (line,) = lines(planned(model, False))
    assert (
        line == "op offload is off; on, no device would take an op whose weight is in host memory"
    )
    assert lines(planned(model)) == [] and lines(prepare(model, n_ctx=32, op_offload=False)) == []
    assert lines(planned(model, plan=planned(model, 32).to_json(), n_gpu_layers=None)) == []


def test_explain_of_a_machine_that_asks(model: Model) -> None:
    """Devices on paper ask from the batch that their profile says."""
    profile = load_profile("desktop-rtx4090")
    paper: dict[str, Any] = {"devices": paper_devices(profile), "profile": profile}
    host = {"n_gpu_layers": None, "place": {"*": "cpu"}} | paper
    plan = planned(model, **host)
    assert str(plan.op_offload) == "gpu=32" and sorted(offloaded(plan)) == [31, 64]
    (off,) = lines(planned(model, False, **host))
    taken = offloaded(plan)[64]
    assert f"1 split, 0 copies, 0 B a pass; on, gpu would take {taken} ops" in off


@pytest.mark.parametrize(("offload_from", "text"), [(16, "reference=16"), (0, "reference=off")])
def test_a_measured_threshold(model: Model, offload_from: int, text: str) -> None:
    machine = load_profile("desktop-rtx4090")
    names = {"gpu": "reference", "cpu": "cpu"}
    devices = tuple(
        replace(d, name=names[d.name], offload_from=offload_from if d.name == "gpu" else None)
        for d in machine.devices
    )
    profile = replace(machine, devices=devices)
    for given in (None, True):
        plan = planned(model, given, profile=profile)
        assert str(plan.op_offload) == text
        assert sorted(offloaded(plan)) == ([15, 64] if offload_from else [64])
    assert str(planned(model, 7, profile=profile).op_offload) == "7"
    assert planned(model, False, profile=profile).op_offload.is_off


def test_the_variable_that_people_know(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_OP_OFFLOAD_MIN_BATCH", "24")
    assert flags._read().op_offload_min_batch == 24
    monkeypatch.setenv("WEFT_OP_OFFLOAD_MIN_BATCH", "48")
    read = flags._read()
    assert read.op_offload_min_batch == 48
    monkeypatch.setattr(placement, "FLAGS", read)
    assert sorted(offloaded(planned(model))) == [47, 64]
    assert planned(model, False).op_offload.is_off
    monkeypatch.setenv("WEFT_OP_OFFLOAD_MIN_BATCH", "many")
    assert flags._read().op_offload_min_batch == 0 == FLAGS.op_offload_min_batch


def test_devices_that_there_are_not(model: Model) -> None:
    with pytest.raises(
        ScheduleError, match=r"op_offload names the device cuda:0, .* reference, cpu"
    ):
        planned(model, {"cuda:0": 64})
