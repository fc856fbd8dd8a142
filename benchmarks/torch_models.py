"""`weft.from_torch` against eager PyTorch, inductor, ONNX Runtime and OpenVINO, on the programs of
`torch_programs.py`.

    python benchmarks/torch_models.py [--only vit_tiny,levit] [--peers eager,openvino] [--threads 2]

Weights are random, so nothing is downloaded. All engines compute in float32 with the same number of
threads (one, unless `--threads` says otherwise) and take turns: an untimed call each, then rounds
of as many calls as fit in 0.3 s. Times of one thread are those of the processor, so that other
programs on the machine count little; times of several are those of the clock. A cell has the median
of the rounds and, in brackets, the least. `best peer / weft` is the time of the fastest peer over
the time of weft: above 1, weft is faster. `apart` is the
largest difference from eager's result, in parts of its largest number. Needs torch, transformers
and, for inductor (mode max-autotune), a C++ compiler; ONNX Runtime and OpenVINO are peers where
they are installed (`pip install onnxruntime onnx onnxscript openvino`).

With `--int8`, linear layers are quantized, with activations that are quantized in every call: by
torchao for weft, eager and inductor, by `quantize_dynamic` for ONNX Runtime. OpenVINO stays float.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

warnings.simplefilter("ignore")

import torch  # noqa: E402
from torch_programs import MODELS  # noqa: E402

import weft  # noqa: E402
from weft.backends import make_backend  # noqa: E402

Call = Callable[[torch.Tensor], Any]


def eager(module: torch.nn.Module, x: torch.Tensor, threads: int) -> Call:
    return module


def inductor(module: torch.nn.Module, x: torch.Tensor, threads: int) -> Call:
    return torch.compile(module, mode="max-autotune")


def onnx_runtime(module: torch.nn.Module, x: torch.Tensor, threads: int) -> Call:
    return _onnx_session(module, x, threads, int8=False)


def onnx_runtime_int8(module: torch.nn.Module, x: torch.Tensor, threads: int) -> Call:
    return _onnx_session(module, x, threads, int8=True)


def _onnx_session(module: torch.nn.Module, x: torch.Tensor, threads: int, *, int8: bool) -> Call:
    model = torch.onnx.export(module, (x,), dynamo=True, verbose=False).model_proto
    if int8:
        from onnxruntime.quantization import quantize_dynamic

        with tempfile.NamedTemporaryFile(suffix=".onnx") as file:
            quantize_dynamic(model, file.name, per_channel=True)
            return _session_of(Path(file.name).read_bytes(), threads)
    return _session_of(model.SerializeToString(), threads)


def _session_of(model: bytes, threads: int) -> Call:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    return lambda x: session.run(None, {name: x.numpy()})[0]


def openvino(module: torch.nn.Module, x: torch.Tensor, threads: int) -> Call:
    import openvino as ov

    model = ov.convert_model(torch.export.export(module, (x,)))
    settings = {"INFERENCE_NUM_THREADS": threads, "NUM_STREAMS": 1}
    exact = {"INFERENCE_PRECISION_HINT": "f32", "PERFORMANCE_HINT": "LATENCY"}
    compiled = ov.compile_model(model, "CPU", settings | exact)
    return lambda x: compiled([x.numpy()])[0]


PEERS: dict[str, tuple[str, Callable[[torch.nn.Module, torch.Tensor, int], Call], list[str]]] = {
    "eager": ("eager", eager, []),
    "inductor": ("inductor", inductor, []),
    "onnxruntime": ("ONNX Runtime", onnx_runtime, ["onnxruntime", "onnx", "onnxscript"]),
    "openvino": ("OpenVINO", openvino, ["openvino"]),
}
"""Title, maker and packages of each peer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--only", help=f"names, separated by commas, of {', '.join(MODELS)}")
    parser.add_argument("--peers", default=",".join(PEERS), help="default: %(default)s")
    parser.add_argument("--threads", type=int, default=1, help="threads of each engine (1)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--int8", action="store_true", help="linear layers are quantized")
    args = parser.parse_args()
    names = chosen(parser, "--only", args.only, MODELS)
    peers = [peer for peer in chosen(parser, "--peers", args.peers, PEERS) if is_there(peer)]
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    packages = ["torch", "transformers", *(p for peer in peers for p in PEERS[peer][2])]
    versions = ", ".join(f"{package} {version(package)}" for package in packages)
    types = "dynamic int8" if args.int8 else "float32"
    print(f"{args.threads} thread(s), {types}; {versions}\n")
    titles = ["weft", *(PEERS[peer][0] for peer in peers)]
    print(f"| model | {' | '.join(f'{t} ms' for t in titles)} | best peer / weft | apart |")
    print(f"|---|{'---|' * len(titles)}---|---|", flush=True)
    for name in names:
        print(row(name, peers, args.rounds, args.threads, int8=args.int8), flush=True)


