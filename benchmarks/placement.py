"""Placement by predicted time against the reference's rules, on its own transformer graphs.

    python benchmarks/placement.py CASES.jsonl.gz [--all]

CASES is the golden scheduler file (`vectors/sched`). Every graph of kind `llama` is placed both
ways for a made-up machine: GPUs of 80 TFLOPS and 1000 GB/s behind links of 25 GB/s and 10
microseconds, a BLAS of 2 TFLOPS and a CPU of 1 TFLOPS at 60 GB/s. Prints predicted times, and what
moved most; `--all` also where nothing is gained.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tests.vectors.sched import Driver, GraphCase, load_cases
from weft.schedule import CostOptions, Profile, Schedule, TimeModel, schedule
from weft.schedule.explain import seconds_text
from weft.schedule.profile import DeviceProfile, LinkProfile, MemoryProfile

US = 1e-6
# kind -> GB/s, TFLOPS, TFLOPS beside products, microseconds of an op and of a split
FIGURES = {
    "GPU": (1000, 80, 40, 5, 20),
    "ACCEL": (60, 2, 2, 5, 5),
    "CPU": (60, 1, 0.3, 1, 2),
}


def machine(case: dict[str, Any]) -> Profile:
    """The devices of a case with those figures."""
    memories: dict[str, MemoryProfile] = {}
    devices = []
    for b in case["backends"]:
        buffer_type = case["bufts"][b["buft"]]
        name = "RAM" if buffer_type["is_host"] else buffer_type["name"]
        memories[name] = MemoryProfile(name, buffer_type["is_host"])
        bandwidth, products, vector, launch, start = FIGURES[b["dev_type"]]
        flops = {"default": products * 1e12, "vector": vector * 1e12}
        devices.append(
            DeviceProfile(
                b["name"], b["dev_type"], name, bandwidth * 1e9, flops, launch * US, start * US
            )
        )
    links = {}
    for name in memories:
        if name != "RAM":
            links["RAM", name] = links[name, "RAM"] = LinkProfile(25e9, 10 * US)
    return Profile("made up", tuple(devices), memories, links)


def moves(a: Schedule, b: Schedule) -> str:
    """`31 MUL_MAT GPU0 -> CPU` of the ops that moved most."""
    counts: Counter[str] = Counter()
    for node in a.graph.nodes:
        old, new = a.backend_for(node), b.backend_for(node)
        if not node.op.is_view and old is not None and new is not None and old is not new:
            counts[f"{node.op.name} {old.name} -> {new.name}"] += 1
    return ", ".join(f"{n} {what}" for what, n in counts.most_common(3))


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", type=Path)
    parser.add_argument("--all", action="store_true")
    args = parser.parse_args()
    ratios, searched = [], 0.0
    print("case       nodes  splits        rules      by time  ratio  moved")
    for case in load_cases(args.cases):
        if case["kind"] != "llama":
            continue
        driver = Driver(case)
        graph = GraphCase(case, driver.buffer_types).graph
        how = {"op_offload": case["op_offload"], "n_copies": case["n_copies"]}
        cost = CostOptions(machine(case))
        rules = schedule(graph, driver.backends, **how)
        start = time.perf_counter()
        scheduled = schedule(graph, driver.backends, "cost", **how, cost=cost)
        searched += time.perf_counter() - start
        model = TimeModel(cost.profile, graph, driver.backends)
        before, after = model.predict(rules).total, model.predict(scheduled).total
        ratios.append(after / before)
        if args.all or ratios[-1] < 0.999:
            splits = f"{len(rules.splits)} -> {len(scheduled.splits)}"
            print(
                f"{case['id']:<10} {len(graph.nodes):>5}  {splits:<10}  {seconds_text(before):>8}  "
                f"{seconds_text(after):>10}  {ratios[-1]:>5.2f}  {moves(rules, scheduled)}"
            )
    lower = sum(r < 0.999 for r in ratios)
    print(
        f"{len(ratios)} graphs: {lower} faster, {sum(r > 1 for r in ratios)} slower; ratio at best "
        f"{min(ratios):.2f}, median {statistics.median(ratios):.2f}, at worst {max(ratios):.2f}; "
        f"{searched / len(ratios):.2f} s a search"
    )


if __name__ == "__main__":
    main()
