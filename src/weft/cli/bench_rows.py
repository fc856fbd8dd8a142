"""The rows of `weft bench`, with llama-bench's names of fields where it has them."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from weft.backends.base import UsesThreads
from weft.backends.cpu.record import processor_name
from weft.backends.kernels import KernelBackend
from weft.cli.bench_tests import BenchTest
from weft.llm import Context, Model
from weft.llm.cache.cache_types import CacheTypes
from weft.llm.model_name import model_name
from weft.records import dataclass
from weft.version import __version__

Row = dict[str, Any]

OWN_FIELDS = (
    *("engine", "test", "backend", "n_threads_batch", "activations", "nodes", "barriers"),
    *("use_mmap", "use_direct_io", "profile"),
)
"""Fields of JSON and CSV that llama-bench does not have, and two of its older versions."""

DEFAULTS: dict[str, Any] = {
    "n_gpu_layers": -1, "cpu_mask": "0x0", "cpu_strict": False, "poll": 50, "n_batch": 2048,
    "n_ubatch": 512, **CacheTypes()._asdict(), "no_kv_offload": False, "flash_attn": -1,
    "devices": "auto", "embeddings": False, "no_op_offload": 0,
}  # fmt: skip
"""Default values of options; a table omits a column in which every row has the default."""

_FLASH = {"auto": -1, "off": 0, "0": 0, "false": 0}
_BACKENDS = {"cuda": "CUDA", "opencl": "OpenCL", "blas": "BLAS", "webgpu": "WebGPU"}


@dataclass(frozen=True, slots=True)
class Setting:
    """The settings of a context: the options as they were typed, and the size of a batch."""

    typed: Mapping[str, Any]
    n_batch: int
    embeddings: bool

    def fields(self) -> Row:
        """The fields that decide the speed, besides model and test."""
        typed = self.typed
        devices = typed["devices"]
        overrides = ";".join(typed["place"] or ()) or "none"
        layers = typed["n_gpu_layers"]
        return {
            "n_batch": self.n_batch,
            "n_ubatch": typed["n_ubatch"] or DEFAULTS["n_ubatch"],
            "cpu_mask": typed["cpu_mask"] or DEFAULTS["cpu_mask"],
            "cpu_strict": bool(typed["cpu_strict"]),
            "poll": typed["poll"],
            **{name: typed[name] or DEFAULTS[name] for name in CacheTypes._fields},
            "n_gpu_layers": DEFAULTS["n_gpu_layers"] if layers is None else layers,
            "n_cpu_moe": 0,
            "split_mode": "layer",
            "main_gpu": 0,
            "no_kv_offload": bool(typed["no_kv_offload"]),
            "flash_attn": _FLASH.get(str(typed["flash"]).lower(), 1),
            "devices": "auto" if devices is None else devices.replace(",", "/"),
            "tensor_split": "0.00",
            "tensor_buft_overrides": overrides,
            "load_mode": "mmap",
            "embeddings": self.embeddings,
            "no_op_offload": int(typed["no_op_offload"]),
            "no_host": False,
            "fit_target": 0,
            "fit_min_ctx": 0,
        }


class Result(NamedTuple):
    """A test and its times, one per repetition, in nanoseconds."""

    test: BenchTest
    samples: Sequence[int]
    began: datetime


def result_row(path: Path, model: Model, context: Context, setting: Setting, result: Result) -> Row:
    """The fields in llama-bench's order, then weft's own."""
    test = result.test
    threads, threads_batch = _threads(context)
    asked = setting.fields()
    return {
        **_machine(context),
        **_model(path, model),
        **{name: asked.pop(name) for name in ("n_batch", "n_ubatch")},
        "n_threads": threads if test.n_gen else threads_batch,
        **asked,
        "n_prompt": test.n_prompt,
        "n_gen": test.n_gen,
        "n_depth": test.n_depth,
        **_times(result),
        "engine": "weft",
        "test": test.name,
        "backend": ",".join(b.name for b in context.program.devices),
        "n_threads_batch": threads_batch,
        "activations": str(setting.typed["activations"]),
        "nodes": len(context.plan.plan.schedule.graph.nodes),
        "barriers": context.barriers,
        "use_mmap": True,
        "use_direct_io": False,
    }


def _times(result: Result) -> Row:
    samples = list(result.samples)
    speeds = [result.test.n_tokens * 1e9 / ns for ns in samples]
    several = len(samples) > 1
    return {
        "test_time": result.began.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "avg_ns": round(statistics.fmean(samples)),
        "stddev_ns": round(statistics.stdev(samples)) if several else 0,
        "avg_ts": statistics.fmean(speeds),
        "stddev_ts": statistics.stdev(speeds) if several else 0.0,
        "samples_ns": samples,
        "samples_ts": speeds,
    }


def _machine(context: Context) -> Row:
    names = dict.fromkeys(b.name.partition(":")[0] for b in context.program.devices)
    others = [_BACKENDS.get(name, name) for name in names if name != "cpu"]
    return {
        "build_commit": __version__,
        "build_number": 0,
        "cpu_info": processor_name(),
        "gpu_info": _gpus(context),
        "backends": ",".join(others) or "CPU",
    }


def _gpus(context: Context) -> str:
    """The names of devices with memory of their own, from their drivers."""
    used = {b.name for b in context.program.devices}
    chosen: list[Any] = [b for b in context.plan.backends if isinstance(b, KernelBackend)]
    return ", ".join(b.device.description for b in chosen if b.name in used)


def _model(path: Path, model: Model) -> Row:
    tensors = model.file.tensors.values()
    return {
        "model_filename": str(path),
        "model_type": model_name(model),
        "model_size": sum(t.nbytes for t in tensors),
        "model_n_params": sum(t.n_elements for t in tensors),
    }


def _threads(context: Context) -> tuple[int, int]:
    """The number of threads of the cpu device for single tokens, and for several."""
    devices = [b for b in context.program.devices if isinstance(b, UsesThreads)]
    return next(((b.n_threads, b.n_threads_batch) for b in devices), (0, 0))


def is_shown(field: str, values: Sequence[Any]) -> bool:
    """True if a table has a column for an option, because it varies or is not the default."""
    return len(set(values)) > 1 or values[0] != DEFAULTS.get(field, values[0])
