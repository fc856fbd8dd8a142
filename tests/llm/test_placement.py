"""Where weights, caches and nodes of a model go: layers, globs, plan files, memory, time."""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import weft
from tests.llm.paper_model import LLAMA_7B, MIXTRAL, paper_model
from tests.llm.tiny import metadata, weights, write_model
from weft.backends.base import Support
from weft.backends.null import NullBackend, NullBufferType
from weft.errors import (
    ContextError,
    FormatError,
    OutOfMemoryError,
    ScheduleError,
    WeftError,
)
from weft.graph.tensor import Tensor
from weft.llm import Context, Model
from weft.llm.planning import fit as fit_module
from weft.llm.planning.offload import homes_by_layer
from weft.llm.planning.prepare import prepare
from weft.schedule import load_profile
from weft.schedule.machine import paper_devices
from weft.schedule.profile import parse_profile

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"

TOKENS = np.array([1, 262, 263, 264, 265, 266, 267])
# float32 sums in another order
RTOL, ATOL = 1e-4, 1e-5


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    return Model.open(write_model(tmp_path_factory.mktemp("model") / "m.gguf"))


@pytest.fixture(scope="module")
def moe(tmp_path_factory: pytest.TempPathFactory) -> Model:
    meta = metadata(**{"llama.expert_count": 4, "llama.expert_used_count": 2})
    path = tmp_path_factory.mktemp("moe") / "m.gguf"
    return Model.open(write_model(path, meta, weights(meta)))


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Model:
    meta = metadata()
    tensors = weights(meta)
    del tensors["output.weight"]
    return Model.open(write_model(tmp_path_factory.mktemp("tied") / "m.gguf", meta, tensors))


def context(model: Model, **options: Any) -> Context:
    settings: dict[str, Any] = {"n_threads": 1, "type_k": "f32", "type_v": "f32"}
    return Context(model, 32, activations="f32", **(settings | options))


def logits(ctx: Context) -> Any:
    return ctx.decode(TOKENS, outputs="all")


def gpu(
    name: str = "gpu", capacity: int | None = None, refused: tuple[str, ...] = ()
) -> NullBackend:
    class Gpu(NullBackend):
        def supports_op(self, node: Tensor) -> Support:
            return Support(node.op.name not in refused, f"no kernel for {node.op.name}")

        def supports_buffer_type(self, buffer_type: Any) -> bool:
            return buffer_type is self.buffer_type

    return Gpu(name, "GPU", NullBufferType(name, name, is_host=False, capacity=capacity))


def cpu() -> NullBackend:
    return NullBackend("cpu")


# ---- layers --------------------------------------------------------------------------------------


def test_layers_go_from_the_last_to_the_first(model: Model) -> None:
    """N layers of the model, the output with one more; the input's embedding stays."""
    devices = [gpu(), cpu()]
    for n in range(5):
        homes = homes_by_layer(model.weights, 2, devices, n)
        on_gpu = {name.split(".")[1] if name.startswith("blk") else name
                  for name, b in homes.weights.items() if b == 0}  # fmt: skip
        want: set[str] = {str(il) for il in range(max(2 - n, 0), 2)}
        assert on_gpu == want | ({"output.weight", "output_norm.weight"} if n > 2 else set())
        assert homes.caches == [0 if 2 - n <= il else 1 for il in range(2)]
        assert homes.n_gpu_layers == min(n, 3)
    assert homes_by_layer(model.weights, 2, devices).weights == homes.weights
    assert homes_by_layer(model.weights, 2, devices, -1).weights == homes.weights


def test_layers_over_two_devices(model: Model) -> None:
    devices = [gpu("a"), gpu("b"), cpu()]
    homes = homes_by_layer(model.weights, 2, devices, {0: 1, 1: 1})
    assert homes.caches == [1, 0] and homes.weights["output.weight"] == 2
    homes = homes_by_layer(model.weights, 2, devices, {0: 2, 1: 1})
    assert homes.caches == [0, 0] and homes.weights["output.weight"] == 0


