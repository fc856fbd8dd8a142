"""`weft explain --machines`, as a user types it."""

from __future__ import annotations

import base64
import gzip
import json
import re
from pathlib import Path

import pytest

from tests.cli.test_cli import MODEL, ok, refused, weft
from tests.schedule.test_machines import CPU


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    for name, size in (("a", "4 MiB"), ("b", "3 MiB")):
        (tmp_path / f"{name}.toml").write_text(CPU.replace("2 GiB", size))
    return [str(tmp_path / "a.toml"), str(tmp_path / "b.toml")]


def test_profiles_behind_one_option(files: list[str]) -> None:
    before = ok("explain", "--machines", *files, "--link", "1Gbps,0.2ms", MODEL, "--brief")
    after = ok("explain", MODEL, "--brief", "--machines", ",".join(files), "--link", "1Gbps,0.2ms")
    assert before == after and "stages, as a token passes them" in before
    for word in ("a/cpu", "b/cpu", "a/RAM", "4.00 MiB", "tg, one text", "pp"):
        assert word in before


def test_the_link_that_is_taken_is_said(files: list[str]) -> None:
    process = weft("explain", MODEL, "--brief", "--machines", *files)
    assert process.returncode == 0
    assert "no --link is given, so the machines are taken to be 936 Mbit/s, 0.2 ms" in " ".join(
        process.stderr.split()
    )


def test_json_has_stages_links_and_loads(files: list[str]) -> None:
    given = ("--machines", *files, "--link", "100Gbps,1us", "-np", "4", "-c", "512", "-ub", "128")
    data = json.loads(ok("explain", MODEL, *given, "--json"))
    machines = data["machines"]
    assert machines["machines"] == ["a", "b"]
    assert {s["device"] for s in machines["stages"]} == {"a/cpu", "b/cpu"}
    assert all(s["memory"]["bytes"] <= s["memory"]["room"] for s in machines["stages"])
    rows: dict[str, int] = {}
    for row in data["memory"]:
        home = row["memory"].removesuffix("_R32")  # repacked weights
        rows[home] = rows.get(home, 0) + row["bytes"]
    for stage in machines["stages"]:
        assert stage["memory"]["bytes"] == rows[stage["memory"]["memory"]]
    assert {load["kind"] for load in machines["loads"]} == {"pp", "tg"}
    assert all(0 <= share <= 1 for load in machines["loads"] for share in load["idle"].values())


def test_html(files: list[str], tmp_path: Path) -> None:
    report = tmp_path / "report.html"
    given = ("--machines", *files, "--link", "1Gbps,0.2ms", "--fit")
    process = weft("explain", MODEL, *given, "--html", str(report))
    assert process.returncode == 0, process.stderr
    packed = re.findall(r'">([A-Za-z0-9+/=]{1000,})<', report.read_text())
    data = json.loads(gzip.decompress(base64.b64decode(packed[0])))
    assert [d["name"] for d in data["devices"]] == ["b/cpu", "a/cpu"]
    assert data["machines"]["machines"] == ["a", "b"]
    assert "stages, as a token passes them" in data["text"]


def test_what_is_refused(files: list[str]) -> None:
    machines = ("--machines", *files)
    assert "not enough memory on these machines" in refused(
        "explain", MODEL, *machines, "--fit", "-c", "100000"
    )
    assert "leave out --machine" in refused("explain", MODEL, *machines, "--machine", files[0])
    assert "give --machines" in refused("explain", MODEL, "--link", "1Gbps")
    assert "one machine (a) is no cluster" in refused("explain", MODEL, "--machines", files[0])
    assert "'1' is not a link" in refused("explain", MODEL, *machines, "--link", "1")
    assert "have no device cpu" in refused("explain", MODEL, *machines, "--devices", "cpu")
    assert "is a machine profile" in refused("run", MODEL, *machines, "-p", "x")
    assert "leave out --speeds" in refused("explain", MODEL, *machines, "--speeds", files[0])


HEAD = Path(__file__).resolve().parents[2] / "examples" / "machines" / "llama-3-70b.head.gguf"
"""The beginning of a file of 40 GiB."""
BOX = HEAD.with_name("box.toml")


def test_a_model_that_is_not_there_yet() -> None:
    """The plan and the speed are those of arithmetic with the sizes of the file."""
    given = ("--machines", *[BOX] * 4, "--link", "10Gbps,50us", "-c", "4096", "--json")
    process = weft("explain", HEAD, *given)
    assert process.returncode == 0, process.stderr
    assert f"{HEAD.name} ends before its weights (39.59 GiB" in process.stderr
    machines = json.loads(process.stdout)["machines"]
    stages = [s for s in machines["stages"] if "layer" in s["holds"]]
    layers = sum(int(b) - int(a) + 1 for s in stages
                 for a, b in re.findall(r"layers (\d+) to (\d+)", s["holds"]))  # fmt: skip
    assert layers == 80 and all(s["memory"]["bytes"] <= 30 << 30 for s in machines["stages"])
    cache = 80 * 2 * 1024 * 2 * 4096
    assert sum(s["memory"]["cache"] for s in stages) == cache
    weights = sum(s["memory"]["weights"] for s in stages)
    embedding = 128256 * 8192 * 144 // 256  # is read by row
    one = next(load for load in machines["loads"] if load["what"] == "one text")
    least = (weights - embedding + cache) / 60e9  # seconds to read all that a token needs
    assert 0.9 * least < one["seconds"] < 1.1 * least
    state = next(link for link in machines["links"] if link["token_bytes"])
    assert state["token_bytes"] >= 8192 * 4


def test_the_beginning_of_a_model_is_not_run() -> None:
    assert "the file is cut short or damaged" in refused("run", HEAD, "-p", "x")
