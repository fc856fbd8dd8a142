"""What is said first of a plan: what it is, whether it fits, where it runs, how fast it will be."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from weft.compiler import lower_plan
from weft.errors import OutOfMemoryError
from weft.frontends.gguf import open_gguf
from weft.frontends.gguf.quantize import quantize_file
from weft.llm.model import Model
from weft.llm.model_name import model_name
from weft.llm.planning import speed as speed_module
from weft.llm.planning.explain import memory_rows
from weft.llm.planning.overview import (
    Overview,
    Room,
    bar_text,
    needs_text,
    overview,
    overview_lines,
    sentences,
)
from weft.llm.planning.plan import ContextPlan
from weft.llm.planning.prepare import prepare
from weft.llm.planning.speed import Speed, kept_profile, speed_text
from weft.llm.tuned import Tuned, machine_name, remember
from weft.report.tables import regime_data
from weft.schedule.explain import listing
from weft.schedule.profile import load_profile
from weft.tables import size_text

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"
SCRATCH = 1000


@pytest.fixture
def model() -> Model:
    return Model.open(DEMO)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder for what is kept between runs."""
    mine = replace(speed_module.FLAGS, cache=str(tmp_path))
    for module in ("weft.llm.planning.speed", "weft.llm.tuned"):
        monkeypatch.setattr(f"{module}.FLAGS", mine)
    return tmp_path


def about(plan: ContextPlan) -> Overview:
    return overview(plan, memory_rows(plan, SCRATCH), plan.regimes[-1])


def test_the_sum_is_that_of_the_rows_and_the_ops_are_those_that_run(
    model: Model, cache: Path
) -> None:
    plan = prepare(model, n_ctx=128)
    said = about(plan)
    rows = memory_rows(plan, SCRATCH)
    [room] = said.rooms
    assert room.bytes == sum(row["bytes"] for row in rows) and room.fits
    [run] = said.runs
    steps = sum(len(split.steps) for split in lower_plan(plan.plan).splits)
    assert [w.ops for w in run.workers] == [steps]
    what, fits, where, speed = sentences(said)
    assert what.startswith("weft-demo.gguf: llama ") and what.endswith(" MiB.")
    assert fits.startswith(f"Fits: needs {size_text(room.bytes)} of ")
    assert "with a context of 128 tokens" in fits
    assert where == f"Runs on cpu: {steps} ops in 1 split."
    assert speed.startswith("Speed: not measured; `weft bench MODEL`")


def test_texts_longer_than_in_training_are_said(model: Model, cache: Path) -> None:
    trained = model.config.n_ctx_train
    fits = sentences(about(prepare(model, n_ctx=2 * trained)))[1]
    assert f"The model was trained for {trained:,} tokens" in fits
    assert "trained" not in sentences(about(prepare(model, n_ctx=trained)))[1]
    two = prepare(model, n_ctx=2 * trained, n_seq_max=2)  # each text has as much as in training
    assert "trained" not in sentences(about(two))[1]


def test_a_mix_whose_blocks_do_not_fit_keeps_its_name(tmp_path: Path, model: Model) -> None:
    out = tmp_path / "mix.gguf"
    quantize_file(model.file.path, out, "Q4_K_M")
    with open_gguf(out) as file:
        assert model_name(Model(file)).endswith("Q4_K - Medium (mostly Q5_0)")


def test_a_machine_on_paper_says_how_fast(model: Model, cache: Path) -> None:
    profile = load_profile("desktop-rtx4090")
    plan = prepare(model, n_ctx=128, devices=["cpu"], profile=profile)
    speed = about(plan).speed
    assert speed is not None and speed.answer and speed.prompt and speed.how.endswith('4090"')
    assert speed.prompt > speed.answer > 0
    assert speed.full is None or speed.full < speed.answer
    assert profile.name in sentences(about(plan))[3]


def test_what_is_too_large_does_not_fit(model: Model, cache: Path) -> None:
    plan = prepare(model, n_ctx=128, memory={"cpu": 1 << 20}, must_fit=False)
    said = about(plan)
    assert not said.rooms[0].fits and said.to_json()["fits"] is False
    text = sentences(said)[1]
    assert text.startswith("Does not fit: needs ") and "room for 1.00 MiB" in text
    assert "free" not in "\n".join(overview_lines(said)[4:])


