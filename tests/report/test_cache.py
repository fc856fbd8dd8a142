"""The updates of a cache as data, and the commands that write them."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.in_process import weft
from tests.report.test_timeline import MODEL, page_data
from weft.llm import Context, Model
from weft.report import cache_data


def test_data() -> None:
    context = Context(Model.open(MODEL), 64, n_threads=1, n_seq_max=2)
    assert cache_data(context) is None
    context.watch_cache(2)
    context.decode([1, 5, 6])
    context.decode([7])
    data = json.loads(json.dumps(cache_data(context)))
    assert (data["n"], data["size"], data["n_seq_max"]) == (3, 64, 2)
    assert [e["number"] for e in data["events"]] == [2, 3]
    assert data["events"][1]["cells"] == [[3, 3]] and data["events"][1]["map"] == "0000"
    assert data["events"][1]["text"] == "seq 0 takes cell 3 for position 3 (1 token)"
    assert data["counters"]["graphs_reused"] == 2


def test_the_report_of_a_run(tmp_path: Path) -> None:
    html = tmp_path / "run.html"
    words = ("-p", "What is it?", "-n", "30", "-c", "32", "-t", "1", "--context-shift")
    done = weft("run", MODEL, *words, "--html", html)
    assert done.returncode == 0 and f"report written to {html}" in done.stderr
    kinds = [e["kind"] for e in page_data(html.read_text())["cache"]["events"]]
    assert kinds[0] == "built" and {"taken", "removed", "added", "shifted"} < set(kinds)
