"""A driver in a process of its own: child.py NAME SEED SECONDS MOST LAST [ROUND...], or NAME again
ROUND. Rounds behind LAST run before those that SEED draws.

With WEFT_FUZZ_NATIVE that module is taken for `weft._native` (one with sanitizers)."""

from __future__ import annotations

import faulthandler
import importlib
import json
import os
import sys
import tempfile
import traceback
import warnings
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

from tests.fuzz.rounds import Round, Unclean, again, rounds


def driver(name: str, folder: Path) -> Round:
    """The driver `tests/fuzz/NAME.py`, ready in a folder for its files."""
    module = importlib.import_module(f"tests.fuzz.{name}")
    if not hasattr(module, "prepare"):
        return lambda rng: "taken" if module.run(rng.getrandbits(48), 1) else "refused"
    one: Round = module.prepare(folder)
    return one


def main(arguments: list[str]) -> int:
    """The exit status: 0 clean, 1 not."""
    faulthandler.enable()
    warnings.simplefilter("ignore")
    _take_native()
    name, first, *rest = arguments
    with tempfile.TemporaryDirectory() as folder:
        one = driver(name, Path(folder))
        try:
            if first == "again":
                print(again(one, int(rest[0], 16)))
                return 0
            seconds, most, last = float(rest[0]), int(rest[1]), Path(rest[2])
            for number in rest[3:]:
                last.write_text(number)
                again(one, int(number, 16))
            counts = rounds(one, int(first), seconds, most=most or None, last=last)
        except Unclean as error:
            traceback.print_exception(error)
            return 1
    print(json.dumps(counts))
    return 0


def _take_native() -> None:
    path = os.environ.get("WEFT_FUZZ_NATIVE")
    if path is None:
        return
    spec = spec_from_file_location("weft._native", path)
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules["weft._native"] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    status = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(status)  # threads of a server, and leaks of other packages, are not looked at
