"""The bill of materials of a wheel names every work of others, and its licences are there."""

from __future__ import annotations

import json
from importlib.metadata import distribution
from pathlib import Path

import pytest

from release import sbom as module
from release.errors import ReleaseError
from release.sbom import PAGE, components, inside, sbom

ROOT = Path(__file__).resolve().parent.parent


def test_every_library_of_the_page_is_listed_with_its_licence() -> None:
    parts = components(ROOT)
    files = {part.file for part in parts if part.file}
    assert files == {path.relative_to(ROOT) for path in (ROOT / PAGE).glob("*.js")}
    licences = {path for part in parts for path in part.licences}
    there = [*(ROOT / "licenses").iterdir(), *(ROOT / PAGE).glob("*.LICENSE*")]
    assert licences == {path.relative_to(ROOT) for path in there}
    for part in parts:
        if part.file:
            assert part.version in (ROOT / part.file).read_text("utf-8"), part.file


def test_the_licence_of_nanobind_is_that_of_the_version_that_is_built_with() -> None:
    files = distribution("nanobind").files or []
    (found,) = [file for file in files if file.name == "LICENSE"]
    assert (ROOT / "licenses/nanobind.LICENSE").read_text("utf-8") == found.read_text("utf-8")


def test_the_delegate_has_the_same_licences_and_two_more() -> None:
    folder = ROOT / "executorch"
    assert (folder / "LICENSE").read_bytes() == (ROOT / "LICENSE").read_bytes()
    copies = {path.name: path.read_bytes() for path in (folder / "licenses").iterdir()}
    for name in ("ggml.LICENSE", "ik_llama.cpp.LICENSE", "bitnet.LICENSE"):
        assert copies.pop(name) == (ROOT / "licenses" / name).read_bytes()
    assert set(copies) == {"executorch.LICENSE", "flatbuffers.LICENSE"}
    files = distribution("executorch").files or []
    (found,) = [file for file in files if file.name == "LICENSE" and "dist-info" in str(file)]
    assert copies["executorch.LICENSE"] == found.read_binary()


def test_the_bill_is_cyclonedx_and_the_same_each_time() -> None:
    parts = components(ROOT)
    text = sbom("1.2", parts, ROOT)
    bill = json.loads(text)
    assert text == sbom("1.2", components(ROOT), ROOT)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    assert bill["metadata"]["component"]["purl"] == "pkg:pypi/weft@1.2"
    rows = {row["name"]: row for row in bill["components"]}
    assert rows["nanobind"]["purl"].startswith("pkg:pypi/nanobind@")
    assert rows["@highlightjs/cdn-assets"]["purl"].startswith("pkg:npm/%40highlightjs/cdn-assets@")
    assert {"ggml", "llama.cpp", "ik_llama.cpp", "BitNet"} <= set(rows)
    assert rows["dompurify"]["licenses"] == [{"expression": "Apache-2.0 OR MPL-2.0"}]
    assert len(rows["marked"]["hashes"][0]["content"]) == 64
    assert set(bill["dependencies"][0]["dependsOn"]) == set(rows)


def test_a_wheel_by_zig_has_the_licence_of_its_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(module, "version", lambda name: "0.17.1")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(ReleaseError, match="ziglang is missing"):
        inside(ROOT)

    class Spec:
        origin = str(tmp_path / "__init__.py")

    monkeypatch.setattr(module, "find_spec", lambda name: Spec)
    with pytest.raises(ReleaseError, match=r"LICENSE\.TXT is missing"):
        inside(ROOT)
    (tmp_path / "lib/libcxx").mkdir(parents=True)
    (tmp_path / "lib/libcxx/LICENSE.TXT").write_text("LLVM")
    files = inside(ROOT)
    assert files["licenses/libcxx.LICENSE"] == b"LLVM"
    names = [part["name"] for part in json.loads(files["sboms/weft.cdx.json"])["components"]]
    assert "libcxx" in names and "nanobind" in names


def test_a_licence_that_is_not_known_is_refused(tmp_path: Path) -> None:
    (tmp_path / PAGE).mkdir(parents=True)
    row = "| `x.js` | x (`lib/`) | 1.0 | GPL, `x.LICENSE` | does x |\n"
    (tmp_path / PAGE / "README.md").write_text(row)
    with pytest.raises(ReleaseError, match="the licence 'GPL' of x is unknown"):
        components(tmp_path)
