"""Files of a model on machines that lack them: hashes, fetching once, and what is refused."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tests.serve.server import DEMO
from weft.cluster import model_files
from weft.cluster.model_files import ModelFiles, describe_files, have_files, read_part
from weft.errors import DeviceError, FormatError


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_files, "PART", 300_000)


def elsewhere(files: ModelFiles, folder: Path) -> ModelFiles:
    """The same content at a path that this machine does not have."""
    return ModelFiles(str(folder / "none" / Path(files.path).name), files.is_folder, files.files)


class Source:
    """Gives parts of files below a folder, and counts them."""

    def __init__(self, base: Path, replaced: str) -> None:
        self.base, self.replaced = base, replaced
        self.n_read = 0

    def __call__(self, path: str, n: int) -> bytes:
        self.n_read += 1
        return read_part(path.replace(self.replaced, str(self.base)), n)


def test_a_machine_uses_its_own_file(tmp_path: Path) -> None:
    files = describe_files(DEMO, tmp_path)
    assert files.size == DEMO.stat().st_size and len(files.files[0].hashes) == 4
    assert have_files(files, tmp_path, None) == DEMO
    assert describe_files(DEMO, tmp_path) == files  # by the hashes in the folder
    assert len(list((tmp_path / "hashes").iterdir())) == 1


def test_a_file_is_fetched_once_by_all_processes_of_a_machine(tmp_path: Path) -> None:
    files = elsewhere(describe_files(DEMO, tmp_path / "there"), tmp_path)
    source = Source(DEMO.parent, str(tmp_path / "none"))
    found: list[Path] = []
    threads = [
        threading.Thread(target=lambda: found.append(have_files(files, tmp_path / "here", source)))
        for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and found[0].name == DEMO.name
    assert found[0].read_bytes() == DEMO.read_bytes()
    assert source.n_read == 4


def test_a_folder_and_shards(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    (folder / "sub").mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    (folder / "sub" / "weights").write_bytes(b"w" * 700_000)
    files = describe_files(folder, tmp_path / "there")
    there = have_files(
        elsewhere(files, tmp_path), tmp_path / "here", Source(tmp_path, str(tmp_path / "none"))
    )
    assert (there / "sub" / "weights").read_bytes() == b"w" * 700_000
    assert (there / "config.json").read_text() == "{}"
    for i in (1, 2):
        (folder / f"m-0000{i}-of-00002.gguf").write_bytes(b"%d" % i)
    names = [f.name for f in describe_files(folder / "m-00001-of-00002.gguf", tmp_path).files]
    assert names == ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf"]


def test_another_file_of_that_name_is_not_taken(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"one")
    files = describe_files(path, tmp_path)
    path.write_bytes(b"two")
    with pytest.raises(DeviceError, match="no such file of that content"):
        have_files(files, tmp_path, None)


def test_a_part_that_is_not_the_one_described_is_refused(tmp_path: Path) -> None:
    files = elsewhere(describe_files(DEMO, tmp_path / "there"), tmp_path)
    with pytest.raises(DeviceError, match="part 0 that came is not the one that was described"):
        have_files(files, tmp_path / "here", lambda path, n: b"something else")
    source = Source(DEMO.parent, str(tmp_path / "none"))
    assert have_files(files, tmp_path / "here", source).read_bytes() == DEMO.read_bytes()


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="No such file"):
        describe_files(tmp_path / "none.gguf", tmp_path)
