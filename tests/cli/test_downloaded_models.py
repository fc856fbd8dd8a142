"""`weft pull`, `list` and `rm` over weft's cache and that of huggingface_hub."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cli.in_process import weft
from weft.flags import FLAGS

huggingface_hub = pytest.importorskip("huggingface_hub")


def set_cache(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    flags = replace(FLAGS, cache=str(folder))
    monkeypatch.setattr("weft.llm.cached_models.FLAGS", flags)
    monkeypatch.setattr("weft.cli.modelfile.FLAGS", flags)


@pytest.fixture
def caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package and two repositories, one of which has two GGUF files that share nothing."""
    set_cache(monkeypatch, tmp_path / "weft")
    package = tmp_path / "weft/packages/some-model"
    (package / "files").mkdir(parents=True)
    (package / "version").write_text("1.0")
    (package / "files/m.gguf").write_bytes(b"x" * 2048)
    hub = tmp_path / "hub"
    for repo, files in (("models--own--m-GGUF", ("a-Q4_0.gguf", "a-Q8_0.gguf")),
                        ("models--own--folder", ("config.json", "model.safetensors"))):  # fmt: skip
        snapshot = hub / repo / "snapshots/abc"
        (hub / repo / "blobs").mkdir(parents=True)
        (hub / repo / "refs").mkdir()
        (hub / repo / "refs/main").write_text("abc")
        snapshot.mkdir(parents=True)
        for number, name in enumerate(files):
            blob = hub / repo / "blobs" / f"{repo}{number}"
            blob.write_bytes(b"y" * 1024)
            (snapshot / name).symlink_to(blob)
    scan = huggingface_hub.scan_cache_dir
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: scan(hub))
    return tmp_path


def names() -> list[str]:
    return [row["name"] for row in json.loads(weft("list", "--json").stdout)]


ALL = ["hf:own/folder", "hf:own/m-GGUF/a-Q4_0.gguf", "hf:own/m-GGUF/a-Q8_0.gguf", "pypi:some-model"]


@pytest.mark.usefixtures("caches")
def test_what_was_downloaded_is_listed() -> None:
    assert names() == ALL
    lines = weft("list").stdout.splitlines()
    assert lines[0].split() == ["name", "size", "used"]
    assert "hf:own/m-GGUF/a-Q4_0.gguf  1.00 KiB" in lines[2] and "2.00 KiB" in lines[4]


@pytest.mark.parametrize(
    ("name", "gone"),
    [
        ("pypi:some-model", ALL[3:]),
        ("hf:own/m-GGUF/a-Q8_0.gguf", ALL[2:3]),
        ("hf:own/m-GGUF:q4_0", ALL[1:2]),
        ("hf:own/m-GGUF", ALL[1:3]),
        ("hf:own/folder", ALL[:1]),
    ],
)
def test_a_model_is_removed_with_its_contents(caches: Path, name: str, gone: list[str]) -> None:
    before = sum(1 for p in caches.rglob("blobs/*"))
    done = weft("rm", name)
    assert done.returncode == 0 and all(f"{n} is removed" in done.stderr for n in gone)
    assert names() == [n for n in ALL if n not in gone]
    blobs = sum(2 if n == "hf:own/folder" else n != "pypi:some-model" for n in gone)
    assert sum(1 for p in caches.rglob("blobs/*")) == before - blobs


@pytest.mark.usefixtures("caches")
def test_contents_that_others_share_stay(caches: Path) -> None:
    repo = caches / "hub/models--own--m-GGUF"
    other = repo / "snapshots/def"
    other.mkdir()
    (other / "b.gguf").symlink_to((repo / "snapshots/abc/a-Q4_0.gguf").resolve())
    assert weft("rm", "hf:own/m-GGUF/a-Q4_0.gguf").returncode == 0
    assert (other / "b.gguf").read_bytes() == b"y" * 1024


@pytest.mark.usefixtures("caches")
def test_nothing_else_is_removed(caches: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = caches / "mine.gguf"
    file.write_text("mine")
    for name in (
        str(file),
        "pypi:other",
        "hf:own/none",
        "pypi:../weft",
        "pypi:",
        "hf:own/m-GGUF:q9",
    ):
        refused = weft("rm", name)
        assert refused.returncode == 1 and refused.stderr.startswith("error: "), name
    assert names() == ALL and file.exists()
    set_cache(monkeypatch, caches / "empty")
    monkeypatch.setattr(huggingface_hub, "scan_cache_dir", lambda: 1 / 0)
    assert "no model was downloaded yet" in weft("list").stderr


def test_pulled_models_print_their_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    file = tmp_path / "m.gguf"
    file.touch()
    monkeypatch.setattr("weft.llm.hub.local_path", lambda name: asked.append(name) or file)
    done = weft("pull", "hf:a/b:Q8_0", "pypi:c")
    assert done.stdout == f"{file}\n{file}\n" and asked == ["hf:a/b:Q8_0", "pypi:c"]
    assert "there is nothing to fetch" in weft("pull", file).stderr