def test_without_a_device_to_take_them(model: Model) -> None:
    shared = NullBackend("blas", "ACCEL")
    shared.buffer_type = (host := cpu()).buffer_type
    assert set(homes_by_layer(model.weights, 2, [shared, host]).weights.values()) == {1}
    with pytest.raises(ScheduleError, match="3 layers cannot be offloaded: no device of blas, cpu"):
        homes_by_layer(model.weights, 2, [shared, host], 3)


@pytest.mark.parametrize("n", [0, 1, 2, 3, None])
def test_logits_do_not_depend_on_the_layers(model: Model, n: int | None) -> None:
    want = logits(context(model))
    ctx = context(model, devices=["reference", "cpu"], n_gpu_layers=n)
    np.testing.assert_allclose(logits(ctx), want, rtol=RTOL, atol=ATOL)
    needs = {need.memory: need for need in ctx.plan.needs()}
    on_device = needs["Reference"].weights
    assert (on_device == 0) == (n == 0)
    on_host = needs["CPU"].weights + sum(needs["CPU"].repacked.values())
    assert on_device + on_host == model.weights.nbytes == ctx.memory.weights + ctx.memory.repacked
    assert ctx.memory.cache == ctx.cache.nbytes


def test_a_tied_output_is_sent_where_it_is_used(tied: Model) -> None:
    """The embedding is looked up on the host; the output needs its own copy on the device."""
    want = logits(context(tied))
    ctx = context(tied, devices=["reference", "cpu"])
    np.testing.assert_allclose(logits(ctx), want, rtol=RTOL, atol=ATOL)
    assert ctx.plan.model.weights["output.weight"].buffer.type.name == "Reference"  # type: ignore[union-attr]
    node = next(n for n in ctx.plan.plan.schedule.graph.nodes if n.name == "logits")
    assert ctx.plan.plan.schedule.backend_for(node).name == "reference"  # type: ignore[union-attr]
    # two contexts of one model do not disturb each other
    assert "output.weight" not in tied.weights
    np.testing.assert_array_equal(logits(context(tied)), want)


def test_what_a_device_cannot_run_stays_on_the_host(model: Model) -> None:
    prepared = prepare(model, n_ctx=32, devices=[gpu(refused=("MUL",)), cpu()])
    assert "blk.0.attn_norm.weight" in prepared.homes.kept
    assert prepared.homes.kept["blk.0.attn_norm.weight"] == "no kernel for MUL"
    assert prepared.homes.weights["blk.0.attn_q.weight"] == 0
    prepared = prepare(model, n_ctx=32, devices=[gpu(refused=("SET_ROWS",)), cpu()])
    assert prepared.homes.caches == [1, 1]
    assert prepared.needs()[0].cache == 0


# ---- globs ---------------------------------------------------------------------------------------


def test_the_first_glob_that_matches_wins(model: Model) -> None:
    devices = [gpu(), cpu()]
    place = {"blk.0.attn_q": "gpu", "blk.0.*": "cpu", "blk.*.ffn_*": "gpu"}
    homes = homes_by_layer(model.weights, 2, devices, 0, place)
    on_gpu = {name for name, b in homes.weights.items() if b == 0}
    ffn = {f"blk.1.ffn_{x}.weight" for x in ("norm", "gate", "up", "down")}
    assert on_gpu == ffn | {"blk.0.attn_q.weight"}


def test_a_cache_lives_where_its_keys_are_made(model: Model) -> None:
    homes = homes_by_layer(model.weights, 2, [gpu(), cpu()], 0, {"blk.1.attn_k": "gpu"})
    assert homes.caches == [1, 0]


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ({"blk.7.*": "cpu"}, "no weight is called like 'blk.7"),
        ({"*": "tpu"}, "'tpu', which is not one of the devices gpu, cpu"),
    ],
)
def test_globs_that_cannot_be(model: Model, place: dict[str, str], message: str) -> None:
    with pytest.raises(ScheduleError, match=message.replace("*", r"\*")):
        homes_by_layer(model.weights, 2, [gpu(), cpu()], None, place)