def test_what_fits_is_what_planning_allows(model: Model, cache: Path) -> None:
    """The kernels' memory is shown and not counted, as where a plan is refused."""
    [need] = prepare(model, n_ctx=128).needs()
    plan = prepare(model, n_ctx=128, memory={"cpu": need.total})
    [room] = about(plan).rooms
    assert room.fits and room.counted == need.total and room.bytes == need.total + SCRATCH
    size = size_text(need.total)
    assert f"({size} of {size} must stay in memory)" in sentences(about(plan))[1]
    with pytest.raises(OutOfMemoryError, match=f"{need.total} bytes"):
        prepare(model, n_ctx=128, memory={"cpu": need.total - 1})
    plan = prepare(model, n_ctx=128, memory={"cpu": need.total - 1}, must_fit=False)
    text = sentences(about(plan))[1]
    assert text.startswith("Does not fit") and f"; {size} must fit into CPU" in text


def test_models_that_draft_need_room_too(model: Model, cache: Path) -> None:
    alone = about(prepare(model, n_ctx=128)).rooms[0]
    beside = prepare(model, n_ctx=64)
    [need] = beside.needs()
    plan = prepare(model, n_ctx=128, beside=[beside])
    [room] = about(plan).rooms
    assert room.parts["drafts"] == need.total and room.bytes == alone.bytes + need.total
    assert (room.mapped, room.scratch) == (alone.mapped + need.weights, SCRATCH)
    assert "drafts" in "".join(overview_lines(about(plan)))


def test_a_file_larger_than_memory_fits_where_it_is_mapped() -> None:
    room = Room("CPU", ("cpu",), {"weights": 40 << 30, "cache": 1 << 30}, 40 << 30, 2 << 30, ())
    said = Overview("m", 40 << 30, 64, 3, True, (room,), (), None)
    assert needs_text(said).startswith(
        "Fits: needs 41.00 GiB (1.00 GiB of 2.00 GiB must stay in memory) with"
    )
    assert "GiB of" not in overview_lines(said, 80)[-2]


def test_each_device_has_its_layers(model: Model, cache: Path) -> None:
    plan = prepare(model, n_ctx=64, devices=["reference", "cpu"], n_gpu_layers=2)
    said = about(plan)
    last = said.runs[0]
    assert {w.device: w.layers for w in last.workers} == {
        "reference": 2, "cpu": said.n_layers - 2
    }  # fmt: skip
    total = sum(len(s.steps) for s in lower_plan(plan.plan).splits)
    text = sentences(said)[2]
    assert f"(2 of {said.n_layers} layers, " in text and f": {total} ops in " in text
    assert "between devices" in text
    assert {room.memory for room in said.rooms} == {"Reference", "CPU"}


def test_speeds_that_were_measured_or_calibrated_here_are_found(model: Model, cache: Path) -> None:
    plan = prepare(model, n_ctx=64)
    profile = load_profile("desktop-rtx4090")
    kept_profile().write_text(replace(profile, name="another machine").to_toml())
    assert about(plan).speed is None
    kept_profile().write_text(replace(profile, name=machine_name()).to_toml())
    calibrated = about(plan).speed
    assert calibrated is not None and "`weft calibrate` measured here" in calibrated.how
    tuned = Tuned(speeds={"pp512": 700.4, "tg128": 42.0}, date="2026-01-02")
    remember(model.file, "demo", tuned, {})
    measured = about(plan).speed
    how = "as `weft bench` measured here on 2026-01-02"
    assert measured == Speed(700.4, 42.0, None, how)
    assert sentences(about(plan))[3] == (
        f"Speed: about 42 tokens/s for answers and 700 tokens/s for prompts, {how}."
    )
    for speeds, said in (
        ({"pp64": 173.0}, "about 173 tokens/s for prompts, {}; answers were not measured."),
        ({"tg16": 42.0}, "about 42 tokens/s for answers, {}; prompts were not measured."),
    ):
        remember(model.file, "demo", replace(tuned, speeds=speeds), {})
        assert sentences(about(plan))[3] == "Speed: " + said.format(how)
    # other types of cached values, and other numbers of threads, have other speeds
    fewer = about(prepare(model, n_ctx=64, n_threads=77)).speed
    assert fewer is not None and fewer.how == calibrated.how
    other = about(prepare(model, n_ctx=64, type_k="q8_0", type_v="q8_0")).speed
    assert other is not None and other.how == calibrated.how
    kept_profile().write_text("damaged")
    assert about(prepare(model, n_ctx=64, type_k="q8_0", type_v="q8_0")).speed is None


