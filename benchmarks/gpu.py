"""GPUs in one go, in less than ten minutes: which there are, whether they are right, how fast.

    python benchmarks/gpu.py [--devices cuda:0,webgpu:0] [--json FILE]
    python benchmarks/gpu.py --devices cuda --shapes 8b --formats q4_K_M --llama-bench PATH
    python benchmarks/gpu.py --dry           lavapipe, PoCL and the shim, a tiny model: does it run?
    python benchmarks/gpu.py --registers     registers and occupancy of the CUDA kernels, no GPU

Every GPU that CUDA, WebGPU or OpenCL reaches is first examined: the op cases of `weft doctor`
beside NumPy, the first case of each op first. Then models of random weights (`make_model.py`) are
measured there: tokens at the start of a text and behind a long one, prompts, several texts at once,
and the share of the memory's bandwidth that tokens take. Each of these is a process with a time
limit; what did not finish, and what ended with an error, is named. `--json` has all of it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from time import monotonic

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import weft
from benchmarks.gpu_parts import Record, Speeds, exam, model_file, speeds
from benchmarks.make_model import FORMATS, SHAPES, Shape
from weft.backends import known_backends, make_backend
from weft.errors import DeviceError

ROOT = Path(__file__).resolve().parents[1]
INTERFACES = ("cuda", "webgpu", "opencl")
TINY = Shape(256, 1, 4, 2, 256, n_vocab=512, n_ctx=256)
DRY = Speeds(n_prompt=16, n_gen=4, n_long=24, texts=(2,), n_steps=2, repetitions=1)
SHIM = "cuda:shim-unchecked"


@dataclass
class Part:
    """A process that prints a record in each line."""

    name: str
    """What it does, such as `exam of cuda:0`."""
    what: str
    """The value of `--part`: `exam` or `speeds`, the device, the shape and format of a model."""
    seconds: float
    """The time limit."""
    options: tuple[str, ...] = ()
    """Other options of the process."""


@dataclass
class Done:
    """What came of a part."""

    name: str
    records: list[Record]
    seconds: float
    ended: str
    """Empty where it finished; else how it ended, in words."""


def main() -> None:
    """Runs the parts, and prints a table for each device."""
    args = arguments()
    if args.part:
        run_here(args)
        return
    if args.registers:
        from benchmarks.gpu_registers import print_table

        print_table()
        return
    start = monotonic()
    report: Record = {"weft": weft.__version__, "devices": devices(), "parts": []}
    for found in report["devices"]:
        print(f"{found['name']:<12}{found['description'] or found['why_not']}", flush=True)
    wanted = args.devices or [d["name"] for d in report["devices"] if d["is_gpu"]]
    if args.dry:
        wanted = args.devices or [*(d["name"] for d in report["devices"] if not d["why_not"]), SHIM]
    if not wanted:
        print("no GPU was found; --dry tries the script on the processor", file=sys.stderr)
    end = start + args.seconds
    for part in parts(args, wanted):
        done = run_part(replace(part, seconds=min(part.seconds, max(end - monotonic(), 0.0))))
        report["parts"].append(asdict(done))
        print("\n".join(lines(done)), flush=True)
    unfinished = [f"{p['name']}: {p['ended']}" for p in report["parts"] if p["ended"]]
    report["unfinished"] = unfinished
    print(f"\n{monotonic() - start:.0f} s; " + (f"{len(unfinished)} parts did not finish"
          if unfinished else "all parts finished"))  # fmt: skip
    for text in unfinished:
        print(f"  {text}")
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def arguments(words: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line; `--dry` has sizes and times of its own."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--devices", "--device", help="default: every GPU, by each interface")
    parser.add_argument("--formats", default="q4_0,q4_K_M,f16")
    parser.add_argument("--shapes", default="1b", help=f"of {', '.join(SHAPES)}")
    parser.add_argument("--n-long", type=int, default=Speeds.n_long, help="tokens of a long text")
    parser.add_argument("--bandwidth", type=float, help="GB/s of the memory, if no driver says it")
    parser.add_argument("--seconds", type=float, help="for all parts together; default: 570")
    parser.add_argument("--exam-seconds", type=float, help="for the exam of a device; default: 60")
    parser.add_argument("--speed-seconds", type=float, help="for a model on a device; default: 90")
    parser.add_argument("--cases", type=int, help="the most cases of an exam; default: all")
    parser.add_argument("--llama-bench", type=Path, help="the executable of llama.cpp")
    parser.add_argument("--dir", type=Path, default=ROOT / "build/models")
    parser.add_argument("--json", type=Path, help="writes everything to a file")
    parser.add_argument("--dry", action="store_true", help="devices on processors, a tiny model")
    parser.add_argument("--registers", action="store_true", help="of the CUDA kernels; no GPU")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    args = parser.parse_args(words)
    defaults = (60.0, 20.0, 20.0) if args.dry else (570.0, 60.0, 90.0)
    for name, default in zip(("seconds", "exam_seconds", "speed_seconds"), defaults, strict=True):
        if getattr(args, name) is None:
            setattr(args, name, default)
        elif not getattr(args, name) > 0:
            parser.error(f"--{name.replace('_', '-')} is {getattr(args, name)}; give more than 0")
    for name, known in (("formats", FORMATS), ("shapes", SHAPES)):
        chosen = getattr(args, name).split(",")
        if wrong := [one for one in chosen if one not in known]:
            parser.error(f"--{name} has {', '.join(wrong)}; choose from {', '.join(known)}")
        setattr(args, name, ["tiny"] if args.dry and name == "shapes" else chosen)
    if args.n_long < 1:
        parser.error(f"--n-long is {args.n_long}; it must be 1 or more")
    if args.cases is not None and args.cases < 1:
        parser.error(f"--cases is {args.cases}; it must be 1 or more")
    if args.dry:
        args.formats, args.cases = args.formats[:1], args.cases or 8
    args.devices = args.devices.split(",") if args.devices else []
    return args


def devices() -> list[Record]:
    """Every device of the interfaces, as `weft devices` lists it."""
    found = []
    for info in known_backends():
        if info.name.partition(":")[0] in INTERFACES:
            found.append(asdict(info) | {"is_gpu": info.available and is_gpu(info.name)})
    return found


def is_gpu(name: str) -> bool:
    """Whether a device is a GPU, and not a processor that a driver presents as one."""
    try:
        return make_backend(name).kind in ("GPU", "IGPU")
    except DeviceError:
        return False


def parts(args: argparse.Namespace, wanted: Sequence[str]) -> Iterator[Part]:
    """All exams, then the models, each on every device before the next."""
    for device in wanted:
        most = () if args.cases is None else ("--cases", str(args.cases))
        yield Part(f"exam of {device}", f"exam,{device}", args.exam_seconds, most)
    same = ["--dry"] if args.dry else ["--n-long", str(args.n_long), "--dir", str(args.dir)]
    for name, value in (("--bandwidth", args.bandwidth), ("--llama-bench", args.llama_bench)):
        same += [name, str(value)] if value else []
    for shape in args.shapes:
        for format in args.formats:
            for device in wanted:
                what = f"speeds,{device},{shape},{format}"
                yield Part(f"{shape} {format} on {device}", what, args.speed_seconds, (*same,))


def run_here(args: argparse.Namespace) -> None:
    """Does a part in this process: prints its records, a line each."""
    what, device, *rest = args.part.split(",")
    if device.startswith("cuda:shim"):
        import tests.cuda_shim  # noqa: F401  (makes the device)
    if what == "exam":
        found = islice(exam(device), args.cases)
    else:
        shape, wanted = SHAPES.get(rest[0], TINY), Speeds(n_long=args.n_long)
        shape = TINY if args.dry else replace(shape, n_ctx=2 * args.n_long)
        wanted = replace(DRY if args.dry else wanted, llama_bench=args.llama_bench)
        path = model_file(args.dir, rest[1], shape)
        found = speeds(path, device, (args.bandwidth or 0) * 1e9 or bandwidth(device), wanted)
    for record in found:
        print(json.dumps(record), flush=True)


def bandwidth(device: str) -> float:
    """Bytes per second of a GPU's memory by NVIDIA's driver, also where another interface reaches
    it; 0: not known."""
    from weft.backends.cuda.devices import find_devices, pick

    kind, _, suffix = device.partition(":")
    try:
        if kind == "cuda":
            return float(pick(suffix or None).bandwidth)
        name = next((d["description"] for d in devices() if d["name"] == device), "")
        return float(next((d.bandwidth for d in find_devices() if d.name in name), 0))
    except DeviceError:
        return 0.0


def run_part(part: Part, command: Sequence[str] | None = None) -> Done:
    """Runs a part in a process of its own (`command` in its place), which is ended at the time
    limit; records that it printed before are kept."""
    start = monotonic()
    if part.seconds <= 0:
        return Done(part.name, [], 0.0, "not begun: no time was left")
    if command is None:
        command = [sys.executable, __file__, "--part", part.what, *part.options]
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(command, stdout=out, stderr=errors, cwd=ROOT)
        ended = ""
        try:
            code = process.wait(part.seconds)
        except subprocess.TimeoutExpired:
            ended = f"its {part.seconds:.0f} s were over"
        except BaseException:
            _end(process)
            raise
        else:
            if code:
                errors.seek(0)
                last = errors.read().strip().splitlines()[-1:] or ["no message"]
                ended = f"ended with {code}: {last[0][:300]}"
        _end(process)
        out.seek(0)
        records = list(_records(out.read()))
    return Done(part.name, records, monotonic() - start, ended)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ends a process that may hang in a driver."""
    process.kill()
    process.wait()