def test_experts_on_the_cpu(moe: Model) -> None:
    """Everything on the device but the experts, whose nodes then run on the CPU."""
    want = logits(context(moe))
    ctx = context(moe, devices=["reference", "cpu"], place={"blk.*.ffn_*_exps": "cpu"})
    np.testing.assert_allclose(logits(ctx), want, rtol=RTOL, atol=ATOL)
    schedule = ctx.plan.plan.schedule
    where = {n.op.name: set() for n in schedule.graph.nodes}
    for n in schedule.graph.nodes:
        where[n.op.name].add(schedule.backend_for(n).name)  # type: ignore[union-attr]
    assert where["MUL_MAT_ID"] == {"cpu"} and where["MUL_MAT"] == {"reference"}


# ---- plan files ----------------------------------------------------------------------------------


@pytest.fixture
def saved(model: Model) -> dict[str, Any]:
    prepared = prepare(
        model, n_ctx=32, n_outputs=4, type_k="f32", type_v="f32", devices=["reference", "cpu"],
        n_gpu_layers=1, n_threads=1,
    )  # fmt: skip
    plan: dict[str, Any] = json.loads(json.dumps(prepared.to_json()))
    return plan


def test_a_plan_file_is_followed(model: Model, saved: dict[str, Any], tmp_path: Path) -> None:
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(saved))
    ctx = Context(model, plan=file, n_threads=1, activations="f32")
    assert ctx.n_ctx == 32 and ctx.n_outputs == 4 and ctx.plan.options.type_k == "f32"
    again = ctx.plan.to_json()
    for key in ("devices", "totals", "weights", "caches", "memory", "options"):
        assert again[key] == saved[key]
    where = [[n["device"] for n in s["nodes"]] for s in again["splits"]]
    assert where == [[n["device"] for n in s["nodes"]] for s in saved["splits"]]
    causes = {n["cause"] for s in again["splits"] for n in s["nodes"]}
    assert "plan" in causes and not causes & {"1.wgt0", "2.sup"}
    np.testing.assert_allclose(
        ctx.decode(TOKENS), logits(context(model))[-1:], rtol=RTOL, atol=ATOL
    )


def test_plans_whose_nodes_have_numbers_for_names_fit(model: Model, saved: dict[str, Any]) -> None:
    data = json.loads(json.dumps(saved))
    for plan in (data, *data["smaller"]):
        for i, row in enumerate(row for split in plan["splits"] for row in split["nodes"]):
            row["name"] = f"node_{i}"
    Context(model, plan=data)
    data["splits"][0]["nodes"][1]["name"] = "node_7"
    with pytest.raises(FormatError, match="node 1 is node_7"):
        Context(model, plan=data)


def test_nodes_of_a_plan_file_may_be_moved_by_hand(model: Model, saved: dict[str, Any]) -> None:
    nodes = [n for s in saved["splits"] for n in s["nodes"]]
    moved = next(n for n in nodes if n["op"] == "GLU" and n["device"] == "cpu")
    moved["device"] = "reference"
    ctx = Context(model, plan=saved, n_threads=1, activations="f32")
    assert len(ctx.program.splits) > saved["totals"]["splits"]
    np.testing.assert_allclose(
        ctx.decode(TOKENS), logits(context(model))[-1:], rtol=RTOL, atol=ATOL
    )