def test_a_model_that_writes_nothing_has_no_speed_of_answers(
    model: Model, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tuned = Tuned(speeds={"pp512": 700.4, "tg128": 42.0}, date="2026-01-02")
    remember(model.file, "demo", tuned, {})
    plan = prepare(model, n_ctx=64)
    monkeypatch.setattr(Model, "writes", property(lambda _: False))
    said = about(plan)
    assert said.speed is not None and said.speed.answer is None
    assert sentences(said)[3].startswith("Speed: about 700 tokens/s for texts, as `weft bench`")
    remember(model.file, "demo", replace(tuned, speeds={"tg128": 42.0}), {})
    assert about(plan).speed is None


@pytest.mark.parametrize(
    ("parts", "limit", "expected"),
    [
        ({"weights": 6, "cache": 2}, 10, "█" * 12 + "▓" * 4 + "·" * 4),
        ({"weights": 6, "cache": 2}, 8, "█" * 15 + "▓" * 5),
        ({"weights": 6, "cache": 2}, None, "█" * 15 + "▓" * 5),
        ({"weights": 6, "cache": 2}, 4, "█" * 15 + "▓" * 5),
        ({"weights": 1, "compute": 1}, 1000, "█" * 8 + "▒" * 7 + "·⋯⋯··"),
        ({"weights": 10**9, "cache": 1}, 10**9 + 1, "█" * 19 + "▓"),
        ({"cache": 1, "compute": 10**9}, 10**9 + 1, "▓" + "▒" * 19),
    ],
)
def test_a_bar_is_to_scale_and_each_part_is_seen(
    parts: dict[str, int], limit: int | None, expected: str
) -> None:
    assert bar_text(Room("CPU", ("cpu",), parts, 0, limit, ("CPU",)), 20) == expected


def test_mapped_weights_need_no_room_of_their_own() -> None:
    room = Room("CPU", ("cpu",), {"weights": 900, "cache": 100}, 900, 100, ("CPU",))
    assert room.fits and bar_text(room, 20) == "█" * 18 + "▓" * 2
    assert not replace(room, mapped=899).fits


@pytest.mark.parametrize("width", [40, 80, 160])
def test_bars_fit_the_screen(model: Model, cache: Path, width: int) -> None:
    said = about(prepare(model, n_ctx=64, devices=["reference", "cpu"], n_gpu_layers=2))
    bars = overview_lines(said, width)[5:]
    assert len(bars) >= 4 and max(map(len, bars)) <= width


@pytest.mark.parametrize(
    ("speed", "text"),
    [(0.4217, "0.422"), (17.26, "17.3"), (99.97, "100"), (2149.6, "2,150"), (104_321, "104,000")],
)
def test_speeds_have_three_digits(speed: float, text: str) -> None:
    assert speed_text(speed) == text


# ---- the listing ---------------------------------------------------------------------------------


@pytest.mark.parametrize("devices", [["cpu"], ["reference", "cpu"]])
def test_every_node_of_the_listing_has_a_device_and_a_cause(
    model: Model, devices: list[str]
) -> None:
    n = None if len(devices) == 1 else 2
    schedule = prepare(model, n_ctx=64, devices=devices, n_gpu_layers=n).plan.schedule
    assert schedule.added
    text = listing(schedule)
    assert not re.search(r" -:|\[- |-\]", text)
    for node, reader in schedule.added.items():
        assert re.search(rf"{re.escape(node.name)} .* cpu opt: ", text)
        assert node in reader.src
        said = schedule.why(node.name)
        assert f"because (opt) its device adds it for {reader.name}" in said


def test_causes_of_added_nodes_and_copies_are_in_the_table(model: Model) -> None:
    schedule = prepare(model, n_ctx=64, devices=["reference", "cpu"], n_gpu_layers=2)
    table = regime_data(schedule.plan)["tensors"]
    nodes = [i for i, kind in enumerate(table["kind"]) if kind in ("node", "copy")]
    assert all(table["cause"][i] and table["why"][i] for i in nodes)
    copies = {table["cause"][i] for i in nodes if table["kind"][i] == "copy"}
    assert copies == {"4.cpy"} and "opt" in {table["cause"][i] for i in nodes}
