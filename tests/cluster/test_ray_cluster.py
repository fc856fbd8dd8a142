"""Shares of a cluster, and what is said of an address or a missing extra."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.cli.in_process import weft
from tests.serve.server import DEMO
from weft.cluster import ray_cluster
from weft.cluster.ray_cluster import Machine, cpus_each
from weft.errors import DeviceError
from weft.extras import how_to_install


@pytest.mark.parametrize(
    ("cpus", "least", "most", "each"),
    [((8, 8, 8), 3, 3, 8), ((8, 8, 8), 2, 8, 2), ((2,), 1, 1, 2), ((2, 1), 1, 9, 1),
     ((16, 4), 5, 5, 4), ((0, 4), 1, 1, 4)],
)  # fmt: skip
def test_replicas_share_the_machines_out(
    monkeypatch: pytest.MonkeyPatch, cpus: tuple[int, ...], least: int, most: int, each: int
) -> None:
    monkeypatch.setattr(ray_cluster, "machines", lambda: [Machine("", "", n) for n in cpus])
    assert cpus_each(least, most) == each
    with pytest.raises(DeviceError, match="99 replicas of 1 CPUs are more than the machines"):
        cpus_each(99, 99)
    with pytest.raises(DeviceError, match="1 replicas of 17 CPUs are more"):
        cpus_each(1, 1, 17)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            ("--ray", "--replicas", "two"),
            "--replicas two: give a number, or the least and the most",
        ),
        (("--ray", "--replicas", "8..2"), "--replicas 8..2: give a number"),
        (("--replicas", "2"), "--replicas is for many machines; give --ray, too"),
        (("--ray", "ray://head:10001"), "--ray ray://head:10001: give the HOST:PORT"),
    ],
)
@pytest.mark.parametrize("command", ["serve", "batch"])
def test_what_is_typed_wrongly(
    tmp_path: Path, command: str, options: tuple[str, ...], said: str
) -> None:
    source = tmp_path / "in.jsonl"
    source.write_text("")
    files = (source, tmp_path / "out") if command == "batch" else ("--port", "0")
    ended = weft(command, DEMO, *files, *options)
    assert ended.returncode in (1, 2)
    assert said in ended.stderr and "Traceback" not in ended.stderr


def test_a_cluster_that_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(*_: object, **__: object) -> None:
        raise RuntimeError("Timed out waiting for a file\nmore")

    ray = SimpleNamespace(is_initialized=lambda: False, init=init)
    monkeypatch.setattr(ray_cluster, "import_ray", lambda what: ray)
    monkeypatch.setattr(ray_cluster, "_keep_stdout", lambda ray: None)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(DeviceError, match=r"can be started on this machine \(Timed .* a file\)"):
        ray_cluster.join("local")


def test_a_model_may_follow_the_option_without_an_address(tmp_path: Path) -> None:
    ended = weft("serve", "--ray", tmp_path / "none.gguf")
    assert ended.returncode == 1 and "none.gguf: no such file" in ended.stderr


def test_what_lacks_the_extra_is_told() -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "import weft.ray\n"
        "try: weft.ray.map_batches(None, 'm.gguf')\n"
        "except weft.WeftError as error: print(error)"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout == f"weft.ray needs ray; {how_to_install('ray')}\n"