def _change(path: list[Any], value: Any) -> Any:
    def change(plan: dict[str, Any]) -> None:
        at: Any = plan
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (_change(["format"], "other"), "no plan of format weft-plan-1"),
        (_change(["weights"], None), "'weights' is missing"),
        (_change(["weights", 0, "name"], "nope"), "weight 'nope' is not in the model"),
        (_change(["weights", 1, "type"], "q4_0"), r"is q4_0 .* but in the model it is f32"),
        (_change(["weights", 1, "ne"], [1, 1, 1, 1]), r"\[1, 1, 1, 1\] of .* but in the model"),
        (_change(["weights", 1, "bytes"], 7), "of 7 bytes, but in the model"),
        (_change(["weights", 1, "device"], "tpu"), "is on 'tpu', which is not one of"),
        (_change(["caches", 0, "name"], "cache_k_9"), "is not of one of the model's 2 layers"),
        (_change(["caches", 0, "bytes"], 1), "cache cache_k_0 is f32"),
        (_change(["devices", 0, "kind"], "GPU"), "its devices .* are reference/GPU/Reference"),
        (_change(["splits", 0, "nodes", 3, "op"], "SQR"), "node 3 is .* SQR"),
        (_change(["splits", 0, "nodes", 3, "shape"], "[1]"), r"node 3 is .*\[1\]"),
        (_change(["splits", 0, "nodes", 3, "device"], "tpu"), "is on 'tpu'"),
        (_change(["splits"], []), "it has 0 nodes"),
        (_change(["options", "type_k"], None), "option 'type_k' is missing"),
        (_change(["options", "n_ctx"], 16), "cache cache_k_0 is f32"),
    ],
)
def test_plan_files_of_something_else(
    model: Model, saved: dict[str, Any], change: Any, message: str
) -> None:
    change(saved)
    with pytest.raises(FormatError, match=message):
        prepare(model, plan=saved)


def test_damaged_plans_are_refused_or_followed(model: Model, saved: dict[str, Any]) -> None:
    """Whatever is changed in a plan file, it is followed or refused with a message."""
    rnd = random.Random(0)
    places = [p for p in _places(saved) if p]
    values = [None, 0, -1, 10**30, 1.5, "", "cpu", [], {}, True, [{}], [{"name": 1}]]
    refused = 0
    for _ in range(250):
        plan = copy.deepcopy(saved)
        *way, key = rnd.choice(places)
        at: Any = plan
        for step in way:
            at = at[step]
        at[key] = rnd.choice(values)
        try:
            prepare(model, plan=plan)
        except WeftError:
            refused += 1
    assert refused > 50


