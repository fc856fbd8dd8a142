"""Runs a folder of golden vectors and prints what passed.

    python tests/vectors/run.py KIND FOLDER [--backend cpu|reference|opencl|cuda:shim]
                                [--target NAME] [--filter GLOB] [--planes] [--sample]
                                [--places SEED] [--json] [--verbose]

KIND is ops, sched, models or vocab; FOLDER has that kind's FORMAT.md. Prints a table of failures
and skips and, last, `N passed, M failed, K skipped`; exits 1 on a failure. A skip names its reason.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

import tests.cuda_shim  # noqa: F401  (makes the device cuda:shim)
from tests.vectors import models, run_ops, run_sched, vocab
from tests.vectors.result import Options, Result

KINDS: dict[str, ModuleType] = {
    "ops": run_ops,
    "sched": run_sched,
    "models": models,
    "vocab": vocab,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("kind", choices=sorted(KINDS))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--backend", default="cpu", help="cpu (default), or another device")
    parser.add_argument("--target", default=None, help="kernel target of the cpu backend")
    parser.add_argument("--filter", default="*", help="glob over case names")
    parser.add_argument("--planes", action="store_true", help="ops on weights in planes")
    parser.add_argument("--sample", action="store_true", help="ops: one case of each op and type")
    parser.add_argument("--places", type=int, help="models: weights at random, by this number")
    parser.add_argument("--json", action="store_true", help="print results as JSON lines")
    parser.add_argument("--verbose", action="store_true", help="print what passed, too")
    args = parser.parse_args(argv)
    if not args.folder.is_dir():
        print(f"no folder {args.folder}", file=sys.stderr)
        return 2
    options = Options(args.backend, args.target, args.filter, args.planes, args.sample, args.places)
    counts: Counter[str] = Counter()
    skips: Counter[str] = Counter()
    for result in run(args.kind, args.folder, options):
        counts[result.status] += 1
        if result.status == "skipped":
            skips[result.message] += 1
        if args.json:
            print(json.dumps(result._asdict()))
        elif result.status == "failed" or args.verbose:
            print(f"{result.status:8} {result.name:60} {result.message}")
    if not args.json:
        for reason, n in skips.most_common():
            print(f"skipped {n} x {reason}")
    print(f"{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 1 if counts["failed"] else 0


def run(kind: str, folder: Path, options: Options) -> Iterator[Result]:
    """Results of every case of a folder whose name matches the filter."""
    for result in KINDS[kind].run(folder, options):
        if fnmatch.fnmatch(result.name, options.filter):
            yield result


if __name__ == "__main__":
    sys.exit(main())
