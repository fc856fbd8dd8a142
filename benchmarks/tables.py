"""Makes the tables of docs/speed.md anew, their summary there, and four rows of it in README.md.

    python benchmarks/tables.py [--only programs,models] [--targets avx2,avx512]
        [--python VENV/bin/python] [--model SMOLLM2.gguf] [--peer lcpp=PATH/llama-bench]
        [--batched lcpp=PATH/llama-batched-bench] [--start "PATH/llama-simple -m {model} -n 1 Hi"]

A table is what one benchmark prints, once for each target that this processor has. Between the
marks of a table in docs/speed.md stand the processor, the date, the commit of weft, the versions of
the peers and the command; tables of other targets stay as they are. The peers are executables of
llama.cpp and its relatives, and the packages of `--python`, an interpreter that has weft, too. Each
of these options can begin with a target and a colon (`--peer avx2:ik=PATH`), and counts for this
target only. `--list` prints the tables and their commands, `--stale` the tables that are older than
the kernels that they speak of. Nothing else should run on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE, README = ROOT / "docs/speed.md", ROOT / "README.md"
KERNELS = ("native/src/kernels", "native/src/quants", "native/src/threads")
PEERS = {
    "peer": "NAME=COMMAND of a llama-bench",
    "batched": "NAME=COMMAND of a llama-batched-bench",
    "start": "COMMAND that starts and writes one token",
}
"""Options that have commands of peers."""
TARGETS = ("amx", "avx512", "avx_vnni", "avx2", "i8mm", "dotprod", "neon")

Rows = list[list[str]]
"""The cells of a table; the first row has the titles."""


@dataclass(frozen=True)
class Table:
    """A table of docs/speed.md: a benchmark, and how its output becomes rows."""

    about: str
    command: str
    """Words after `python benchmarks/`; `{json}` is a file that it writes, `{peers}` the peers,
    `{model}` the file of `--model`, and names of `MADE` are files of random weights."""
    ratios: dict[str, str]
    """What each column of ratios is about; a ratio above 1 says that weft is faster."""
    rows: Callable[[str, str], Rows]
    """The rows from what the benchmark printed and what it wrote."""
    kernels: Sequence[str] = KERNELS
    peers: str = "peer"
    """The option of `tables.py` that has the commands of its peers."""


def printed(out: str, _: str) -> Rows:
    """The first table that a benchmark printed."""
    lines = [line for line in out.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines]


def compared(_: str, written: str) -> Rows:
    """A row for each format of `compare.py`: tokens per second of each engine, and ratios."""
    report = json.loads(written)
    engines = [name for name in report["engines"] if report["formats"][0]["engines"].get(name)]
    tests = (("pp", report["n_prompt"]), ("tg", report["n_gen"]))
    rows = [["format"]]
    for test, n in tests:
        rows[0] += [f"{test}{n}: {' / '.join(engines)}", f"{test} ratio"]
    for result in report["formats"]:
        row = [result["format"]]
        for test, _n in tests:
            speeds = {
                name: statistics.median(result["engines"][name].get(test) or [0.0])
                for name in engines
            }
            peers = [speed for name, speed in speeds.items() if name != "weft"]
            row.append(" / ".join(_rounded(speed) for speed in speeds.values()))
            best = max(peers, default=0.0)
            row.append(f"{speeds['weft'] / best:.2f}x" if best else "-")
        rows.append(row)
    return rows


def _rounded(speed: float) -> str:
    return f"{speed:.0f}" if speed >= 1000 else f"{speed:.3g}" if speed else "-"


FORMATS = "q4_0,q8_0,q4_K_M,q5_K,q6_K,q3_K,iq4_xs,mxfp4,f16,bf16,tq2_0,iq1_s,iq2_xs,iq3_s"
COMPARE = "compare.py --parts speed --n-layer 4 {peers} --json {json}"
PROGRAMS = (
    "--peers eager,onnxruntime,openvino --only resnet18,resnet50,unet,mobilenet_v2,mobilenet_v3,"
    "efficientnet_b0,convnext_tiny,bert_base,vit_small,swin_tiny,wav2vec2_base"
)
"""Inductor is left out: it compiles these for an hour, and was 1.7 to 3 times slower than weft."""
SMALL = "--only 'lstm,gru,mamba 4x256,mlp,gcn,siren,kalman'"
OF_TEXT = {"pp ratio": "prompts", "tg ratio": "tokens"}
OF_PROGRAMS = {"best peer / weft": "PyTorch programs"}
OF_SMALL = {"best peer / weft": "small PyTorch programs"}


def cases(options: dict[str, str], every: str) -> str:
    """The cases of `benches.py` with these options, and with some that every case has."""
    return shlex.join(f"{name}: {own} {every}" for name, own in options.items())


EACH = "-npl 1,8,16,32 -npp 128 -ntg 32"
TEXTS = {
    "SmolLM2-135M": f"-m {{model}} {EACH}",
    "1B shape, 4 layers, q4_0": f"-m {{1b}} {EACH}",
}
LONG = {
    f"{name}, {cache}": f"-m {{{file}}} -d {depth} -ctk {cache} -ctv {cache}"
    for name, file in (("heads of 128", "heads"), ("windows", "windows"), ("latent", "latent"))
    for cache, depth in (("f16", 16384), ("q8_0", 8192))
}
READ = shlex.join(
    f"{shape.upper()} shape, {format}: {{{shape}-{format}}}"
    for shape in ("1b", "3b", "8b")
    for format in ("q4_0", "q8_0")
)
SHAPES = {"1b": "--n-layer 4", "3b": "--shape 3b --n-layer 3", "8b": "--shape 8b --n-layer 2"}
MADE = {
    "1b": "make_model.py {file} --n-layer 4",
    **{
        f"{shape}-{format}": f"make_model.py {{file}} {options} --format {format}"
        for shape, options in SHAPES.items()
        for format in ("q4_0", "q8_0")
    },
    "heads": "make_model.py {file} --n-layer 1 --n-head 16 --n-head-kv 4 --n-vocab 2048 "
    "--n-ctx 40960",
    "windows": "make_attention.py {file} --kind windows",
    "latent": "make_attention.py {file} --kind latent",
}
"""How files of random weights are made."""
TABLES = {
    "models": Table(
        "Four layers of the shape of Llama-3.2-1B with random weights and 32,000 words, one "
        "thread, tokens per second of processor time: medians of five",
        f"{COMPARE} --formats {FORMATS} -p 128 -n 16 -r 5 -t 1 --processor-time",
        OF_TEXT, compared,
    ),
    "models-2": Table(
        "The same with two threads, tokens per second of the clock",
        f"{COMPARE} --formats q4_0,q8_0,q4_K_M,q6_K,f16 -p 128 -n 16 -r 5 -t 2",
        OF_TEXT, compared,
    ),
    "programs": Table(
        "PyTorch programs in float32, batch 1, one thread, milliseconds of processor time: medians "
        "of five, in brackets the least",
        f"torch_models.py --threads 1 {PROGRAMS}", OF_PROGRAMS, printed,
    ),
    "programs-2": Table(
        "The same with two threads, milliseconds of the clock",
        f"torch_models.py --threads 2 {PROGRAMS}", OF_PROGRAMS, printed,
    ),
    "small": Table(
        "Small and recurrent programs in the same way, one thread",
        f"torch_models.py --threads 1 {SMALL}", OF_SMALL, printed,
    ),
    "small-2": Table(
        "The same with two threads, milliseconds of the clock",
        f"torch_models.py --threads 2 {SMALL}", OF_SMALL, printed,
    ),
    "texts": Table(
        "Several texts at once, one thread: tokens per second of processor time of all texts "
        "together, prompts and generated ones: medians of three",
        f"benches.py {{peers}} --processor-time -r 3 {cases(TEXTS, '-t 1')}",
        {"ratio": "several texts"}, printed, peers="batched",
    ),
    "texts-2": Table(
        "The same with two threads, tokens per second of the clock",
        f"benches.py {{peers}} -r 3 {cases(TEXTS, '-t 2')}",
        {"ratio": "several texts"}, printed, peers="batched",
    ),
    "reading": Table(
        "Generation as bytes of weights per second beside what memory gives, in the same run: the "
        "first layers (4, 3 and 2) of shapes of 1, 3 and 8 billion weights, tokens per second of "
        "the clock, medians of three",
        f"reading.py {READ} --threads 1,2 -r 3 {{peers}}", {}, printed,
    ),
    "long": Table(
        "512 prompt tokens and 16 generated ones behind a long text in the cache, one thread, "
        "tokens per second of processor time. Random weights of q4_0: one layer of the width of "
        "Llama-3.2-1B with 16 heads of 128, 4 of them in the cache; six layers of Gemma 3 1B, five "
        "with windows of 512; two layers with DeepSeek-V2-Lite's latent",
        f"benches.py {{peers}} --processor-time -r 1 {cases(LONG, '-t 1 -p 512 -n 16')}",
        {}, printed,  # not in the summary: behind a latent, llama.cpp is faster without flash
    ),
    "start": Table(
        "Whole processes that write one token with SmolLM2-135M, two threads, the file in the "
        "system's cache: seconds, medians of seven, in brackets the least",
        "start.py {model} --threads 2 --repetitions 7 {peers}", {}, printed, ("src",), "start",
    ),
    "executorch": Table(
        "Programs of ExecuTorch, one thread, milliseconds of processor time: medians, in brackets "
        "the least",
        "executorch.py --threads 1 --processor-time", {"XNNPACK / weft": "ExecuTorch programs"},
        printed,
    ),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only", default=",".join(TABLES), help="names of tables, with commas (all of --list)"
    )
    parser.add_argument("--targets", help="targets, with commas (those of this processor)")
    python = "interpreter of the benchmarks"
    parser.add_argument("--python", action="append", default=[sys.executable], help=python)
    parser.add_argument("--model", help="the file of SmolLM2-135M")
    for option, executable in PEERS.items():
        parser.add_argument(f"--{option}", action="append", default=[], help=executable)
    parser.add_argument(
        "--list", action="store_true", help="print tables and commands, run nothing"
    )
    parser.add_argument(
        "--stale", action="store_true", help="print tables older than their kernels"
    )
    args = parser.parse_args()
    names = args.only.split(",")
    if unknown := [name for name in names if name not in TABLES]:
        parser.error(f"--only has {', '.join(unknown)}; choose from {', '.join(TABLES)}")
    if args.list:
        print("\n".join(f"{name}: {TABLES[name].command}" for name in names))
        return
    if args.stale:
        print("\n".join(stale(PAGE.read_text("utf-8"))) or "no table is older than its kernels")
        return
    own = own_targets(options_for(args.python, "")[-1])
    targets = args.targets.split(",") if args.targets else own
    if unknown := [target for target in targets if target not in own]:
        parser.error(f"--targets has {', '.join(unknown)}; choose from {', '.join(own)}")
    for name in names:
        for target in targets:
            try:
                text = measured(name, target, args)
            except (subprocess.CalledProcessError, ValueError, LookupError) as e:
                print(f"{name}, {target}: left as it was ({e})", file=sys.stderr)
                continue
            page = replaced(PAGE.read_text("utf-8"), f"{name} {target}", text)
            PAGE.write_text(replaced(page, "summary", summarized(page)), "utf-8")
            short = headlines(page)
            README.write_text(replaced(README.read_text("utf-8"), "summary", short), "utf-8")


def own_targets(python: str) -> list[str]:
    """The targets for which this processor's kernels are told apart in docs/speed.md."""
    code = "from weft import _native; print(*(n for n, score in _native.targets() if score > 0))"
    there = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True).stdout
    return [target for target in TARGETS if target in there.split()]