def _places(data: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield place
    items = (
        data.items()
        if isinstance(data, dict)
        else enumerate(data[:3])
        if isinstance(data, list)
        else ()
    )
    for key, value in items:
        yield from _places(value, (*place, key))


def test_a_plan_that_needs_more_memory_than_it_says(model: Model, saved: dict[str, Any]) -> None:
    row = next(r for r in saved["memory"] if r["buffer"] == "compute")
    row["bytes"] -= 1
    with pytest.raises(FormatError, match="are enough to compute in, but"):
        prepare(model, plan=saved)


def test_a_plan_for_a_node_that_the_device_refuses(model: Model) -> None:
    plan = prepare(model, n_ctx=32, devices=[gpu(), cpu()]).to_json()
    with pytest.raises(ScheduleError, match="is to run on gpu, which refuses: no kernel for GLU"):
        prepare(model, plan=plan, devices=[gpu(refused=("GLU",)), cpu()])


def test_options_that_contradict_the_plan(model: Model, saved: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match="was made with n_ctx = 32, not 16"):
        prepare(model, plan=saved, n_ctx=16)
    with pytest.raises(ScheduleError, match="a plan file says where everything is"):
        prepare(model, plan=saved, n_gpu_layers=1)


@pytest.mark.parametrize("text", ["", "{", "[]", '"plan"', "\xff"])
def test_files_that_are_no_plans(model: Model, tmp_path: Path, text: str) -> None:
    file = tmp_path / "plan.json"
    file.write_bytes(text.encode("latin-1"))
    with pytest.raises(FormatError, match="plan"):
        prepare(model, plan=file)
    with pytest.raises(FormatError, match="No such file"):
        prepare(model, plan=tmp_path / "nowhere.json")


# ---- memory --------------------------------------------------------------------------------------


def test_fit_takes_as_many_layers_as_there_is_room_for(model: Model) -> None:
    """For every limit, the plan keeps to it, and one more layer would not."""
    devices = [gpu(), cpu()]
    by_layers = []
    for n in range(4):
        prepared = prepare(model, n_ctx=32, devices=devices, n_gpu_layers=n)
        by_layers.append(prepared.needs()[0].total)
    for limit in sorted({*by_layers, *(n - 1 for n in by_layers if n), by_layers[-1] + 1}):
        want = max(n for n, total in enumerate(by_layers) if total <= limit)
        prepared = prepare(model, n_ctx=32, devices=devices, fit=True, memory={"gpu": limit})
        assert prepared.homes.n_gpu_layers == want, limit


def test_fit_fills_one_device_after_the_other(model: Model) -> None:
    devices = [gpu("a"), gpu("b"), cpu()]
    one = prepare(model, n_ctx=32, devices=[gpu("a"), cpu()], n_gpu_layers=1).needs()[0].total
    prepared = prepare(model, n_ctx=32, devices=devices, fit=True, memory={"a": one, "b": 10 * one})
    assert prepared.homes.caches == [1, 0]
    assert all(need.total <= made_limit for need, made_limit in
               zip(prepared.needs(), (one, 10 * one, 1 << 40), strict=True))  # fmt: skip


def test_the_device_knows_its_memory(model: Model) -> None:
    prepared = prepare(model, n_ctx=32, devices=[gpu(capacity=0), cpu()], fit=True)
    assert prepared.homes.n_gpu_layers == 0 and prepared.needs()[0].total == 0
    with pytest.raises(OutOfMemoryError, match=r"not enough gpu memory: \d+ bytes .* 5 bytes"):
        prepare(model, n_ctx=32, devices=[gpu(capacity=5), cpu()])


def test_nothing_fits(model: Model) -> None:
    with pytest.raises(OutOfMemoryError, match=r"weights .*, cache .*, compute .* 10 bytes"):
        prepare(model, n_ctx=32, devices=[gpu(), cpu()], fit=True, memory={"cpu": 10, "gpu": 10})
    with pytest.raises(ScheduleError, match="memory of tpu is limited, but the devices are"):
        prepare(model, n_ctx=32, devices=[gpu(), cpu()], memory={"tpu": 10})


def test_mapped_weights_count_only_where_someone_says_so(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    need = prepare(model, n_ctx=32, devices=[cpu()]).needs()[0]
    monkeypatch.setattr(fit_module.system, "available_bytes", lambda: need.cache + need.compute)
    prepare(model, n_ctx=32, devices=[cpu()])
    with pytest.raises(OutOfMemoryError):
        prepare(model, n_ctx=32, devices=[cpu()], memory={"cpu": need.total - 1})


def test_devices_in_the_hosts_memory_share_one_pool(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit of each is what the other leaves, so that both fit together or neither does."""
    own, within = gpu(), gpu()
    within.buffer_type.in_host = True
    device, host = prepare(model, n_ctx=32, devices=[within, cpu()]).needs()
    assert device.in_pool and host.in_pool and min(device.total, host.compute) > 1
    both = device.total + host.total - host.weights
    monkeypatch.setattr(fit_module.system, "available_bytes", lambda: both)
    rooms = prepare(model, n_ctx=32, devices=[within, cpu()]).rooms
    assert rooms[device.memory] == (device.total, device.total)
    assert rooms[host.memory] == (host.total - host.weights,) * 2
    assert prepare(model, n_ctx=32, devices=[within, cpu()], fit=True).homes.n_gpu_layers == 3
    monkeypatch.setattr(fit_module.system, "available_bytes", lambda: both - 1)
    with pytest.raises(OutOfMemoryError, match=rf"{device.total} bytes .* {device.total - 1} "):
        prepare(model, n_ctx=32, devices=[within, cpu()])
    assert prepare(model, n_ctx=32, devices=[within, cpu()], fit=True).homes.n_gpu_layers == 2
    prepare(model, n_ctx=32, devices=[own, cpu()])
    prepare(model, n_ctx=32, devices=[within, cpu()], memory={"gpu": 1 << 40})
    prepare(model, n_ctx=32, devices=[within, cpu()], memory={"cpu": host.total})


def test_weights_that_are_loaded_already_leave_room_in_the_pool(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As for a second context: what is free lacks the weights of the first."""
    within = gpu()
    within.buffer_type.in_host = True
    device, host = prepare(model, n_ctx=32, devices=[within, cpu()]).needs()
    free = device.total + host.total - host.weights - device.weights
    monkeypatch.setattr(fit_module.system, "available_bytes", lambda: free)
    with pytest.raises(OutOfMemoryError):
        prepare(model, n_ctx=32, devices=[within, cpu()])
    monkeypatch.setattr(fit_module, "_present", lambda *_: device.weights)
    prepare(model, n_ctx=32, devices=[within, cpu()])


def test_the_largest_offload_of_a_7b_model(tmp_path: Path) -> None:
    """Planned in seconds, without a byte of the model."""
    prepared = prepare(
        paper_model(tmp_path, LLAMA_7B), n_ctx=4096, n_outputs=1, devices=[gpu(), cpu()],
        fit=True, memory={"gpu": 4 << 30},
    )  # fmt: skip
    assert 20 <= (prepared.homes.n_gpu_layers or 0) <= 27
    need = prepared.needs()[0]
    layer = (need.weights + need.cache) / (prepared.homes.n_gpu_layers or 1)
    assert need.total <= 4 << 30 < need.total + layer


# ---- time ----------------------------------------------------------------------------------------


def test_by_time_is_never_slower_than_what_fits(tmp_path: Path) -> None:
    profile = load_profile("desktop-rtx4090")
    model = paper_model(tmp_path, MIXTRAL | {"block_count": 8})
    options: dict[str, Any] = {
        "n_ctx": 4096, "n_outputs": 1, "profile": profile, "memory": {"gpu": 5 << 30},
    }  # fmt: skip
    fitted = prepare(model, devices=paper_devices(profile), fit=True, **options)
    best = prepare(model, devices=paper_devices(profile), policy="cost", **options)
    assert fitted.predicted is not None and best.predicted is not None
    assert best.predicted.total < 0.9 * fitted.predicted.total
    assert best.needs()[0].total <= 5 << 30
    # what stays in RAM are experts: a token uses a quarter of them
    left = {name for name, b in best.homes.weights.items() if b == 1}
    assert left and all("_exps" in name or name == "token_embd.weight" for name in left)


@pytest.mark.parametrize("kib", [400, 625, 800])
def test_by_time_finds_a_plan_wherever_fit_does(kib: int) -> None:
    """Limits of the machine at which some plan of the search is too large."""
    machine = load_profile("desktop-rtx4090")
    small = replace(machine.memories["VRAM"], size=kib << 10)
    profile = replace(machine, memories={**machine.memories, "VRAM": small})
    options: dict[str, Any] = {"n_ctx": 128, "n_ubatch": 64, "profile": profile}
    model = Model.open(DEMO)
    fitted = prepare(model, devices=paper_devices(profile), fit=True, **options)
    best = prepare(model, devices=paper_devices(profile), policy="cost", **options)
    assert fitted.predicted is not None and best.predicted is not None
    assert best.predicted.total <= fitted.predicted.total
    assert best.needs()[0].total <= kib << 10


def test_by_time_with_chosen_layers_falls_back_on_the_rules(model: Model) -> None:
    """Copies of weights make the plan by time larger than the plan by rule, which has room."""
    profile = parse_profile(FAST_LINK)
    options: dict[str, Any] = {"n_ctx": 32, "profile": profile, "devices": paper_devices(profile)}
    room = prepare(model, n_gpu_layers=1, **options).needs()[0].total
    found = prepare(model, n_gpu_layers=1, policy="cost", memory={"gpu": room}, **options)
    assert found.needs()[0].total <= room
    with pytest.raises(OutOfMemoryError, match="not enough VRAM memory"):
        prepare(model, n_gpu_layers=1, policy="cost", memory={"gpu": room - 1}, **options)


def test_by_time_with_homes_that_someone_chose(model: Model) -> None:
    profile = load_profile("desktop-rtx4090")
    prepared = prepare(
        model, n_ctx=32, devices=paper_devices(profile), profile=profile, policy="cost",
        n_gpu_layers=1,
    )  # fmt: skip
    assert prepared.homes.caches == [1, 0]
    prepared = prepare(
        model, n_ctx=32, devices=paper_devices(profile), profile=profile, policy="cost",
        place={"blk.0.*": "gpu"},
    )  # fmt: skip
    assert prepared.homes.weights["blk.0.attn_q.weight"] == 0


def test_by_time_runs(model: Model) -> None:
    """On real devices, the logits are the same for every choice."""
    text = Path(__file__).with_name("two_devices.toml")
    want = logits(context(model))
    ctx = context(model, devices=["reference", "cpu"], policy="cost", profile=text)
    np.testing.assert_allclose(logits(ctx), want, rtol=RTOL, atol=ATOL)
    assert {s.device for s in ctx.program.splits} == {"reference"}


def test_policies_that_cannot_be(model: Model) -> None:
    with pytest.raises(ScheduleError, match="needs a machine profile"):
        prepare(model, n_ctx=32, policy="cost")
    with pytest.raises(ScheduleError, match="policy is 'fast'; it must be 'ggml' or 'cost'"):
        prepare(model, n_ctx=32, policy="fast")  # type: ignore[arg-type]
    with pytest.raises(ScheduleError, match="fit chooses the number of layers"):
        prepare(model, n_ctx=32, fit=True, n_gpu_layers=3)
    with pytest.raises(ContextError, match="n_ctx is 0"):
        prepare(model, n_ctx=0)


FAST_LINK = """
format = "weft-machine-1"
[[memory]]
name = "VRAM"
[[memory]]
name = "RAM"
host = true
[[device]]
name = "gpu"
kind = "GPU"
memory = "VRAM"
bandwidth = 1000.0
gflops.default = 1000.0
[[device]]
name = "cpu"
kind = "CPU"
memory = "RAM"
bandwidth = 1.0
launch = 1.0
start = 1.0
gflops.default = 1.0
[[link]]
between = ["RAM", "VRAM"]
bandwidth = 1000.0
latency = 0.01
"""
"""A slow processor beside a fast device, to which everything can be copied in no time."""


def test_by_time_keeps_to_the_room(model: Model) -> None:
    """It is faster to copy weights to the device for every node, where the copies have room."""
    profile = parse_profile(FAST_LINK)
    devices = paper_devices(profile)
    options: dict[str, Any] = {"n_ctx": 32, "profile": profile, "devices": devices}
    by_rule = prepare(model, n_gpu_layers=1, **options).needs()[0].total
    by_time = prepare(model, n_gpu_layers=1, policy="cost", **options).needs()[0].total
    assert by_rule < by_time
    for limit in (by_rule, by_time - 1):
        found = prepare(model, policy="cost", memory={"gpu": limit}, **options)
        assert found.needs()[0].total <= limit


def test_machines_share_layers_evenly(model: Model) -> None:
    """A layer goes to the machine in whose share its middle is."""

    def on(machine: str) -> NullBackend:
        device = gpu(f"{machine}/gpu")
        device.machine = machine  # type: ignore[attr-defined]
        return device

    class Leaf:
        def __init__(self, nbytes: int) -> None:
            self.max_bytes = nbytes

    def shares(sizes: list[int], n_machines: int, n: int | None = None) -> list[int]:
        *layers, output = sizes
        leaves = {f"blk.{i}.ffn_up.weight": Leaf(size) for i, size in enumerate(layers)}
        leaves |= {"output.weight": Leaf(output), "token_embd.weight": Leaf(10**6)}
        devices = [*(on(f"m{i}") for i in range(n_machines)), cpu()]
        homes = homes_by_layer(leaves, len(layers), devices, n)  # type: ignore[arg-type]
        assert homes.weights["token_embd.weight"] == n_machines
        return homes.of_layers()

    assert shares([1, 1, 1], 2) == [0, 1, 1]
    assert shares([4, 4, 4, 1], 2) == [0, 0, 1, 1]
    assert shares([1, 9, 1, 9], 2) == [0, 0, 1, 1]
    assert shares([1, 8, 1, 1, 1], 3) == [0, 1, 2, 2, 2]
    assert shares([1, 1, 1, 1, 1], 2, 2) == [2, 2, 0, 1, 2]
    assert shares([1, 1, 1, 1, 1], 2, 0) == [2] * 5
    assert shares([0, 0, 0], 2) == [0, 0, 0]


# ---- the whole -----------------------------------------------------------------------------------


def test_llm_takes_placements(model: Model, tmp_path: Path) -> None:
    path = model.file.path

    def text(**options: Any) -> str:
        llm = weft.LLM(path, n_ctx=32, n_threads=1, activations="f32", **options)
        return llm.generate("the", max_tokens=8, temperature=0)

    want = text()
    assert text(devices=["reference", "cpu"], n_gpu_layers=1) == want
    assert text(devices=["reference", "cpu"], place={"blk.0.*": "cpu"}) == want
    opened = weft.LLM(path, n_ctx=32, devices=["reference", "cpu"], n_threads=1)
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(opened.context.plan.to_json()))
    assert weft.LLM(path, plan=file, n_threads=1).context.n_ctx == 32
    assert text(plan=file) == want


@pytest.mark.parametrize(
    "name", ["lfm2", "mamba2", "deepseek2", "gemma3", "gptoss", "bert", "bloom", "phi3_longrope"]
)
def test_every_kind_of_model_over_two_devices(name: str) -> None:
    """The last layer, then all of them, on a device with memory of its own; then by plan file."""
    path = Path(__file__).resolve().parents[3] / "shared/vectors/models/archs" / f"{name}.gguf"
    if not path.exists():
        pytest.skip("the golden models (../shared/vectors) are not part of a public clone")
    golden = Model.open(path)
    tokens = np.arange(3, 17)
    want = context(golden).decode(tokens, outputs="all")
    for n in (1, None):
        ctx = context(golden, devices=["reference", "cpu"], n_gpu_layers=n)
        got = ctx.decode(tokens, outputs="all")
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-4)
        assert len(ctx.program.splits) <= (2 if n is None else 5)
        again = Context(golden, plan=ctx.plan.to_json(), activations="f32", n_threads=1)
        np.testing.assert_array_equal(again.decode(tokens, outputs="all"), got)


def test_context_shift_over_devices(model: Model) -> None:
    """Keys that moved are rotated where they live."""

    def shifted(**options: Any) -> Any:
        ctx = context(model, **options)
        ctx.decode(TOKENS)
        ctx.cache.seq_rm(0, 1, 3)
        ctx.cache.seq_add(0, 3, -1, -2)
        return ctx.decode([5], [len(TOKENS) - 2])

    want = shifted()
    got = shifted(devices=["reference", "cpu"], n_gpu_layers=1)
    np.testing.assert_allclose(got, want, rtol=RTOL, atol=ATOL)


def test_states_are_saved_from_any_memory(model: Model) -> None:
    a = context(model, devices=["reference", "cpu"], n_gpu_layers=1)
    a.decode(TOKENS)
    b = context(model)
    b.load_state(a.save_state())
    np.testing.assert_allclose(b.decode([5]), a.decode([5]), rtol=RTOL, atol=ATOL)


def test_graphics_of_a_processor_on_paper_share_its_memory(tmp_path: Path) -> None:
    """What a machine profile lists as a memory of an integrated GPU is a part of the host's."""
    profile = load_profile("laptop-780m")
    devices = paper_devices(profile)
    assert [device.buffer_type.in_host for device in devices] == [True, False]
    prepared = prepare(
        paper_model(tmp_path, LLAMA_7B), n_ctx=4096, devices=devices, profile=profile
    )
    device, host = prepared.needs()
    ram, own = (profile.memories[name].size for name in ("RAM", "GPU"))
    assert prepared.rooms[host.memory][1] == ram - device.total
    assert prepared.rooms[device.memory][1] == min(own, ram - (host.total - host.weights))
