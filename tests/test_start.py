"""What starts quickly imports little; Ctrl-C while it starts is quiet."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import pytest

import weft
from weft.cli.app import COMMANDS
from weft.cli.mistakes import exit_code

MODEL = Path(__file__).parent / "data" / "vectors" / "models" / "archs" / "llama3.gguf"


def modules_after(code: str) -> set[str]:
    process = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*sys.modules, file=sys.stderr)"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(process.stderr.split())


def test_import_weft_imports_nothing_else() -> None:
    loaded = modules_after("import weft")
    assert "numpy" not in loaded
    assert {m for m in loaded if m.startswith("weft.")} == {"weft.lazy"}


def test_a_model_takes_what_generating_needs_alone() -> None:
    loaded = modules_after("import gc, weft\nweft.LLM\nassert gc.isenabled()")
    assert "weft.llm.llm" in loaded
    packages = {"importlib.metadata", "concurrent.futures", "logging", "rich", "typer", "pydantic"}
    packages |= {"jinja2", "tokenizers", "sentencepiece"}
    assert not packages & loaded
    assert not {"weft.execute.scheduler", "weft.llm.engine.engine", "weft.llm.chat.jinja"} & loaded


@pytest.mark.parametrize("argument", ["--version", "--help"])
def test_version_and_help_import_no_command(argument: str) -> None:
    code = (
        f"import sys\nsys.argv = ['weft', {argument!r}]\n"
        "from weft.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass"
    )
    loaded = modules_after(code)
    assert "numpy" not in loaded and "weft.llm.llm" not in loaded
    assert not {f"weft.cli.{name}" for name in COMMANDS} & loaded


def test_inspect_loads_neither_kernels_nor_models() -> None:
    code = (
        f"import sys\nsys.argv = ['weft', 'inspect', {str(MODEL)!r}]\n"
        "from weft.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass"
    )
    loaded = modules_after(code)
    assert "weft.frontends.gguf.reader" in loaded
    assert not {"weft._native", "weft.llm.llm", "weft.graph", "weft.execute", "jinja2"} & loaded


def test_a_text_in_a_pipe_takes_what_it_needs_alone() -> None:
    code = (
        f"import sys\nsys.argv = ['weft', 'run', {str(MODEL)!r}, '-p', 'hello', '-n', '1']\n"
        "from weft.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass"
    )
    loaded = modules_after(code)
    assert "weft.llm.engine.writer" in loaded
    unused = {"rich", "tomllib", "weft.frontends.hf", "weft.cli.dump", "weft.llm.adapter_files"}
    unused |= {"weft.llm.vision", "weft.llm.audio", "weft.llm.multimodal"}
    assert not unused & loaded


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_says_what_the_command_says(name: str) -> None:
    command = getattr(import_module(f"weft.cli.{name}"), name)
    about = inspect.getdoc(command)
    assert about is not None and about.split("\n\n")[0].startswith(COMMANDS[name].rstrip("."))


def test_public_names_are_the_modules_own() -> None:
    # two names of builtins are there, but a star imports neither
    assert dir(weft) == sorted([*weft.__all__, "compile", "input"])
    for name in weft.__all__:
        value = getattr(weft, name)
        assert value is getattr(weft, name)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        weft.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_everything_is_imported_by_a_star_without_torch() -> None:
    code = (
        "import sys\nsys.modules['torch'] = None\n"
        "from weft import *\n"
        "assert LLM and Session\nassert compile.__module__ == input.__module__ == 'builtins'\n"
        "try:\n    from_torch(None)\n"
        "except ImportError as error:\n    assert 'weft[torch]' in str(error)\n"
        "else:\n    raise AssertionError"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_package_of_the_compiler_hides_nothing() -> None:
    code = (
        "import weft.compiler.pipeline as p, weft\n"
        "assert callable(weft.compile) and p.compile is weft.compile"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_command_imports_nothing_before_it_takes_ctrl_c() -> None:
    src = str(Path(weft.__file__).parents[1])
    code = (
        f"import sys; sys.path.insert(0, {src!r}); from weft.cli import main; print(*sys.modules)"
    )
    command = [sys.executable, "-S", "-c", code]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert "weft.cli" in said.split()
    assert not {"typing", "collections", "functools", "importlib", "enum"} & set(said.split())


def test_ctrl_c_within_a_class_is_quiet(capsys: pytest.CaptureFixture[str]) -> None:
    """Before Python 3.12 an exception in `__set_name__` is the cause of a RuntimeError."""

    def command() -> int:
        raise RuntimeError("Error calling __set_name__") from KeyboardInterrupt()

    assert exit_code(command) == 130 and capsys.readouterr().err.strip() == "interrupted"


@pytest.mark.parametrize("delay", [0.03, 0.06, 0.1, 0.15, 0.2, 0.3, 0.4])
def test_ctrl_c_while_it_starts_is_quiet(delay: float) -> None:
    """There is no traceback at any point of the start."""
    code = (
        "import sys, signal\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from weft.cli import main\n"
        f"sys.argv = ['weft', 'run', {str(MODEL)!r}, '-p', 'hello', '-n', '-1', '-q',\n"
        "            '--ignore-eos', '--context-shift']\n"  # a text without an end
        "print('started', flush=True)\n"
        "main()\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONUNBUFFERED": "1"},
    )  # fmt: skip
    assert process.stdout is not None and process.stdout.readline() == "started\n"
    time.sleep(delay)  # to the point of the start at which the signal comes
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert "Traceback" not in said and "Error" not in said
    assert process.returncode == 130
