"""The files around a server: their metrics and options are those that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.cli.in_process import weft
from tests.serve.in_process import DEMO, ROOT, Server

FOLDER = Path(__file__).parents[2] / "examples" / "serve"
BOARD: dict[str, Any] = json.loads((FOLDER / "grafana.json").read_text())
_METRIC = re.compile(r"\bweft_\w+")


@pytest.fixture(scope="module")
def metrics() -> set[str]:
    """The names of all samples after a request."""
    with Server(DEMO) as server:
        assert server.call("POST", "/v1/completions", {"prompt": "a", "max_tokens": 2})[0] == 200
        text = server.call("GET", "/metrics")[2]
    return {re.split(r"[{ ]", row)[0] for row in text.splitlines() if not row.startswith("#")}


def test_the_board_asks_for_metrics_that_there_are(metrics: set[str]) -> None:
    asked = {name for panel in BOARD["panels"] for target in panel["targets"]
             for name in _METRIC.findall(target["expr"])}  # fmt: skip
    assert len(asked) > 15 and not asked - metrics
    assert _METRIC.findall(BOARD["templating"]["list"][1]["query"]["query"])[0] in metrics


def test_alerts_ask_for_metrics_that_there_are(metrics: set[str]) -> None:
    asked = set(_METRIC.findall((FOLDER / "weft-rules.yml").read_text()))
    assert len(asked) >= 4 and not asked - metrics


def test_panels_do_not_overlap() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in BOARD["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert not cells & taken and at["x"] + at["w"] <= 24
        taken |= cells
    assert len({panel["id"] for panel in BOARD["panels"]}) == len(BOARD["panels"])


@pytest.mark.parametrize("name", ["weft.service", "Containerfile"])
def test_options_are_those_of_the_command(name: str) -> None:
    lines = (FOLDER / name).read_text().replace("\\\n", " ").splitlines()
    start = next(line for line in lines if line.startswith(("ExecStart=", "ENTRYPOINT")))
    options = set(re.findall(r"--[a-z-]+", start))
    known = set(re.findall(r"--[a-z-]+", weft("serve", "--help").stdout))
    assert len(options) >= 2 and not options - known


def _service() -> dict[str, Any]:
    service: dict[str, Any] = yaml.safe_load((FOLDER / "compose.yaml").read_text())["services"]
    return service["weft"]


def test_the_compose_file_gives_few_rights() -> None:
    whole = yaml.safe_load((FOLDER / "compose.yaml").read_text())
    service = _service()
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["read_only"] is True and service["user"] not in ("0", "root")
    assert service["cap_drop"] == ["ALL"] and "no-new-privileges:true" in service["security_opt"]
    assert service["volumes"][0].endswith(":/models:ro")
    assert set(service["secrets"]) == set(whole["secrets"])
    assert {volume.split(":")[0] for volume in service["volumes"][1:]} == set(whole["volumes"])
    build = service["build"]
    root = (FOLDER / build["context"]).resolve()
    assert root == ROOT and (root / build["dockerfile"]).is_file()


def test_the_command_of_the_compose_file_serves(tmp_path: Path) -> None:
    """The image's ENTRYPOINT with this command, in folders of this machine; the health check of
    both files asks it."""
    image = (FOLDER / "Containerfile").read_text()
    entry = json.loads(re.search(r"^ENTRYPOINT (.*)$", image, re.MULTILINE)[1])  # type: ignore[index]
    assert entry == ["weft", "serve", "--host", "0.0.0.0", "--port", "8080"]
    service = _service()
    asked = service["healthcheck"]["test"]
    assert asked[0] == "CMD" and json.dumps(asked[1:]) in image.replace("\\\n", "")

    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "model.gguf").symlink_to(DEMO)
    keys, data = tmp_path / "secrets" / "weft-keys", tmp_path / "data"
    keys.parent.mkdir()
    keys.write_text("a-key\n")
    data.mkdir()
    places = {"/models": tmp_path / "models", "/run/secrets": keys.parent, "/data": data}
    words = [
        re.sub("|".join(places), lambda place: str(places[place[0]]), word)
        for word in service["command"]
    ]
    with Server(Path(words[0]), *words[1:], sent_key="a-key") as server:
        health = asked[-1].replace("http://127.0.0.1:8080", server.url)
        subprocess.run([sys.executable, "-c", health], check=True, timeout=60)
        assert server.call("GET", "/v1/models")[0] == 200
        assert server.call("GET", "/v1/models", Authorization="Bearer wrong")[0] == 401
    assert {each.name for each in tmp_path.iterdir()} == {"models", "secrets", "data"}


def test_the_image_is_built_from_what_a_build_reads_alone() -> None:
    """Keys, models and caches of a checkout never reach the image."""
    rows = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [row for row in rows if row and not row.startswith("#")]
    kept = {rule[1:] for rule in rules if rule.startswith("!")}
    assert rules[0] == "*" and {"**/__pycache__", "**/*.so"} < set(rules[-2:] + rules[:1])
    assert all((ROOT / name).exists() for name in kept)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    read = [project["project"]["readme"], *project["project"]["license-files"]]
    read += project["tool"]["scikit-build"]["wheel"]["packages"]
    read += re.findall(r"add_subdirectory\((\w+)\)", (ROOT / "CMakeLists.txt").read_text())
    assert kept == {Path(name).parts[0] for name in read} | {"CMakeLists.txt", "pyproject.toml"}


def test_who_stops_the_server_waits_for_its_grace() -> None:
    """A container engine or systemd kills later than the server ends itself."""
    told = weft("serve", "--help").stdout
    grace = float(re.search(r"--grace .*?\[default: ([\d.]+)", told, re.DOTALL)[1])  # type: ignore[index]
    given = [
        re.search(pattern, (FOLDER / name).read_text())[1]  # type: ignore[index]
        for name, pattern in (
            ("Containerfile", r"--stop-timeout (\d+)"),
            ("compose.yaml", r"stop_grace_period: (\d+)s"),
            ("weft.service", r"TimeoutStopSec=(\d+)"),
        )
    ]
    assert all(int(seconds) > grace for seconds in given)


def test_the_unit_has_folders_for_all_that_is_written() -> None:
    unit = dict(re.findall(r"^(\w+)=(.*)$", (FOLDER / "weft.service").read_text(), re.MULTILINE))
    variables = dict(word.split("=") for word in unit["Environment"].split())
    assert variables["WEFT_CACHE"] == f"%C/{unit['CacheDirectory']}"
    assert variables["HF_HOME"].startswith(variables["WEFT_CACHE"] + "/")
    # what the command line got wrong is wrong at the next start, too
    assert unit["RestartPreventExitStatus"] == "2" == str(weft("serve", "--no-such").returncode)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="there is no systemd")
def test_systemd_reads_the_unit(tmp_path: Path) -> None:
    unit = tmp_path / "weft.service"
    program = shutil.which("true")
    unit.write_text(
        (FOLDER / "weft.service").read_text().replace("/opt/weft/bin/weft", str(program))
    )
    checked = subprocess.run(
        ["systemd-analyze", "verify", unit], capture_output=True, text=True, check=False
    )
    assert (checked.returncode, checked.stderr) == (0, "")
