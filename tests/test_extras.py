"""Errors that name an extra: one function says how it is installed."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from weft.backends import registry
from weft.errors import DeviceError
from weft.extras import how_to_install

ROOT = Path(__file__).resolve().parent.parent
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"][
    "optional-dependencies"
]


def test_a_hint_has_quotes_and_the_form_of_a_checkout() -> None:
    assert how_to_install("gpu") == (
        "install it with `pip install 'weft[gpu]'` (in a checkout: `pip install '.[gpu]'`)"
    )
    assert how_to_install("torch", "transformers") == (
        "install it with `pip install 'weft[torch]' transformers` "
        "(in a checkout: `pip install '.[torch]' transformers`)"
    )


def test_every_hint_comes_from_the_function_and_names_an_extra_that_there_is() -> None:
    named = set()
    for file in (ROOT / "src").rglob("*.py"):
        text = file.read_text("utf-8")
        if file.name != "extras.py":
            assert not re.search(r"pip install ['\"]?(weft|\.)\[", text), file
        for words in re.findall(r"how_to_install\(([^)]*)\)", text):
            named.update(re.findall(r"[\"'](\w+)[\"']", words))
    assert named - set(EXTRAS) == {"transformers"} and len(named) > 10


def test_pages_say_how_to_install_an_extra_in_one_way() -> None:
    """No index has weft yet: commands are those of a checkout, and name extras that there are."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]
    for folder in ("docs", "examples", "executorch", "benchmarks"):
        kinds = {".md", ".sh", ".service", ".yaml", ".yml", ""}
        found = (ROOT / folder).rglob("*")
        pages += [path for path in found if path.suffix in kinds and path.is_file()]
    wrong, named = [], set()
    for page in pages:
        for words in re.findall(r"\bpip\s+install\s+([^\n`;&#]+)", page.read_text("utf-8")):
            if re.search(r"(^|\s)['\"]?weft\b(?!-)", words):
                wrong.append(f"{page.relative_to(ROOT)}: pip install {words}")
            named.update(re.findall(r"['\"]\.\[([\w,]+)\]['\"]", words))
    assert not wrong, "\n".join([*wrong, "write `pip install '.[EXTRA]'` in a checkout"])
    extras = {extra for names in named for extra in names.split(",")}
    assert len(extras) > 10 and extras <= set(EXTRAS)


@pytest.mark.parametrize(
    ("backend", "extra"), [("blas", "blas"), ("webgpu", "gpu"), ("remote", "machines")]
)
def test_a_backend_names_its_extra(
    monkeypatch: pytest.MonkeyPatch, backend: str, extra: str
) -> None:
    def lacking(target: str) -> None:
        raise ModuleNotFoundError("no module", name="something")

    monkeypatch.setattr(registry, "import_module", lacking)
    with pytest.raises(DeviceError) as raised:
        registry.make_backend(backend)
    assert str(raised.value).endswith(how_to_install(extra)) and extra in EXTRAS
