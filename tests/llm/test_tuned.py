"""The file of tuned values: written whole, read with care, known by tensors and machine."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from threading import Thread

import pytest

from tests.llm.tiny import metadata, write_model
from weft.errors import FormatError
from weft.frontends.gguf import GGUFFile, open_gguf
from weft.llm import tuned as tuned_module
from weft.llm.tuned import Tuned, find, forget, model_key, remember

BEST = Tuned(threads=3, threads_batch=4, ubatch=128, date="2026-01-02")


@pytest.fixture
def model(tmp_path: Path) -> GGUFFile:
    return open_gguf(write_model(tmp_path / "m.gguf"))


def test_what_is_remembered_is_found_by_a_copy_too(model: GGUFFile, tmp_path: Path) -> None:
    where = remember(model, "tiny", BEST, {"pp512": 1.2345}, tmp_path / "cache" / "t.json")
    assert find(model, where) == BEST
    copy = open_gguf(shutil.copy(tmp_path / "m.gguf", tmp_path / "copy.gguf"))
    assert find(copy, where) == BEST
    [entry] = json.loads(where.read_text())
    assert entry["model"] == "tiny" and entry["times_as_fast"] == {"pp512": 1.234}
    assert entry["values"] == {"threads": 3, "threads_batch": 4, "ubatch": 128}
    assert str(BEST) == "-t 3 -tb 4 -ub 128"
    assert {p.name for p in where.parent.iterdir()} == {"t.json", "t.json.lock"}


def test_other_tensors_and_other_machines_have_their_own(
    model: GGUFFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = remember(model, "tiny", BEST, {}, tmp_path / "t.json")
    wide = open_gguf(write_model(tmp_path / "w.gguf", metadata(**{"llama.block_count": 1})))
    assert model_key(wide) != model_key(model) and find(wide, where) is None
    remember(wide, "wide", Tuned(ubatch=64), {}, where)
    monkeypatch.setattr(tuned_module, "machine_name", lambda: "another, 64 processors")
    assert find(model, where) is None
    remember(model, "tiny", Tuned(threads=60), {}, where)
    monkeypatch.undo()
    assert find(model, where) == BEST
    assert len(json.loads(where.read_text())) == 3


def test_new_values_replace_old_ones_and_none_remove_them(model: GGUFFile, tmp_path: Path) -> None:
    where = tmp_path / "t.json"
    remember(model, "tiny", Tuned(), {}, where)
    assert not where.exists()
    remember(model, "tiny", BEST, {}, where)
    remember(model, "tiny", Tuned(ubatch=64), {}, where)
    found = find(model, where)
    assert found is not None and found.values == {"ubatch": 64} and len(found.date) == 10
    forget(model, where)
    assert find(model, where) is None and json.loads(where.read_text()) == []


@pytest.mark.parametrize(
    "values",
    [None, [], {"threads": 0}, {"threads": True}, {"ubatch": "64"}, {"ubatch": 1 << 40}, {"x": 1}],
)
def test_damaged_values_are_ignored(model: GGUFFile, tmp_path: Path, values: object) -> None:
    where = remember(model, "tiny", BEST, {}, tmp_path / "t.json")
    entries = json.loads(where.read_text())
    entries[0]["values"] = values
    where.write_text(json.dumps([7, *entries]))
    assert find(model, where) is None


@pytest.mark.parametrize("text", ["", "{", '{"a": 1}', "\xff", "[" * 100_000])
def test_a_damaged_file_is_ignored_and_replaced(model: GGUFFile, tmp_path: Path, text: str) -> None:
    where = tmp_path / "t.json"
    where.write_bytes(text.encode("latin-1"))
    assert find(model, where) is None
    remember(model, "tiny", BEST, {}, where)
    assert find(model, where) == BEST


def test_the_file_stays_small(
    model: GGUFFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = tmp_path / "t.json"
    for number in range(4):
        monkeypatch.setattr(tuned_module, "_MOST_ENTRIES", 3)
        monkeypatch.setattr(tuned_module, "machine_name", lambda n=number: f"machine {n}")
        remember(model, "tiny", BEST, {}, where)
    machines = [entry["machine"] for entry in json.loads(where.read_text())]
    assert machines == ["machine 1", "machine 2", "machine 3"]


def test_writers_at_the_same_time_lose_nothing(model: GGUFFile, tmp_path: Path) -> None:
    where = tmp_path / "t.json"
    shapes = [metadata(**{"llama.block_count": n}) for n in (1, 2)]
    models = [open_gguf(write_model(tmp_path / f"{i}.gguf", s)) for i, s in enumerate(shapes)]
    threads = [Thread(target=remember, args=(m, "m", BEST, {}, where)) for m in models * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    keys = {model_key(m) for m in models}
    assert len(json.loads(where.read_text())) == len(keys)


def test_a_folder_that_cannot_be_written_is_named(model: GGUFFile, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FormatError, match=r"cannot write .*WEFT_CACHE names another folder"):
        remember(model, "tiny", BEST, {}, tmp_path / "file" / "t.json")