def measured(name: str, target: str, args: argparse.Namespace) -> str:
    """Runs the benchmark of a table for a target; returns what stands between its marks."""
    table = TABLES[name]
    python = options_for(args.python, target)[-1]
    options = [f"--peer={peer}" for peer in options_for(getattr(args, table.peers), target)]
    with tempfile.NamedTemporaryFile("r", suffix=".json") as file:
        values = {key: made(key, python) for key in MADE if f"{{{key}}}" in table.command}
        if "{model}" in table.command:
            values["model"] = args.model or no_model()
        values |= {"peers": shlex.join(options), "json": file.name}
        words = shlex.split(table.command.format(**values))
        print(f"{target}: {shlex.join(words)}", file=sys.stderr, flush=True)
        run = subprocess.run(
            [python, str(ROOT / "benchmarks" / words[0]), *words[1:]], stdout=subprocess.PIPE,
            text=True, check=True, cwd=ROOT, env={**os.environ, **environment(target)},
        )  # fmt: skip
        written = file.read()
    rows = table.rows(run.stdout, written)
    if len(rows) < 2:
        raise ValueError(f"{words[0]} printed no rows")
    versions = versions_of(run.stdout, written)
    return "\n".join([*heading(table, target, versions), "", *markdown(rows)]) + "\n"


