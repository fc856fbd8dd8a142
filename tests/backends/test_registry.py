"""Finding backends by name."""

import sys
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import weft
from weft.backends import BackendBase, BackendInfo, known_backends, make_backend, registry
from weft.backends.reference import ReferenceBackend
from weft.errors import ArgumentError, DeviceError, ScheduleError
from weft.graph.tensor import Tensor
from weft.llm import Context, Model


@pytest.fixture
def third_party(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A backend `lab` as another distribution would announce it."""
    module = ModuleType("lab_backend")
    module.describe = lambda: [
        BackendInfo("lab:0", True, "", "first"),
        BackendInfo("lab:1", False, "busy", "second"),
    ]
    module.make = lambda suffix, **options: (suffix, options)
    monkeypatch.setitem(sys.modules, "lab_backend", module)
    announce(monkeypatch, "lab", "lab_backend")
    return module


def announce(monkeypatch: pytest.MonkeyPatch, name: str, target: str) -> None:
    class Entry:
        pass

    entry = Entry()
    entry.name, entry.module = name, target
    monkeypatch.setattr(
        registry, "entry_points", lambda group: [entry] if group == "weft.backends" else []
    )


def test_makes_a_backend_of_the_package() -> None:
    backend = make_backend("reference")
    assert isinstance(backend, ReferenceBackend)
    assert backend.name == "reference" and backend.kind == "CPU"


def test_suffix_and_options_reach_the_module(third_party: ModuleType) -> None:
    assert make_backend("lab:1", threads=3) == ("1", {"threads": 3})
    assert make_backend("lab") == (None, {})


def test_lists_every_device(third_party: ModuleType) -> None:
    devices = {info.name: info for info in known_backends()}
    assert devices["reference"].available and devices["reference"].why_not == ""
    assert devices["lab:1"] == BackendInfo("lab:1", False, "busy", "second")


def test_a_name_of_the_package_stays_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, "reference", "a_module_that_is_not_there")
    assert isinstance(make_backend("reference"), ReferenceBackend)
    (info,) = [i for i in known_backends() if i.name == "reference"]
    assert info.available


def test_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(DeviceError, match=r"unknown backend 'tpu'; known backends: .*reference"):
        make_backend("tpu:0")


def test_a_colon_without_a_number() -> None:
    with pytest.raises(DeviceError, match="ends in a colon"):
        make_backend("reference:")


@pytest.mark.parametrize(("spec", "options"), [("reference:1", {}), ("reference", {"n": 1})])
def test_reference_takes_no_number_and_no_options(spec: str, options: dict[str, int]) -> None:
    with pytest.raises((ArgumentError, DeviceError), match="reference"):
        make_backend(spec, **options)


def test_a_missing_dependency_names_the_extra(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "needs_more.py").write_text("import a_package_that_is_not_there\n")
    monkeypatch.syspath_prepend(tmp_path)
    announce(monkeypatch, "fancy", "needs_more")
    message = "needs the Python package 'a_package_that_is_not_there'.*`pip install a_package_that"
    with pytest.raises(DeviceError, match=message):
        make_backend("fancy")
    with monkeypatch.context() as patch, pytest.raises(DeviceError, match=r"`pip install 'weft\[b"):
        patch.setattr(registry, "import_module", lambda target: import_module("needs_more"))
        make_backend("blas")
    (info,) = [i for i in known_backends() if i.name == "fancy"]
    assert not info.available and "pip install" in info.why_not


BROKEN = {
    "import": ("raise RuntimeError('boom')", "cannot be loaded: RuntimeError"),
    "syntax": ("def def", "cannot be loaded: SyntaxError"),
    "describe": ("def describe(): 1 / 0\ndef make(suffix): 1 / 0", "what devices there are: Zero"),
    "none": (
        "def describe(): return None\ndef make(suffix): return None",
        "devices there are: Type",
    ),
}


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_package_breaks_itself_only(
    what: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    text, why = BROKEN[what]
    (tmp_path / f"broken_{what}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    announce(monkeypatch, "broken", f"broken_{what}")
    devices = {info.name: info for info in known_backends()}
    assert devices["reference"].available and not devices["broken"].available
    assert why in devices["broken"].why_not and f"broken_{what}" in devices["broken"].why_not
    with pytest.raises(DeviceError, match=f"backend 'broken'.*broken_{what}"):
        make_backend("broken")


def test_a_question_that_fails_names_device_and_node() -> None:
    class Odd(BackendBase):
        name = "odd"

        def why_not(self, node: Tensor) -> str | None:
            raise KeyError("f8")

    x = weft.input("x", (4,))
    with pytest.raises(DeviceError, match=r"odd: why_not of SQR y: KeyError\('f8'\)"):
        Odd().supports_op(weft.graph.sqr(x).named("y"))


def test_a_module_that_was_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, "ghost", "weft.backends.ghost")
    with pytest.raises(DeviceError, match="'ghost' is not part of this build"):
        make_backend("ghost")


def test_a_module_that_is_no_backend(monkeypatch: pytest.MonkeyPatch) -> None:
    announce(monkeypatch, "odd", "weft.backends.base")
    with pytest.raises(DeviceError, match=r"has no function describe\(\)"):
        make_backend("odd")


@pytest.mark.parametrize(
    ("text", "names"),
    [("gpu, cpu", ["gpu", "cpu"]), ("CUDA0,cpu", ["cuda:0", "cpu"]), ("none", ["cpu"])],
)
def test_a_list_of_devices_may_be_text(text: str, names: list[str]) -> None:
    assert registry.device_list(text) == names
    assert registry.device_list(names) is names


@pytest.mark.parametrize(
    ("text", "said"), [(" ,", "names no device"), ("Metal", "no device Metal")]
)
def test_a_text_that_names_no_device(text: str, said: str) -> None:
    with pytest.raises(ScheduleError, match=said):
        weft.LLM("examples/weft-demo.gguf", devices=text)


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ([], "list of devices is empty; name one"),
        (3, r"devices is 3; give a list such as \["),
        (["cpu", None], r"a device is None; give names or backends"),
    ],
)
def test_what_is_no_list_of_devices(devices: Any, said: str) -> None:
    """Every object that takes a list refuses it when it is made."""
    graph = weft.Graph(weft.graph.sqrt(weft.input("x", (4,))).as_output("y"))
    torch = pytest.importorskip("torch")
    path = "examples/weft-demo.gguf"
    for make in (
        lambda: weft.compile(graph, devices),
        lambda: weft.Scheduler(devices),
        lambda: weft.LLM(path, devices=devices),
        lambda: Context(Model.open(path), 32, devices=devices),
        lambda: weft.from_torch(torch.nn.Linear(2, 2), torch.zeros(1, 2), devices=devices),
    ):
        with pytest.raises(ScheduleError, match=said):
            make()


def test_devices_as_text_reach_a_model() -> None:
    with weft.LLM("examples/weft-demo.gguf", devices="reference,cpu", n_ctx=64) as llm:
        assert [b.name for b in llm.context.plan.backends] == ["reference", "cpu"]


def test_warnings_name_the_line_that_called_weft() -> None:
    with pytest.warns(UserWarning, match="was trained for") as warned:
        weft.LLM("examples/weft-demo.gguf", n_ctx=512).close()
    assert {warning.filename for warning in warned} == {__file__}


def test_the_fallback_may_be_text() -> None:
    with pytest.warns(RuntimeWarning, match="going on with cpu"):
        llm = weft.LLM("examples/weft-demo.gguf", devices="webgpu:99", fallback="cpu", n_ctx=64)
    with llm:
        assert [backend.name for backend in llm.context.plan.backends] == ["cpu"]
    with pytest.raises(DeviceError, match="unknown backend 'nothing'"):
        weft.LLM("examples/weft-demo.gguf", fallback="nothing,cpu")