def chosen(
    parser: argparse.ArgumentParser, option: str, given: str | None, known: Iterable[str]
) -> list[str]:
    """The names that an option has, or all; ends the program where one is unknown."""
    names = given.split(",") if given else list(known)
    if unknown := [name for name in names if name not in known]:
        parser.error(f"{option} has {', '.join(unknown)}; choose from {', '.join(known)}")
    return names


def is_there(peer: str) -> bool:
    """Whether the packages of a peer are installed; says on standard error which are not."""
    title, _, packages = PEERS[peer]
    missing = [name for name in packages if find_spec(name) is None]
    if missing:
        print(f"{title} is left out: pip install {' '.join(missing)}", file=sys.stderr)
    return not missing


def row(name: str, peers: Sequence[str], rounds: int, threads: int, *, int8: bool) -> str:
    module, x = MODELS[name]()
    floats = module.eval()
    if int8:
        module = quantized(floats)
    backend = make_backend("cpu", n_threads=threads)
    engines: dict[str, Call] = {}
    try:
        engines["weft"] = weft.from_torch(module, (x,), devices=[backend])
        engines["weft"](x)
    except Exception as e:
        return f"| {name} | {type(e).__name__}: {str(e)[:80]} |"
    with torch.no_grad():
        for key in peers:
            try:
                make = PEERS[key][1]
                if int8 and key == "onnxruntime":
                    make = onnx_runtime_int8
                engine = make(floats if key in ("onnxruntime", "openvino") else module, x, threads)
                engine(x)
                engines[key] = engine
            except Exception as e:
                print(f"{name}: {PEERS[key][0]} failed: {str(e)[:200]}", file=sys.stderr)
        expected, got = (torch.as_tensor(run(x)) for run in (module, engines["weft"]))
        apart = float((expected - got).abs().max() / expected.abs().max())
        times = timed(engines, x, rounds, threads)
    ms = [
        f"{times[key][0] * 1e3:.4g} ({times[key][1] * 1e3:.4g})" if key in times else "-"
        for key in ("weft", *peers)
    ]
    ratio = "-"
    if best := min((key for key in times if key != "weft"), key=times.__getitem__, default=""):
        median, least = (times[best][i] / times["weft"][i] for i in (0, 1))
        ratio = f"{median:.2f}x ({least:.2f}x) {PEERS[best][0]}"
    return f"| {name} | {' | '.join(ms)} | {ratio} | {apart:.1e} |"


def quantized(module: torch.nn.Module) -> torch.nn.Module:
    """The module with linear layers of int8 that quantize their inputs."""
    from torchao.quantization import Int8DynamicActivationInt8WeightConfig, quantize_

    copied = copy.deepcopy(module)
    quantize_(copied, Int8DynamicActivationInt8WeightConfig())
    return copied


def timed(
    engines: Mapping[str, Call], x: torch.Tensor, rounds: int, threads: int
) -> dict[str, tuple[float, float]]:
    """Median and least seconds of a call of each engine: of the processor for one thread, else of
    the clock."""
    clock = time.process_time if threads == 1 else time.perf_counter
    samples: dict[str, list[float]] = {key: [] for key in engines}
    for number in range(rounds):
        for key in list(engines)[:: -1 if number % 2 else 1]:
            engines[key](x)
            samples[key].append(statistics.median(calls(engines[key], x, clock)))
    return {key: (statistics.median(values), min(values)) for key, values in samples.items()}


def calls(
    run: Call, x: torch.Tensor, clock: Callable[[], float], seconds: float = 0.3
) -> Iterator[float]:
    end = clock() + seconds
    while (start := clock()) < end:
        run(x)
        yield clock() - start


if __name__ == "__main__":
    main()
