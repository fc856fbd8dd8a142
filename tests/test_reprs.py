"""How objects show themselves: short reprs, explanations, HTML in notebooks, helpful errors."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import weft
from tests.cli.in_process import weft as command
from tests.llm.tiny import write_model
from weft import graph as g
from weft.errors import GraphError, ProgramError, ScheduleError


def graph() -> weft.Graph:
    x = weft.input("x", (weft.Sym("n", 1, 64), 32))
    w = weft.constant(np.ones((8, 32), np.float32), "w")
    return weft.Graph(g.soft_max(g.mul_mat(w, x)).as_output("y"))


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> weft.LLM:
    path = write_model(tmp_path_factory.mktemp("model") / "m.gguf")
    return weft.LLM(path, n_threads=1)


def test_short_reprs(llm: weft.LLM) -> None:
    program = weft.compile(graph())
    y = graph().outputs["y"]
    shown = "x f32 (n, 32) -> y f32 (n, 8)"
    assert repr(y) == "<Tensor y: f32 (n, 8) SOFT_MAX>"
    assert repr(graph()) == f"<Graph {shown}; 2 nodes, 2 leaves>"
    assert repr(program) == f"<Program {shown}; 2 ops: cpu 2>"
    assert repr(weft.Session(program)) == f"<Session {shown}; 2 ops: cpu 2>"
    assert re.fullmatch(
        r"<LLM m\.gguf: llama, \d layers of 16, \d+ tokens; 64 tokens of context on cpu>",
        repr(llm),
    )
    assert repr(llm.model).startswith("<Model m.gguf: llama, ")
    assert re.fullmatch(
        r"<Context of m\.gguf: \d+ of 64 cells used, 16 sequences, on cpu>", repr(llm.context)
    )


def test_a_closed_model_shows_itself(tmp_path: Path) -> None:
    with weft.LLM(write_model(tmp_path / "m.gguf"), devices=["reference"]) as model:
        pass
    assert repr(model) == "<LLM, closed>"
    assert model._repr_html_() == "&lt;LLM, closed&gt;"


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_module_shows_itself() -> None:
    torch = pytest.importorskip("torch")
    module = weft.from_torch(torch.nn.Linear(3, 2).eval(), (torch.ones(1, 3),))
    assert repr(module).startswith("<TorchModule input float32 (1, 3) -> ")
    assert " float32 (1, 2); " in repr(module) and "not compiled yet" in repr(module)
    assert "split 0: cpu" in module.explain()
    assert "not compiled yet" not in repr(module)
    assert "<table>" in module._repr_html_()


def test_explanations() -> None:
    program = weft.compile(graph())
    text = program.explain()
    assert "split 0: cpu, nodes 0..1" in text
    assert "a weight is there" not in text and "weight w lives in host memory" in text
    assert weft.Session(program).explain() == text
    assert max(map(len, program.explain(60).splitlines()[3:5])) <= 60
    with pytest.raises(ProgramError, match="made without a plan"):
        weft.Program({}, (), (), (), {}, {}).explain()


def test_a_model_explains_itself_as_the_command_does(llm: weft.LLM) -> None:
    path = str(llm.model.file.path)

    def same(text: str) -> str:
        return re.sub(r"(of|free) [\d.]+ GiB", r"\1", text)  # what is free changes

    whole = command("explain", path, "-t", "1", "-c", "64").stdout
    assert same(llm.explain() + "\n") == same(whole)
    brief = command("explain", path, "-t", "1", "-c", "64", "--brief").stdout
    assert same(llm.explain(brief=True) + "\n") == same(brief)
    assert "split 0: cpu" in brief and "GET_ROWS" not in brief
    with pytest.raises(weft.ContextError, match="batches have 1 to 64 tokens, not 65"):
        llm.explain(tokens=65)


class _Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []
        self.texts: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def test_html_of_notebooks(llm: weft.LLM) -> None:
    x = weft.input("<x>", (4,))
    program = weft.compile(weft.Graph((x + x).as_output("y")))
    for shown in (program, weft.Session(program), llm):
        page = _Tags(shown._repr_html_())
        assert page.seen.count("table") >= 2
        assert "cpu" in page.texts and "memory" in page.texts
    assert "<Program <x> f32 (4) -> y f32 (4); 1 op: cpu 1>" in _Tags(program._repr_html_()).texts


# **** calls that go wrong ****


def test_one_input_needs_no_name() -> None:
    session = weft.Session(weft.compile(graph()))
    x = np.ones((3, 32), np.float32)
    np.testing.assert_array_equal(session.run(x)["y"], session.run({"x": x})["y"])
    a, b = weft.input("a", (2,)), weft.input("b", (2,))
    two = weft.Session(weft.compile(weft.Graph((a + b).as_output("y"))))
    with pytest.raises(ProgramError, match=r"by name, \{'a': \.\.\., 'b': \.\.\.\}; got ndarray"):
        two.run(x)


def test_a_graph_without_outputs_says_what_to_do() -> None:
    x = weft.input("x", (2,))
    with pytest.raises(GraphError, match=r"has no outputs.*e\.g\. node_0\.as_output\('y'\)"):
        weft.compile(weft.Graph(x + x))


@pytest.mark.parametrize("devices", [["reference"], ["cpu"], ["null", "cpu"]])
def test_unknown_options_of_compile(devices: list[str]) -> None:
    with pytest.raises(weft.ArgumentError, match="compile has no option 'nonsense'; it has policy"):
        weft.compile(graph(), devices=devices, nonsense=3)
    with pytest.raises(weft.ArgumentError, match="'rewrite'; did you mean rewrites"):
        weft.compile(graph(), devices=devices, rewrite=())


def test_options_that_no_device_takes() -> None:
    with pytest.raises(weft.ArgumentError, match="no device takes the option n_threads"):
        weft.compile(graph(), devices=["reference"], n_threads=2)
    with pytest.raises(weft.ArgumentError, match="'n_thread'; did you mean n_threads"):
        weft.Scheduler(["cpu"], n_thread=2)


def test_misspelt_choices() -> None:
    for call in (lambda: weft.compile(graph(), memory="bst"),  # type: ignore[arg-type]
                 lambda: weft.Scheduler(["cpu"], memory="bst")):  # type: ignore[arg-type]  # fmt: skip
        with pytest.raises(weft.WeftError, match=r"memory is 'bst'; .*; did you mean 'best'"):
            call()
    with pytest.raises(ScheduleError, match=r"policy is 'ggm'; .*; did you mean 'ggml'"):
        weft.compile(graph(), policy="ggm")  # type: ignore[arg-type]