def no_model() -> str:
    raise ValueError("it needs --model, the file of SmolLM2-135M")


def made(name: str, python: str) -> str:
    """The file of a model of `MADE`, made if it is not there."""
    file = ROOT / "build/models" / f"tables-{name}.gguf"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        words = shlex.split(MADE[name].format(file=file))
        subprocess.run([python, str(ROOT / "benchmarks" / words[0]), *words[1:]], check=True)
    return str(file)


def environment(target: str) -> dict[str, str]:
    """What keeps weft, and the peers that listen, to a target."""
    own = {"WEFT_TARGET": target, "OMP_NUM_THREADS": "1"}
    if target == "avx2":
        return own | {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2"}
    return own


def options_for(values: Iterable[str], target: str) -> list[str]:
    """The values of an option that count for a target, without its name."""
    kept = []
    for value in values:
        of, colon, rest = value.partition(":")
        if not colon or of not in TARGETS:
            kept.append(value)
        elif of == target:
            kept.append(rest)
    return kept


def versions_of(out: str, written: str) -> list[str]:
    """The peers with their versions, as a benchmark says them."""
    if written:
        engines = json.loads(written)["formats"][0]["engines"]
        return [f"{name} {e['version']}" for name, e in engines.items() if name != "weft" and e]
    line = next((line for line in out.splitlines() if "; " in line), "")
    return re.findall(r"[\w.-]+ \d[\w.+-]*", line.partition("; ")[2])


def heading(table: Table, target: str, versions: Sequence[str]) -> list[str]:
    """What a table is about, on what it was taken, and how."""
    taken = f"Target `{target}`, {processor()}, {date.today():%-d %B %Y}, weft {commit()}"
    beside = f"; {', '.join(versions)}" if versions else ""
    files = {key: f"{key}.gguf" for key in (*MADE, "model")}
    words = table.command.format(peers="--peer PEER", json="FILE", **files)
    command = f"    WEFT_TARGET={target} python benchmarks/{words}"
    return [f"{table.about}. {taken}{beside}.", "", command]


def processor() -> str:
    """The name, family, model and cores of this processor."""
    about = dict(re.findall(r"^(.+?)\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE))
    name = about.get("model name", platform.machine())
    numbers = ", ".join(f"{k} {about[k]}" for k in ("cpu family", "model") if k in about)
    return f"{len(os.sched_getaffinity(0))} cores of {name} ({numbers})"


def commit() -> str:
    return git("rev-parse", "--short", "HEAD")


def git(*command: str) -> str:
    run = subprocess.run(["git", "-C", str(ROOT), *command], capture_output=True, text=True)
    return run.stdout.strip()


LOST = re.compile(r"(?<=\| )0\.\d+x(?= )")
"""A ratio below 1 at the beginning of a cell."""


def markdown(rows: Rows) -> list[str]:
    head, *rest = [
        "| " + " | ".join(row) + " |" for row in rows if not set("".join(row)) <= set("-:|")
    ]
    return [head, "|" + "---|" * len(rows[0]), *(LOST.sub(r"**\g<0>**", row) for row in rest)]


def marks(name: str) -> tuple[str, str]:
    return f"<!-- {name}: made by benchmarks/tables.py -->\n", f"<!-- the end of {name} -->\n"


def replaced(page: str, name: str, text: str) -> str:
    """The page with new text between the marks of a table, or a new table at its end."""
    begin, end = marks(name)
    if begin not in page:
        return f"{page}\n{begin}{text}{end}"
    before, _, rest = page.partition(begin)
    return before + begin + text + end + rest.partition(end)[2]


def blocks(page: str) -> Iterable[tuple[str, str, str]]:
    """The name, the target and the text of each table of a page."""
    pattern = r"<!-- (\S+) (\S+): made by benchmarks/tables.py -->\n(.*?)<!-- the end of \1 \2 -->"
    yield from re.findall(pattern, page, re.DOTALL)


def summarized(page: str) -> str:
    """For each table and column of ratios: the least, the median and the largest ratio."""
    rows = [["what", "target", "rows", "least", "median", "greatest"]]
    for name, target, text in blocks(page):
        if not text:
            continue
        head, *cells = printed(text, "")
        for column, about in TABLES[name].ratios.items():
            found = [re.match(r"\**([\d.]+)x", row[head.index(column)]) for row in cells]
            values = sorted(float(match[1]) for match in found if match)
            threads = "two threads" if name.endswith("-2") else "one thread"
            if values:
                parts = (values[0], statistics.median(values), values[-1])
                rows.append([f"{about}, {threads}", f"`{target}`", str(len(values)),
                             *(f"{value:.2f}x" for value in parts)])  # fmt: skip
    return "\n".join(markdown(rows)) + "\n"


def headlines(page: str) -> str:
    """The rows of the summary that README.md has: one thread, AVX-512."""
    about = ("prompts", "tokens", "several texts", "PyTorch programs")
    head, line, *rows = summarized(page).splitlines()
    first = tuple(f"| {words}, one thread | `avx512` |" for words in about)
    return "\n".join([head, line, *(row for row in rows if row.startswith(first))]) + "\n"


def stale(page: str) -> Iterable[str]:
    """The tables whose kernels changed after the commit that they name."""
    for name, target, text in blocks(page):
        found = re.search(r"weft ([0-9a-f]{7,})", text)
        if not found:
            yield (
                f"{name} {target}: it names no commit of weft"
                if text
                else f"{name} {target}: empty"
            )
            continue
        since = git("log", "--oneline", f"{found[1]}..HEAD", "--", *TABLES[name].kernels)
        if since:
            n = len(since.splitlines())
            yield f"{name} {target}: {n} commit{'s' if n > 1 else ''} to its kernels since"


if __name__ == "__main__":
    main()
