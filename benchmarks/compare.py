"""weft against llama.cpp: speed, memory and start, on the same files, alternating in one run.

    python benchmarks/compare.py [--formats q4_0,q8_0] [--peer-python VENV/bin/python] [--json FILE]
                                 [--peer ik=PATH/llama-bench]

Each engine is a process of its own (`engines.py`) and works only while the other sleeps. Files of
random weights are made on demand (`make_model.py`). llama.cpp comes from `llama-cpp-python`, built
for this machine; without it weft's columns are printed all the same. `--peer` adds executables with
llama-bench's command line (`bench_peer.py`). See README.md beside this.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter, sleep
from typing import Any

import numpy as np
from bench_peer import BenchPeer, PeerError, build_clock, parse_peer
from compare_tables import print_tables
from make_model import FORMATS, Shape, add_shape_options, make_model, shape_of

import weft
from weft.errors import WeftError
from weft.frontends.gguf import open_gguf

HERE = Path(__file__).parent
PARTS = ("speed", "start", "scaling", "check")
INSTALL = "CMAKE_ARGS=-DGGML_NATIVE=ON pip install llama-cpp-python --no-binary llama-cpp-python"
PEER_FORMAT = {"i2_s": "tq2_0"}
"""What llama.cpp is given instead of a format that it does not have."""


class EngineError(Exception):
    """An engine that failed to do what was asked."""


class Child:
    """An engine's process. `about` is what it says of itself, `missing` why it is not there."""

    def __init__(self, python: str, name: str) -> None:
        self.name = name
        self.start = perf_counter()
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [python, str(HERE / "engines.py"), name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True,
        )  # fmt: skip
        self.about = self._answer()
        self.missing = self.about.get("missing")

    def ask(self, kind: str, **arguments: Any) -> dict[str, Any]:
        """The answer to a request. Raises EngineError when there is none, or a failure."""
        sleep(0.02)  # threads of the other engine that still spin go to sleep
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps({"do": kind, **arguments}) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # what it died of is told below
        return self._answer()

    def quit(self) -> None:
        """Ends the process and waits for it, so that its memory is free."""
        try:
            self.process.communicate('{"do": "quit"}\n', timeout=10)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            self.process.kill()
            self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            code = self.process.wait()
            self.errors.seek(0)
            last = self.errors.read().strip().splitlines()[-1:]
            raise EngineError(f"{self.name} ended with code {code}: {''.join(last)}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise EngineError(f"{self.name}: {answer['error']}")
        return answer


def main() -> None:
    args = _arguments()
    shape = shape_of(args)
    pythons = {"weft": sys.executable, "llama.cpp": args.peer_python}
    about, missing = _about(pythons)
    if missing:
        print(missing)
        del pythons["llama.cpp"]
    about |= {name: BenchPeer(name, command).about for name, command in args.peer.items()}
    report = _header(args, shape) | {"engines": about, "peers": list(args.peer)}
    with tempfile.TemporaryDirectory() as folder:
        try:
            args.clock = build_clock(Path(folder)) if args.processor_time and args.peer else None
        except PeerError as e:
            sys.exit(f"compare: {e}")
        report["formats"] = [measure(format, args, shape, pythons) for format in args.formats]
    print_tables(report)
    if args.json:
        args.json.write_text(json.dumps(report, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--formats", default="q4_0,q8_0,q4_K_M,f16,bf16,tq2_0,i2_s")
    parser.add_argument("--threads", "-t", type=int, default=2)
    parser.add_argument("--n-prompt", "-p", type=int, default=512)
    parser.add_argument("--n-gen", "-n", type=int, default=64)
    parser.add_argument("--repetitions", "-r", type=int, default=5)
    parser.add_argument("--parts", default=",".join(PARTS), help="what to measure")
    python = "the interpreter that has llama_cpp (default: this one)"
    parser.add_argument("--peer-python", default=sys.executable, help=python)
    peer = "one engine more, by its llama-bench; OPTIONS: default for ik -rtr 1 -fa 1"
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PATH [OPTIONS]",
                        help=peer)  # fmt: skip
    clock = "speeds per second of the processor, of one thread: for a machine with other work"
    parser.add_argument("--processor-time", action="store_true", help=clock)
    folder = "where model files are, or are made (default: build/models)"
    parser.add_argument("--dir", type=Path, default=HERE.parent / "build/models", help=folder)
    parser.add_argument("--json", type=Path, help="writes everything measured to a file")
    add_shape_options(parser)
    args = parser.parse_args()
    for name, known in (("formats", FORMATS), ("parts", PARTS)):
        values = getattr(args, name).split(",")
        if wrong := [value for value in values if value not in known]:
            parser.error(f"--{name} has {', '.join(wrong)}; choose from {', '.join(known)}")
        setattr(args, name, values)
    if args.processor_time and (args.threads != 1 or "scaling" in args.parts):
        parser.error("--processor-time is of one thread: -t 1 and --parts without scaling")
    if min(args.threads, args.n_prompt, args.n_gen, args.repetitions) < 1:
        parser.error("--threads, --n-prompt, --n-gen and --repetitions must be 1 or more")
    try:
        args.peer = dict(parse_peer(text) for text in args.peer)
        if taken := args.peer.keys() & {"weft", "llama.cpp"}:
            raise ValueError(f"--peer cannot be called {min(taken)}: that engine is there already")
        shape_of(args)
    except ValueError as e:
        parser.error(str(e))
    return args


def _about(pythons: dict[str, str]) -> tuple[dict[str, Any], str | None]:
    """What each engine says of itself, and a line for the user when llama.cpp is not there."""
    about: dict[str, Any] = {}
    for name, python in pythons.items():
        try:
            child = Child(python, name)
        except (OSError, EngineError) as e:
            if name == "weft":
                raise
            return about, f"llama.cpp: {python} does not run ({e}); see --peer-python"
        child.quit()
        if child.missing:
            return about, f"llama.cpp: {python} has no llama_cpp; install it with\n  {INSTALL}"
        about[name] = child.about
    return about, None


def _header(args: argparse.Namespace, shape: Shape) -> dict[str, Any]:
    def git(*command: str) -> str:
        package = str(Path(weft.__file__).parent)
        run = subprocess.run(["git", "-C", package, *command], capture_output=True, text=True)
        return run.stdout.strip()

    with open("/proc/cpuinfo") as file:
        names = [line.split(":", 1)[1].strip() for line in file if line.startswith("model name")]
    changed = git("status", "--porcelain", "--untracked-files=no")
    return {
        "cpu": names[0] if names else platform.processor() or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
        "weft": weft.__version__,
        "commit": git("rev-parse", "--short", "HEAD") + (", changed" if changed else ""),
        "command": " ".join(["python", *sys.argv]),
        "threads": args.threads,
        "processor_time": args.processor_time,
        "n_prompt": args.n_prompt,
        "n_gen": args.n_gen,
        "repetitions": args.repetitions,
        "shape": shape.label,
    }


def measure(
    format: str, args: argparse.Namespace, shape: Shape, pythons: dict[str, str]
) -> dict[str, Any]:
    """Measures one format with every engine; an engine that fails has its error instead."""
    names = [*pythons, *args.peer]
    result: dict[str, Any] = {"format": format, "errors": {}, "engines": {n: {} for n in names}}
    children: dict[str, Child | BenchPeer] = {}
    paths = {}
    try:
        for name in names:
            own = format if name == "weft" else PEER_FORMAT.get(format, format)
            paths[name] = find_model(own, args.dir, shape)
        result.update(_work(paths["weft"]), peer_format=PEER_FORMAT.get(format))
        run = Run(args, pythons, paths, children, result)
        run.start()
        for part in ("check", "speed", "scaling"):
            if part in args.parts:
                _progress(f"{format}: {part}")
                getattr(run, part)()
    finally:
        for name, child in children.items():
            child.quit()
            result["engines"][name]["version"] = child.about["version"]
    return result


def find_model(format: str, folder: Path, shape: Shape) -> Path:
    """The file of a format, made if it is not there, and in the page cache."""
    path = folder / f"{shape.label}-{format}.gguf"
    if not path.exists():
        _progress(f"making {path}")
        folder.mkdir(parents=True, exist_ok=True)
        try:
            make_model(path, format, shape)
        except (ValueError, WeftError) as e:
            sys.exit(f"compare: {e}")
    with open(path, "rb", buffering=0) as file:
        block = bytearray(1 << 24)
        while file.readinto(block):
            pass
    return path


def _work(path: Path) -> dict[str, float]:
    """What the matrices of a model cost: operations per prompt token, bytes read per new token.

    The output works for a prompt's last token alone. Attention and norms are not counted."""
    ops = read = 0.0
    with open_gguf(path) as file:
        used = file.get_int("llama.expert_used_count", 1)
        for t in file.tensors.values():
            if t.n_dims < 2 or t.name == "token_embd.weight":
                continue
            share = used / t.ne[2] if t.n_dims == 3 else 1.0
            read += share * t.nbytes
            ops += 0 if t.name == "output.weight" else 2 * share * t.n_elements
    return {"ops": ops, "read": read, "file": float(path.stat().st_size)}


class Run:
    """The measurements of one format. Engines take turns, and each goes first every other time."""

    def __init__(
        self,
        args: argparse.Namespace,
        pythons: dict[str, str],
        paths: dict[str, Path],
        children: dict[str, Child | BenchPeer],
        result: dict[str, Any],
    ) -> None:
        self.args, self.pythons, self.paths = args, pythons, paths
        self.children, self.result = children, result
        self.found: dict[str, dict[str, Any]] = result["engines"]
        self.flash = {name: {"pp": True, "tg": True} for name in paths}
        self.sizes = {"pp": args.n_prompt, "tg": args.n_gen}

    def start(self) -> None:
        """Starts a process and loads the model, again and again; the last ones stay."""
        n_ctx = -(-max(self.args.n_prompt, self.args.n_gen, 32) // 256) * 256
        for i in range(self.args.repetitions if "start" in self.args.parts else 1):
            for name in self._turn(i):
                if name in self.children:
                    self.children.pop(name).quit()
                if name in self.args.peer:
                    self.children[name] = BenchPeer(name, self.args.peer[name], self.args.clock)
                    self._ask(name, "load", path=str(self.paths[name]))
                    continue
                child = self.children[name] = Child(self.pythons[name], name)
                answer = self._ask(name, "load", path=str(self.paths[name]), n_ctx=n_ctx,
                                   threads=self.args.threads, flash=True)  # fmt: skip
                if answer is None:
                    continue
                self.found[name]["notes"] = answer.pop("notes")
                answer["start"] = perf_counter() - child.start
                if "start" in self.args.parts:
                    for key, value in answer.items():
                        self.found[name].setdefault(key, []).append(value)

    def check(self) -> None:
        """How far the logits of one prompt are from those with float32 activations, and from one
        another, as normalised squared errors."""
        rows = {}
        with tempfile.TemporaryDirectory() as folder:
            path = f"{folder}/logits.npy"
            if self._ask("weft", "exact", path=path) is not None:
                rows["exact"] = np.load(path).astype(np.float64)
            for name in self._turn(0):
                if name in self.args.peer:
                    continue  # it tells no logits
                ask = {"path": path, "threads": self.args.threads, "flash": True}
                if self._ask(name, "logits", **ask) is not None:
                    rows[name] = np.load(path).astype(np.float64)
        exact = rows.get("exact")
        for name in self.found:
            if name in rows and exact is not None:
                self.found[name]["nmse"] = _nmse(rows[name], exact)
        if {"weft", "llama.cpp"} <= rows.keys():
            self.result["nmse"] = _nmse(rows["weft"], rows["llama.cpp"])

    def speed(self) -> None:
        """Prompts and generation, after a warm-up that finds what suits llama.cpp best. The
        machine's peaks are measured beside them: memory is not equally fast at all times."""
        if not self.args.processor_time:
            self.result["peaks"] = self._ask("weft", "peaks", threads=self.args.threads)
        for test in ("pp", "tg"):
            self._time("weft", test, self.args.threads)
            self._choose_flash(test)
        for i in range(self.args.repetitions):
            for test in ("pp", "tg"):
                for name in self._turn(i):
                    self._sample(name, test, test, self.args.threads)

    def scaling(self) -> None:
        """Prompts with one thread and with all."""
        for i in range(-1, self.args.repetitions):
            for threads in (1, self.args.threads):
                for name in self._turn(i):
                    if i < 0:  # warm-up
                        self._time(name, "pp", threads)
                    else:
                        self._sample(name, "pp_one" if threads == 1 else "pp_all", "pp", threads)

    def _choose_flash(self, test: str) -> None:
        """llama.cpp takes the attention that is faster for this test."""
        name = "llama.cpp"
        if name not in self.children:
            return
        seconds = {}
        for flash in (False, True):
            self.flash[name][test] = flash
            self._ask(name, "pp", n=32, threads=self.args.threads, flash=flash,
                      processor=self.args.processor_time)  # its first use  # fmt: skip
            seconds[flash] = self._time(name, test, self.args.threads) or 0.0
        self.flash[name][test] = seconds[True] <= seconds[False]
        self.found[name].setdefault("flash", {})[test] = self.flash[name][test]

    def _sample(self, name: str, key: str, test: str, threads: int) -> None:
        seconds = self._time(name, test, threads)
        if seconds is not None:
            self.found[name].setdefault(key, []).append(self.sizes[test] / seconds)

    def _time(self, name: str, test: str, threads: int) -> float | None:
        answer = self._ask(
            name, test, n=self.sizes[test], threads=threads, flash=self.flash[name][test],
            processor=self.args.processor_time,
        )  # fmt: skip
        return None if answer is None else float(answer["seconds"])

    def _turn(self, i: int) -> list[str]:
        names = [n for n in self.paths if n not in self.result["errors"]]
        return names[:: -1 if i % 2 else 1]

    def _ask(self, name: str, kind: str, **arguments: Any) -> dict[str, Any] | None:
        """The answer, or nothing from an engine that failed, now or before."""
        if name in self.result["errors"]:
            return None
        try:
            return self.children[name].ask(kind, **arguments)
        except (EngineError, PeerError) as e:
            self.result["errors"][name] = str(e)
            return None


def _nmse(actual: np.ndarray, expected: np.ndarray) -> float:
    return float(((actual - expected) ** 2).sum() / (expected**2).sum())


def _progress(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
