"""`weft worker` and `--machines` at the command line: texts, refusals, and Ctrl-C."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.in_process import weft
from tests.cli.test_cli import process_of
from tests.waiting import eventually
from tests.worker_processes import lends, workers
from weft.backends.remote import Machine, RemoteBackend
from weft.links import Listener
from weft.links.addresses import parse_address
from weft.links.keys import read_key

MODEL = "examples/weft-demo.gguf"
RUN = ["run", MODEL, "-p", "What is 17 + 25?", "-n", "24", "--temp", "0", "--no-tuned"]


def test_two_workers_with_a_key(tmp_path: Path) -> None:
    key = tmp_path / "key"
    made = weft("worker", "--make-key", str(key))
    assert made.returncode == 0, made.stderr
    alone = weft(*RUN)
    with workers(2, tmp_path, "--machine-key-file", str(key)) as both:
        at = ",".join(worker.address for worker in both)
        text = process_of(*RUN, "--machines", at, env={"WEFT_MACHINE_KEY": read_key(key).hex()})
        assert text.stdout == alone.stdout, text.stderr
        for worker in both:
            assert f"placement: {worker.address}/cpu: 1 split" in text.stderr
        plan = weft("explain", MODEL, "--machines", at, "--brief", "--machine-key-file", str(key))
        assert f"{both[1].address}/cpu" in plan.stdout, plan.stderr
        without = weft(*RUN, "--machines", at)
        assert without.returncode == 1
        assert f"{both[0].address} has a key, and this side was given none" in without.stderr


def test_another_op_table_is_refused_with_both_values() -> None:
    with Listener(facts={"ops": "0123456789abcdef"}) as listener:
        done = weft(*RUN, "--machines", str(listener.address))
    assert done.returncode == 1
    assert f"{listener.address} has ops 0123456789abcdef, this side has ops" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("worker", "--listen", "0.0.0.0:0"), "--machine-key-file FILE"),
        (("worker", "--listen", "nowhere:port"), "--listen: 'nowhere:port' is not an address"),
        (("worker", "--machine-key-file", "none"), "no such key file"),
        ((*RUN, "--machines", "a:b"), "--machines: 'a:b' is not an address"),
        ((*RUN, "--machines", "127.0.0.1:1"), "cannot connect to 127.0.0.1:1"),
        ((*RUN, "--machines", "192.0.2.1"), "needs the key of its worker"),
        ((*RUN, "--machines", "192.0.2.1", "--ray"), "give --machines or --ray, not both"),
        ((*RUN, "--machines", "a:1", "b:2"), "write commas between the workers of --machines"),
        (("serve", MODEL, "--machines", "a:1", "b:2"), "write commas between the workers"),
    ],
)
def test_mistakes(words: tuple[str, ...], text: str) -> None:
    done = weft(*words)
    assert done.returncode in (1, 2)
    assert text in done.stderr
    assert "Traceback" not in done.stderr


def test_a_device_that_is_not_there() -> None:
    """The process that serves says so, and its supervisor starts no other."""
    done = process_of("worker", "--listen", "127.0.0.1:0", "--devices", "nope")
    assert done.returncode in (1, 2)
    assert "unknown backend 'nope'" in done.stderr and "Traceback" not in done.stderr


def test_an_interrupted_run_frees_its_worker(tmp_path: Path) -> None:
    with workers(1, tmp_path, "--memory", "64MiB") as (worker,):
        long = [*RUN[:5], "100000", "--context-shift", "--temp", "1", "--ignore-eos"]
        command = [sys.executable, "-m", "weft", *long, "--machines", worker.address]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        assert process.stdout.read(20)
        process.send_signal(signal.SIGINT)
        _, stderr = process.communicate(timeout=20)
        assert b"Traceback" not in stderr
        # it gives back memory when the last command of a client is done
        other = RemoteBackend(Machine(parse_address(worker.address, "x"))).memory_type
        eventually(lambda: lends(other, (64 << 20) - 4096))
        assert weft(*RUN, "--machines", worker.address).stdout == weft(*RUN).stdout
