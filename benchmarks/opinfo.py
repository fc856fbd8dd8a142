"""PyTorch's own database of operators through `weft.from_torch`, against eager PyTorch.

    python benchmarks/opinfo.py OUT.jsonl [--dtype float32] [--samples 4] [--part 1/8] [--only NAME]
    python benchmarks/opinfo.py OUT.jsonl --table

Every operator gets up to `--samples` of its sample inputs, and each is exported, converted, run on
the cpu device and compared. A line of OUT.jsonl per operator says what became of them:

- equal: all samples that eager and the exporter take give eager's results;
- partly: some do, the others are refused;
- refused: all are, with a weft error that says why;
- wrong: a result differs; exception: weft raised something that is no weft error;
- not counted: eager or `torch.export` fails.

Indices of `topk` are not compared, as PyTorch promises no order of equal values, nor are the values
of `empty`. Random numbers are drawn from the seed that PyTorch's database sets before each call.

Operators already in OUT.jsonl are left out, so that a run goes on where another was stopped.
"""

from __future__ import annotations

import argparse
import json
import signal
import warnings
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils import _pytree as pytree

import weft
from weft.errors import WeftError

LIMIT_S = 60
"""An operator that takes longer counts as an exception."""

SEED = 42
"""The seed that the database sets before it calls an operator that draws random numbers."""


class Called(torch.nn.Module):
    """An operator with its samples: tensors are arguments, the rest is fixed."""

    def __init__(self, op: Any, samples: list[Any]) -> None:
        super().__init__()
        self.op = op
        leaves, self.spec = pytree.tree_flatten([(s.input, s.args, s.kwargs) for s in samples])
        self.fixed = [None if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        self.places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors = tuple(leaves[i].detach().clone() for i in self.places)

    def forward(self, *tensors: torch.Tensor) -> Any:
        """Calls the operator once for each sample."""
        leaves = list(self.fixed)
        for i, tensor in zip(self.places, tensors, strict=True):
            leaves[i] = tensor
        calls = pytree.tree_unflatten(leaves, self.spec)
        return [self.op(first, *args, **kwargs) for first, args, kwargs in calls]


def outcome(op: Any, samples: list[Any], name: str = "") -> tuple[str, str]:
    """What became of samples in one program, and the reason."""
    module = Called(op, samples).eval()
    try:
        want = module(*(t.clone() for t in module.tensors))
        program = torch.export.export(module, module.tensors)
    except Exception as error:
        return "not counted", _short(error)
    try:
        converted = weft.from_torch(program)
        torch.manual_seed(SEED)
        got = converted(*(t.clone() for t in module.tensors))
    except WeftError as error:
        return "refused", _short(error)
    except Exception as error:
        return "exception", _short(error)
    try:
        if name.startswith(("empty", "new_empty")):
            got, want = (pytree.tree_map(torch.zeros_like, both) for both in (got, want))
        if op is torch.topk:
            got, want = [pair[0] for pair in got], [pair[0] for pair in want]
        torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4, equal_nan=True)
    except AssertionError as error:
        return "wrong", _short(error)
    return "equal", ""


def _short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".replace("\n", " ")[:300]


def examined(op: Any, dtype: torch.dtype, limit: int) -> dict[str, Any]:
    """The line of an operator."""
    outcomes: list[tuple[str, str]] = []
    signal.alarm(LIMIT_S)
    try:
        torch.manual_seed(0)
        samples = list(islice(op.sample_inputs("cpu", dtype, requires_grad=False), limit))
        joint = outcome(
            op.op, samples, op.name
        )  # bringing a program to core ops is what takes long
        if joint[0] == "equal" or len(samples) == 1:
            outcomes = [joint] * len(samples)
        else:
            outcomes.extend(outcome(op.op, [sample], op.name) for sample in samples)
    except TimeoutError:
        outcomes.append(("exception", f"took more than {LIMIT_S} s"))
    except Exception as error:  # the sample generator's own
        outcomes.append(("not counted", _short(error)))
    finally:
        signal.alarm(0)
    return {
        "op": _name(op),
        "dtype": _plain(dtype),
        "verdict": _verdict(outcomes),
        "samples": outcomes,
    }


def _verdict(outcomes: list[tuple[str, str]]) -> str:
    kinds = {kind for kind, _ in outcomes}
    for bad in ("wrong", "exception"):
        if bad in kinds:
            return bad
    if {"equal", "refused"} <= kinds:
        return "partly"
    return next((kind for kind in ("equal", "refused") if kind in kinds), "not counted")


def _name(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


def _plain(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _late(*_: Any) -> None:
    raise TimeoutError


def _table(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for dtype in sorted({row["dtype"] for row in rows}):
        counts = Counter(row["verdict"] for row in rows if row["dtype"] == dtype)
        print(f"{dtype}: {counts.total()} operators, " + ", ".join(
            f"{n} {verdict}" for verdict, n in counts.most_common()
        ))  # fmt: skip
    for row in rows:
        for kind, why in row["samples"]:
            if kind in ("wrong", "exception"):
                print(f"{kind}: {row['op']} ({row['dtype']}): {why}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--samples", type=int, default=4)
    parser.add_argument("--part", default="1/1", help="this of so many equal parts, e.g. 2/8")
    parser.add_argument("--only", help="operators of this name")
    parser.add_argument("--table", action="store_true", help="count what OUT.jsonl has")
    args = parser.parse_args()
    if args.table:
        return _table(args.out)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, _late)
    dtype = getattr(torch, args.dtype)
    part, parts = map(int, args.part.split("/"))
    names = set()
    if args.out.exists():
        rows = map(json.loads, args.out.read_text().splitlines())
        names = {row["op"] for row in rows if row["dtype"] == args.dtype}
    ops = [op for op in op_db if dtype in op.supported_dtypes("cpu")]
    for op in ops[part - 1 :: parts]:
        if _name(op) not in names and args.only in (None, op.name):
            line = json.dumps(examined(op, dtype, args.samples))
            with args.out.open("a") as out:
                out.write(line + "\n")


if __name__ == "__main__":
    main()
