"""The files around a server: their metrics and options are those that there are."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.cli.in_process import weft
from tests.serve.in_process import DEMO, Server

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
