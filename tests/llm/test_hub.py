"""Models by name, against a hub that is not there."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from weft.errors import FormatError
from weft.llm.hub import is_hub_name, local_path, pick_file

hub = pytest.importorskip("huggingface_hub")
errors = pytest.importorskip("huggingface_hub.errors")

FILES = [
    "README.md",
    "mmproj-F16.gguf",
    "m-Q8_0.gguf",
    "m-Q4_K.gguf",
    "m-q4_k_m.gguf",
    "IQ4_XS/m-IQ4_XS-00002-of-00002.gguf",
    "IQ4_XS/m-IQ4_XS-00001-of-00002.gguf",
]


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[tuple[str, str]]:
    """A hub with one repository; the files that were asked for."""
    asked: list[tuple[str, str]] = []

    def about(self: object, repo: str, timeout: float) -> SimpleNamespace:
        if repo != "some/m-GGUF":
            raise errors.RepositoryNotFoundError.__new__(errors.RepositoryNotFoundError)
        return SimpleNamespace(siblings=[SimpleNamespace(rfilename=name) for name in FILES])

    def download(repo: str, file: str) -> str:
        asked.append((repo, file))
        if file not in FILES:
            raise errors.EntryNotFoundError("404")
        return str(tmp_path / file)

    def nothing_cached(repo: str, local_files_only: bool) -> str:
        raise errors.LocalEntryNotFoundError("not there")

    monkeypatch.setattr(hub, "snapshot_download", nothing_cached)
    monkeypatch.setattr(hub.HfApi, "model_info", about)
    monkeypatch.setattr(hub, "hf_hub_download", download)
    return asked


def test_paths_stay_as_they_are() -> None:
    assert local_path("a/b.gguf") == Path("a/b.gguf")
    assert not is_hub_name("a:b.gguf") and is_hub_name(Path("hf:a/b"))


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("hf:some/m-GGUF", "m-q4_k_m.gguf"),
        ("hf:some/m-GGUF:q8_0", "m-Q8_0.gguf"),
        ("hf:some/m-GGUF:Q4_K", "m-Q4_K.gguf"),
        ("hf:some/m-GGUF:Q4_K_M", "m-q4_k_m.gguf"),
        ("hf:some/m-GGUF/m-Q4_K.gguf", "m-Q4_K.gguf"),
    ],
)
def test_a_name_becomes_a_file(
    fetched: list[tuple[str, str]], tmp_path: Path, name: str, file: str
) -> None:
    assert local_path(name) == tmp_path / file
    assert fetched == [("some/m-GGUF", file)]


def test_all_shards_are_fetched(fetched: list[tuple[str, str]], tmp_path: Path) -> None:
    assert local_path("hf:some/m-GGUF:iq4_xs") == tmp_path / FILES[-1]
    assert [file for _, file in fetched] == [FILES[-1], FILES[-2]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf:", "write hf:owner/name"),
        ("hf:justname", "write hf:owner/name"),
        ("hf:a/b:c:d", "write hf:owner/name"),
        ("hf:no/such:Q4_0", "there is no repository no/such"),
        ("hf:some/m-GGUF:Q3_K_S", r"no file of it is Q3_K_S; there are IQ4_XS/m-IQ4"),
        ("hf:some/m-GGUF/x.gguf", r"has no file x\.gguf; there are IQ4_XS/m-IQ4"),
    ],
)
def test_names_of_nothing(fetched: list[tuple[str, str]], name: str, message: str) -> None:
    with pytest.raises(FormatError, match=message):
        local_path(name)


def test_without_a_network(
    monkeypatch: pytest.MonkeyPatch, fetched: list[tuple[str, str]], tmp_path: Path
) -> None:
    def offline(self: object, repo: str, timeout: float) -> SimpleNamespace:
        raise errors.OfflineModeIsEnabled("no network")

    def cached(repo: str, local_files_only: bool) -> str:
        if repo != "some/m-GGUF":
            raise errors.LocalEntryNotFoundError("not there")
        return str(tmp_path)

    monkeypatch.setattr(hub.HfApi, "model_info", offline)
    monkeypatch.setattr(hub, "snapshot_download", cached)
    with pytest.raises(
        FormatError, match=r"not cached, and there is no network or HF_HUB_OFFLINE is set"
    ):
        local_path("hf:other/m-GGUF")
    (tmp_path / "m-Q8_0.gguf").touch()
    assert local_path("hf:some/m-GGUF") == tmp_path / "m-Q8_0.gguf"
    # what is cached needs no list
    monkeypatch.setattr(hub.HfApi, "model_info", lambda *_, **__: pytest.fail("asked"))
    assert local_path("hf:some/m-GGUF:q8_0") == tmp_path / "m-Q8_0.gguf"


def test_without_the_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(FormatError, match=r"pip install 'weft\[hub\]'"):
        local_path("hf:some/m-GGUF")


def test_which_file() -> None:
    assert pick_file(["only-Q3_K_S.gguf"], None, "x") == "only-Q3_K_S.gguf"
    assert pick_file(["a-Q4_0.gguf", "a-dotprod-Q4_0.gguf"], "Q4_0", "x") == "a-Q4_0.gguf"
    assert pick_file(["UD-Q4_K_XL.gguf", "a.F16.gguf"], "f16", "x") == "a.F16.gguf"
    assert pick_file(["Q8_0/m.gguf"], "Q8_0", "x") == "Q8_0/m.gguf"
    for files, message in (([], "no GGUF files"), (["a-Q2_K.gguf", "b-Q3_K.gguf"], "there are a-")):
        with pytest.raises(FormatError, match=message):
            pick_file(files, None, "x")
    several = ["small-Q4_0.gguf", "large-Q4_0.gguf"]
    for quant in ("q4_0", None):
        with pytest.raises(
            FormatError, match=r"(?i)2 files of it are q4_0: large.*, small.*hf:OWNER"
        ):
            pick_file(several, quant, "x")
    assert pick_file(["m-Q4_0.gguf", "old/m-Q4_0.gguf"], "Q4_0", "x") == "m-Q4_0.gguf"
    with pytest.raises(FormatError, match="is BF16"):
        pick_file(["m-F16.gguf", "m-xBF16.gguf"], "BF16", "x")
