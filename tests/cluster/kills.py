"""Kills actors of each kind, many times, in the middle of texts, and counts what is lost.

    python -m tests.cluster.kills [workers] [replicas] [batch] [--kills 50]

A cluster of three nodes on this machine. `workers` are the stages of a model, `replicas` those of
`weft serve --ray`, `batch` the actors of `weft batch --ray`. Ends with status 1 where a text or a
row is missing, twice there or another one, or a process is left.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import weft
from tests.cluster.test_ray_workers import MODEL, PROMPT, N, end, go_on, program, read
from tests.ray_nodes import Nodes, ray_nodes
from tests.serve.server import DEMO, Server

TEXT = {"max_tokens": 48, "temperature": 0, "ignore_eos": True}


def kill_workers(nodes: Nodes, kills: int, pick: random.Random) -> dict[str, Any]:
    """One program writes a text for each kill over stages on all nodes but its own."""
    with weft.LLM(MODEL) as llm:
        expected = llm.generate(PROMPT, max_tokens=N, temperature=0)
    actor = "ray::WorkerActor"
    process = program(nodes, again=kills)
    try:
        for _ in range(kills):
            assert read(process) == "writing"
            nodes.kill(actor, pick)
            go_on(process)
        result = json.loads(read(process))
        process.wait(60)
    finally:
        end(process)
    return {
        "texts": len(result["texts"]),
        "other texts": sum(text != expected for text in result["texts"]),
        "came back": sum("is back" in text for text in result["said"]),
        "left out": sum("going on without" in text for text in result["said"]),
        "processes left": len(nodes.wait_for_end(actor)),
    }


def kill_replicas(nodes: Nodes, kills: int, pick: random.Random) -> dict[str, Any]:
    """Clients ask without a pause, with and without streams. One whose stream ends with the
    sentence that its replica died asks again, as that says."""
    actor, ended, counts = "ray::ServeReplica", threading.Event(), Counter[str]()
    prompts = [f"What is {i} + 25?" for i in range(8)]
    with weft.LLM(MODEL) as llm:
        expected = [llm.generate(p, max_tokens=48, temperature=0, ignore_eos=True) for p in prompts]

    def plain(server: Server, which: int) -> None:
        form = {"prompt": prompts[which], **TEXT}
        status, _, answer = server.call("POST", "/v1/completions", form)
        right = status == 200 and answer["choices"][0]["text"] == expected[which]
        counts["answers" if right else "other answers"] += 1
        if not right:
            print(status, answer, file=sys.stderr)

    def stream(server: Server, which: int) -> None:
        while True:
            form = {"prompt": prompts[which], "stream": True, **TEXT}
            _, _, text = server.call("POST", "/v1/completions", form)
            parts = [json.loads(p[6:]) for p in text.split("\n\n") if p.startswith("data: {")]
            if any("ask again" in str(part.get("error")) for part in parts):
                counts["streams asked again"] += 1
                continue
            whole = "".join(part["choices"][0]["text"] for part in parts if part.get("choices"))
            counts["streams" if whole == expected[which] else "other streams"] += 1
            return

    def ask(server: Server, how: Callable[[Server, int], None], seed: int) -> None:
        own = random.Random(seed)
        while not ended.is_set():
            how(server, own.randrange(len(prompts)))

    with Server(DEMO, "--ray", nodes.address, "--replicas", 2, "-np", 4, "--grace", 20) as server:
        clients = [
            threading.Thread(target=ask, args=(server, how, seed))
            for seed, how in enumerate((plain, plain, stream, stream))
        ]
        for client in clients:
            client.start()
        try:
            for _ in range(kills):
                _until(lambda: server.metrics()["replicas"] == 2 == len(nodes.processes(actor)))
                time.sleep(pick.random())
                nodes.kill(actor, pick)
                counts["kills"] += 1
        finally:
            ended.set()
            for client in clients:
                client.join()
    return dict(counts) | {"processes left": len(nodes.wait_for_end(actor))}


def kill_batch(nodes: Nodes, kills: int, pick: random.Random) -> dict[str, Any]:
    """Batches of 2000 rows, one after another, until so many actors have been killed."""
    actor, counts = "ray::BatchActor", Counter[str]()
    ids = [f"r{i}" for i in range(2000)]
    texts: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        source, out = Path(name, "in.jsonl"), Path(name, "out.jsonl")
        source.write_text("".join(json.dumps(
            {"custom_id": id_, "method": "POST", "url": "/v1/completions",
             "body": {"prompt": f"What is {i} + 1?", **TEXT}}) + "\n"
            for i, id_ in enumerate(ids)))  # fmt: skip
        while counts["kills"] < kills:
            out.unlink(missing_ok=True)
            command = [sys.executable, "-m", "weft", "batch", str(DEMO), str(source), str(out)]
            command += ["-q", "--ray", nodes.address, "-np", "4", "--replicas", "2"]
            process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
            while process.poll() is None and counts["kills"] < kills:
                _until(lambda: len(nodes.processes(actor)) == 2 or process.poll() is not None)  # noqa: B023
                time.sleep(1 + pick.random())
                if process.poll() is None and nodes.processes(actor):
                    nodes.kill(actor, pick)
                    counts["kills"] += 1
            _, errors = process.communicate()
            counts["commands that failed"] += process.returncode != 0
            if process.returncode:
                print(errors, file=sys.stderr)
            rows = [json.loads(line) for line in out.read_text().splitlines()]
            counts["rows"] += len(rows)
            found = Counter(row["custom_id"] for row in rows)
            counts["rows missing or twice"] += sum(found[id_] != 1 for id_ in ids)
            for row in rows:
                body = row["response"]["body"]
                if row["response"]["status_code"] != 200:
                    counts["rows of three actors that died"] += 1
                    continue
                text = body["choices"][0]["text"]
                counts["other rows"] += texts.setdefault(row["custom_id"], text) != text
    return dict(counts) | {"processes left": len(nodes.wait_for_end(actor))}


def _until(condition: Callable[[], bool], seconds: float = 120) -> None:
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited too long"
        time.sleep(0.1)


KINDS = {"workers": kill_workers, "replicas": kill_replicas, "batch": kill_batch}
"""What runs over a cluster while so many actors of a kind are killed; returns figures by name."""
_BAD = ("other", "missing", "left", "failed")


def bad(figures: dict[str, Any]) -> dict[str, Any]:
    """The figures that count what must not happen, where it did."""
    return {name: n for name, n in figures.items() if n and any(word in name for word in _BAD)}


def main() -> None:
    """Runs what was asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("kinds", nargs="*", metavar="KIND", help=f"of {', '.join(KINDS)}")
    parser.add_argument("--kills", type=int, default=50)
    given = parser.parse_args()
    if unknown := set(given.kinds) - set(KINDS):
        parser.error(f"there is no kind {', '.join(sorted(unknown))}")
    failed = False
    with ray_nodes(1, 1, 1) as nodes:
        for kind in given.kinds or KINDS:
            began = time.monotonic()
            figures = KINDS[kind](nodes, given.kills, random.Random(1))
            figures["seconds"] = round(time.monotonic() - began)
            print(f"{kind}: {figures}", flush=True)
            failed |= bool(bad(figures))
    sys.exit(failed)


if __name__ == "__main__":
    main()
