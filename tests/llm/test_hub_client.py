"""Models by name with the real huggingface_hub, against a hub on the loopback interface."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.cli.terminal import Terminal
from tests.llm.hub_server import COMMIT, Hub
from tests.waiting import eventually

pytest.importorskip("huggingface_hub")

DEMO = (Path(__file__).resolve().parents[2] / "examples" / "weft-demo.gguf").read_bytes()
REPO = "some/m-GGUF"
SHARDS = [f"IQ4_XS/m-IQ4_XS-0000{i}-of-00003.gguf" for i in (1, 2, 3)]
FIRST = 20 << 20  # the client writes pieces of 10 MiB
LARGE = np.random.default_rng(0).bytes(25 << 20)
NAMES = """
import json, sys
from weft.errors import FormatError
from weft.llm.hub import local_path
for name in sys.argv[1:]:
    try:
        print(json.dumps(str(local_path(name))))
    except FormatError as error:
        print(json.dumps("error: " + str(error)))
"""


@pytest.fixture
def hub() -> Iterator[Hub]:
    files = {
        "README.md": b"#",
        "m-Q8_0.gguf": DEMO,
        "m-long-Q8_0.gguf": b"",
        "mmproj-F16.gguf": b"",
        **{name: name.encode() for name in SHARDS},
        "broken-Q2_K-00001-of-00002.gguf": b"1",
    }
    two = {"a-Q4_0.gguf": b"a", "b-Q4_0.gguf": b"b"}
    repos = {REPO: files, "some/two": two, "some/none": {"README.md": b""}, "some/gated": two}
    with Hub(repos, gated={"some/gated"}) as running:
        yield running


def names(hub: Hub, home: Path, *given: str, **more: str) -> list[str]:
    """What each name becomes, in one process."""
    process = subprocess.run(
        [sys.executable, "-c", NAMES, *given],
        env=hub.environment(home, **more), capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    return [json.loads(line) for line in process.stdout.splitlines()]


def test_names_and_where_files_are(hub: Hub, tmp_path: Path) -> None:
    got = names(hub, tmp_path, f"hf:{REPO}", f"hf:{REPO}:q8_0", f"hf:{REPO}/README.md",
                f"hf:{REPO}:iq4_xs")  # fmt: skip
    cache = tmp_path / "hub" / "models--some--m-GGUF" / "snapshots" / COMMIT
    assert got == [
        *[str(cache / "m-Q8_0.gguf")] * 2, str(cache / "README.md"), str(cache / SHARDS[0])
    ]  # fmt: skip
    assert Path(got[0]).read_bytes() == DEMO
    fetched = [path.rpartition("/main/")[2] for path in hub.files()]
    assert fetched == ["m-Q8_0.gguf", "README.md", *SHARDS]  # each once, all shards
    for name in SHARDS:
        assert (cache / name).read_bytes() == name.encode()


def test_names_of_nothing(hub: Hub, tmp_path: Path) -> None:
    got = names(hub, tmp_path, f"hf:{REPO}:Q3_K_S", f"hf:{REPO}/m-Q4_1.gguf", "hf:some/two",
                "hf:some/two:q4_0", "hf:some/none", "hf:no/body", "hf:some/gated/a-Q4_0.gguf",
                f"hf:{REPO}:Q2_K", "hf:some/two/a-Q4_0.gguf")  # fmt: skip
    there = f"there are {SHARDS[0]}, broken-Q2_K-00001-of-00002.gguf, m-Q8_0.gguf, m-long-Q8_0.gguf"
    wanted = [
        f"no file of it is Q3_K_S; {there}",
        f"{REPO} has no file m-Q4_1.gguf; {there}",
        "2 files of it are Q4_0: a-Q4_0.gguf, b-Q4_0.gguf; say which, as in hf:OWNER/NAME/a-Q4_0",
        "2 files of it are q4_0: a-Q4_0.gguf, b-Q4_0.gguf; say which",
        "the repository has no GGUF files",
        "there is no repository no/body, or it is private",
        "some/gated is open only to those who accept its terms",
        f"{REPO} has no file broken-Q2_K-00002-of-00002.gguf; {there}",
    ]
    for answer, part in zip(got, wanted, strict=False):
        assert answer.startswith("error: hf:") and part in answer, answer
    assert got[-1].endswith("/a-Q4_0.gguf")


def test_without_a_network(hub: Hub, tmp_path: Path) -> None:
    """Cached models can be used; `names` bounds how long that may wait."""
    (there,) = names(hub, tmp_path, f"hf:{REPO}:q8_0")
    hub.seen.clear()
    asked = (f"hf:{REPO}:Q8_0", f"hf:{REPO}", f"hf:{REPO}/m-Q8_0.gguf", f"hf:{REPO}:Q3_K",
             "hf:other/m:Q4_0")  # fmt: skip
    offline = names(hub, tmp_path, *asked, HF_HUB_OFFLINE="1")
    assert not hub.seen
    nobody = names(hub, tmp_path, *asked, HF_ENDPOINT="http://127.0.0.1:9")
    for got in (offline, nobody):
        assert got[:3] == [there] * 3
        assert "so of what is cached): no file of it is Q3_K; there are m-Q8_0.gguf" in got[3]
        assert "error: hf:other/m:Q4_0: the model is not cached" in got[4]
    assert "HF_HUB_OFFLINE is set" in offline[4]


def test_a_transfer_that_breaks_off_goes_on(hub: Hub, tmp_path: Path) -> None:
    hub.repos[REPO]["m-Q4_0.gguf"] = LARGE
    hub.cut["m-Q4_0.gguf"] = FIRST + 1000
    (path,) = names(hub, tmp_path, f"hf:{REPO}:q4_0")
    assert Path(path).read_bytes() == LARGE
    assert [s.start for s in hub.seen if s.method == "GET" and "resolve" in s.path] == [None, FIRST]


def test_a_process_that_was_killed_leaves_nothing_wrong(hub: Hub, tmp_path: Path) -> None:
    hub.repos[REPO]["m-Q4_0.gguf"] = LARGE
    hub.stall["m-Q4_0.gguf"] = FIRST + 1000
    first = subprocess.Popen(
        [sys.executable, "-c", NAMES, f"hf:{REPO}:q4_0"], env=hub.environment(tmp_path),
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    assert hub.stalled.wait(60)
    blobs = tmp_path / "hub" / "models--some--m-GGUF" / "blobs"
    eventually(lambda: sum(f.stat().st_size for f in blobs.glob("*")) >= FIRST)
    first.kill()
    first.wait()
    hub.go_on.set()
    hub.seen.clear()
    (path,) = names(hub, tmp_path, f"hf:{REPO}:q4_0")
    assert Path(path).read_bytes() == LARGE
    starts = [s.start for s in hub.seen if s.method == "GET" and "resolve" in s.path]
    assert starts in ([FIRST], [None])  # huggingface_hub goes on before 2, and begins anew since


@pytest.mark.skipif(importlib.util.find_spec("pty") is None, reason="no pseudo terminals here")
def test_a_command_shows_progress(hub: Hub, tmp_path: Path) -> None:
    """Once; what is cached is there at once."""
    args = ("tokenize", f"hf:{REPO}:Q8_0", "hello", "--count")
    for bar in (True, False):
        with Terminal(*args, environment=hub.environment(tmp_path)) as terminal:
            assert terminal.exit_code() == 0, terminal.text
            assert ("m-Q8_0.gguf" in terminal.text and "100%" in terminal.text) == bar
            assert terminal.text.endswith("6\r\n")
