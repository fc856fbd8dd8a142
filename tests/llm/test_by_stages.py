"""Plans over several machines: as fast as any contiguous split, and within every memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.llm.paper_model import LLAMA_7B, MIXTRAL, paper_model
from weft.errors import OutOfMemoryError
from weft.llm.model import Model
from weft.llm.planning.context_options import context_options
from weft.llm.planning.placement import Placement
from weft.llm.planning.plan import ContextPlan
from weft.llm.planning.prepare import prepare
from weft.llm.planning.request import GENERATED, Request
from weft.llm.planning.stage_report import one_pass, stage_report
from weft.llm.planning.stages import plan_of_layers
from weft.schedule.machine import paper_devices
from weft.schedule.machines import join_machines, machine_of, parse_link
from weft.schedule.profile import Profile, load_profile, parse_profile

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"
SMALL = LLAMA_7B | {"block_count": 3, "embedding_length": 1024, "feed_forward_length": 2816}


def machine(speed: float = 1.0, size: str = "64 GiB") -> Profile:
    return parse_profile(
        f"""
format = "weft-machine-1"
[[memory]]
name = "RAM"
host = true
size = "{size}"
[[device]]
name = "cpu"
kind = "CPU"
memory = "RAM"
bandwidth = {20 * speed}
launch = {1 / speed}
start = 5
gflops.default = {100 * speed}
"""
    )


def joined(machines: dict[str, Profile], link: str = "1Gbps,0.2ms") -> Profile:
    return join_machines(machines, [parse_link(link)])


def planned(model: Model, profile: Profile, **arguments: Any) -> ContextPlan:
    arguments = {"n_ctx": 512, "n_ubatch": 64} | arguments
    return prepare(
        model, devices=paper_devices(profile), profile=profile, policy="cost", **arguments
    )


def of_layer(plan: ContextPlan) -> list[str]:
    homes = [*plan.homes.caches, plan.homes.weights["output.weight"]]
    return [plan.backends[b].name for b in homes]


def seconds(plan: ContextPlan, profile: Profile) -> float:
    """The time of the workload that plans are made for, with the way of the logits."""
    prompt, token = one_pass(plan, profile, plan.options.n_ubatch), one_pass(plan, profile, 1)
    return prompt.seconds + GENERATED * token.seconds


def contiguous(n_layer: int, n_devices: int, at_home: Sequence[int]) -> Iterator[list[int]]:
    for k in range(1, n_devices + 1):
        for order in itertools.permutations(range(n_devices), k):
            for borders in itertools.combinations(range(1, n_layer), k - 1):
                ends = [*borders, n_layer]
                body = [d for d, (a, b) in zip(order, itertools.pairwise([0, *ends]), strict=True)
                        for _ in range(b - a)]  # fmt: skip
                for output in {body[-1], *at_home}:
                    yield [*body, output]


@pytest.mark.parametrize(
    ("speeds", "link"),
    [
        ((1.0, 3.0), "1Gbps,0.2ms"),
        ((1.0, 1.02), "1Gbps,0.2ms"),
        ((2.0, 1.0, 5.0), "10Gbps,20us"),
        ((1.0, 1.3, 1.5), "25Gbps,1us"),
    ],
)
def test_no_contiguous_split_is_faster(
    tmp_path: Path, speeds: tuple[float, ...], link: str
) -> None:
    model = paper_model(tmp_path, SMALL, "q4_0")

    def of_size(size: str) -> Profile:
        return joined({f"m{i}": machine(s, size) for i, s in enumerate(speeds)}, link)

    profile = of_size("64 GiB")
    devices = paper_devices(profile)
    options = context_options(model, 512, {"n_ubatch": 64})
    request = Request(model, options, devices, Placement(policy="cost", profile=profile))
    tried = []
    for split in contiguous(3, len(devices), [len(devices) - 1]):
        plan = plan_of_layers(request, split)
        tried.append((seconds(plan, profile), max(need.total for need in plan.needs())))
    outcomes = set()
    sizes = sorted({most for _, most in tried})
    for size in (sizes[-1], sizes[len(sizes) // 2], sizes[0], sizes[0] - 1):
        least = min((s for s, most in tried if most <= size), default=None)
        outcomes.add(least)
        if least is None:
            with pytest.raises(OutOfMemoryError, match="not enough memory on these machines"):
                planned(model, of_size(str(size)))
        else:
            best = planned(model, of_size(str(size)))
            assert seconds(best, profile) == pytest.approx(least, rel=1e-5)
    assert len(outcomes) >= 2 and None in outcomes


def test_a_card_and_two_machines(tmp_path: Path) -> None:
    profile = joined({"a": machine(), "b": load_profile("desktop-rtx4090")}, "10Gbps,20us")
    plan = planned(paper_model(tmp_path, LLAMA_7B), profile)
    assert set(of_layer(plan)) == {"b/gpu"}  # 300 times as fast


@pytest.mark.parametrize("n_seq_max", [1, 8])
def test_each_machine_has_consecutive_layers(tmp_path: Path, n_seq_max: int) -> None:
    sizes = {"a": "6 GiB", "b": "3 GiB", "c": "3 GiB"}
    machines = {name: machine(1 + i, size) for i, (name, size) in enumerate(sizes.items())}
    profile = joined(machines)
    plan = planned(paper_model(tmp_path, LLAMA_7B, "q8_0"), profile, n_seq_max=n_seq_max)
    runs = [m for m, _ in itertools.groupby(map(machine_of, of_layer(plan)[:-1]))]
    assert sorted(runs) == ["a", "b", "c"]
    for regime in plan.regimes:
        visited = [machine_of(plan.backends[s.backend].name) for s in regime.plan.schedule.splits]
        inner = [m for m, _ in itertools.groupby(visited) if m != "a"]
        assert sorted(inner) == ["b", "c"]
    for need in plan.needs():
        assert need.total <= (profile.memories[need.memory].size or 0)


def test_one_value_crosses_between_stages(tmp_path: Path) -> None:
    profile = joined({"a": machine(size="3 GiB"), "b": machine(size="3 GiB")})
    plan = planned(paper_model(tmp_path, LLAMA_7B), profile)
    made = []
    for split in plan.plan.schedule.splits:
        made += [t for t in split.inputs if "input" not in t.flags]
    assert all(t.name.startswith(("embd", "l_out", "result_norm")) for t in made), made
    assert len(made) == len(plan.plan.schedule.splits) - 1


def test_no_room_names_the_machines(tmp_path: Path) -> None:
    profile = joined({"a": machine(size="2 GiB"), "b": machine(size="1 GiB")})
    with pytest.raises(OutOfMemoryError) as caught:
        planned(paper_model(tmp_path, LLAMA_7B), profile)
    text = str(caught.value)
    assert "of 2.00 GiB in a/RAM" in text and "of 1.00 GiB in b/RAM" in text
    assert "weights and cache of the layers need 39" in text
    assert "add a machine" in text
    # layers that a glob puts somewhere are refused by the memory there
    with pytest.raises(OutOfMemoryError, match=r"not enough b/RAM memory: \d+ bytes"):
        planned(
            paper_model(tmp_path, LLAMA_7B),
            joined({"a": machine(), "b": machine(size="1 GiB")}),
            place={"blk.*": "b/cpu"},
        )


def test_several_texts_take_both_machines(tmp_path: Path) -> None:
    profile = joined({"a": machine(), "b": machine()}, "10Gbps,20us")
    model = paper_model(tmp_path, LLAMA_7B)
    plan = planned(model, profile, n_seq_max=16)
    counts = [of_layer(plan).count(d) for d in ("a/cpu", "b/cpu")]
    assert max(counts) - min(counts) <= 2
    loads = {load.what: load for load in stage_report(plan, profile).loads}
    many = loads["16 texts"]
    alone = stage_report(planned(model, joined({"a": machine(), "b": machine(0.01)}),
                                 n_seq_max=16), profile)  # fmt: skip
    assert many.in_flight == 2 and max(many.idle.values()) < 0.1
    one_machine = next(load for load in alone.loads if load.what == "16 texts")
    assert many.tokens_per_second > 1.6 * one_machine.tokens_per_second


def test_the_report_counts_every_byte(tmp_path: Path) -> None:
    profile = joined({"a": machine(size="3 GiB"), "b": machine(size="3 GiB")})
    plan = planned(paper_model(tmp_path, LLAMA_7B), profile)
    report = stage_report(plan, profile)
    assert [s.machine for s in report.stages] == ["a", "b"]
    links = {(link.source, link.target): link for link in report.links}
    # the hidden state is f32; positions i32, cells i64, a row of the mask f16 each
    rows = 4 if of_layer(plan)[31] == "b/cpu" else 0  # which rows have logits
    assert links["a", "b"].token_bytes == 4096 * 4 + 4 + 8 + 512 * 2 + rows
    back = (plan.model.config.n_vocab if of_layer(plan)[-1] == "b/cpu" else 4096) * 4
    assert links["b", "a"].token_bytes == back
    needs = {n.memory: n.total for n in plan.needs()}
    assert {s.memory["memory"]: s.memory["bytes"] for s in report.stages} == needs
    token = next(load for load in report.loads if load.what == "one text")
    assert token.tokens_per_second == pytest.approx(1 / token.seconds)
    busy = sum((1 - idle) * token.seconds for idle in token.idle.values())
    on_links = sum(link.token_seconds for link in report.links)
    assert busy + on_links == pytest.approx(token.seconds)
    data = report.to_json()
    assert data["stages"][0]["memory"]["room"] == 3 << 30 and len(data["links"]) == 2


@pytest.mark.parametrize("hyper", [MIXTRAL])
def test_a_mixture_of_experts(tmp_path: Path, hyper: dict[str, int]) -> None:
    profile = joined({"a": machine(size="16 GiB"), "b": machine(2.0, "16 GiB")})
    plan = planned(paper_model(tmp_path, hyper), profile)
    assert {machine_of(name) for name in of_layer(plan)} == {"a", "b"}
    assert len(plan.plan.schedule.splits) <= 3


def test_an_op_that_a_card_refuses_stays_on_its_machine() -> None:
    card = load_profile("desktop-rtx4090").to_toml()
    refusing = card.replace("refuses = []", 'refuses = ["GLU"]', 1)
    profile = joined({"a": machine(0.01), "b": parse_profile(refusing)}, "100Gbps,1us")
    plan = planned(Model.open(DEMO), profile, n_ctx=128)
    names = {plan.backends[s.backend].name for s in plan.plan.schedule.splits}
    glu = [node for node in plan.plan.schedule.graph.nodes if node.op.name == "GLU"]
    where = {plan.backends[plan.plan.schedule.backend_of[node]].name for node in glu}
    assert "b/gpu" in names and where == {"b/cpu"}
