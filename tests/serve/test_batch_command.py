"""`weft batch`: answers, errors, and, as a process, SIGKILL in the middle."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from tests.cli.in_process import weft
from tests.cli.terminal import Terminal
from tests.serve.in_process import DEMO

CHAT = [{"role": "user", "content": "What is 2 + 3?"}]


def line(name: str, url: str, **body: Any) -> str:
    row = {"custom_id": name, "method": "POST", "url": url, "body": body}
    return json.dumps(row) + "\n"


def rows_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(row) for row in path.read_text().splitlines()]


def test_answers_and_errors_are_rows(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(
        line("text", "/v1/completions", prompt="What is 2 + 3?", max_tokens=4, temperature=0)
        + line("chat", "/v1/chat/completions", max_tokens=4, messages=CHAT)
        + "nonsense\n"
        + line("hot", "/v1/completions", prompt="a", temperature=9)
        + line("vector", "/v1/embeddings", input="a")
        + line("text", "/v1/completions", prompt="a")
    )
    ended = weft("batch", DEMO, source, out, "--ordered", "-np", "2")
    assert ended.returncode == 1, ended.stderr
    assert "6 rows, 4 of them with an error; 6 are new" in ended.stderr
    text, chat, nonsense, hot, vector, twice = rows_of(out)
    assert text["response"]["body"]["usage"]["completion_tokens"] == 4
    assert text["response"]["request_id"] and text["error"] is None
    assert chat["response"]["body"]["choices"][0]["message"]["role"] == "assistant"
    assert nonsense["custom_id"] is None and nonsense["error"]["code"] == "invalid_line"
    assert hot["response"]["status_code"] == 400
    assert hot["response"]["body"]["error"]["message"] == "temperature is 9; it must be 0 to 2"
    assert "--embeddings" in vector["response"]["body"]["error"]["message"]
    assert twice["error"]["code"] == "duplicate_custom_id"


def test_embeddings_come_where_the_first_line_asks(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("".join(line(f"{i}", "/v1/embeddings", input=f"text {i}") for i in range(5)))
    ended = weft("batch", DEMO, source, out, "-q")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert all(len(r["response"]["body"]["data"][0]["embedding"]) == 128 for r in rows_of(out))


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    ended = weft("batch", DEMO, tmp_path / "none", tmp_path / "out")
    assert ended.returncode == 1 and "No such file" in ended.stderr
    assert not (tmp_path / "out").exists()


def test_a_batch_that_is_killed_goes_on(tmp_path: Path) -> None:
    """SIGKILL twice; in the end every line has one row, and the rows of before are unchanged."""
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    n = 150
    source.write_text("".join(
        line(f"r{i}", "/v1/completions", prompt=f"What is {i} + 1?", max_tokens=24,
             temperature=0, ignore_eos=True)
        for i in range(n)))  # fmt: skip
    command = [sys.executable, "-m", "weft", "batch", DEMO, source, out, "-q", "-np", "4"]
    kept: list[str] = []
    for least in (20, 60):
        process = subprocess.Popen([str(part) for part in command])
        while process.poll() is None and (
            not out.exists() or out.read_bytes().count(b"\n") < least
        ):
            time.sleep(0.005)
        process.kill()
        assert process.wait() == -signal.SIGKILL
        whole = [row for row in out.read_text().splitlines(keepends=True) if row.endswith("\n")]
        assert whole[: len(kept)] == kept and len(whole) >= least
        kept = whole
    with out.open("a") as file:
        file.write('{"id": "batch_req_')  # as a machine that fails may leave it
    assert weft("batch", DEMO, source, out, "-q", "-np", "4").returncode == 0
    assert out.read_text().splitlines(keepends=True)[: len(kept)] == kept
    assert sorted(row["custom_id"] for row in rows_of(out)) == sorted(f"r{i}" for i in range(n))


def test_a_bar_on_a_terminal_and_ctrl_c(tmp_path: Path) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text(
        "".join(
            line(f"{i}", "/v1/completions", prompt="a", max_tokens=64, ignore_eos=True)
            for i in range(2000)
        )
    )
    with Terminal("batch", DEMO, source, out, "-np", "2") as terminal:
        terminal.wait_for("answering requests")
        terminal.wait_for("/2000")
        terminal.send("\x03")
        assert terminal.exit_code() == 130
        assert "Traceback" not in terminal.text, terminal.text
        assert "goes on from there" in " ".join(terminal.text.split())
    n_rows = len(rows_of(out))
    assert 0 < n_rows < 2000
    source.write_text("".join(source.read_text().splitlines(keepends=True)[:n_rows]))
    ended = weft("batch", DEMO, source, out)
    assert f"{out} has {n_rows} rows; going on from there" in ended.stderr
