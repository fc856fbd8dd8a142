"""`Session.tasks` and `Context.tasks`: stages, shares and work memory of the last run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import weft
from weft import graph as g
from weft.execute import StepTasks, Tasks

DEMO = Path(__file__).parents[2] / "examples/weft-demo.gguf"


def ran(y: weft.Tensor, shape: tuple[int, int], n_threads: int = 3, **options: object) -> Tasks:
    graph = weft.Graph(y.as_output("y"))
    session = weft.Session(weft.compile(graph, n_threads=n_threads, **options))  # type: ignore[arg-type]
    session.run(np.ones(shape, np.float32))
    tasks = session.tasks()
    assert tasks.waits == session.barriers
    return tasks


def sum_of(n: int, x: weft.Tensor) -> weft.Tensor:
    return g.mul_mat(weft.constant(np.ones((n, x.ne[0]), np.float32), "w"), x)  # type: ignore[arg-type]


def test_little_work_is_done_by_one_thread() -> None:
    tasks = ran(g.relu(weft.input("x", (4, 8))), (4, 8))
    (step,) = tasks.steps
    assert (step.op, step.name, step.threads, tasks.waits) == ("UNARY", "y", 1, 0)


@pytest.mark.parametrize("n_threads", [1, 2, 3, 5])
def test_much_work_is_shared_out(n_threads: int) -> None:
    x = weft.input("x", (2, 2048))
    tasks = ran(sum_of(2048, x), (2, 2048), n_threads, activations="f32")
    (step,) = tasks.steps
    assert step.units == 2048 // 32 and step.threads == n_threads
    assert step.least <= step.at_once <= max(step.least, step.units // n_threads)
    assert step.at_once % step.least == 0


def test_rows_of_two_ops_are_one_loop() -> None:
    x = weft.input("x", (512, 1024))
    steps = ran(g.rms_norm(g.relu(x * 2.0), 1e-6), (512, 1024), rewrites=[]).steps
    assert [step.joined for step in steps] == [False, True, True]
    assert len({step.stage for step in steps}) == 1


def test_stages_follow_what_is_read() -> None:
    x = weft.input("x", (64, 256))
    a, b = sum_of(256, x), sum_of(256, x)
    steps = {step.name: step for step in ran(sum_of(32, g.soft_max(a + b)), (64, 256)).steps}
    first, last = steps[a.name], steps["y"]
    assert first.stage == steps[b.name].stage < last.stage
    assert {step.split for step in steps.values()} == {0}


def test_work_memory_has_room_for_every_thread() -> None:
    """Cache lines of its own for each thread, and what they share."""
    x = weft.input("x", (64, 2048))
    alone, four = (ran(sum_of(512, x), (64, 2048), n) for n in (1, 4))
    for n, tasks in ((1, alone), (4, four)):
        scratch = max(-(-step.scratch // 64) * 64 for step in tasks.steps)
        shared = max(step.shared for step in tasks.steps)
        assert n * scratch <= tasks.work_bytes <= n * scratch + shared + 128
        assert any(step.prepares for step in tasks.steps) == (shared > 0)


def test_other_devices_have_no_tasks() -> None:
    graph = weft.Graph(g.relu(weft.input("x", (4, 8))).as_output("y"))
    session = weft.Session(weft.compile(graph, ["reference"]))
    session.run(np.ones((4, 8), np.float32))
    assert session.tasks() == Tasks((), 0, 0)
    assert str(session.tasks()) == "no step ran on the threads of the cpu"


def test_the_tasks_of_a_model() -> None:
    with weft.LLM(DEMO, n_threads=2) as llm:
        llm.generate("Once", max_tokens=2)
        tasks = llm.context.tasks()
        assert tasks.waits == llm.context.barriers
    products = [step for step in tasks.steps if step.op == "MUL_MAT"]
    assert products and all(step.units and step.threads in (1, 2) for step in products)
    text = str(tasks).splitlines()
    assert len(text) == len(tasks.steps) + 2 and len({len(line) for line in text[1:]}) == 1


def test_a_row_of_text() -> None:
    step = StepTasks("y", "ADD", 0, 12, False, 1000, 8, 16, 4, 0, 64, 0)
    other = StepTasks("z", "UNARY", 0, 12, True, 1000, 8, 16, 4, 0, 64, 0)
    lines = str(Tasks((step, other), 1, 4096)).splitlines()
    assert lines[0] == "threads waited 1 time; 4,096 B of work memory"
    assert lines[2].split() == ["12", "ADD", "y", "1,000", "8", "16", "4", "64"]
    assert lines[3].split()[0] == "+"
    assert "prepares" not in lines[1] and "shared" not in lines[1]
    tables = StepTasks("y", "MUL_MAT", 0, 1, False, 16, 1, 1, 4, 2, 64, 128)
    lines = str(Tasks((step, tables), 1, 4096)).splitlines()
    assert lines[1].split()[-3:] == ["prepares", "scratch", "shared"]
    assert lines[2].split()[-3:] == ["0", "64", "0"] and lines[3].split()[-3:] == ["2", "64", "128"]