def _records(text: str) -> Iterator[Record]:
    """The whole lines of a part; the last may have been cut off."""
    for line in text.split("\n")[:-1]:
        if line.startswith("{"):
            yield json.loads(line)


def lines(done: Done) -> list[str]:
    """A part as text."""
    head = f"\n{done.name} ({done.seconds:.0f} s)" + (f": {done.ended}" if done.ended else "")
    if done.name.startswith("exam"):
        count = Counter(_kind(record) for record in done.records)
        ops = len({r["op"] for r in done.records if r["result"] == "ok"})
        text = f"  {count['ok']} cases of {ops} ops are right, {count['refused']} are refused, "
        wrong = [f"  {r['case']}: {r['result']}" for r in done.records if _kind(r) == "wrong"]
        return [head, f"{text}{count['wrong']} are wrong", *wrong]
    return [head, *map(_speed_line, done.records)]


def _kind(record: Record) -> str:
    return record["result"] if record["result"] in ("ok", "refused") else "wrong"


def _speed_line(row: Record) -> str:
    share = f"{row['share']:7.0%} of the bandwidth" if row.get("share") else ""
    peer = f"   llama.cpp {row['peer']:10.1f}" if row.get("peer") else ""
    return f"  {row['test']:<18}{row['speed']:10.1f} tokens/s{peer}{share}"


if __name__ == "__main__":
    main()
